"""days: how far each interval is, on what the verbs really wrote; and what it costs to ask."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fixtures.batches.account import add_attempt, run, sql
from fixtures.batches.history import add_history
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from semel.errors import SpecError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.reports.days import DAYS_BATCHES_NAMED, Days, days
from semel.reports.progress import CellState, Sight

BY_DAY = {"select": "interval", "interval_from": "day-%Y-%m-%d.jsonl", "on_refused": "warn"}
DAY = timedelta(days=1)
NOW = datetime(2026, 11, 8, 12, tzinfo=UTC)


def day(number: int) -> datetime:
    return datetime(2026, 11, number, tzinfo=UTC)


def interval(first: int, last: int | None = None) -> tuple[datetime, datetime]:
    return day(first), day(last or first) + timedelta(days=1)


def asked(ledger: Ledger, spec: Spec, *, look: bool = True, **options: object) -> Days:
    sight = Sight.of(ledger, spec) if look else None
    return days(ledger, spec, sight, **{"now": NOW, **options})


def states(answer: Days) -> dict[int, CellState]:
    """By the day of the month."""
    return {cell.start.day: cell.state for cell in answer.days if cell.start.month == 11}


def land(bench: Workbench, number: int, count: int = 10) -> Path:
    records = events(100 * number, 100 * number + count)
    return bench.write(f"in/day-2026-11-{number:02d}.jsonl", records)


@pytest.fixture
def week(bench: Workbench, ledger: Ledger) -> Spec:
    """A week with one day of each state."""
    spec = bench.spec(source=BY_DAY)
    for number in (1, 2, 3, 4):
        land(bench, number)
    run(ledger, spec, "airflow:events:first", interval(1))
    run(ledger, spec, "r2", interval(2))
    plan(ledger, spec, "r3", interval(3))
    late = bench.data / "in" / "day-2026-11-02.jsonl"
    late.write_bytes(late.read_bytes() + json.dumps(events(900, 901)[0]).encode() + b"\n")
    (bench.data / "in" / "day-2026-11-05.jsonl").write_bytes(b'{"id": "half')
    bench.write("in/day-2026-11-06.jsonl", events(600, 610))
    run(ledger, spec, "r6", interval(6))
    bench.write("in/day-2026-11-06.jsonl", events(700, 710))
    return spec


def test_each_day_has_its_state(week: Spec, ledger: Ledger) -> None:
    """Complete, more came, in work, unclaimed, a half line, another file of that name, nothing."""
    answer = asked(ledger, week)
    assert len(answer.days) == 31 and answer.days[-1].end == day(9)
    assert states(answer) == {
        1: CellState.FINALIZED, 2: CellState.PARTLY, 3: CellState.IN_WORK, 4: CellState.UNCLAIMED,
        5: CellState.WAITING, 6: CellState.REFUSED, 7: CellState.NOTHING, 8: CellState.NOTHING,
    }  # fmt: skip
    first, second, third, fourth = answer.days[-8:-4]
    assert (first.counts.records_read, first.counts.survivors, first.command) == (10, 10, None)
    assert [b.request_key for b in first.batches] == ["airflow:events:first"]
    assert third.batches[0].counts is None and third.counts.records_read == 0
    assert second.command == "semel run events --interval 2026-11-02 2026-11-03"
    assert fourth.command == "semel run events --interval 2026-11-04 2026-11-05"
    assert {cell.command for cell in answer.days} - {second.command, fourth.command} == {None}


@pytest.mark.parametrize("died", [False, True], ids=["lost", "killed"])
def test_a_batch_without_an_attempt_at_work_has_failed(
    week: Spec, ledger: Ledger, died: bool
) -> None:
    """Its attempt is lost, or its worker shows no sign of life: the day says so at once, and not
    after an hour; the next attempt is at work again.
    """
    add_attempt(ledger, 3, "running" if died else "lost")
    if died:
        sql(ledger, "UPDATE semel.batch SET seen_at = seen_at - interval '1 minute'")
    assert states(asked(ledger, week))[3] is CellState.FAILED
    assert states(asked(ledger, week, look=False))[3] is CellState.FAILED
    add_attempt(ledger, 3, "running")
    sql(ledger, "UPDATE semel.batch SET seen_at = clock_timestamp() WHERE batch_id = 3")
    assert states(asked(ledger, week))[3] is CellState.IN_WORK


def test_the_ledger_alone_claims_nothing_of_the_source(week: Spec, ledger: Ledger) -> None:
    """Without a look at the source no day is called finalized or empty."""
    answer = asked(ledger, week, look=False)
    assert not answer.looked and answer.undated is None
    found = states(answer)
    assert [found[n] for n in (1, 2, 6)] == [CellState.BATCHES_FINALIZED] * 3
    assert found[3] is CellState.IN_WORK
    assert [found[n] for n in (4, 5, 7)] == [CellState.NO_BATCH] * 3


def test_the_command_of_an_unclaimed_day_reads_it(
    week: Spec, ledger: Ledger, shell: Shell
) -> None:
    """As it is printed; the day is finalized after it, and so is one that more came of."""
    said = shell.runs("semel days events --from 2026-11-01 --to 2026-11-07")
    commands = [line.removeprefix("next: ") for line in said.splitlines() if "next: " in line]
    assert len(commands) == 2, said
    for command in commands:
        shell.runs(command)
    answer = asked(ledger, week)
    assert [states(answer)[n] for n in (2, 4)] == [CellState.FINALIZED] * 2
    assert answer.days[-7].counts.survivors == 11


def test_a_batch_of_several_days_counts_in_none(bench: Workbench, ledger: Ledger) -> None:
    """It stands in each, and its records are not told once for each."""
    spec = bench.spec(source=BY_DAY)
    land(bench, 1)
    land(bench, 2)
    run(ledger, spec, "r1", interval(1, 3))
    answer = asked(ledger, spec)
    cells = {cell.start.day: cell for cell in answer.days[-8:]}
    assert states(answer)[3] is CellState.FINALIZED  # A finalized batch is of it.
    for number in (1, 2, 3):
        [batch] = cells[number].batches
        assert not batch.whole and batch.counts.survivors == 20
        assert cells[number].counts.records_read == 0
    narrow = asked(ledger, spec, since=day(2).date(), until=day(2).date())
    [cell] = narrow.days
    assert not cell.batches[0].whole


def test_a_day_that_another_interval_took_is_complete(bench: Workbench, ledger: Ledger) -> None:
    """What a lookback took has no batch of its own day, and is not called empty."""
    spec = bench.spec(source={**BY_DAY, "lookback": "2 days"})
    land(bench, 3)
    run(ledger, spec, "r4", interval(4))
    found = states(asked(ledger, spec))
    assert (found[3], found[2]) == (CellState.FINALIZED, CellState.NOTHING)
    land(bench, 2)
    plan(ledger, spec, "r4b", interval(4))
    assert states(asked(ledger, spec))[2] is CellState.IN_WORK


def test_hours_of_a_schedule(bench: Workbench, ledger: Ledger) -> None:
    """The cells are the schedule's; a silent batch is told, with what goes on with it."""
    spec = bench.spec(
        source={**BY_DAY, "interval_from": "h-%Y-%m-%dT%H.jsonl"}, schedule="0 * * * *"
    )
    bench.write("in/h-2026-11-08T10.jsonl", events(0, 5))
    start = datetime(2026, 11, 8, 10, tzinfo=UTC)
    plan(ledger, spec, "r", (start, start + timedelta(hours=1)))
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE semel.batch SET seen_at = now() - interval '2 hours'")
    answer = asked(ledger, spec)
    assert answer.days[-1].start == datetime(2026, 11, 8, 11, tzinfo=UTC)
    cell = answer.days[-2]
    assert (cell.state, cell.silent) == (CellState.IN_WORK, 1)
    assert cell.command == (
        "semel run events --interval 2026-11-08T10:00:00 2026-11-08T11:00:00"
    )


