"""What a plan says when it takes nothing: which it is, with the interval, the batch, its run."""

import shlex
import shutil
import time
from datetime import UTC, datetime, timedelta

import pytest

from fixtures.batches.account import committed, ids, quiet, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.spark.local import LocalEngine
from semel import limits
from semel.airflow.task_failure import WIDTH, wrap_lines
from semel.commit import commit
from semel.errors import SourceError
from semel.ledger import Ledger
from semel.plan import Plan, plan
from semel.reports import summary
from semel.runs.run import run_batch
from semel.stage import stage

DAYS = {"path": "in/*.jsonl", "select": "interval", "interval_from": "%Y-%m-%d.jsonl"}


def day(number: int, length: int = 1) -> tuple[datetime, datetime]:
    start = datetime(2026, 1, number, tzinfo=UTC)
    return start, start + timedelta(days=length)


def told(answer: Plan) -> list[str]:
    """The lines of the summary, which all fit a task's log."""
    lines = wrap_lines(summary.plan(answer))
    assert all(len(line) <= WIDTH for line in lines)
    return lines


def test_nothing_has_come_for_a_day(bench: Workbench, ledger: Ledger) -> None:
    """It says so, and what is there of other days; the command that it names takes that."""
    spec = bench.spec(source=DAYS)
    for number in (2, 4):
        bench.write(f"in/2026-01-0{number}.jsonl", events(10 * number, 10 * number + 10))
    lines = told(plan(ledger, spec, "airflow:events:r1", day(3)))
    assert lines == [
        "nothing to do: events has no file of 2026-01-03 yet",
        "2 files of other days, 2026-01-02 to 2026-01-04, are new or changed",
        "next: semel run events --interval 2026-01-02 2026-01-05",
    ]
    *_, start, end = shlex.split(lines[-1])
    times = tuple(datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (start, end))
    run(ledger, spec, "by hand", times)
    assert settled(spec).ids == [*ids(20, 30), *ids(40, 50)]
    lines = told(plan(ledger, spec, "airflow:events:r3", day(3)))
    assert lines == ["nothing to do: events has no file of 2026-01-03 yet"]


def test_what_a_schedule_takes_is_not_advised(bench: Workbench, ledger: Ledger) -> None:
    """Days that are over need a backfill, which the DAG's page has too; today does not."""
    spec = bench.spec(source=DAYS, schedule="0 0 * * *")
    today = datetime.now(UTC)
    bench.write(f"in/{today:%F}.jsonl", events(0, 10))
    lines = told(plan(ledger, spec, "airflow:events:r1", day(3)))
    assert lines[1:] == [
        f"1 file of other days, {today:%F}, is new or changed",
        "the schedule reads them when their interval has ended",
    ]
    bench.write("in/2026-01-02.jsonl", events(10, 20))
    lines = told(plan(ledger, spec, "airflow:events:r2", day(3)))
    assert "".join(line.removesuffix("\\") for line in lines[2:4]) == (
        "next: airflow backfill create --dag-id events --from-date 2026-01-02T00:00:00+00:00 "
        "--to-date     2026-01-02T23:59:59+00:00 --reprocess-behavior completed --dag-run-conf '{}'"
    )
    assert lines[4:] == [
        "or the same on the DAG's page: Trigger, Backfill, 2026-01-02, All Runs; or",
        "next: semel run events --interval 2026-01-02 2026-01-03",
    ]


def test_a_plan_names_what_it_reads(bench: Workbench, ledger: Ledger) -> None:
    """The interval and the files, some of them by name."""
    spec = bench.spec(source={**DAYS, "interval_from": "mtime"})
    paths = [bench.write(f"in/{n:02d}.jsonl", events(n, n + 1)) for n in range(12)]
    always = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
    lines = summary.plan(plan(ledger, spec, "r1", always)).splitlines()
    assert lines[0].startswith(
        "planned: batch 1 of events for 2000-01-01 to 2099-12-31 reads 12 files, "
    )
    assert lines[1:11] == [f"  {path}" for path in paths[:10]]
    assert lines[11:] == ["  and 2 more", "next: stage"]


def test_another_run_has_the_records(bench: Workbench, ledger: Ledger) -> None:
    """Its batch, run, state and count of new records; and when it is still at work."""
    spec = bench.spec(source=DAYS)
    bench.write("in/2026-01-03.jsonl", [*events(0, 10), *events(0, 2)])
    run(ledger, spec, "airflow:events:scheduled__a", day(3))
    first = "nothing to do: batches already have all records of 1 file of 2026-01-03"
    has = "batch 1 (run scheduled__a) has 1 file, finalized, 10 new"
    assert told(plan(ledger, spec, "airflow:events:b", day(3))) == [first, has]
    bench.write("in/2026-01-03.jsonl", events(10, 20), "ab")
    plan(ledger, spec, "airflow:events:manual__c", day(3))
    at_work = "batch 2 (run manual__c) is working on 1 file"
    lines = told(plan(ledger, spec, "airflow:events:b", day(3)))
    assert lines == [first, at_work, has]


