"""Topics of Avro values, with a real Schema Registry: each record once, by its writer's schema."""

import base64
import json
import logging
import re
from datetime import UTC, datetime
from decimal import Decimal

import fastavro
import pytest
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark import cloudpickle

from fixtures.batches.account import ids, quiet, run, settled
from fixtures.batches.replays import replayed, rows
from fixtures.batches.workbench import events
from fixtures.commands.shell import Shell
from fixtures.kafka.broker import Record
from fixtures.kafka.registry import (
    EVENT,
    FIELDS,
    AvroTopic,
    answering,
    connection,
    record,
    typed,
    written,
)
from fixtures.kafka.topics import everything
from fixtures.spark.local import LocalEngine
from semel.audit import audit
from semel.cli import main
from semel.errors import TerminalError, UnavailableError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.runs import requarantine
from semel.runs.run import run_batch

AT = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.rest
def test_what_confluents_own_producer_wrote(avro: AvroTopic, ledger: Ledger) -> None:
    """Under two versions of a schema: a column that the older one lacks is null there, and a field
    that no column takes is passed over."""
    place = SerializationContext(avro.name, MessageField.VALUE)
    more = record(*FIELDS, ("tail", ["null", "string"]), ("other", "long"))
    more["fields"][3]["default"] = None
    for schema, rows in (
        (EVENT, events(0, 100)),
        (more, [event | {"tail": "N1", "other": 7} for event in events(50, 150)]),
    ):
        write = AvroSerializer(avro.client, json.dumps(schema))
        avro.put([write(typed(row), place) for row in rows])
    columns = {"id": "string", "n": "bigint", "at": "timestamp", "tail": "string"}
    spec = avro.spec(source={"schema": columns}, record_id=["id"])
    counts = run(ledger, spec, "r1").finalized.counts
    assert (counts.survivors, counts.duplicates_batch) == (150, 50)
    found = settled(spec)
    assert found.ids == ids(0, 150)
    assert {(row["at"], row["tail"]) for row in found.rows} == {(AT, None), (AT, "N1")}