def test_days_of_long_ago_are_shown_when_nothing_is_newer(bench: Workbench, ledger: Ledger) -> None:
    """Data of years ago is found without --from, before its first batch and after it."""
    spec = bench.spec(source=BY_DAY)
    bench.write("in/day-2013-01-05.jsonl", events(0, 5))
    answer = asked(ledger, spec)
    assert answer.days[-1].start == datetime(2013, 1, 5, tzinfo=UTC)
    assert (answer.days[-1].state, answer.newest is not None) == (CellState.UNCLAIMED, True)
    times = datetime(2013, 1, 5, tzinfo=UTC), datetime(2013, 1, 6, tzinfo=UTC)
    run(ledger, spec, "r", times)
    answer = asked(ledger, spec, look=False)
    assert (answer.days[-1].start, answer.days[-1].state) == (times[0], CellState.BATCHES_FINALIZED)


@pytest.mark.parametrize("also", [[], ["2013-01-05"], ["2026-11-06"]], ids=str)
def test_a_file_of_a_time_that_is_yet_to_come(
    bench: Workbench, ledger: Ledger, shell: Shell, also: list[str]
) -> None:
    """The days that are shown end today, or with what is older; no day is empty for it, and its
    own day is named.
    """
    spec = bench.spec(source=BY_DAY)
    for name in ["2107-12-31", *also]:
        bench.write(f"in/day-{name}.jsonl", events(0, 5))
    answer = asked(ledger, spec)
    last = datetime(2013, 1, 5, tzinfo=UTC) if also == ["2013-01-05"] else day(8)
    assert answer.days[-1].start == last
    assert CellState.EMPTY not in {cell.state for cell in answer.days if cell.start > last - DAY}
    assert answer.ahead == datetime(2107, 12, 31, tzinfo=UTC)
    said = shell.runs("semel days events")
    assert "up to 2107-12-31: a zip archive or a wrong clock may have set them" in said
    (command,) = re.findall("next: (semel days .*)", said)
    again = shell.runs(command)
    assert "next: semel run events --interval 2107-12-31 2108-01-01" in again


