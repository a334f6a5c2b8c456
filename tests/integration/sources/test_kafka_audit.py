"""Values of topics, and their audit: it proves each, tells each lie, and says what it cannot prove.
"""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import xxhash

from fixtures.batches.account import ids, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.kafka.broker import COMPACTED, Kafka, Record
from fixtures.kafka.topics import Topic, messages_of
from semel.archive import layout
from semel.audit import AuditVerdict, audit
from semel.cli import main
from semel.errors import UnavailableError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec

BESIDE = {
    "schema": {
        "id": "string", "n": "bigint", "k": "string", "at": "timestamp", "h": "binary",
        "all": "array<struct<key:string,value:binary>>",
    },
    "key": "k", "timestamp": "at", "headers": {"h": "h", "all": "*"}, "tombstones": "keep",
}  # fmt: skip

KINDS: dict[str, dict[str, Any]] = {
    "position": {"sink": {"position_columns": True}},
    "counts": {},
}


def broken(verdict: AuditVerdict) -> dict[str, str]:
    """The checks that failed, each with what its first offender is."""
    return {check.name: check.offenders[0].what for check in verdict.checks if not check.ok}


def lied(
    spec: Spec, kind: str, change: Callable[[pa.Table], pa.Table], *, batch: int = 1
) -> dict[str, str]:
    """What an audit tells when a file of a batch was changed, and the marker lies about it: size,
    checksum and rows. After it all is as it was."""
    path = layout.marker(layout.archive_folder(spec), batch)
    before = path.read_bytes()
    marker = json.loads(before)
    entry = next(file for file in marker["files"] if file["kind"] == kind)
    file = (spec.sink_path() if kind == "data" else layout.archive_folder(spec)) / entry["path"]
    whole, table = file.read_bytes(), change(pq.read_table(file, partitioning=None))
    file.unlink()
    pq.write_table(table, file)
    data = file.read_bytes()
    entry |= {
        "bytes": len(data), "checksum": xxhash.xxh3_128_hexdigest(data), "records": table.num_rows
    }  # fmt: skip
    path.write_text(json.dumps(marker))
    told = broken(audit(spec))
    file.unlink()
    file.write_bytes(whole)
    path.write_bytes(before)
    return told


def column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    at = table.schema.get_field_index(name)
    field = table.schema.field(at)
    return table.set_column(at, field, pc.cast(values, field.type))


@pytest.mark.parametrize("kind", KINDS)
def test_however_a_row_is_matched(topic: Topic, ledger: Ledger, kind: str) -> None:
    """By its offset, or by its values: what is right passes, a lost row is told."""
    topic.append(0, 50)
    spec = topic.spec(**KINDS[kind])
    run(ledger, spec, "r1")
    topic.append(50, 60)
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 60)
    assert lied(spec, "data", lambda rows: rows.slice(1)).keys() == {"output", "sums"}


def test_a_lie_in_each_place(topic: Topic, ledger: Ledger) -> None:
    """What became of a record: each kind of file is held against the topic, by its offsets."""
    topic.put([b"{", *(json.dumps(event).encode() for event in [*events(0, 20), *events(0, 5)])])
    spec = topic.spec(record_id=["id"])
    run(ledger, spec, "r1")
    found = settled(spec)
    assert len(found.rows) == 20 and len(found.letters) == 1 and len(found.decisions) == 5
    told = lied(spec, "data", lambda rows: rows.slice(1))
    assert told.keys() == {"output", "sums"}
    assert told["output"] == "the survivor is not in the output"
    told = lied(spec, "data", lambda rows: pa.concat_tables([rows, rows.slice(19)]))
    assert told["output"] == "2 rows for 1 survivors"
    told = lied(spec, "data", lambda rows: column(rows, "n", pc.add(rows["n"], 1)))
    assert told == {"content": "the row has other values than the record"}
    told = lied(spec, "dead_letters", lambda rows: column(rows, "raw", pa.array([b"["])))
    assert told == {"dead letters": "the dead letter keeps other bytes than the source has"}
    told = lied(spec, "dead_letters", lambda rows: column(rows, "offset", pa.array([3])))
    assert "dead letters" in told and "records" in told
    told = lied(spec, "dead_letters", lambda rows: column(rows, "reason", pa.array(["late"])))
    assert told["dead letters"] == "a dead letter has the reason late, which cannot be"
    told = lied(spec, "decisions", lambda rows: rows.slice(1))
    assert told["ids"] == "the id survived in batch 1 already"
    assert broken(audit(spec)) == {}


