"""Replay: the output of a batch is computed again by today's code, and replaces what was there.

The records that survive are those that survived then. What cannot be replayed is refused with the
reason, and the output stays what it was.
"""

import gzip
import json
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa

from fixtures.batches.account import quiet, run, sql
from fixtures.batches.replays import (
    allow,
    as_float,
    aside,
    falls_silent,
    hours_pass,
    proven,
    refusal,
    replayed,
    rows,
    two_batches,
    waiting,
    wider,
)
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import answer_in
from fixtures.spark.local import LocalEngine
from semel.archive import layout
from semel.archive.marker import markers
from semel.cli import main
from semel.collect import collect
from semel.errors import CorruptionError, RetryableError, SourceError, StateError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.runs import replay
from semel.runs.run import run_batch
from semel.spark.engine import SparkEngine
from semel.stage import stage

TIMES = "SELECT id, n * {} AS n FROM records WHERE n < {}"


def test_the_survivors_of_then_by_the_schema_of_now(bench: Workbench, ledger: Ledger) -> None:
    """RP1, RP3, RP4: no repeat comes back, no bad record; the account stays, batch by batch."""
    before = rows(two_batches(bench, ledger))
    assert len(before) == 70
    spec = wider(bench, ledger)
    done = replayed(ledger, spec, 1, "again")
    assert (done.batch.batch_id, done.batch.root, done.batch.generation) == (3, 1, 2)
    assert done.finalized.counts == markers(spec.sink_path())[0].counts
    first, second = markers(spec.sink_path())
    assert (first.batch_id, first.generation, first.writer_id) == (1, 2, 3)
    assert (first.commit_seq, second.commit_seq, second.generation) == (1, 2, 1)
    assert [str(f.type) for f in first.sink_schema][1] == "double"
    assert rows(spec) == [{**row, "n": float(row["n"])} for row in before]
    third = replayed(ledger, spec, 1, "once more")
    assert third.batch.generation == 3 and third.batch.root == 1
    assert rows(spec) == [{**row, "n": float(row["n"])} for row in before]