def test_names_by_a_local_clock(bench: Workbench, ledger: Ledger) -> None:
    """An hour of Berlin is one of UTC, two hours before in summer and one in winter; a clock that is
    set back shows an hour twice, and its name is the first one.
    """
    hours = {"source": BY_DAY | {"interval_from": "h-%Y-%m-%dT%H.jsonl"}, "schedule": "0 * * * *"}
    hours["source"] |= {"interval_zone": "Europe/Berlin"}
    spec = bench.spec(**hours)
    local = {"2026-07-01T02": "2026-07-01T00", "2026-10-25T02": "2026-10-25T00",
             "2026-11-08T02": "2026-11-08T01"}  # fmt: skip
    for number, name in enumerate(local):
        bench.write(f"in/h-{name}.jsonl", events(10 * number, 10 * number + 5))
    for number, (name, utc) in enumerate(local.items()):
        start = datetime.fromisoformat(f"{utc}:00:00Z")
        done = run(ledger, spec, name, (start, start + timedelta(hours=1)))
        assert done.finalized.counts.records_read == 5, (number, name)
    for wrong in ({"interval_zone": "Berlin"}, {"interval_from": "mtime"}):
        why = "source.interval_zone: (is not a time|applies only if interval_from is a pattern)"
        with pytest.raises(SpecError, match=why):
            bench.spec(**hours | {"source": hours["source"] | wrong})