def test_bad_values_are_set_aside(
    avro: AvroTopic, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with its reason, its offset and its bytes; also one whose schema nobody knows."""
    number = avro.register(EVENT)
    other = avro.register({"type": "string"}, name="other")
    good = written(EVENT, typed(events(0, 1)[0]), number)
    wrong = record(("id", "long"), name="Wrong")
    values = {
        b"": "malformed",
        b"\0\0\0": "malformed",
        b'{"id": "a"}': "malformed",
        good[:-1]: "malformed",
        good + b"\0": "malformed",
        written("string", "a", other): "malformed",
        b"\0" + (999_999).to_bytes(4, "big") + good[5:]: "unknown_schema",
        written(wrong, {"id": 7}, avro.register(wrong, name="wrong")): "type_mismatch",
    }
    avro.put([Record(value=None), good, *values, Record(value=None)])
    spec = avro.spec()
    run(ledger, spec, "r1")
    found = settled(spec)
    assert found.ids == ids(0, 1)
    assert [(at, reason, raw) for _, at, reason, raw in found.letters] == [
        (at, reason, raw) for at, (raw, reason) in enumerate(values.items(), 2)
    ]
    assert main(["letters", "events", "--reason", "unknown_schema"]) == 0
    said = capsys.readouterr().out
    assert "no schema 999999" in said and "offset 8" in said and "\0" not in said


ADDRESS = record(("zip", "string"), name="Address")
NESTED = record(
    *FIELDS,
    ("amount", {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}),
    ("home", "Address"),
    ("tags", {"type": "map", "values": "long"}),
    ("raw", {"type": "fixed", "name": "Three", "size": 3}),
    ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}),
)  # fmt: skip


@pytest.mark.parametrize("kind", ["parquet", pytest.param("jsonl", marks=pytest.mark.proof)])
def test_what_a_schema_can_hold(avro: AvroTopic, ledger: Ledger, kind: str) -> None:
    """Each value as it is, down to the last digit, also by a schema that refers to another one;
    the audit proves it by its own reader."""
    avro.register(ADDRESS, name="address")
    number = avro.register(NESTED, {"Address": f"{avro.name}-address"})
    row = typed(events(0, 1)[0]) | {
        "n": (1 << 63) - 1, "amount": Decimal("1234567890123456789012345678.0123456789"),
        "home": {"zip": "10115"}, "tags": {"a": 1}, "raw": b"\0\xff\1", "kind": "B",
    }  # fmt: skip
    known: dict = {}
    fastavro.parse_schema(ADDRESS, named_schemas=known)
    avro.put([written(fastavro.parse_schema(NESTED, named_schemas=known), row, number)])
    columns = {
        "id": "string", "n": "bigint", "at": "timestamp", "amount": "decimal(38,10)",
        "home": "struct<zip: string>", "tags": "map<string, bigint>", "raw": "binary",
        "kind": "string",
    }  # fmt: skip
    sink = {"type": "files", "path": "out/nested", "format": kind}
    spec = avro.spec(source={"schema": columns}, sink=sink)
    run(ledger, spec, "r1")
    [found] = settled(spec).rows
    if kind == "parquet":
        assert found | {"tags": dict(found["tags"])} == row
    else:
        assert (found["amount"], found["n"]) == (str(row["amount"]), row["n"])


def test_what_is_beside_a_value(avro: AvroTopic, ledger: Ledger) -> None:
    """Key and header beside a record, and beside no value; what no column takes is kept."""
    number = avro.register(EVENT)
    beside = {"key": b"k", "headers": [("h", b"1")]}
    value = written(EVENT, typed(events(7, 8)[0]), number)
    avro.put([Record(value=value, **beside), Record(value=None, **beside)])
    source = {
        "schema": {"id": "string", "k": "string", "h": "string"}, "key": "k",
        "headers": {"h": "h"}, "tombstones": "keep", "unknown": "keep",
    }  # fmt: skip
    spec = avro.spec(source=source)
    run(ledger, spec, "r1")
    assert [(row["id"], row["k"], row["h"], row["_semel_rest"]) for row in settled(spec).rows] == [
        ("e000007", "k", "1", '{"n":7,"at":"2026-01-01T00:00:00Z"}'), (None, "k", "1", None),
    ]  # fmt: skip


# Attacks KS6.
def test_a_schema_that_comes_later(avro: AvroTopic, ledger: Ledger) -> None:
    """Its values are dead letters until it is there; judged again then, they are in the output."""
    avro.append(0, 5)
    later = avro.register(record(("x", "long"), name="X"), name="before") + 1
    avro.put([written(EVENT, typed(event), later) for event in events(5, 10)])
    spec = avro.spec()
    batch = run(ledger, spec, "r1").plan.batch.batch_id
    found = settled(spec)
    assert found.ids == ids(0, 5) and found.reasons == {"unknown_schema": 5}
    requarantine.run(ledger, spec, "again", batch, LocalEngine(), quiet)
    assert in_output(spec) == ids(0, 5)
    assert avro.register(record(*FIELDS, name="Later"), name="later") == later
    assert audit(spec).ok
    replayed(ledger, spec, batch, "of what survived then")
    assert in_output(spec) == ids(0, 5)
    requarantine.run(ledger, spec, "once more", batch, LocalEngine(), quiet)
    assert in_output(spec) == ids(0, 10)


def in_output(spec: Spec) -> list[str]:
    assert audit(spec).ok
    return [row["id"] for row in rows(spec)]


# Attacks KS6.
def test_ids_that_nobody_knows_do_not_drown_the_registry(
    avro: AvroTopic, ledger: Ledger, shell: Shell
) -> None:
    """A batch stops where a split names more of them than is declared, having asked for no more;
    repeats of an id do not count. With a higher limit each is asked for, and a dead letter.
    """
    heads = [b"\0" + number.to_bytes(4, "big") for number in range(60)]
    avro.put([head + b"a" for head in [*heads[:20] * 3, *heads]])
    loose = {"quarantine_ratio_max": 1.0}
    with answering() as empty:
        place = {"registry": empty.url}
        spec = avro.spec(source=place, limits={**loose, "unknown_schemas_max": 20})
        step = shell.fails(f"semel run {spec.name}")
        assert re.search(f"{avro.at()}.*more than 20 .* last one with id 20", shell.err)
        assert len({request["path"] for request in empty.asked}) == len(empty.asked) == 21
        avro.spec(source=place, limits={**loose, "unknown_schemas_max": 60})
        shell.runs(step)
    assert settled(spec, audited=False).reasons == {"unknown_schema": 120}


# Attacks KS8.
def test_a_registry_that_lost_a_schema(avro: AvroTopic, ledger: Ledger) -> None:
    """An audit proves nothing of the values and names the schema, a replay is refused; when it is
    there again, both go on. Another schema under its id is seen."""
    number = avro.write(map(typed, events(0, 10)))
    spec = avro.spec()
    run(ledger, spec, "r1")
    with answering() as empty:
        lost = avro.spec(source={"registry": empty.url})
        [broken] = [check for check in audit(lost).checks if not check.ok]
        assert broken.name == "source"
        assert f"no longer has schema {number}" in broken.offenders[0].what
        other = record(*FIELDS[:1], ("m", "long"), *FIELDS[2:])
        empty.status, empty.body = 200, json.dumps({"schema": json.dumps(other)}).encode()
        [broken] = [check for check in audit(lost).checks if not check.ok]
        assert broken.name == "output"
        empty.status, empty.body = 404, b'{"error_code": 40403}'
        with pytest.raises(TerminalError, match="unknown_schema.*Register that schema again"):
            replayed(ledger, lost, 1, "q")
    replayed(ledger, spec, 1, "q")
    assert in_output(spec) == ids(0, 10)


# Attacks KS6.
@pytest.mark.rest
def test_a_registry_that_is_away(
    avro: AvroTopic, ledger: Ledger, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """While the registry is away or refuses the login a run fails, and no record is a dead letter;
    then it goes on. What is logged, stored, shipped and written has no password."""
    avro.append(0, 100)
    spec, password = avro.spec(source={"registry": "schemas"}), "pa55-0f-n0body"
    engine, said = LocalEngine(), []

    def whole_run(url: str) -> object:
        monkeypatch.setenv("AIRFLOW_CONN_SCHEMAS", connection(url, password))
        return run_batch(ledger, spec, "r1", engine, log=said.append)

    with caplog.at_level(logging.DEBUG):
        with answering() as answers:
            for status, kind in ((503, UnavailableError), (401, TerminalError)):
                answers.status = status
                with pytest.raises(kind) as caught:
                    whole_run(answers.url)
                said.append(str(caught.value))
        with pytest.raises(UnavailableError, match="does not answer"):
            whole_run(answers.url)
        done = whole_run(avro.url)
    assert settled(spec).ids == ids(0, 100) and not settled(spec).letters
    assert password.encode() not in cloudpickle.dumps(engine.jobs[-1])
    for shown in (repr(engine.jobs[-1]), repr(done), repr(said), caplog.text):
        assert password not in shown
        assert base64.b64encode(f"semel:{password}".encode()).decode() not in shown
    assert password not in everything(ledger, '"schemas"')
    for path in avro.bench.folder.rglob("*"):
        assert not path.is_file() or password.encode() not in path.read_bytes(), path
