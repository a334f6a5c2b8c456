"""Replay: the output of a batch is computed again by today's code, and replaces what was there.

The records that survive are those that survived then; the reader sees the old output or the new.
"""

import gzip
import json
from datetime import UTC, datetime
from typing import Any

import duckdb
import pytest

from fix_account import quiet
from fix_engine import LocalEngine
from fix_pipelines import Workbench, events
from fix_replay import allow, as_float, aside, replayed, rows, run, sql, two_batches
from semel import faults, replay
from semel.cli import main
from semel.collect import collect
from semel.commit import commit
from semel.errors import RetryableError, StateError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.manifest import Kind
from semel.reader import markers
from semel.run import run_batch
from semel.sinks import archive
from semel.spark.engine import SparkEngine
from semel.stage import stage

TIMES = "SELECT id, n * {} AS n FROM records"


def test_the_survivors_of_then_by_the_schema_of_now(bench: Workbench, ledger: Ledger) -> None:
    """RP1, RP3, RP4: no repeat comes back, no bad record; the account stays, batch by batch."""
    before = rows(two_batches(bench, ledger))
    assert len(before) == 70
    spec = as_float(bench)
    allow(ledger, spec)
    done = replayed(ledger, spec, 1, "again")
    assert (done.batch.batch_id, done.batch.root, done.batch.generation) == (3, 1, 2)
    assert done.finalized.counts == markers(spec.sink_path())[0].counts
    first, second = markers(spec.sink_path())
    assert (first.batch_id, first.generation, first.made_by) == (1, 2, 3)
    assert (first.commit_seq, second.commit_seq, second.generation) == (1, 2, 1)
    assert [str(f.type) for f in first.sink_schema][1] == "double"
    assert rows(spec) == [{**row, "n": float(row["n"])} for row in before]
    third = replayed(ledger, spec, 1, "once more")
    assert third.batch.generation == 3 and third.batch.root == 1
    assert rows(spec) == [{**row, "n": float(row["n"])} for row in before]


