"""Dead letters that are judged again: what is good now is new, once; the rest stays one."""

from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from fixtures.batches.account import ids, run, sql
from fixtures.batches.replays import (
    BAD,
    admitted,
    falls_silent,
    replayed,
    rows,
    wider,
    with_letters,
)
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import answer_in
from fixtures.spark.local import LocalEngine
from semel.archive.marker import markers
from semel.cli import main
from semel.errors import RetryableError, SourceError, StateError, TerminalError
from semel.ledger import Ledger
from semel.runs import requarantine


def test_what_is_good_now_is_new_once(bench: Workbench, ledger: Ledger) -> None:
    """RP9: one copy of x1; not e000003, which the catalog has; what is no record stays out."""
    spec = with_letters(bench, ledger)
    counts = admitted(ledger, spec).finalized.counts
    assert (counts.records_read, counts.survivors, counts.quarantined) == (5, 1, 2)
    assert (counts.duplicates_batch, counts.duplicates_catalog, counts.bytes_read) == (1, 1, 0)
    marker = markers(spec.sink_path())[1]
    assert (marker.admits.batch_id, marker.admits.admission, marker.claims) == (1, 1, ())
    assert [row["id"] for row in rows(spec)] == [*ids(0, 40), "x1"]
    again = admitted(ledger, spec)
    assert again.finalized.counts.records_read == 2 and again.batch.admission == 2
    assert again.finalized.counts.quarantined == 2
    assert len(rows(spec)) == 41


def test_none_is_left(bench: Workbench, ledger: Ledger) -> None:
    """RP9: when all were admitted, or there never were any, there is nothing to do."""
    spec = bench.spec()
    bench.write("in/a.jsonl", [*events(0, 20), BAD])
    run(ledger, spec, "r1")
    bench.write("in/b.jsonl", events(20, 30))
    run(ledger, spec, "r2")
    spec = wider(bench, ledger)
    assert admitted(ledger, spec).finalized.counts.survivors == 1
    assert admitted(ledger, spec).batch is None
    assert admitted(ledger, spec, 2).batch is None


def test_the_command(bench: Workbench, ledger: Ledger, monkeypatch: Any, capsys: Any) -> None:
    """It tells how many are left, admits them once, and then has nothing to do."""
    spec = with_letters(bench, ledger)
    opened = contextmanager(lambda *_: iter([LocalEngine()]))
    monkeypatch.setattr("semel.spark.session.open_engine", opened)
    monkeypatch.setenv("SEMEL_LEDGER_DSN", ledger.dsn)
    monkeypatch.setenv("SEMEL_SPARK_REMOTE", "none, for there is an engine")
    asked = ["replay", spec.name, "--batches", "1..9", "--requarantine"]
    assert main([*asked, "--dry-run"]) == 0
    assert capsys.readouterr().out == "batch 1: 5 dead letters left\n"
    assert main(asked) == 0
    told = "judged again: 5 dead letters of batch 1 by batch 2: 1 new, 2 repeats, 2 quarantined"
    assert capsys.readouterr().out.startswith(told)
    sql(ledger, "UPDATE semel.attempt SET quarantined = 0, late = 2 WHERE batch_id = 2")
    assert main([*asked, "--dry-run", "--json"]) == 0
    assert answer_in(capsys.readouterr().out)["letters"] == {"1": 2}
    sql(ledger, "UPDATE semel.attempt SET late = 0, duplicates_batch = 3 WHERE batch_id = 2")
    assert main(asked) == 0
    none_left = "nothing to do: no dead letters are left in these batches"
    assert capsys.readouterr().out.startswith(none_left)


def test_by_position(bench: Workbench, ledger: Ledger) -> None:
    """RP9: without ids each good one is new: x1 twice, and e000003 once more."""
    spec = with_letters(bench, ledger, record_id=None)
    counts = admitted(ledger, spec).finalized.counts
    assert (counts.records_read, counts.survivors, counts.quarantined) == (5, 3, 2)
    assert admitted(ledger, spec).finalized.counts.survivors == 0


def test_an_admission_is_replayed(bench: Workbench, ledger: Ledger) -> None:
    """RP1, RP9: what it admitted is its output, which is computed again like any other."""
    spec = with_letters(bench, ledger)
    admission = admitted(ledger, spec).batch
    before = rows(spec)
    for root in (1, admission.batch_id):
        assert replayed(ledger, spec, root, "again").batch.generation == 2
    assert rows(spec) == before
    marker = markers(spec.sink_path())[1]
    assert (marker.generation, marker.admits.batch_id) == (2, 1)


def test_what_is_refused(bench: Workbench, ledger: Ledger) -> None:
    """A source that is gone or was edited, a replay's number, an admission's, a batch at work."""
    spec = with_letters(bench, ledger)
    path = bench.data / "in" / "a.jsonl"
    whole = path.read_bytes()
    path.rename(bench.folder / "away")
    with pytest.raises(SourceError, match="cannot be read"):
        admitted(ledger, spec)
    (bench.folder / "away").rename(path)
    path.write_bytes(whole.replace(b"x1", b"x2"))
    with pytest.raises(TerminalError, match="no longer what batch 1 planned"):
        admitted(ledger, spec)
    path.write_bytes(whole)
    admission = admitted(ledger, spec).batch.batch_id
    replay = replayed(ledger, spec, 1, "again").batch.batch_id
    for number in (admission, replay):
        with pytest.raises(StateError, match="takes records of batch 1 again"):
            admitted(ledger, spec, number)


def test_two_at_once(bench: Workbench, ledger: Ledger) -> None:
    """RP9: another request waits; and whatever our own code does, the database takes one."""
    spec = with_letters(bench, ledger)
    first = requarantine.plan(ledger, spec, "a", 1)
    assert requarantine.plan(ledger, spec, "a", 1) == first
    with pytest.raises(RetryableError, match=r"is at work on batch 1\."):
        requarantine.plan(ledger, spec, "b", 1)
    with pytest.raises(sa.exc.IntegrityError, match="batch_admission"):
        sql(
            ledger,
            "INSERT INTO semel.batch (pipeline_id, request_key, ordinal, spec, spec_digest, "
            "split_bytes, admits, admission) SELECT pipeline_id, 'b', 1, spec, spec_digest, "
            "split_bytes, 1, 1 FROM semel.batch WHERE batch_id = 1",
        )
    falls_silent(ledger)
    second = requarantine.plan(ledger, spec, "b", 1)
    assert second.batch_id != first.batch_id and second.admission == 1
