"""Columns that a record lacks, or has under another name, in each kind of target."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from fixtures.batches.account import quiet, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.contract.sinks import Place, Values
from fixtures.kafka.topics import Topic
from fixtures.kinds import PLACES, place_of
from fixtures.queue.nats import Nats
from semel.audit import audit
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.sources.queue.spec import Until

RULES = {"n": {"optional": True, "names": ["number"]}, "at": {"names": ["seen_at"]}}
MOMENT = datetime(2026, 1, 1, tzinfo=UTC).timestamp()

VARIANTS: list[dict[str, str | None]] = [{}, {"n": None, "at": "seen_at"}, {"n": "number"}]
"""By column, its name in the records: as declared, absent or another one."""


def variant(start: int, stop: int, names: dict[str, str | None]) -> list[dict[str, object]]:
    """`events(start, stop)` with columns renamed, or left out where the name is None."""
    return [
        {
            name: value
            for column, value in event.items()
            if (name := names.get(column, column)) is not None
        }
        for event in events(start, stop)
    ]


def expected(start: int, stop: int, names: dict[str, str | None]) -> list[Values]:
    """The rows of `variant`."""
    absent = "n" in names and names["n"] is None
    return [(e["id"], None if absent else e["n"], MOMENT) for e in events(start, stop)]


def all_expected() -> list[Values]:
    """The rows of each variant, three a variant."""
    return [
        row for k, names in enumerate(VARIANTS) for row in expected(3 * k, 3 * k + 3, names)
    ]


@pytest.fixture(params=PLACES)
def place(
    request: pytest.FixtureRequest, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> Place:
    return place_of(request.param, request, bench, monkeypatch)


# Attacks P30.
def test_each_kind_of_sink_has_null_where_a_file_lacks_the_column(
    place: Place, bench: Workbench, ledger: Ledger
) -> None:
    """Files without the optional column, with the old name and with the new one are one target:
    each row once, NULL where the column was absent, and the audit passes.
    """
    spec = bench.spec(
        source={"path": "in/*.csv", "format": "csv", "columns": RULES}, sink=place.declared
    )
    for k, names in enumerate(VARIANTS):
        rows = variant(3 * k, 3 * k + 3, names)
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows), ""]
        (bench.data / "in" / f"{k}.csv").write_text("\n".join(lines))
    assert run(ledger, spec, "r1").plan.refusals == ()
    assert place.values() == all_expected()
    verdict = audit(spec)
    assert verdict.ok, {c.name: c.offenders for c in verdict.checks if not c.ok}


def messages() -> list[bytes]:
    """The records of each variant, as JSON."""
    return [
        json.dumps(record).encode()
        for k, names in enumerate(VARIANTS)
        for record in variant(3 * k, 3 * k + 3, names)
    ]


def values(spec: Spec) -> list[Values]:
    """The rows of the output, sorted by id, once the audit has passed."""
    return sorted((row["id"], row["n"], row["at"].timestamp()) for row in settled(spec).rows)


# Attacks P30.
def test_messages_of_a_queue_without_a_key_and_with_its_other_name(
    nats: Nats, bench: Workbench, ledger: Ledger
) -> None:
    """Each message is a row: NULL where the optional key is absent, the value under each name."""
    stream = nats.stream()
    source = {
        "type": "nats", "servers": nats.servers, "stream": stream, "consumer": "semel",
        "spool": "spool", "value": "json", "columns": RULES,
        "schema": {"id": "string", "n": "bigint", "at": "timestamp"},
    }  # fmt: skip
    spec = bench.spec(source=source)
    nats.publish(stream, messages())
    received = spec.source.receive(spec.name, Until(idle=timedelta(seconds=1)), quiet)
    assert received.messages == len(all_expected())
    run(ledger, spec, "r1")
    assert values(spec) == all_expected()


# Attacks P30.
def test_messages_of_a_topic_without_a_key_and_with_its_other_name(
    topic: Topic, ledger: Ledger
) -> None:
    """As of a queue."""
    spec = topic.spec(source={"columns": RULES}, record_id=["id"])
    topic.put(messages())
    run(ledger, spec, "r1")
    assert values(spec) == all_expected()
