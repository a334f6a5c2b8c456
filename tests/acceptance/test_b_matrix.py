"""Pairs of the matrix through Airflow: how a run is started, what is there, what happens."""

from datetime import UTC, datetime, timedelta

import pytest

from fix_stack import DAYS, Stack
from fixtures.batches.workbench import events
from fixtures.wait import wait_for
from semel import pipeline, reader, settings
from semel.ledger import Ledger
from semel.plan import plan

ONE = timedelta(days=1)
TAKES = ["success"] * 4
NOTHING = ["success", "skipped", "skipped", "skipped"]
FAILS = ["failed", "upstream_failed", "upstream_failed", "upstream_failed"]


def day(number: int) -> datetime:
    """A day of January 2026."""
    return datetime(2026, 1, number, tzinfo=UTC)


def land(stack: Stack, when: datetime, records: int) -> None:
    """The file of a day, with so many records of ids that no other day has."""
    first = when.toordinal() * 1000
    stack.write(f"{DAYS}/{when:%F}.jsonl", events(first, first + records))


def output() -> dict[int, int]:
    """Records of each day that readers see, by the day's ordinal; none of them twice."""
    dataset = reader.dataset(pipeline.find(DAYS).sink_path())
    found = dataset.to_table(["n"])["n"].to_pylist()
    assert len(found) == len(set(found))
    return {n // 1000: sum(m // 1000 == n // 1000 for m in found) for n in found}


def there(*days: tuple[datetime, int]) -> dict[int, int]:
    return {when.toordinal(): records for when, records in days}


def ended(stack: Stack, run: str) -> list[str | None]:
    """The states of a run's four tasks, once it has ended; none was tried twice."""
    stack.airflow.ended(DAYS, run)
    tasks = stack.airflow.tasks(DAYS, run)
    assert tasks["plan"].tries == 1, stack.airflow.story(DAYS, run)
    return [tasks[name].state for name in ("plan", "stage", "commit", "finalize")]


def yesterday() -> datetime:
    """The newest day that is over: another one once a test has crossed midnight."""
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - ONE


def unpaused(stack: Stack, newest: datetime) -> str:
    """The run that the schedule makes once the DAG is unpaused: of the newest day, or of the next
    one after midnight.
    """
    airflow = stack.airflow
    airflow.pause(DAYS, paused=False)
    return wait_for(
        lambda: airflow.run_of(DAYS, "scheduled", newest)
        or airflow.run_of(DAYS, "scheduled", newest + ONE),
        "the scheduled run",
        60,
    )


@pytest.fixture(scope="module", autouse=True)
def arrived(_running_stack: Stack) -> None:
    """Files of two days of January, of yesterday and of today; the DAG is as it arrived."""
    for when in (day(1), day(2), yesterday(), yesterday() + ONE):
        land(_running_stack, when, 5)


def test_it_arrives_paused_and_then_goes_on(stack: Stack) -> None:
    """Paused: a backfill's runs wait as queued. Unpaused: each day is taken, and the schedule's own
    interval too; what is triggered for it then finds it done.

    Which runs there are, and of which intervals, only Airflow shows.
    """
    airflow = stack.airflow
    assert airflow.call("GET", f"/api/v2/dags/{DAYS}")["is_paused"]
    backfill = airflow.backfill(DAYS, day(1), day(2))
    runs = airflow.backfilled(DAYS, day(1), day(2))
    states = {one["state"] for one in
              airflow.call("GET", f"/api/v2/dags/{DAYS}/dagRuns")["dag_runs"]}  # fmt: skip
    assert states == {"queued"}
    newest = yesterday()
    scheduled = unpaused(stack, newest)
    for run in [*runs, scheduled]:
        assert ended(stack, run) == TAKES, airflow.story(DAYS, run)
    stack.airflow.end_backfill(backfill)
    assert output() in [there((day(1), 5), (day(2), 5), (late, 5)) for late in (newest, newest + ONE)]
    body = {"logical_date": datetime.now(UTC).isoformat()}
    manual = airflow.call("POST", f"/api/v2/dags/{DAYS}/dagRuns", body)["dag_run_id"]
    assert ended(stack, manual) == NOTHING


@pytest.fixture
def backfilled(stack: Stack) -> None:
    """The schedule's own run and a backfill of day 1 have ended: in the first test here, or now."""
    airflow = stack.airflow
    airflow.succeeded(DAYS, unpaused(stack, yesterday()))
    if not airflow.run_of(DAYS, "backfill", day(1)):
        backfill = airflow.backfill(DAYS, day(1), day(1))
        [run] = airflow.backfilled(DAYS, day(1))
        airflow.succeeded(DAYS, run)
        airflow.end_backfill(backfill)


@pytest.mark.usefixtures("backfilled")
def test_an_interval_that_grew(stack: Stack) -> None:
    """A run with an interval takes the rest of it. By a backfill that reprocesses, a day's run is
    green again, and nothing is made twice. Without reprocess Airflow makes no run.

    That a backfill clears the run that there is, and when it makes none, only Airflow shows.
    """
    airflow = stack.airflow
    land(stack, day(2), 8)
    assert ended(stack, airflow.trigger_for(DAYS, day(2), day(3))) == TAKES
    assert output()[day(2).toordinal()] == 8
    before, known = stack.batches(DAYS), airflow.runs(DAYS)
    airflow.end_backfill(airflow.backfill(DAYS, day(1), day(1), reprocess_behavior="none"))
    again = airflow.backfill(DAYS, day(1), day(1), reprocess_behavior="completed")
    mine = airflow.run_of(DAYS, "backfill", day(1))
    wait_for(lambda: airflow.tasks(DAYS, mine)["finalize"].tries == 2, "the run again", 60)
    airflow.succeeded(DAYS, mine)
    airflow.end_backfill(again)
    assert {task.state for task in airflow.tasks(DAYS, mine).values()} == {"success"}
    assert (stack.batches(DAYS), airflow.runs(DAYS)) == (before, known)


def test_a_backfill_that_is_cancelled_and_a_run_without_a_logical_date(stack: Stack) -> None:
    """The queued runs of the one end without a task, and leave nothing. The other has no interval
    and fails, with what to give; with that it takes the day, and not the one beside it.

    What Airflow leaves of a cancelled backfill, and makes of a run's configuration, it alone shows.
    """
    airflow = stack.airflow
    airflow.pause(DAYS)
    land(stack, day(5), 5)
    land(stack, day(6), 5)
    airflow.end_backfill(airflow.backfill(DAYS, day(5), day(6), run_backwards=True))
    airflow.pause(DAYS, paused=False)
    for when in (day(5), day(6)):
        run = airflow.run_of(DAYS, "backfill", when)
        assert airflow.ended(DAYS, run) == "failed"
        assert {task.state for task in airflow.tasks(DAYS, run).values()} <= {None, "skipped"}
    run = airflow.trigger(DAYS)
    assert ended(stack, run) == FAILS
    said = "\n".join(airflow.log(DAYS, run, "plan"))
    assert '"interval_start": "2013-01-01T00:00:00Z"' in said.replace("\n", " ")
    given = {"interval_start": day(6).isoformat(), "interval_end": day(7).isoformat()}
    assert ended(stack, airflow.trigger(DAYS, **given)) == TAKES
    assert output()[day(6).toordinal()] == 5
    assert day(5).toordinal() not in output()


@pytest.mark.usefixtures("backfilled")
def test_what_another_has_and_what_is_refused(stack: Stack) -> None:
    """Work elsewhere: nothing is taken. A file that shrank: plan fails once, and takes nothing."""
    land(stack, day(8), 5)
    with Ledger(settings.ledger_dsn()) as ledger:
        plan(ledger, pipeline.find(DAYS), "elsewhere", (day(8), day(9)))
    before = stack.batches(DAYS)
    land(stack, day(1), 3)
    elsewhere = stack.airflow.trigger_for(DAYS, day(8), day(9))
    refused = stack.airflow.trigger_for(DAYS, day(1), day(2))
    assert ended(stack, elsewhere) == NOTHING
    assert ended(stack, refused) == FAILS
    assert stack.batches(DAYS) == before
