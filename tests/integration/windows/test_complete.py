"""Completeness: what plans have looked at and finalized, and which windows that makes complete."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from fixtures.batches.account import quiet, run, settled
from fixtures.batches.chains import link
from fixtures.batches.replays import admitted, allow, as_float, replayed
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.postgres.server import lose
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.archive.marker import markers
from semel.commit import commit
from semel.errors import SourceError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.model.complete import WindowState
from semel.model.times import TimeSet
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.repair.accept import current_user
from semel.repair.adopt import adopt
from semel.repair.losses import accept_loss
from semel.reports import completeness
from semel.stage import stage

BY_DAY = {"select": "interval", "interval_from": "day-%Y-%m-%d.jsonl"}
DAY = timedelta(days=1)


def day(number: int, *, month: int = 11, year: int = 2025) -> datetime:
    return datetime(year, month, number, tzinfo=UTC)


def of(number: int, *, days: int = 1) -> tuple[datetime, datetime]:
    return day(number), day(number) + days * DAY


def by_day(bench: Workbench, **changes: Any) -> Spec:
    source = BY_DAY | changes.pop("source", {})
    return bench.spec(source=source, record_time="at", window={"size": "1 day"}, **changes)


def land(bench: Workbench, number: int, name: str = "day-2025-11-{:02d}.jsonl") -> Path:
    return bench.write("in/" + name.format(number), events(100 * number, 100 * number + 10))


def covered(ledger: Ledger, name: str = "events") -> list[tuple[datetime, datetime]]:
    """What is covered, by the ledger alone."""
    with ledger.engine.connect() as connection:
        found = connection.exec_driver_sql(
            "SELECT covered FROM semel.pipeline WHERE name = %s", (name,)
        ).scalar_one()
    return list(TimeSet.from_ledger(found).ranges)


def committed(
    ledger: Ledger, spec: Spec, key: str, interval: tuple[datetime, datetime] | None
) -> int:
    batch = plan(ledger, spec, key, interval).batch.batch_id
    stage(ledger, spec, batch, LocalEngine(), log=quiet)
    commit(ledger, spec, batch, lambda: None, log=quiet)
    return batch


# Attacks W1.
def test_a_day_that_failed_is_a_hole_until_it_is_cleared(bench: Workbench, ledger: Ledger) -> None:
    """Monday's batch does not get through; the days after it are covered, and then Monday is."""
    spec = by_day(bench)
    for number in (3, 4, 5, 6):
        land(bench, number)
    plan(ledger, spec, "monday", of(3))
    for number in (4, 5, 6):
        run(ledger, spec, f"r{number}", of(number))
    assert covered(ledger) == [of(4, days=3)]
    run(ledger, spec, "monday", of(3))
    assert covered(ledger) == [of(3, days=4)]
    settled(spec)


# Attacks W1.
def test_nothing_covers_twice_and_nothing_takes_away(bench: Workbench, ledger: Ledger) -> None:
    """A retry, a twin, a late file and its batch, and a replay leave what is covered as it is."""
    spec = by_day(bench)
    land(bench, 3)
    batch = committed(ledger, spec, "r", of(3))
    assert covered(ledger) == []
    for _ in range(3):
        finalize(ledger, spec, batch)
        assert covered(ledger) == [of(3)]
    late = bench.data / "in" / "day-2025-11-03.jsonl"
    late.write_bytes(late.read_bytes() + json.dumps(events(900, 901)[0]).encode() + b"\n")
    assert plan(ledger, spec, "late", of(3)).batch is not None
    assert covered(ledger) == [of(3)]
    run(ledger, spec, "late", of(3))
    replayed(ledger, spec, batch, "again")
    assert covered(ledger) == [of(3)]
    assert [len(marker.covers.ranges) for marker in markers(spec.sink_path())] == [1, 1]


# Attacks W2.
def test_an_empty_plan_covers(bench: Workbench, ledger: Ledger) -> None:
    """A day without a file is covered once a run has looked; a plan of it again writes nothing."""
    spec = by_day(bench)
    assert plan(ledger, spec, "r", of(3)).batch is None
    assert covered(ledger) == [of(3)]
    with ledger.engine.connect() as connection:
        before = connection.exec_driver_sql("SELECT xmin FROM semel.pipeline").scalar_one()
        assert plan(ledger, spec, "again", of(3)).batch is None
        assert connection.exec_driver_sql("SELECT xmin FROM semel.pipeline").scalar_one() == before


