"""What cannot be replayed: each is refused with the reason, and the output stays what it was."""

from typing import Any

import pytest

from fix_account import quiet
from fix_engine import LocalEngine
from fix_pipelines import Workbench, events
from fix_replay import allow, as_float, refusal, replayed, rows, run, sql, two_batches
from semel import replay
from semel.abandon import abandon
from semel.commit import commit
from semel.errors import CorruptionError, SourceError, StateError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.plan import plan
from semel.reader import markers
from semel.sinks import archive
from semel.stage import stage


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
        (path,) = archive.of(spec).glob(f"{kind}/b00000001-*.parquet")
        whole = path.read_bytes()
        path.unlink()
        assert "cannot be read" in str(refusal(ledger, spec, 1))
        path.write_bytes(whole[:-1] + b"x")
        assert "is not what its marker says" in str(refusal(ledger, spec, 1))
        path.write_bytes(whole)
    assert replay.look(ledger, spec, 1, "again").why is None


def test_decisions_of_another_batch(bench: Workbench, ledger: Ledger) -> None:
    """RP1: they must name as many records as the winner counted, and of each kind as many."""
    spec = two_batches(bench, ledger)
    change = "UPDATE semel.attempt SET duplicates_batch = duplicates_batch + {}"
    sql(ledger, change.format("1, survivors = survivors - 1 WHERE batch_id = 1"))
    assert "are 11 records, and it counted 12" in str(refusal(ledger, spec, 1))
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
    path = archive.marker(archive.of(spec), 1)
    whole = path.read_bytes()
    path.unlink()
    assert isinstance(refusal(ledger, spec, 1), CorruptionError)
    path.write_bytes(whole)
    batch, _ = replay.plan(ledger, spec, "again", 1)
    stage(ledger, spec, batch.batch_id, LocalEngine(), log=quiet)
    commit(ledger, spec, batch.batch_id, lambda: None, log=quiet)
    path.write_bytes(b"{}")
    with pytest.raises(CorruptionError, match="cannot be read"):
        finalize(ledger, spec, batch.batch_id)
    path.unlink()
    with pytest.raises(CorruptionError, match="is gone; nothing was touched"):
        finalize(ledger, spec, batch.batch_id)
    path.write_bytes(whole)
    assert not finalize(ledger, spec, batch.batch_id).found
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


def test_a_table_refuses(bench: Workbench, ledger: Ledger, monkeypatch: Any) -> None:
    """RP8: a sink that cannot replace says so before any work."""
    from semel.sinks.folder import Folder

    def refuses(*_: object) -> None:
        raise TerminalError("this sink cannot replace")

    spec = two_batches(bench, ledger)
    monkeypatch.setattr(Folder, "check_replace", refuses)
    assert "this sink cannot replace" in str(refusal(ledger, spec, 1))


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
    assert replay.look(ledger, spec, 2, "again").why is None
