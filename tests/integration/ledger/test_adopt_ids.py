"""Where adopt gets the ids of a batch: ids files, output and source give the same ones."""

import gzip
import json
import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

import pytest

from fixtures.batches.account import first_batch, ids, quiet, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.postgres.server import lose
from semel.archive.marker import Marker, markers
from semel.errors import TerminalError
from semel.ledger import Ledger
from semel.model.manifest import Kind
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.repair.adopt import adopt
from semel.repair.adopt.history import History, histories
from semel.repair.adopt.ids import IdsLostError, ids_of
from semel.repair.adopt.partitions import partitions_of
from semel.spark.engine import SparkEngine

SCHEMA = {"t": "string", "i": "int", "d": "date", "at": "timestamp", "m": "decimal(9,2)"}
RECORD_ID = ["t", "i", "d", "at", "m", "b"]
SCHEMA["b"] = "boolean"


def rows(first: int, last: int) -> list[dict]:
    return [
        {
            "t": f"té/{n % 7} %41", "i": n - 20, "d": f"2026-01-{n % 28 + 1:02d}",
            "at": f"1969-12-31T23:59:{n % 60:02d}.123456Z", "m": n / 4, "b": n % 2 == 0,
        }
        for n in range(first, last)
    ]  # fmt: skip


def as_csv(records: list[dict]) -> bytes:
    lines = [",".join(SCHEMA)]
    lines += [",".join(map(str, {**r, "b": str(r["b"]).lower()}.values())) for r in records]
    return ("\n".join(lines) + "\n").encode()