AT = "2026-01-01T00:00:00Z"

VALUES: dict[str, tuple[dict[str, Any], list[bytes], list[Any], dict[bytes, str]]] = {
    # What the source declares, good values, their first columns, bad values and why they are bad.
    # A line break between the tokens of JSON is no fault.
    "json": (
        {},
        [
            json.dumps({"id": "a", "n": 1, "at": AT}, indent=1).encode(),
            '{"id":"é",\r\n"n":1}\n'.encode(), b"{}\r",
        ],
        ["a", "é", None],
        {
            b"": "malformed", b"  ": "malformed", b"{": "malformed", b'{"id": "a\nb"}': "malformed",
            b'{"id": 1}': "type_mismatch", b'{"id":"a"}\n{"id":"b"}': "malformed",
            b"\xff": "encoding", b'{"id":"nul\x00"}': "encoding",
            b'{"id":"\xc3': "encoding", b'\xa9"}': "encoding",  # Text only together.
        },
    ),
    # With a line break, or with nothing in it, a value is no record of CSV.
    "csv": (
        {"value": "csv"},
        [f'"a,""b",1,{AT}'.encode(), b"c,,", b",,"],
        ['a,"b', "c", None],
        {
            b"": "malformed", b" \t": "malformed", b"a,1,\n": "malformed", b"a\r,1,": "malformed",
            b'"a\nb",1,': "malformed", b"a,x,": "type_mismatch", b"a,1": "field_count",
            b'"a"b,1,': "malformed", b'"a\\"b",1,': "malformed",
        },
    ),
    "csv, escaped": (
        {"value": "csv", "csv": {"escape": "\\"}},
        [b'"a 5\\" pipe",1,', b"C:\\dir,,", b'5" C:\\x,"1",'],
        ['a 5" pipe', "C:\\dir", '5" C:\\x'],
        {b'"a""b",1,': "malformed", b'"a\\b",1,': "malformed", b'"a\\",1,': "malformed"},
    ),
    "csv without quotes": (
        {"value": "csv", "csv": {"quote": "none", "delimiter": "\t"}},
        [b'"a\t1\t', b'5" x\t\t', b'""\t\t'],
        ['"a', '5" x', '""'],
        {b'a\t"1"\t': "type_mismatch", b'"a\t1"': "field_count"},
    ),
    "bytes": (
        {"value": "bytes", "schema": {"v": "binary", "at": "timestamp"}, "timestamp": "at"},
        [b"", b"\0\xff", b"a\nb\r\n", b"\\x00", b"\xc3", b"\xa9"],
        [b"", b"\0\xff", b"a\nb\r\n", b"\\x00", b"\xc3", b"\xa9"],
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_is_one_record(topic: Topic, ledger: Ledger, kind: str) -> None:
    """A good value is a row. A bad one is set aside with its reason, its offset and its bytes.
    Tombstones are passed over, wherever they lie. The audit proves it, and sees another value."""
    source, good, columns, bad = VALUES[kind]
    topic.put(Record(value=one) for one in [good[0], None, *good[1:], *bad, None, None])
    spec = topic.spec(source=source)
    counts = run(ledger, spec, "r1").finalized.counts
    assert counts.records_read == len(good) + len(bad)
    topic.put([Record(value=None)])
    assert run(ledger, spec, "r2").finalized.counts.records_read == 0
    found = settled(spec)
    assert [next(iter(row.values())) for row in found.rows] == columns
    assert [(offset, reason, raw) for _, offset, reason, raw in found.letters] == [
        (offset, reason, raw) for offset, (raw, reason) in enumerate(bad.items(), len(good) + 1)
    ]
    name, other = next(iter(found.rows[0])), b"\xaa" if kind == "bytes" else "z"
    values = pa.array([*columns[:-1], other])
    assert lied(spec, "data", lambda rows: column(rows, name, values)).keys() == {"output"}


NOW_US = 1_764_237_600_000_000
"""A time of 2025 in microseconds, and a topic's timestamps are milliseconds."""

# That of year 1, and that before it; that of year 9999, and that behind it; then other units.
STAMPS = [
    0, 1, 253_402_300_799_999, 253_402_300_800_000, NOW_US, NOW_US * 1_000, (1 << 63) - 1,
]  # fmt: skip


def test_a_timestamp_that_no_calendar_has(bench: Workbench, kafka: Kafka, ledger: Ledger) -> None:
    """A message whose timestamp counts microseconds, nanoseconds or anything else beyond the years
    1 to 9999 is a dead letter with its position; the others are rows. The audit finds the same.
    """
    topic = Topic(bench, kafka, config={"message.timestamp.after.max.ms": str((1 << 63) - 1)})
    values = [b'{"id":"%d"}' % at for at in range(len(STAMPS))]
    topic.put(Record(value=v, timestamp_ms=s) for v, s in zip(values, STAMPS, strict=True))
    spec = topic.spec(source={"schema": {"id": "string", "at": "timestamp"}, "timestamp": "at"})
    assert run(ledger, spec, "r1").finalized.counts.records_read == len(STAMPS)
    found = settled(spec)
    assert [row["id"] for row in found.rows] == ["0", "1", "2"]
    assert [(offset, reason, raw) for _, offset, reason, raw in found.letters] == [
        (at, "type_mismatch", values[at]) for at in range(3, len(STAMPS))
    ]


def test_columns_beside_the_value(topic: Topic, ledger: Ledger) -> None:
    """Key, timestamp and headers belong to the record, and so do tombstones that are kept. Of
    several headers of a name the last counts. Text that is none is set aside. The audit sees
    another value in each of these columns."""
    topic.put(
        [
            Record(value=b'{"id":"a"}', key=b"k1", timestamp_ms=1001, headers=[("h", b"\0\\")]),
            Record(value=None, key=b"k2", timestamp_ms=2000, headers=[("h", b"1"), ("h", None)]),
            Record(value=b'{"id":"b"}', key=b"\xff"),
            Record(value=None, key=b"nul\0"),
            Record(value=b'{"id":"c"}', timestamp_ms=4000, headers=[("h", b"1"), ("h", b"2")]),
        ]
    )
    spec = topic.spec(source=BESIDE)
    run(ledger, spec, "r1")
    found = settled(spec)
    rows = [(r["id"], r["k"], r["at"].timestamp(), r["h"], len(r["all"])) for r in found.rows]
    assert rows == [
        ("a", "k1", 1.001, b"\0\\", 1), (None, "k2", 2.0, None, 2), ("c", None, 4.0, b"2", 2)
    ]  # fmt: skip
    assert [(offset, reason, raw) for _, offset, reason, raw in found.letters] == [
        (2, "encoding", b'{"id":"b"}'), (3, "encoding", b""),
    ]  # fmt: skip
    for name, values in {
        "k": ["k1", "k1", None], "at": [None, None, None], "h": [b"\0", None, b"2"]
    }.items():  # fmt: skip

        def change(rows: pa.Table, name: str = name, values: list = values) -> pa.Table:
            return column(rows, name, pa.array(values, rows.schema.field(name).type))

        assert lied(spec, "data", change).keys() == {"output"}, name


def test_an_id_of_the_key(topic: Topic, ledger: Ledger) -> None:
    """Identity by what is beside the value: repeats are proven, and an id that is missing."""
    keys = [b"1", b"2", b"1", None, b"3"]
    topic.put([Record(value=b'{"id":"x"}', key=key) for key in keys])
    source = BESIDE | {"tombstones": "count"}
    spec = topic.spec(source=source, record_id=["k"])
    run(ledger, spec, "r1")
    topic.put([Record(value=b'{"id":"x"}', key=b"2"), Record(value=None, key=b"4")])
    run(ledger, spec, "r2")
    found = settled(spec)
    assert sorted(row["k"] for row in found.rows) == ["1", "2", "3"]
    assert [(at, reason) for _, at, reason in found.decisions] == [
        (2, "duplicate_in_batch"), (5, "duplicate_in_catalog"),
    ]  # fmt: skip
    assert [(at, reason) for _, at, reason, _ in found.letters] == [(3, "id_missing")]


@pytest.mark.rest
def test_what_retention_deleted(
    topic: Topic, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    """A topic deletes what was read, as it is to: the audit passes for what is left, and says how
    many batches cannot be proven any more. A lie about what is left is told all the same."""
    spec = topic.spec(record_id=["id"])
    for at in range(3):
        topic.append(10 * at, 10 * at + 10)
        run(ledger, spec, f"r{at}")
    topic.append(0, 5)
    run(ledger, spec, "repeats")
    topic.kafka.delete_records(topic.name, {0: 15})
    verdict = audit(spec)
    assert broken(verdict) == {} and (verdict.batches, verdict.gone) == (4, 2)
    capsys.readouterr()
    assert main(["audit", spec.name]) == 0
    told = capsys.readouterr().out
    assert "2 of the batches (1 to 2) cannot be proven" in told
    assert f"audit of {spec.name}: passed for 2 of 4 batches; " in told
    assert lied(spec, "data", lambda rows: column(rows, "n", pc.add(rows["n"], 1)), batch=3) == {
        "content": "the row has other values than the record"
    }
    topic.kafka.delete_records(topic.name, {0: 35})
    assert main(["audit", spec.name]) == 0
    assert f"audit of {spec.name}: passed for 0 of 4 batches; " in capsys.readouterr().out
    next(spec.sink_path().glob("*b00000001-*")).unlink()
    assert broken(audit(spec)).keys() == {"files"}


def test_a_topic_that_is_another_one(topic: Topic, ledger: Ledger) -> None:
    """What was made anew proves nothing, and neither does a topic that is gone: as with files."""
    topic.append(0, 10)
    spec = topic.spec()
    run(ledger, spec, "r1")
    topic.kafka.recreate(topic.name)
    topic.append(0, 10)
    assert "was deleted and recreated" in broken(audit(spec))["source"]
    topic.kafka.delete(topic.name)
    assert "the cluster has no topic" in broken(audit(spec))["source"]


def test_transactions_and_compaction(topic: Topic, ledger: Ledger) -> None:
    """Aborted messages are none; what compaction has deleted is not blamed on the output."""
    topic.name = topic.kafka.topic(config=COMPACTED)
    spec = topic.spec()
    for start in (0, 10):
        topic.put(r for n in range(start, start + 10) for r in messages_of(n, n + 1, key=b"%d" % n))
        topic.kafka.begin(topic.name, [Record(value=b"{}", key=b"a")] * 3).abort_transaction()
        run(ledger, spec, f"r{start}")
    assert audit(spec).gone == 0 and settled(spec).ids == ids(0, 20)
    topic.put([Record(value=b'{"id":"new"}', key=b"3")])
    topic.kafka.compacted(topic.name)
    verdict = audit(spec)
    assert broken(verdict) == {} and verdict.gone == 1


@pytest.mark.proof
def test_a_cluster_that_is_away(topic: Topic, ledger: Ledger) -> None:
    """Whether a cluster answers says nothing of the output: it is an error, not a verdict."""
    topic.append(0, 10)
    spec = topic.spec()
    run(ledger, spec, "r1")
    away = topic.spec(source={"bootstrap_servers": "127.0.0.1:9"})
    with pytest.raises(UnavailableError, match="127.0.0.1:9 does not answer"):
        audit(away)