# Attacks W2.
@pytest.mark.parametrize("there", [False, True], ids=["alone", "beside another"])
def test_what_is_of_an_unknown_time_covers_nothing(
    bench: Workbench, ledger: Ledger, there: bool
) -> None:
    """With on_refused: warn a batch is finalized, and its day stays a hole until that is settled.
    """
    spec = by_day(bench, source={"on_refused": "warn"})
    refused = bench.data / "in" / "day-2025-11-03.jsonl"
    os.mkfifo(refused)
    if there:
        land(bench, 4)
    done = run(ledger, spec, "r4", of(4))
    assert (done.plan.batch is not None) == there and done.plan.refusals
    assert covered(ledger) == []
    refused.unlink()
    run(ledger, spec, "r4", of(4))
    assert covered(ledger) == [of(4)]


# Attacks W2.
def test_what_is_refused_covers_nothing(bench: Workbench, ledger: Ledger) -> None:
    """A file that is another one now keeps its own day from being covered, and no other day."""
    spec = by_day(bench, source={"on_refused": "warn"})
    land(bench, 3)
    noon = day(3) + DAY / 2
    run(ledger, spec, "r3", (day(3), noon))
    bench.write("in/day-2025-11-03.jsonl", events(900, 920))
    land(bench, 4)
    run(ledger, spec, "r4", of(4))
    assert run(ledger, spec, "both", of(3, days=2)).plan.refusals
    assert covered(ledger) == [(day(3), noon), of(4)]


# Attacks W2.
def test_a_refused_day_fails_and_covers_nothing(bench: Workbench, ledger: Ledger) -> None:
    """With on_refused: fail nothing is planned, and nothing covered."""
    spec = by_day(bench)
    os.mkfifo(bench.data / "in" / "day-2025-11-03.jsonl")
    with pytest.raises(SourceError):
        plan(ledger, spec, "r3", of(3))
    assert covered(ledger) == []


# Attacks W2.
@pytest.mark.parametrize("delay", ["0 seconds", "2 hours"])
def test_a_file_within_the_delay_holds_its_day(
    bench: Workbench, ledger: Ledger, shell: Shell, delay: str
) -> None:
    """A file that came after its day's run is known and unread: the day is complete once it is
    read, and the day after it has been looked at again. Without a delay the day was complete.
    """
    spec = bench.spec(source=BY_DAY, record_time="at", window={"size": "1 day", "delay": delay})
    land(bench, 1)  # Never read, as no run is of its day.
    run(ledger, spec, "r3", of(3))
    land(bench, 3)
    land(bench, 4)
    run(ledger, spec, "r4", of(4))
    if delay == "0 seconds":
        assert covered(ledger) == [of(3, days=2)]
        return
    assert covered(ledger) == [of(3), (day(4) + timedelta(hours=2), day(5))]
    found = completeness.read_completeness(ledger, spec)
    assert not found.complete(*of(3)) and not found.complete(*of(4))
    assert markers(spec.sink_path())[-1].covers.ranges == ((day(4) + timedelta(hours=2), day(5)),)
    run(ledger, spec, "late", of(3))
    assert not completeness.read_completeness(ledger, spec).complete(*of(3))
    told = shell.runs("semel windows events --from 2025-11-03 --to 2025-11-05")
    [command] = [line for line in told.splitlines() if " --interval 2025-11-04" in line]
    shell.runs(command.removeprefix("next: "))
    assert completeness.read_completeness(ledger, spec).complete(*of(3))
    assert covered(ledger) == [of(3, days=2)]
    settled(spec)