def as_json(records: list[dict]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def old(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    past = time.time() - 3600
    os.utime(path, (past, past))


SOURCES = {
    "jsonl": ({"path": "in/*"}, "a.jsonl", lambda r: as_json(r) + b"{bad\n"),
    "jsonl.gz": (
        {"path": "in/*", "closed_after": "1 m"},
        "a.jsonl.gz",
        lambda r: gzip.compress(as_json(r) + b"{bad\n"),
    ),
    "csv": ({"path": "in/*", "format": "csv"}, "a.csv", lambda r: as_csv(r) + b"one,two\n"),
    "multiline": (
        {"path": "in/*", "format": "csv", "closed_after": "1 m", "csv": {"multiline": True}},
        "a.csv",
        as_csv,
    ),
}
SINKS = {
    "parquet": {},
    "jsonl": {"format": "jsonl"},
    "folders": {"partition_by": ["t", "d", "b"]},
    "jsonl folders": {"format": "jsonl", "partition_by": ["d", "i"]},
    "windows": {
        "partition_by": ["b", {"window": "1 minute", "of": "at", "name": "minute"}], "shards": 3,
    },
}


def found(spec: Spec, marker: Marker) -> dict[int, set[tuple[int, int]]]:
    """h1 and h2 by shard."""
    parts = partitions_of(open_source(spec), [marker])
    of = {part.partition.source_partition_id: part for part in parts}
    claims = [of[claim.source_partition_id].current_claim(claim) for claim in marker.claims]
    [batch] = histories([marker])
    made = ids_of(batch, claims)
    assert len({part.buckets for part in made}) == 1
    return {part.shard: set(zip(part.h1.tolist(), part.h2.tolist(), strict=True)) for part in made}


# Attacks D7.
@pytest.mark.parametrize(
    ("source", "sink", "scope"),
    [
        (source, sink, ("horizon", "bucket")[(n + m) % 2])
        for n, source in enumerate(SOURCES)
        for m, sink in enumerate(SINKS)
    ],
)
def test_three_ways_to_the_same_ids(
    bench: Workbench, ledger: Ledger, source: str, sink: str, scope: str
) -> None:
    """Of every type, from every format: what is lost of one way is found by the next."""
    changes, name, encode = SOURCES[source]
    spec = bench.spec(
        source={"schema": SCHEMA, **changes},
        record_id=RECORD_ID,
        record_time="at",
        dedup={"scope": scope, "keep_ids": True, "horizon": "3650 d", "late": _late(scope)},
        sink=SINKS[sink],
    )
    old(bench.data / "in" / name, encode([*rows(0, 100), *rows(0, 9)]))
    run(ledger, spec, "r1")
    (marker,) = markers(spec.sink_path())
    assert marker.counts.survivors == 100
    kept = found(spec, marker)
    assert sum(map(len, kept.values())) == 100
    for kind in (Kind.IDS, Kind.DATA):
        for file in marker.of_kind(kind):
            marker.path_of(file).unlink()
        assert found(spec, marker) == kept, f"without {kind}"
    for file in marker.of_kind(Kind.DECISIONS):
        marker.path_of(file).unlink()
    with pytest.raises(IdsLostError, match=r"ids files: .*; output: .*; source: "):
        found(spec, marker)


def _late(scope: str) -> str:
    return "accept" if scope == "bucket" else "quarantine"


# Attacks D7.
@pytest.mark.parametrize("broken", ["changed", "cut", "lying"])
def test_what_is_not_proven_is_not_used(bench: Workbench, ledger: Ledger, broken: str) -> None:
    """Output that was changed and ranges that were cut give no ids, nor do too few of them."""
    spec = first_batch(bench, ledger, events(0, 50))
    path = bench.data / "in" / "a.jsonl"
    (marker,) = markers(spec.sink_path())
    output = marker.path_of(marker.files[0])
    if broken == "changed":
        data = bytearray(output.read_bytes())
        data[len(data) // 2] ^= 1
        output.write_bytes(data)
        assert sum(map(len, found(spec, marker).values())) == 50  # From the source.
        path.write_bytes(path.read_bytes().replace(b"e000049", b"e999999"))
    elif broken == "cut":
        output.unlink()
        path.write_bytes(path.read_bytes()[:-200])
    else:
        content = json.loads(marker.path.read_text())
        content["counts"] |= {"survivors": 51, "records_read": 51}
        marker.path.write_text(json.dumps(content))
        (marker,) = markers(spec.sink_path())
    with pytest.raises(IdsLostError, match="output: .*source: "):
        found(spec, marker)


DROP = "def run(frame):\n    return frame.select('n')\n"


# Attacks D7.
@pytest.mark.rest
@pytest.mark.parametrize("kept", [True, False])
def test_ids_that_a_transform_drops(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine, kept: bool
) -> None:
    """With ids files the source may be gone; without them it is read again.

    Where both are gone, adopt names the batches, and goes on without their ids only when told to.
    """
    (bench.transforms / "drop.py").write_text(DROP)
    spec = bench.spec(transforms=["drop:run"], dedup={"keep_ids": kept})
    for number in range(3):
        bench.write(f"in/{number}.jsonl", events(20 * number, 20 * number + 25))
        run(ledger, spec, f"r{number}", engine=spark_engine)
    lose(ledger)
    gone = bench.data / "in" / "1.jsonl"
    away = gone.rename(bench.folder / "away")
    if not kept:
        with pytest.raises(TerminalError, match="events: .* the ids of batch 2 .* --forget-ids`"):
            adopt(ledger, spec, log=quiet)
        shutil.copy(away, gone)  # Restored, with another inode.
    adopted = adopt(ledger, spec, log=quiet)
    assert (adopted.ids, adopted.batches_forgotten) == (65, ())
    bench.write("in/again.jsonl", events(0, 70))
    run(ledger, spec, "again", engine=spark_engine)
    assert markers(spec.sink_path())[-1].counts.survivors == 5


# Attacks D7.
def test_forgotten_ids_are_new_again(bench: Workbench, ledger: Ledger) -> None:
    """Only those of the batch whose output and source are gone, and only with --forget-ids."""
    spec = bench.spec()
    for number in range(3):
        bench.write(f"in/{number}.jsonl", events(10 * number, 10 * number + 10))
        run(ledger, spec, f"r{number}")
    lose(ledger)
    (bench.data / "in" / "1.jsonl").unlink()
    marker = markers(spec.sink_path())[1]
    marker.path_of(marker.files[0]).unlink()
    with pytest.raises(TerminalError, match="batch 2 .*output: .*source: .*forget-ids"):
        adopt(ledger, spec, log=quiet)
    adopted = adopt(ledger, spec, forget_ids=True, log=quiet)
    assert (adopted.ids, adopted.batches_forgotten) == (20, (2,))
    bench.write("in/again.jsonl", events(0, 30))
    run(ledger, spec, "again")
    counts = markers(spec.sink_path())[-1].counts
    assert (counts.survivors, counts.duplicates_catalog) == (10, 20)


# Attacks D7, C5.
def test_a_bucket_that_lacks_ids_takes_no_more_records(bench: Workbench, ledger: Ledger) -> None:
    """In scope bucket nothing is doubled even then: what comes again is late."""
    dedup = {"scope": "bucket", "horizon": "3650 d"}
    spec = bench.spec(record_time="at", dedup=dedup)
    bench.write("in/0.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    lose(ledger)
    (bench.data / "in" / "0.jsonl").unlink()
    (marker,) = markers(spec.sink_path())
    marker.path_of(marker.files[0]).unlink()
    adopt(ledger, spec, forget_ids=True, log=quiet)
    bench.write("in/again.jsonl", events(0, 12)[::-1])
    run(ledger, spec, "again")
    assert markers(spec.sink_path())[-1].counts.late == 12


def backdate(marker: Marker, days: int) -> None:
    """Let a batch have committed so long ago."""
    content = json.loads(marker.path.read_text())
    content["batch_time"] = (marker.batch_time - timedelta(days=days)).isoformat()
    marker.path.write_text(json.dumps(content))


# Attacks C8.
def test_what_has_expired_is_not_made_again(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A horizon after its batch time an id may come again; until then it is a duplicate."""
    spec = bench.spec(dedup={"horizon": "10 d"})
    for number in range(3):
        bench.write(f"in/{number}.jsonl", events(10 * number, 10 * number + 10))
        run(ledger, spec, f"r{number}")
    first, second, _ = markers(spec.sink_path())
    backdate(first, 11)
    backdate(second, 9)
    asked = []

    def noted(batch: History, claims: list) -> list:
        asked.append(batch.first.batch_id)
        return ids_of(batch, claims)

    monkeypatch.setattr("semel.repair.adopt.ids_of", noted)
    lose(ledger)
    adopted = adopt(ledger, spec, log=quiet)
    assert (asked, adopted.batches_expired, adopted.ids) == ([2, 3], 1, 20)
    # The second batch's run expires a day from now, the third's ten days.
    with ledger.engine.connect() as connection:
        text = (
            "SELECT DISTINCT seq_min, seq_max, round(extract(epoch FROM expires_at - now()) "
            "/ 86400) FROM semel.id_run ORDER BY seq_min"
        )
        assert [tuple(map(int, r)) for r in connection.exec_driver_sql(text)] == [
            (2, 2, 1), (3, 3, 10),
        ]  # fmt: skip
    bench.write("in/again.jsonl", events(0, 30))
    run(ledger, spec, "again")
    counts = markers(spec.sink_path())[-1].counts
    assert (counts.survivors, counts.duplicates_catalog) == (10, 20)


def test_runs_are_few_and_of_one_span(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of batches that expire together are one run a shard; a bounded number is held."""
    monkeypatch.setattr("semel.repair.adopt.runs.OLD_IDS_AT_ONCE", 25)
    spec = bench.spec(dedup={"shards": 1})
    for number in range(6):
        bench.write(f"in/{number}.jsonl", events(10 * number, 10 * number + 10))
        run(ledger, spec, f"r{number}")
    lose(ledger)
    adopted = adopt(ledger, spec, log=quiet)
    assert (adopted.ids, adopted.id_runs) == (60, 2)
    bench.write("in/again.jsonl", events(0, 61))
    run(ledger, spec, "again")
    assert settled(spec).ids == ids(0, 61)
