"""Cut time into cells: the intervals of a schedule, or days (UTC). Their edges describe them."""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from croniter import croniter

from semel.errors import LimitError

DAYS_SHOWN = 31
"""Intervals that `semel days` and its page list by default."""

DAYS_MAX = 1_000
"""Maximum intervals of one answer: a month of hours, or almost three years of days."""

TICK = timedelta(microseconds=1)
"""The smallest time step."""

_DAY = timedelta(days=1)
_WORDS = {"@quarterly": "0 0 1 */3 *"}
"""Airflow's words that croniter does not know."""


def between(
    schedule: str | None, since: date | None, until: date | None, now: datetime
) -> list[datetime]:
    """The edges of the cells from one day (UTC) to another, both included.

    By default, `until` is now, and `since` is DAYS_SHOWN cells before it. LimitError as in
    `cells_of`.
    """
    last = now if until is None else datetime.combine(until, time(), UTC) + _DAY
    if since is None:
        return ending(schedule, last)
    first = min(datetime.combine(since, time(), UTC), last - TICK)
    return cells_of(schedule, first, last)


def ending(schedule: str | None, last: datetime) -> list[datetime]:
    """The edges of DAYS_SHOWN cells. The last cell contains the time just before `last`."""
    back, forth = _steps(schedule)
    if schedule is None:
        edges = [back(last) - n * _DAY for n in range(DAYS_SHOWN)]
    else:
        times = croniter(_WORDS.get(schedule, schedule), last)  # To make one costs as much as a step.
        edges = [times.get_prev(datetime) for _ in range(DAYS_SHOWN)]
    edges.reverse()
    return [*edges, forth(edges[-1])]


def cells_of(schedule: str | None, since: datetime, until: datetime) -> list[datetime]:
    """The edges of all cells that overlap [since, until): one more than there are cells.

    LimitError: there are more than DAYS_MAX cells.
    """
    back, forth = _steps(schedule)
    edges = [back(since + TICK)]
    while edges[-1] < until:
        edges.append(forth(edges[-1]))
        if len(edges) > DAYS_MAX + 1:
            raise LimitError(
                f"{since:%F} to {until:%F} is more than {DAYS_MAX:,} intervals of the "
                "schedule; ask for fewer days with --from and --to",
                next="semel days --help",
            )
    return edges


def due(schedule: str | None, now: datetime) -> datetime:
    """The end of the newest interval since which another one has ended: runs have had the time for
    all up to it.
    """
    back, _ = _steps(schedule)
    return back(back(now))


_Step = Callable[[datetime], datetime]


def _steps(schedule: str | None) -> tuple[_Step, _Step]:
    """Two functions: the last edge before a moment, and the first edge after it."""
    if schedule is None:
        return (
            lambda at: datetime.combine((at - TICK).date(), time(), UTC),
            lambda at: datetime.combine(at.date(), time(), UTC) + _DAY,
        )
    cron = _WORDS.get(schedule, schedule)
    return (
        lambda at: croniter(cron, at).get_prev(datetime),
        lambda at: croniter(cron, at).get_next(datetime),
    )


def moment(at: datetime) -> str:
    """A moment as `--interval` takes it. Midnight is written as a date."""
    at = at.astimezone(UTC)
    return f"{at:%Y-%m-%d}" if at.time() == time() else f"{at:%Y-%m-%dT%H:%M:%S}"


def are_days(found: Sequence[Any]) -> bool:
    """Whether cells (each with `start` and `end`) are days from midnight to midnight."""
    return all(c.start.time() == time() and c.end - c.start == _DAY for c in found)