# Attacks W2.
def test_a_half_line_covers_nothing(bench: Workbench, ledger: Ledger) -> None:
    """Who reads a file while it is written covers its day when the rest is there."""
    spec = by_day(bench)
    path = land(bench, 3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    run(ledger, spec, "r", of(3))
    assert covered(ledger) == []
    path.write_bytes(whole)
    run(ledger, spec, "r", of(3))
    assert covered(ledger) == [of(3)]


# Attacks W1, W2.
def test_a_batch_that_is_given_up_covers_nothing(bench: Workbench, ledger: Ledger) -> None:
    """And a plan beside it, which found nothing left, covers nothing of what that had claimed."""
    spec = by_day(bench)
    land(bench, 3)
    batch = plan(ledger, spec, "r3", of(3)).batch.batch_id
    assert plan(ledger, spec, "other", of(3, days=2)).batch is None
    assert covered(ledger) == [of(4)]
    abandon(ledger, batch, "a test gives it up")
    assert covered(ledger) == [of(4)]
    run(ledger, spec, "other", of(3, days=2))
    assert covered(ledger) == [of(3, days=2)]


# Attacks W2.
def test_a_batch_with_a_lookback_covers_it(bench: Workbench, ledger: Ledger) -> None:
    """It has looked there, but for what an open batch may have claimed of the time before."""
    spec = by_day(bench, source={"lookback": "2 days"})
    land(bench, 5)
    plan(ledger, spec, "open", of(5))
    land(bench, 7)
    run(ledger, spec, "r7", of(7))
    assert covered(ledger) == [of(6, days=2)]
    run(ledger, spec, "r2", of(2))
    run(ledger, spec, "r3", of(3))
    assert covered(ledger) == [(day(1) - DAY, day(3)), of(6, days=2)]
    run(ledger, spec, "open", of(5))
    assert covered(ledger) == [(day(1) - DAY, day(8))]


# Attacks W2.
def test_what_has_not_come_yet_is_not_covered(bench: Workbench, ledger: Ledger) -> None:
    """A run of today's interval has looked at today up to now."""
    spec = by_day(bench)
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    plan(ledger, spec, "today", (today, today + DAY))
    plan(ledger, spec, "tomorrow", (today + DAY, today + 2 * DAY))
    [(start, end)] = covered(ledger)
    assert start == today and today <= end <= datetime.now(UTC) + timedelta(minutes=1)


# Attacks W1.
def test_a_backfill_covers_its_own_time(bench: Workbench, ledger: Ledger) -> None:
    """A day of last year beside the live schedule: that day, and not the year between."""
    spec = by_day(bench)
    land(bench, 3)
    bench.write("in/day-2024-11-03.jsonl", events(0, 10))
    run(ledger, spec, "live", of(3))
    start = day(3, year=2024)
    run(ledger, spec, "backfill", (start, start + DAY))
    assert covered(ledger) == [(start, start + DAY), of(3)]


# Attacks W1.
@pytest.mark.parametrize("point", ["finalize.after_mark", "finalize.before_finalized"])
def test_a_kill_behind_the_marker(bench: Workbench, ledger: Ledger, point: str) -> None:
    """The marker is there and the transition is not: neither is the cover, until the next try."""
    spec = by_day(bench)
    land(bench, 3)
    batch = committed(ledger, spec, "r", of(3))

    def kill() -> None:
        raise failpoints.FaultError(point)

    with failpoints.armed(point, kill), pytest.raises(failpoints.FaultError):
        finalize(ledger, spec, batch)
    assert covered(ledger) == []
    finalize(ledger, spec, batch)
    assert covered(ledger) == [of(3)]


# Attacks W3.
def test_adopt_restores_what_batches_covered(bench: Workbench, ledger: Ledger) -> None:
    """Also of a batch that was replayed. What an empty plan covered is covered by a run again."""
    spec = by_day(bench)
    for number in (3, 5):
        land(bench, number)
        run(ledger, spec, f"r{number}", of(number))
    run(ledger, spec, "r4", of(4))
    assert covered(ledger) == [of(3, days=3)]
    replayed(ledger, spec, 1, "again")
    lose(ledger)
    adopt(ledger, spec, log=quiet)
    assert covered(ledger) == [of(3), of(5)]
    run(ledger, spec, "r4", of(4))
    assert covered(ledger) == [of(3, days=3)]


def arriving(bench: Workbench, **changes: Any) -> Spec:
    return bench.spec(record_time="at", window={"size": "1 hour"}, **changes)


def at(*hours: float, name: str = "x") -> list[dict]:
    """Records of some hours of 3 November."""
    return [
        {"id": f"{name}-{hour}", "n": 1, "at": (day(3) + timedelta(hours=hour)).isoformat()}
        for hour in hours
    ]


def event_time(ledger: Ledger, name: str = "events") -> float | None:
    """In hours of 3 November."""
    with ledger.engine.connect() as connection:
        found = connection.exec_driver_sql(
            "SELECT event_time FROM semel.pipeline WHERE name = %s", (name,)
        ).scalar_one()
    return found and (found - day(3)) / timedelta(hours=1)


# Attacks W4.
@pytest.mark.parametrize("size", [1, 200], ids=["alone", "together"])
def test_files_are_one_stream(bench: Workbench, ledger: Ledger, size: int) -> None:
    """It comes to the greatest time that is finalized; a file of last year changes nothing."""
    spec = arriving(bench)
    assert plan(ledger, spec, "r0").batch is None and event_time(ledger) is None
    for number in range(size):
        bench.write(f"in/{number}.jsonl", at(1, 2.5, 2, name=f"{number}"))
    bench.write("in/bad.jsonl", [b"{", b'{"id": "no time"}'])
    run(ledger, spec, "r1")
    assert event_time(ledger) == 2.5
    bench.write("in/old.jsonl", at(-9_000))
    run(ledger, spec, "r2")
    assert event_time(ledger) == 2.5
    [first, second] = markers(spec.sink_path())
    assert first.times == {None: (day(3) + timedelta(hours=1), day(3) + timedelta(hours=2.5))}
    assert second.times[None][0] == day(3) - timedelta(hours=9_000)


# Attacks W4.
@pytest.mark.parametrize("kind", ["files", "streams"])
def test_a_clock_that_is_ahead_completes_nothing(
    bench: Workbench, ledger: Ledger, kind: str, request: pytest.FixtureRequest
) -> None:
    """A record of 2099 is as if it had no time; those beside it count, in its file and in others.
    """
    spec = arriving(bench) if kind == "files" else request.getfixturevalue("streams")
    far = {"id": "a", "n": 1, "at": "9999-12-31T23:59:59Z"}
    near = {"id": "b", "n": 1, "at": "0001-01-01T00:00:00Z"}
    bench.write("in/a.jsonl", [far, near, *at(2)])
    run(ledger, spec, "r1")
    assert event_time(ledger) == 2
    bench.write("in/a.jsonl", [{**far, "id": "c", "at": "2099-01-01T00:00:00Z"}], "ab")
    run(ledger, spec, "r2")
    assert event_time(ledger) == 2
    assert [sorted(m.times) for m in markers(spec.sink_path())][1:] == [[]]


# Attacks W4.
def test_times_that_an_earlier_version_kept(bench: Workbench, ledger: Ledger) -> None:
    """Its claims have the times of all records: one with a time ahead of its plan tells nothing."""
    spec = arriving(bench)
    bench.write("in/a.jsonl", at(2))
    batch = committed(ledger, spec, "r", None)
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE semel.claim SET time_max = '2099-01-01'")
    finalize(ledger, spec, batch)
    assert event_time(ledger) is None


# Attacks W6.
def test_backlog_that_a_plan_left_holds(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """Records that wait for the next batch are of some hour: it is not complete before that."""
    spec = arriving(bench, limits={"bytes_per_batch_max": 1})
    bench.write("in/a.jsonl", at(5))
    bench.write("in/b.jsonl", at(1, name="b"))
    os.utime(bench.data / "in" / "a.jsonl", (0, 0))
    run(ledger, spec, "r1")
    assert event_time(ledger) is None
    lines = [" ".join(line.split()) for line in shell.runs("semel windows events").splitlines()]
    assert "2025-11-03 04:00 to 05:00 UTC held 2025-11-03 04:00 to 05:00 UTC" in lines
    assert lines[-2:] == [
        "held by the source: the newest run left data unread, or no run has read it since",
        "next: semel gaps events",
    ]
    assert "in/b.jsonl" in shell.runs(lines[-1].removeprefix("next: "), code=1)
    run(ledger, spec, "r2")
    assert event_time(ledger) == 5


# Attacks W6, W8.
def test_an_open_batch_holds(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """Later ones beside it complete nothing until it is finalized; then all is complete at once."""
    spec = arriving(bench)
    bench.write("in/a.jsonl", at(1))
    waits = plan(ledger, spec, "waits").batch.batch_id
    bench.write("in/b.jsonl", at(5, name="b"))
    run(ledger, spec, "r2")
    assert event_time(ledger) is None
    assert f"held by batch {waits}: it is planned" in shell.runs("semel windows events")
    found = completeness.read_completeness(ledger, spec)
    hours = day(3) + timedelta(hours=2), day(3) + timedelta(hours=3)
    assert found.is_held(*hours) and found.state(*hours) is WindowState.HELD
    run(ledger, spec, "waits")
    assert event_time(ledger) == 5
    assert completeness.windows_of_batch(ledger, spec, waits)[-1][1] == day(3) + timedelta(hours=5)


# Attacks W10.
def test_a_person_ends_a_hold(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """With name and time; what lands then is late, and an event names its window."""
    spec = arriving(bench)
    bench.write("in/a.jsonl", at(1.5))
    waits = plan(ledger, spec, "waits").batch.batch_id
    bench.write("in/b.jsonl", at(5, name="b"))
    run(ledger, spec, "r2")
    told = shell.runs("semel accept events --late")
    assert told == "events: windows are complete up to 2025-11-03 05:00:00 UTC\nnext: semel windows events\n"
    assert event_time(ledger) == 5
    with ledger.engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT late_by, late_at FROM semel.pipeline").one()
    assert found[0] == current_user() and found[1] is not None
    shell.runs("semel accept events --late", code=1)
    assert "no window of events is held" in shell.err and "semel windows events" in shell.err
    run(ledger, spec, "waits")
    assert hours(ledger, spec, waits) == [1] and event_time(ledger) == 5


# Attacks W6.
def test_a_batch_that_is_given_up_holds(bench: Workbench, ledger: Ledger) -> None:
    """What it had claimed is unread again, behind plans that left nothing beside it."""
    spec = arriving(bench)
    bench.write("in/a.jsonl", at(1))
    waits = plan(ledger, spec, "waits").batch.batch_id
    bench.write("in/b.jsonl", at(5, name="b"))
    run(ledger, spec, "r2")
    abandon(ledger, waits, "a test gives it up")
    bench.write("in/c.jsonl", [b"no record"])
    for expected in (None, 5):
        run(ledger, arriving(bench, limits={"bytes_per_batch_max": 1}), "r3")
        assert event_time(ledger) == expected


# Attacks W6.
def test_a_refusal_holds_until_it_is_settled(bench: Workbench, ledger: Ledger) -> None:
    """Then a plan that takes nothing completes what is finalized, says so, and says it once."""
    spec = arriving(bench)
    os.mkfifo(bench.data / "in" / "refused.jsonl")
    bench.write("in/a.jsonl", at(1, 5))
    run(ledger, spec, "r1")
    assert event_time(ledger) is None
    (bench.data / "in" / "refused.jsonl").unlink()
    found = plan(ledger, spec, "r2")
    assert found.batch is None and event_time(ledger) == 5
    passed = day(3) + timedelta(hours=1), day(3) + timedelta(hours=5)
    assert found.covers.ranges == (passed,)
    before = versions(ledger)
    assert plan(ledger, spec, "r3").covers.ranges == () and versions(ledger) == before


def versions(ledger: Ledger) -> list[str]:
    with ledger.engine.connect() as connection:
        return [*connection.exec_driver_sql("SELECT xmin FROM semel.pipeline").scalars()]


# Attacks W6.
def test_a_file_that_vanished_unread_holds(bench: Workbench, ledger: Ledger) -> None:
    """Until a person says that it is lost."""
    spec = arriving(bench, limits={"bytes_per_batch_max": 1})
    gone = bench.write("in/a.jsonl", at(1, 2))
    run(ledger, spec, "r1")
    gone.unlink()
    bench.write("in/b.jsonl", at(5, name="b"))
    run(ledger, spec, "r2")
    assert event_time(ledger) is None
    accept_loss(ledger, spec, str(gone))
    plan(ledger, spec, "r3")
    assert event_time(ledger) == 5


# Attacks W6.
def test_half_a_line_comes_later(bench: Workbench, ledger: Ledger) -> None:
    """It holds nothing, for a log that grows has one at each look; a file without a line does."""
    spec = arriving(bench)
    bench.write("in/a.jsonl", at(1, 5))
    with (bench.data / "in" / "a.jsonl").open("ab") as file:
        file.write(b'{"id"')
    run(ledger, spec, "r1")
    assert event_time(ledger) == 5
    (bench.data / "in" / "b.jsonl").write_bytes(b'{"id"')
    bench.write("in/c.jsonl", at(7, name="c"))
    run(ledger, spec, "r2")
    assert event_time(ledger) == 5


# Attacks W7.
@pytest.mark.parametrize("opened", ["planned", "not full"])
def test_a_chain_is_held_by_its_upstream(
    bench: Workbench, ledger: Ledger, opened: str
) -> None:
    """A pipeline that has read all that is there is complete only when its upstream is."""
    up = bench.spec(limits={"bytes_per_batch_max": 1} if opened == "not full" else {})
    spec = link(SimpleNamespace(bench=bench), "below", "events", record_time="at",
                window={"size": "1 hour"})  # fmt: skip
    bench.write("in/a.jsonl", at(1))
    bench.write("in/b.jsonl", at(5, name="b"))
    if opened == "planned":
        bench.data.joinpath("in/b.jsonl").rename(bench.data / "b.jsonl")
        plan(ledger, up, "waits")
        bench.data.joinpath("b.jsonl").rename(bench.data / "in" / "b.jsonl")
    run(ledger, up, "r1")
    run(ledger, spec, "d1")
    assert event_time(ledger, "below") is None
    plan(ledger, spec, "d2")
    assert event_time(ledger, "below") is None
    run(ledger, up, "waits")
    run(ledger, spec, "d3")
    assert event_time(ledger, "below") == 5
    replayed(ledger, up, 1, "again")


# Attacks W7.
def test_a_chain_is_held_by_a_hole_of_its_upstream(bench: Workbench, ledger: Ledger) -> None:
    """A day that no run of the upstream has read, or whose batch is open, holds what is below, and
    no longer than that.
    """
    up = by_day(bench)
    spec = link(SimpleNamespace(bench=bench), "below", "events", record_time="at",
                window={"size": "1 hour"})  # fmt: skip
    for number in (3, 4, 5, 6):
        bench.write(f"in/day-2025-11-0{number}.jsonl", at(number, name=f"d{number}"))
    run(ledger, up, "u5", of(5))
    run(ledger, up, "u3", of(3))
    run(ledger, spec, "d1")
    assert event_time(ledger, "below") is None
    fourth = committed(ledger, up, "u4", of(4))
    run(ledger, up, "u6", of(6))
    run(ledger, spec, "d2")
    assert event_time(ledger, "below") is None
    finalize(ledger, up, fourth)
    run(ledger, spec, "d3")
    assert event_time(ledger, "below") == 6


# Attacks W7.
def test_a_marker_of_an_earlier_version_holds_a_chain(bench: Workbench, ledger: Ledger) -> None:
    """Nobody knows what its pipeline had left."""
    up = bench.spec()
    spec = link(SimpleNamespace(bench=bench), "below", "events", record_time="at",
                window={"size": "1 hour"})  # fmt: skip
    bench.write("in/a.jsonl", at(1, 5))
    done = run(ledger, up, "r1").finalized.marker
    plain = json.loads(done.read_text())
    assert plain.pop("frontier") == plain["batch_id"]
    done.write_text(json.dumps(plain))
    run(ledger, spec, "d1")
    assert event_time(ledger, "below") is None
    bench.write("in/b.jsonl", at(6, name="b"))
    run(ledger, up, "r2")
    run(ledger, spec, "d2")
    assert event_time(ledger, "below") == 6


# Attacks W4.
def test_a_batch_that_waits_tells_no_time(bench: Workbench, ledger: Ledger) -> None:
    """Only what is finalized counts; a retry and a replay change nothing."""
    spec = arriving(bench)
    bench.write("in/a.jsonl", at(5))
    batch = plan(ledger, spec, "a").batch.batch_id
    stage(ledger, spec, batch, LocalEngine(), log=quiet)
    commit(ledger, spec, batch, lambda: None, log=quiet)
    assert event_time(ledger) is None
    finalize(ledger, spec, batch)
    finalize(ledger, spec, batch)
    replayed(ledger, spec, batch, "again")
    assert event_time(ledger) == 5


@pytest.fixture
def streams(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Spec:
    """A pipeline whose files are streams, as the partitions of a topic are."""
    spec = arriving(bench)
    monkeypatch.setattr(type(spec.source), "streams", True)
    return spec


def append(bench: Workbench, name: str, *hours: float) -> None:
    bench.write(f"in/{name}.jsonl", at(*hours, name=name), "ab")


# Attacks W5.
def test_streams_come_to_the_least(bench: Workbench, ledger: Ledger, streams: Spec) -> None:
    """One with a backlog holds it back, whatever has been finalized of others."""
    append(bench, "a", 1)
    append(bench, "b", 7)
    run(ledger, streams, "r1")
    assert event_time(ledger) == 1
    append(bench, "a", 9)
    append(bench, "b", 3)
    run(ledger, streams, "r2")
    assert event_time(ledger) == 7
    append(bench, "a", 10)
    waits = plan(ledger, streams, "waits").batch.batch_id
    append(bench, "a", 11)
    append(bench, "b", 12)
    run(ledger, streams, "r3")
    assert event_time(ledger) == 9
    stage(ledger, streams, waits, LocalEngine(), log=quiet)
    commit(ledger, streams, waits, lambda: None, log=quiet)
    finalize(ledger, streams, waits)
    assert event_time(ledger) == 11


# Attacks W5.
def test_an_idle_stream_holds_nothing_back(
    bench: Workbench, ledger: Ledger, streams: Spec
) -> None:
    """One that is read to its end and has not moved for long; never one with a backlog."""
    append(bench, "a", 1)
    append(bench, "b", 2)
    run(ledger, streams, "r1")
    quieten = "UPDATE semel.source_partition SET moved_at = moved_at - interval '2 hours'"
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql(quieten)
    append(bench, "b", 8)
    run(ledger, streams, "r2")
    assert event_time(ledger) == 8
    append(bench, "a", 3)
    plan(ledger, streams, "waits")
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql(quieten)
    append(bench, "b", 9)
    run(ledger, streams, "r3")
    assert event_time(ledger) == 8, "it never goes back"
    append(bench, "new", 20)
    plan(ledger, streams, "waits too")
    append(bench, "b", 21)
    run(ledger, streams, "r4")
    assert event_time(ledger) == 8, "nobody knows how far the new one is"


# Attacks W3.
@pytest.mark.parametrize("kind", ["files", "streams"])
def test_adopt_restores_event_time(
    bench: Workbench, ledger: Ledger, kind: str, request: pytest.FixtureRequest
) -> None:
    """From the markers of the batches alone, also where the newest is not the greatest."""
    spec = arriving(bench) if kind == "files" else request.getfixturevalue("streams")
    append(bench, "a", 1, 5)
    append(bench, "b", 4)
    run(ledger, spec, "r1")
    append(bench, "a", 3)
    run(ledger, spec, "r2")
    expected = {"files": 5, "streams": 4}[kind]
    assert event_time(ledger) == expected
    lose(ledger)
    adopt(ledger, spec, log=quiet)
    assert event_time(ledger) == expected
    append(bench, "b", 6)
    run(ledger, spec, "r3")
    assert event_time(ledger) == {"files": 6, "streams": 5}[kind]


# Attacks W9.
def test_an_event_names_windows_that_changed(bench: Workbench, ledger: Ledger) -> None:
    """Of a late batch, a replay, a later one of it, and an admission of what was no record before;
    each once it is finalized, and no window beside them.
    """
    spec = arriving(bench)
    bad = {"id": "bad", "n": 1.5, "at": (day(3) + timedelta(hours=6.5)).isoformat()}
    bench.write("in/a.jsonl", [*at(1, 2), bad])
    bench.write("in/b.jsonl", at(9.5, name="b"))
    first = run(ledger, spec, "r1").plan.batch.batch_id
    assert hours(ledger, spec, first) == [*range(1, 9)], "from the first record on"
    bench.write("in/late.jsonl", at(3, 3.5, name="late"))
    late = run(ledger, spec, "r2").plan.batch.batch_id
    assert hours(ledger, spec, late) == [3]
    found = replayed(ledger, spec, late, "again").finalized.batch.batch_id
    assert found != late and hours(ledger, spec, found) == [3]
    allow(ledger, spec)
    spec = as_float(bench, record_time="at", window={"size": "1 hour"})
    admits = admitted(ledger, spec, first).finalized.batch.batch_id
    assert hours(ledger, spec, admits) == [6]


# Attacks W9.
def test_a_late_file_changes_days_that_are_covered(bench: Workbench, ledger: Ledger) -> None:
    """By intervals as well: the record's own day, whichever run has read it."""
    spec = by_day(bench)
    for number in (3, 4):
        run(ledger, spec, f"r{number}", of(number))
    bench.write("in/day-2025-11-05.jsonl", at(1))
    batch = run(ledger, spec, "r5", of(5)).plan.batch.batch_id
    assert completeness.windows_of_batch(ledger, spec, batch) == (of(3), of(5))


def hours(ledger: Ledger, spec: Spec, batch_id: int) -> list[int]:
    """The windows of a batch's event, by their hours of 3 November."""
    windows = completeness.windows_of_batch(ledger, spec, batch_id)
    return [int((start - day(3)) / timedelta(hours=1)) for start, _ in windows]


def test_windows_in_words(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """A hole names the command that fills it; after it the windows are complete."""
    spec = by_day(bench)
    said = shell.runs("semel windows events --from 2025-11-03 --to 2025-11-03")
    assert "2025-11-03 not run 2025-11-03" in " ".join(said.split())
    assert "no window of events is covered yet" in said
    for number in (3, 4, 5):
        land(bench, number)
    run(ledger, spec, "r3", of(3))
    run(ledger, spec, "r5", of(5))
    told = shell.runs("semel windows events --from 2025-11-03 --to 2025-11-06").splitlines()
    assert [" ".join(line.split()) for line in told] == [
        "window state waits for",
        "2025-11-06 hole 2025-11-06",
        "2025-11-05 complete",
        "2025-11-04 hole 2025-11-04",
        "2025-11-03 complete",
        "next: semel run events --interval 2025-11-04 2025-11-05",
        "next: semel run events --interval 2025-11-06 2025-11-07",
    ]
    shell.runs(told[-2].removeprefix("next: "))
    newest = shell.answers("semel windows events")["windows"]
    assert [w["state"] for w in newest[:5]] == ["hole", *["complete"] * 3, "not run"]
    assert len(newest) == 31
    line = "the newest complete window: 2025-11-05; `semel windows events` lists the newest windows"
    assert line in shell.runs("semel days events").splitlines()
    shell.runs("semel windows events --from 1990-01-01", code=1)
    assert "Choose fewer days with --from and --to" in shell.err
    for day_of in ("0001-01-01", "9999-12-31"):
        shell.runs(f"semel windows events --to {day_of}", code=1)
        assert "the year must be " in shell.err


def test_windows_of_what_arrives_in_words(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """By event time, less the delay; without a window there is nothing to tell it by."""
    spec = bench.spec(record_time="at", window={"size": "6 hours", "delay": "1 hour"})
    bench.write("in/a.jsonl", at(1, 12.5))
    assert "event time: not known" in shell.runs("semel windows events --to 2025-11-03")
    run(ledger, spec, "r")
    told = shell.runs("semel windows events").splitlines()
    assert [" ".join(line.split()) for line in told] == [
        "window state waits for",
        "2025-11-03 06:00 to 12:00 UTC not yet 2025-11-03 12:30 to 13:00 UTC",
        "2025-11-03 00:00 to 06:00 UTC complete",
        "event time: 2025-11-03 12:30:00 UTC",
    ], "no window before the first record is complete"
    asked = " ".join(shell.runs("semel windows events --from 2025-11-02").split())
    assert "2025-11-02 18:00 to 2025-11-03 00:00 UTC before" in asked
    bench.write("in/old.jsonl", at(-30))
    run(ledger, spec, "old")
    again = shell.answers("semel windows events")["windows"]
    assert [w["state"] for w in again] == ["not yet", *["complete"] * 6], "from the oldest record on"
    bench.write("in/b.jsonl", at(13))
    run(ledger, spec, "r2")
    again = " ".join(shell.runs("semel windows events").split())
    assert "2025-11-03 06:00 to 12:00 UTC complete" in again
    bench.spec("other", sink={"path": "out/other"})
    shell.runs("semel windows other", code=1)
    assert "by arrival and has no window" in shell.err and "semel validate other" in shell.err


def test_windows_of_a_schedule(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """Without a window declared they are the schedule's intervals, or days."""
    spec = bench.spec(source=BY_DAY, schedule="0 */12 * * *")
    run(ledger, spec, "r", (day(3), day(3) + DAY / 2))
    told = shell.runs("semel windows events --from 2025-11-03 --to 2025-11-03").splitlines()
    assert [" ".join(line.split()) for line in told[1:]] == [
        "2025-11-03 12:00 to 2025-11-04 00:00 UTC hole 2025-11-03 12:00 to 2025-11-04 00:00 UTC",
        "2025-11-03 00:00 to 12:00 UTC complete",
        "next: semel run events --interval 2025-11-03T12:00:00 2025-11-04",
    ]
    assert len(shell.runs("semel windows events").splitlines()) == 33


def test_a_delay_that_no_run_looks_back_for(bench: Workbench, shell: Shell) -> None:
    """`validate` warns of it; with a lookback, or none to look for, it says nothing."""
    days = {"record_time": "at", "window": {"size": "1 day", "delay": "2 hours"}}
    bench.spec(source=BY_DAY, **days)
    assert "Declare source.lookback: 2 hours" in shell.runs("semel validate events")
    bench.spec(source={**BY_DAY, "lookback": "2 hours"}, **days)
    assert "lookback" not in shell.runs("semel validate events")
    bench.spec(**days)
    assert "lookback" not in shell.runs("semel validate events")


PAGE = Path(__file__).parents[3] / "docs" / "windows.md"


def test_the_page_is_true(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """docs/windows.md: what it shows is what is printed, and its advice fills the hole."""
    text = PAGE.read_text()
    declared = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    spec = bench.spec("shop", source=BY_DAY, **declared)
    for number in (3, 4, 5, 7):
        land(bench, number)
        run(ledger, spec, f"r{number}", of(number))
    command, *shown = text.split("```\n$ ")[1].split("```")[0].splitlines()
    assert shell.runs(command).splitlines() == shown
    for line in shown:
        if line.startswith("next: "):
            shell.runs(line.removeprefix("next: "))
    assert "hole" not in shell.runs(command)


def test_the_dag_of_the_page(airflow: None, bench: Workbench) -> None:
    """docs/windows.md: Airflow takes it, and it prints each window of some events once."""
    import contextlib
    import io
    from types import SimpleNamespace

    from semel.airflow import assets

    blocks = PAGE.read_text().split("```python\n")[1:]
    made: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block.split("```")[0], "windows.md", "exec"), made)
    windows = [(day(3), day(4)), (day(4), day(5))]
    spec = by_day(bench)
    extras = [assets.extra_of_windows(spec, some) for some in (windows, windows[:1])]
    told = {assets.windows_asset("shop"): [SimpleNamespace(extra=extra) for extra in extras]}
    task = made["bill"]().get_task("windows")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        task.python_callable(triggering_asset_events=told)
    assert out.getvalue().count("2025-11-03T00:00:00") == 1
    assert out.getvalue().count("2025-11-05T00:00:00") == 1