def test_a_corrected_transform(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """RP1, RP3: survivors alone reach the transform, and the output is what it makes of them. It
    costs some Spark jobs: the local engine runs no transforms.
    """
    query = bench.transforms / "times.sql"
    query.write_text(TIMES.format(2, 6500))
    spec = bench.spec(transforms=["times.sql"])
    bench.write("in/a.jsonl", [*events(0, 5000), b"{bad", *events(4000, 6000)])
    run_batch(ledger, spec, "r1", spark_engine, log=quiet)
    bench.write("in/b.jsonl", events(5500, 7000))
    run_batch(ledger, spec, "r2", spark_engine, log=quiet)
    query.write_text(TIMES.format(3, 6800))
    for root in (1, 2):
        replay.run(ledger, spec, "again", root, spark_engine, log=quiet)
    assert rows(spec) == [{"id": e["id"], "n": 3 * e["n"]} for e in events(0, 6800)]
    proven(spec, 2)
    first, _ = markers(spec.sink_path())
    assert first.code.files != json.loads(aside(spec, 1, 1).read_bytes())["code"]["files"]


@pytest.mark.parametrize("kind", ["gzip", "many", "csv"])
def test_each_kind_of_source(bench: Workbench, ledger: Ledger, kind: str) -> None:
    """RP1, RP3: compressed; a hundred small files that are read together; CSV."""
    records = [*events(0, 300), b"{bad", *events(250, 400)]
    changes: dict[str, Any] = {}
    if kind == "csv":
        changes = {"source": {"path": "in/*.csv", "format": "csv"}}
        good = [f"{e['id']},{e['n']},{e['at']}" for e in events(0, 300)]
        lines = ["id,n,at", *good, "x,y", "e000007,7,", ""]
        (bench.data / "in" / "a.csv").write_text("\n".join(lines))
    elif kind == "gzip":
        changes = {"source": {"path": "in/*.gz"}}
        path = bench.write("in/a.jsonl", records)
        (bench.data / "in" / "a.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    else:
        for number in range(100):
            bench.write(f"in/{number:03d}.jsonl", records[4 * number : 4 * number + 8])
    spec = bench.spec(**changes)
    run(ledger, spec, "r1")
    before = rows(spec)
    done = replayed(ledger, spec, 1, "again")
    assert rows(spec) == before and done.batch.generation == 2
    assert done.finalized.counts.quarantined + done.finalized.counts.duplicates_batch > 0


def test_files_that_count_are_never_removed(bench: Workbench, ledger: Ledger) -> None:
    """RP7: where the marker was put back by hand, what it lists stays, and collect says so."""
    spec = two_batches(bench, ledger)
    replayed(ledger, spec, 1, "again")
    layout.marker(layout.archive_folder(spec), 1).write_bytes(aside(spec, 1, 1).read_bytes())
    hours_pass(ledger)
    done = collect(ledger, spec, quiet)
    assert done.replaced_removed == 0
    assert "cannot remove the replaced files of batch 1" in done.damaged[0]
    assert len(rows(spec)) == 70


def test_two_replays_of_one_batch(bench: Workbench, ledger: Ledger) -> None:
    """RP2: while one is at work another is refused; a silent one is given up, one that committed is
    finished."""
    spec = two_batches(bench, ledger)
    first, _ = replay.plan(ledger, spec, "a", 1)
    assert replay.plan(ledger, spec, "a", 1) == (first, True)
    busy = rf"batch {first.batch_id} .* is at work on batch 1\."
    assert isinstance(replay.check_root(ledger, spec, 1, "b").why, RetryableError)
    with pytest.raises(RetryableError, match=busy):
        replay.plan(ledger, spec, "b", 1)
    falls_silent(ledger)
    second, _ = replay.plan(ledger, spec, "b", 1)
    assert second.batch_id != first.batch_id and second.generation == 2
    with pytest.raises(StateError, match="was abandoned"):
        stage(ledger, spec, first.batch_id, LocalEngine(), log=quiet)
    assert waiting(ledger, spec, 1, "b") == second.batch_id
    third = replayed(ledger, spec, 1, "c").batch
    assert third.generation == 3 and markers(spec.sink_path())[0].generation == 3
    assert len(rows(spec)) == 70


def test_generations_never_fork(bench: Workbench, ledger: Ledger) -> None:
    """RP2: whatever our own code does, the database takes no second output of a generation."""
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
    told = answer_in(capsys.readouterr().out)["replayed"]
    found = [(r["batch_id"], r["generation"], r["by"]) for r in told]
    assert found == [(1, 2, 3), (2, 2, 4)]
    assert main(["replay", spec.name, "--batches", "1..2"]) == 0
    assert "unchanged: 2 batches (1, 2)" in capsys.readouterr().out
    assert main(["replay", spec.name, "--batches", "2", "--dry-run"]) == 0
    assert "unchanged: this request wrote generation 2" in capsys.readouterr().out
    today = datetime.now(UTC)
    days = [f"{today.year}-01-01", f"{today.year + 1}-01-01"]
    assert main(["replay", spec.name, "--interval", *days, "--request", "x", "--json"]) == 0
    assert [r["generation"] for r in answer_in(capsys.readouterr().out)["replayed"]] == [3, 3]
    (bench.data / "in" / "a.jsonl").unlink()
    assert main(["replay", spec.name, "--batches", "1..2", "--request", "y"]) == 1
    assert "1 of 2 cannot be replayed. Nothing was done\nbatch 1: " in capsys.readouterr().err
    for wrong in (["--batches", "2..1"], []):
        assert main(["replay", spec.name, *wrong]) == 2


def test_a_source_that_is_gone_or_was_edited(bench: Workbench, ledger: Ledger) -> None:
    """RP3: the ranges must be there as they were; an edit in their middle is seen by the digest."""
    spec = two_batches(bench, ledger)
    path = bench.write("in/c.jsonl", events(100, 900))
    run(ledger, spec, "r3")
    whole = path.read_bytes()
    before = rows(spec)
    path.rename(bench.folder / "away")
    assert isinstance(refusal(ledger, spec, 3), SourceError)
    (bench.folder / "away").rename(path)
    path.write_bytes(b"[" + whole[1:])
    assert "its first 4096 bytes changed" in str(refusal(ledger, spec, 3))
    path.write_bytes(whole.replace(b'"n": 500,', b'"n": 501,'))
    with pytest.raises(TerminalError, match="read other bytes .* than batch 3 did"):
        replayed(ledger, spec, 3, "again")
    assert rows(spec) == before
    path.write_bytes(whole)
    assert replayed(ledger, spec, 3, "again").batch.generation == 2


def test_verdicts_that_are_gone_or_damaged(bench: Workbench, ledger: Ledger) -> None:
    """RP1: without the decisions or dead letters of then nobody knows who survived."""
    spec = two_batches(bench, ledger)
    for kind in ("decisions", "dead_letters"):
        (path,) = layout.archive_folder(spec).glob(f"{kind}/b00000001-*.parquet")
        whole = path.read_bytes()
        path.unlink()
        assert "cannot be read" in str(refusal(ledger, spec, 1))
        path.write_bytes(whole[:-1] + b"x")
        assert "differs from its marker" in str(refusal(ledger, spec, 1))
        path.write_bytes(whole)
    assert replay.check_root(ledger, spec, 1, "again").why is None


def test_decisions_of_another_batch(bench: Workbench, ledger: Ledger) -> None:
    """RP1: they must name as many records as the winner counted, and of each kind as many."""
    spec = two_batches(bench, ledger)
    change = "UPDATE semel.attempt SET duplicates_batch = duplicates_batch + {}"
    sql(ledger, change.format("1, survivors = survivors - 1 WHERE batch_id = 1"))
    assert "have 11 records, but the batch counted 12" in str(refusal(ledger, spec, 1))
    sql(ledger, change.format("0, survivors = survivors + 1, quarantined = 0 WHERE batch_id = 1"))
    batch, _ = replay.plan(ledger, spec, "again", 1)
    with pytest.raises(CorruptionError, match=r"name \(10, 0, 1, 0\) repeats"):
        stage(ledger, spec, batch.batch_id, LocalEngine(), log=quiet)


def test_a_survivor_that_is_not_valid_now(bench: Workbench, ledger: Ledger) -> None:
    """RP3: it would be lost without an account: the attempt stops, and names file and line."""
    two_batches(bench, ledger)
    spec = bench.spec(source={"schema": {"id": "string", "n": "date", "at": "timestamp"}})
    with pytest.raises(TerminalError, match=r"in/a.jsonl' line 1 \(byte 0\): type_mismatch"):
        replayed(ledger, spec, 1, "again")
    assert len(rows(spec)) == 70


def test_a_marker_that_is_not_there(bench: Workbench, ledger: Ledger) -> None:
    """RP5: what is to be replaced must be what the ledger has as the newest output."""
    spec = two_batches(bench, ledger)
    path = layout.marker(layout.archive_folder(spec), 1)
    whole = path.read_bytes()
    path.unlink()
    assert isinstance(refusal(ledger, spec, 1), CorruptionError)
    path.write_bytes(whole)
    number = waiting(ledger, spec, 1, "again")
    path.write_bytes(b"{}")
    with pytest.raises(CorruptionError, match="semel cannot read this marker"):
        finalize(ledger, spec, number)
    path.unlink()
    with pytest.raises(TerminalError, match="the markers of batch 1 are missing"):
        finalize(ledger, spec, number)
    path.write_bytes(whole)
    assert not finalize(ledger, spec, number).found
    assert markers(spec.sink_path())[0].generation == 2


def test_what_is_no_finalized_batch(bench: Workbench, ledger: Ledger) -> None:
    """A batch at work, an abandoned one, a replay's own number, a stranger: each is told apart."""
    spec = two_batches(bench, ledger)
    bench.write("in/c.jsonl", events(70, 80))
    third = plan(ledger, spec, "r3").batch.batch_id
    assert "is planned, and only a finalized batch" in str(refusal(ledger, spec, third))
    abandon(ledger, third, "test")
    fourth = replayed(ledger, spec, 1, "other").batch.batch_id
    told = {third: "was abandoned", fourth: "is itself a replay, of batch 1", 99: "not in this"}
    for number, text in told.items():
        with pytest.raises(StateError, match=text):
            replay.plan(ledger, spec, "again", number)


def test_new_columns_are_accepted_first(bench: Workbench, ledger: Ledger) -> None:
    """S17: a replay may not change the output's columns by itself either."""
    two_batches(bench, ledger)
    spec = as_float(bench)
    with pytest.raises(TerminalError, match="semel accept events --columns"):
        replayed(ledger, spec, 1, "again")
    allow(ledger, spec)
    assert replayed(ledger, spec, 1, "again").batch.generation == 2


def test_an_output_in_another_kind_of_sink(bench: Workbench, ledger: Ledger) -> None:
    """RP8: what lies in files is not replaced by rows of a table: both would be there."""
    spec = two_batches(bench, ledger)
    sql(
        ledger,
        "UPDATE semel.batch SET spec = jsonb_set(spec, '{sink,type}', '\"postgres\"') "
        "WHERE batch_id = 1",
    )
    assert "in a sink of another type (postgres)" in str(refusal(ledger, spec, 1))
    assert replay.check_root(ledger, spec, 2, "again").why is None