def test_a_committed_batch_is_named_as_such(bench: Workbench, ledger: Ledger) -> None:
    """Nobody sees its records yet, and nobody else will take them."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    committed(ledger, spec, "cli")
    lines = told(plan(ledger, spec, "other"))
    assert lines == [
        "nothing to do: batches already have all records of 1 file",
        "batch 1 (run cli) has 1 file, committed, 10 new",
    ]  # fmt: skip


def test_a_last_line_without_its_end(bench: Workbench, ledger: Ledger) -> None:
    """What waits for its writer is named."""
    spec = bench.spec()
    path = bench.data / "in" / "a.jsonl"
    path.write_bytes(b'{"id": "half')
    lines = told(plan(ledger, spec, "r1"))
    assert lines[0] == "nothing to do: 1 file has no complete record"
    assert "waiting for the end of a last line, or of a file:" in lines[1]
    assert any(str(path) in line for line in lines)


def test_an_empty_source(bench: Workbench, ledger: Ledger) -> None:
    """No file at all, or none that the pattern matches: those most like it are named."""
    spec = bench.spec()
    first = "nothing to do: events has no file yet"
    assert told(plan(ledger, spec, "r1"))[:1] == [first]
    (bench.data / "in" / "_notes.txt").touch()
    assert wrap_lines(summary.plan(plan(ledger, spec, "r1"))) == [
        first, "no file matches 'in/*.jsonl'"
    ]  # fmt: skip
    for number in range(5):
        (bench.data / "in" / f"2026-01-0{number}.json").touch()
    (bench.data / "in" / "readme.txt").touch()
    lines = "\n".join(told(plan(ledger, spec, "r1")))
    assert "'2026-01-04.json'" in lines and lines.count(".json'") == 3 and ", and 3 more" in lines
    shutil.rmtree(bench.data / "in")
    assert f"there is no folder {str(bench.data / 'in')!r}" in " ".join(
        told(plan(ledger, spec, "r1"))
    )


def test_holders_beyond_those_shown(bench: Workbench, ledger: Ledger) -> None:
    """The newest five batches are named, and the others counted."""
    spec = bench.spec()
    for number in range(7):
        bench.write(f"in/{number}.jsonl", events(10 * number, 10 * number + 10))
        run(ledger, spec, f"r{number}")
    lines = told(plan(ledger, spec, "again"))
    assert sum(line.startswith("batch ") for line in lines) == 5
    assert "2 more; `semel batches events` lists them" in lines


def test_the_same_run_again(bench: Workbench, ledger: Ledger) -> None:
    """A run that has had its batch is done, and says of each verb what it came to."""
    spec = bench.spec()
    bench.write("in/a.jsonl", [*events(0, 10), *events(0, 3)])
    done = run(ledger, spec, "r1")
    again = plan(ledger, spec, "r1")
    assert again.is_done and again.before.batch_id == done.plan.batch.batch_id
    account = summary.counts(done.finalized.counts)
    for answer in (done.staged, done.committed):
        assert answer.counts == done.finalized.counts
    staged = stage(ledger, spec, again.before.batch_id, LocalEngine(), quiet)
    assert summary.stage(staged).splitlines()[1:] == account
    won = commit(ledger, spec, again.before.batch_id, lambda: None, quiet)
    assert summary.commit(won).splitlines()[1:-1] == account


def test_an_empty_run_may_fail(bench: Workbench, ledger: Ledger) -> None:
    """on_empty: fail, only for a run that never had anything."""
    spec = bench.spec(source={"on_empty": "fail"})
    with pytest.raises(SourceError, match="nothing to read, and source.on_empty is fail"):
        run(ledger, spec, "r1")
    bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    assert run(ledger, spec, "r1").plan.is_done


def test_an_empty_run_may_wait(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """on_empty: wait looks again until something has come, or for so long."""
    spec = bench.spec(source={"on_empty": "wait", "wait_at_most": "30 seconds"})
    monkeypatch.setattr(limits, "LOOK_AGAIN_SECONDS", 0.01)
    looks = []

    def say(line: str) -> None:
        looks.append(line)
        if len(looks) == 3:
            bench.write("in/a.jsonl", events(0, 10))

    done = run_batch(ledger, spec, "r1", LocalEngine(), log=say)
    assert done.finalized.counts.survivors == 10 and len(looks) >= 3
    hours = iter([0.0, 0.0, 20.0, 40.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(hours, 60.0))
    with pytest.raises(SourceError, match="waited for source.wait_at_most, 30 seconds"):
        run(ledger, spec, "r2")