def test_arrival_stands_on_the_day_of_its_commit(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """It says that it has no intervals, and what is not finalized has no day."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r")
    bench.write("in/b.jsonl", events(20, 30))
    answer = asked(ledger, spec, now=datetime.now(UTC))
    assert answer.by_commit and answer.days[-1].state is CellState.BATCHES_FINALIZED
    assert answer.days[-1].counts.survivors == 10
    assert (answer.undated.unclaimed, answer.days[-1].seen) == (1, None)
    said = shell.runs("semel days events")
    assert "select: arrival" in said and "not finalized: files 1 unclaimed" in said
    cell = shell.answers("semel days events")["days"][-1]
    assert (cell["state"], cell["batches"][0]["counts"]["survivors"]) == ("done", 10)


def test_a_source_that_cannot_be_read_makes_no_day_complete(
    week: Spec, bench: Workbench, ledger: Ledger
) -> None:
    """Its folder is not there: that is told, and the days are what the ledger knows."""
    (bench.data / "in").rename(bench.data / "away")
    answer = asked(ledger, week)
    assert not answer.looked and answer.undated.refused == 1
    expected = {CellState.BATCHES_FINALIZED, CellState.IN_WORK, CellState.NO_BATCH}
    assert set(states(answer).values()) == expected


@pytest.mark.usefixtures("week")
def test_a_week_in_words(shell: Shell) -> None:
    """Each line says interval, state, account and batches; `semel batches` has intervals too."""
    said = shell.runs("semel days events --from 2026-11-01 --to 2026-11-07").splitlines()
    assert [" ".join(line.split()) for line in said[1:8]] == [
        "2026-11-01 finalized 10 10 0 1",
        "2026-11-02 partly 10 10 0 2 1 unclaimed (58 bytes)",
        "2026-11-03 in work 3 1 in an open batch",
        "2026-11-04 unclaimed 1 unclaimed (580 bytes)",
        "2026-11-05 waiting 1 waiting",
        "2026-11-06 refused 10 10 0 4 1 refused",
        "2026-11-07 nothing there",
    ]
    assert "2026-11-06" in shell.runs("semel batches events")
    shell.runs("semel days events --from 1900-01-01", code=1)
    assert "Choose fewer days with --from and --to" in shell.err


@pytest.mark.rest
@pytest.mark.parametrize("select", ["interval", "arrival"])
def test_ten_thousand_batches(select: str, bench: Workbench, ledger: Ledger) -> None:
    """Each batch stands in its day, and in no other; what is more than may be is cut, and told."""
    batches = 10_001
    spec = bench.spec(source=BY_DAY) if select == "interval" else bench.spec()
    times = interval(1) if select == "interval" else None
    path = land(bench, 1)
    done = run(ledger, spec, "r", times)
    path.unlink()
    plan(ledger, spec, "idle", times)
    add_history(ledger, done.plan.batch, batches)
    now = datetime.now(UTC)
    answer = days(ledger, spec, None, now=now)
    assert (len(answer.days), answer.cut) == (31, False)
    per_day = [cell.batch_count for cell in answer.days]
    # By interval, one may lie across each of two midnights.
    assert set(per_day[1:-2]) <= {287, 288, 289, 290}
    whole = {287, 288, 289} if select == "interval" else {per_day[-3]}
    assert answer.days[-3].counts.survivors / 10 in whole
    assert len(answer.days[-3].batches) == DAYS_BATCHES_NAMED
    past = (now - timedelta(days=30)).date()
    some = asked(ledger, spec, look=False, now=now, since=past, until=past)
    assert [cell.batch_count for cell in some.days] == [per_day[0]]
    whole = asked(ledger, spec, look=False, now=now, since=(now - timedelta(days=60)).date())
    assert whole.cut and 33 <= len(whole.days) <= 35
    assert [cell.batch_count for cell in whole.days][-31:] == per_day


def test_what_days_print_to_a_person(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """Adjacent days have one command; a refused file has its reason; by arrival, days without a
    batch are left out.
    """
    bench.spec(source=BY_DAY)
    for day in (1, 2, 3, 5):
        bench.write(f"in/day-2026-11-0{day}.jsonl", events(day * 10, day * 10 + 5))
    line = "semel days events --from 2026-11-01 --to 2026-11-07"
    steps = [x for x in shell.runs(line).splitlines() if x.startswith("next: ")]
    assert steps == [
        "next: semel run events --interval 2026-11-01 2026-11-04",
        "next: semel run events --interval 2026-11-05 2026-11-06",
    ]
    shell.runs(steps[0].removeprefix("next: "))
    bench.write("in/day-2026-11-02.jsonl", events(90, 95))
    shown = shell.runs(line)
    assert "refused: '" in shown and "2026-11-02.jsonl': changed: " in shown
    bench.spec("arrivals", source={"path": "in/day-2026-11-05.jsonl"})
    shell.runs("semel run arrivals")
    assert len([x for x in shell.runs("semel days arrivals").splitlines() if x[:2] == "20"]) == 1
