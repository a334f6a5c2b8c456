"""Cut time into cells, as lists of edges: the intervals of a schedule, or days (UTC)."""

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from croniter import croniter

from semel.errors import LimitError

DAYS_SHOWN = 31
"""Intervals that `semel days` and its page list by default."""

DAYS_MAX = 1_000
"""Maximum intervals of one report: a month of hours, or almost three years of days."""

TICK = timedelta(microseconds=1)
"""The smallest time step."""

_DAY = timedelta(days=1)
_WORDS = {"@quarterly": "0 0 1 */3 *"}
"""Airflow's presets that croniter does not accept."""


def edges_between(
    schedule: str | None, since: date | None, until: date | None, now: datetime
) -> list[datetime]:
    """The edges of the cells from one day (UTC) to another, both included.

    By default, `until` is now, and `since` is DAYS_SHOWN cells earlier. Raises LimitError as
    `cells_of` does.
    """
    last = now if until is None else datetime.combine(until, time(), UTC) + _DAY
    if since is None:
        return last_edges(schedule, last)
    first = min(datetime.combine(since, time(), UTC), last - TICK)
    return cells_of(schedule, first, last)


def last_edges(schedule: str | None, last: datetime) -> list[datetime]:
    """The edges of DAYS_SHOWN cells. The last cell contains the time just before `last`."""
    back, forth = _steps(schedule)
    if schedule is None:
        edges = [back(last) - n * _DAY for n in range(DAYS_SHOWN)]
    else:
        times = croniter(_WORDS.get(schedule, schedule), last)  # As slow to construct as to step.
        edges = [times.get_prev(datetime) for _ in range(DAYS_SHOWN)]
    edges.reverse()
    return [*edges, forth(edges[-1])]


def cells_of(schedule: str | None, since: datetime, until: datetime) -> list[datetime]:
    """The edges of all cells that overlap [since, until): one more than there are cells.

    Raises LimitError for more than DAYS_MAX cells.
    """
    back, forth = _steps(schedule)
    edges = [back(since + TICK)]
    while edges[-1] < until:
        edges.append(forth(edges[-1]))
        if len(edges) > DAYS_MAX + 1:
            raise LimitError(
                f"{since:%F} to {until:%F} is more than {DAYS_MAX:,} intervals of the "
                "schedule. Choose fewer days with --from and --to",
                next="semel days --help",
            )
    return edges


def due_end(schedule: str | None, now: datetime) -> datetime:
    """The end of the last interval but one: runs have had time to read everything before it."""
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
    """A moment in the form of `--interval`. Midnight is only the date."""
    at = at.astimezone(UTC)
    return f"{at:%Y-%m-%d}" if at.time() == time() else f"{at:%Y-%m-%dT%H:%M:%S}"


def are_days(cells: Sequence[Any]) -> bool:
    """True if each cell (with `start` and `end`) is a day from midnight to midnight."""
    return all(c.start.time() == time() and c.end - c.start == _DAY for c in cells)