def test_a_corrected_transform(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """RP1, RP3: survivors alone reach the transform, and the output is what it makes of them."""
    query = bench.transforms / "times.sql"
    query.write_text(TIMES.format(2))
    spec = bench.spec(transforms=["times.sql"])
    bench.write("in/a.jsonl", [*events(0, 5000), b"{bad", *events(4000, 6000)])
    run_batch(ledger, spec, "r1", spark_engine, log=quiet)
    bench.write("in/b.jsonl", events(5500, 7000))
    run_batch(ledger, spec, "r2", spark_engine, log=quiet)
    query.write_text(TIMES.format(3))
    for root in (1, 2):
        replay.run(ledger, spec, "again", root, spark_engine, log=quiet)
    assert rows(spec) == [{"id": e["id"], "n": 3 * e["n"]} for e in events(0, 7000)]
    first, _ = markers(spec.sink_path())
    assert first.code.files != json.loads(aside(spec, 1, 1).read_bytes())["code"]["files"]


@pytest.mark.parametrize("kind", ["position", "gzip", "many", "csv", "bucket"])
def test_each_kind_of_source(bench: Workbench, ledger: Ledger, kind: str) -> None:
    """RP1, RP3: by position; compressed; a thousand small files read together; CSV; by bucket."""
    records = [*events(0, 300), b"{bad", *events(250, 400)]
    changes: dict[str, Any] = {}
    if kind == "position":
        changes = {"record_id": None}
    if kind == "bucket":
        changes = {"record_time": "at", "dedup": {"scope": "bucket", "horizon": "3650d"}}
    if kind == "csv":
        changes = {"source": {"path": "in/*.csv", "format": "csv"}}
        good = [f"{e['id']},{e['n']},{e['at']}" for e in events(0, 300)]
        lines = ["id,n,at", *good, "x,y", "e000007,7,", ""]
        (bench.data / "in" / "a.csv").write_text("\n".join(lines))
    elif kind == "gzip":
        changes = {"source": {"path": "in/*.gz"}}
        path = bench.write("in/a.jsonl", records)
        (bench.data / "in" / "a.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    elif kind == "many":
        for number in range(100):
            bench.write(f"in/{number:03d}.jsonl", records[4 * number : 4 * number + 8])
    else:
        bench.write("in/a.jsonl", records)
    spec = bench.spec(**changes)
    run(ledger, spec, "r1")
    before = rows(spec)
    done = replayed(ledger, spec, 1, "again")
    assert rows(spec) == before and done.batch.generation == 2
    assert done.finalized.counts.quarantined + done.finalized.counts.duplicates_batch > 0


def test_the_readers_of_the_readme_see_one_output(bench: Workbench, ledger: Ledger) -> None:
    """RP5: a query over markers/b*.json, as the README has it, counts each record once."""
    spec = two_batches(bench, ledger)
    replayed(ledger, spec, 1, "again")
    replayed(ledger, spec, 2, "again")
    sink, kept = spec.sink_path(), archive.of(spec)
    with duckdb.connect() as connection:
        found = connection.execute(
            f"SELECT '{sink}/' || f.path FROM (SELECT unnest(files) AS f "
            f"FROM read_json('{kept}/markers/b*.json')) WHERE f.kind = 'data'"
        ).fetchall()
        files = [path for (path,) in found]
        assert connection.execute(
            "SELECT count(*), count(DISTINCT id) FROM read_parquet(?)", [files]
        ).fetchone() == (70, 70)


def test_what_was_replaced_goes_in_time(
    bench: Workbench, ledger: Ledger
) -> None:
    """RP7: files of the old output stay for keep_replaced, then go; its marker stays for ever."""
    spec = two_batches(bench, ledger)
    found = markers(spec.sink_path())
    old = [marker.path_of(file) for marker in found for file in marker.of_kind(Kind.DATA)]
    replayed(ledger, spec, 1, "again")
    assert collect(ledger, spec, quiet).replaced_removed == 0
    assert all(path.exists() for path in old)
    sql(ledger, "UPDATE semel.batch SET finalized_at = finalized_at - interval '2 hours'")
    done = collect(ledger, spec, quiet)
    assert (done.replaced_removed, done.damaged) == (1, ())
    assert [path.exists() for path in old] == [False, True]
    assert aside(spec, 1, 1).exists() and len(rows(spec)) == 70


def test_files_that_count_are_never_removed(
    bench: Workbench, ledger: Ledger
) -> None:
    """RP7: where the marker was put back by hand, what it lists stays, and collect says so."""
    spec = two_batches(bench, ledger)
    replayed(ledger, spec, 1, "again")
    archive.marker(archive.of(spec), 1).write_bytes(aside(spec, 1, 1).read_bytes())
    sql(ledger, "UPDATE semel.batch SET finalized_at = finalized_at - interval '2 hours'")
    done = collect(ledger, spec, quiet)
    assert done.replaced_removed == 0
    assert "the replaced files of batch 1 were left" in done.damaged[0]
    assert len(rows(spec)) == 70


def test_two_replays_of_one_batch(bench: Workbench, ledger: Ledger) -> None:
    """RP2: while one is at work another is refused; a silent one is given up, one that committed is
    finished."""
    spec = two_batches(bench, ledger)
    first, _ = replay.plan(ledger, spec, "a", 1)
    assert replay.plan(ledger, spec, "a", 1) == (first, True)
    busy = f"batch {first.batch_id} .* is at work on batch 1;"
    assert isinstance(replay.look(ledger, spec, 1, "b").why, RetryableError)
    with pytest.raises(RetryableError, match=busy):
        replay.plan(ledger, spec, "b", 1)
    sql(ledger, "UPDATE semel.batch SET seen_at = seen_at - interval '1 hour'")
    second, _ = replay.plan(ledger, spec, "b", 1)
    assert second.batch_id != first.batch_id and second.generation == 2
    with pytest.raises(StateError, match="was abandoned"):
        stage(ledger, spec, first.batch_id, LocalEngine(), log=quiet)
    stage(ledger, spec, second.batch_id, LocalEngine(), log=quiet)
    commit(ledger, spec, second.batch_id, lambda: None, log=quiet)
    third = replayed(ledger, spec, 1, "c").batch
    assert third.generation == 3 and markers(spec.sink_path())[0].generation == 3
    assert len(rows(spec)) == 70


@pytest.mark.parametrize("point", ["finalize.before_replace", "finalize.before_rename"])
def test_a_finalizer_that_slept(bench: Workbench, ledger: Ledger, point: str) -> None:
    """RP5, RP6: a twin finalizes, and generation 3 follows; who slept meanwhile changes nothing."""
    spec = two_batches(bench, ledger)
    batch, _ = replay.plan(ledger, spec, "a", 1)
    stage(ledger, spec, batch.batch_id, LocalEngine(), log=quiet)
    commit(ledger, spec, batch.batch_id, lambda: None, log=quiet)

    def meanwhile() -> None:
        assert not finalize(ledger, spec, batch.batch_id).found
        assert replayed(ledger, spec, 1, "b").batch.generation == 3

    with faults.armed(point, meanwhile) as slept:
        assert finalize(ledger, spec, batch.batch_id).found
    assert slept.hit
    assert markers(spec.sink_path())[0].generation == 3
    assert json.loads(aside(spec, 1, 2).read_bytes())["generation"] == 2
    assert len(rows(spec)) == 70


def test_generations_never_fork(bench: Workbench, ledger: Ledger) -> None:
    """RP2: whatever our own code does, the database takes no second output of a generation."""
    import sqlalchemy as sa

    spec = two_batches(bench, ledger)
    replay.plan(ledger, spec, "a", 1)
    with pytest.raises(sa.exc.IntegrityError, match="batch_generation"):
        sql(
            ledger,
            "INSERT INTO semel.batch (pipeline_id, request_key, ordinal, spec, spec_digest, "
            "split_bytes, replays, generation) SELECT pipeline_id, 'b', 1, spec, spec_digest, "
            "split_bytes, 1, 2 FROM semel.batch WHERE batch_id = 1",
        )


def test_the_command(bench: Workbench, ledger: Ledger, monkeypatch: Any, capsys: Any) -> None:
    """It tells first, replays a range once for one code and declaration, and says what it did."""
    from contextlib import contextmanager

    spec = two_batches(bench, ledger)
    engine = LocalEngine()
    opened = contextmanager(lambda *_: iter([engine]))
    monkeypatch.setattr("semel.spark.session.open_engine", opened)
    monkeypatch.setenv("SEMEL_LEDGER_DSN", ledger.dsn)
    monkeypatch.setenv("SEMEL_SPARK_REMOTE", "none, for there is an engine")
    assert main(["replay", spec.name, "--batches", "1..2", "--dry-run"]) == 0
    assert "batch 1: 60 records, generation 1 now" in capsys.readouterr().out
    assert not engine.jobs
    assert main(["replay", spec.name, "--batches", "1..2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["replayed"]
    found = [(r["batch_id"], r["generation"], r["by"]) for r in told]
    assert found == [(1, 2, 3), (2, 2, 4)]
    assert main(["replay", spec.name, "--batches", "1..2"]) == 0
    assert "left alone: 2 batches (1, 2)" in capsys.readouterr().out
    assert main(["replay", spec.name, "--batches", "2", "--dry-run"]) == 0
    assert "left alone: this request made generation 2" in capsys.readouterr().out
    today = datetime.now(UTC)
    days = [f"{today.year}-01-01", f"{today.year + 1}-01-01"]
    assert main(["replay", spec.name, "--interval", *days, "--request", "x", "--json"]) == 0
    assert [r["generation"] for r in json.loads(capsys.readouterr().out)["replayed"]] == [3, 3]
    (bench.data / "in" / "a.jsonl").unlink()
    assert main(["replay", spec.name, "--batches", "1..2", "--request", "y"]) == 1
    assert "1 of 2 cannot be replayed, so nothing was done\nbatch 1: " in capsys.readouterr().err
    for wrong in (["--batches", "2..1"], []):
        assert main(["replay", spec.name, *wrong]) == 2
