"""Formats values for the pages' templates."""

from datetime import UTC, datetime
from decimal import Decimal

from semel.model import complete
from semel.reports.progress import CellState

SYMBOLS = {
    CellState.FINALIZED: "✓",
    CellState.PARTLY: "◐",
    CellState.UNCLAIMED: "○",
    CellState.REFUSED: "✕",
    CellState.BROKEN: "✕",
    CellState.FAILED: "!",
    CellState.IN_WORK: "▶",
    CellState.WAITING: "…",
    CellState.BATCHES_FINALIZED: "●",
    CellState.EMPTY: "?",
    CellState.NOTHING: "·",
    CellState.NO_BATCH: "·",
    complete.WindowState.COMPLETE: "✓",
    complete.WindowState.HOLE: "?",
    complete.WindowState.NOT_RUN: "○",
    complete.WindowState.NOT_YET: "…",
    complete.WindowState.IN_WORK: "▶",
    complete.WindowState.BEFORE: "·",
    complete.WindowState.HELD: "◐",
}
"""A symbol for each state, so that nobody has to tell states by colour alone."""

_STEPS = ((86_400 * 2, 86_400, "d"), (3_600 * 2, 3_600, "h"), (120, 60, "min"))


def css_class(state: CellState | complete.WindowState) -> str:
    """`in work` as `s-in-work`."""
    return "s-" + state.value.replace(" ", "-")


def number(value: int) -> str:
    return f"{value:,}"


def is_number(value: object) -> bool:
    """True if a value of a row is a number, and not a boolean."""
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def cell(value: object) -> str:
    """A value of a row. None becomes an empty text."""
    if isinstance(value, datetime):
        return moment(value if value.tzinfo else value.replace(tzinfo=UTC))
    if is_number(value):
        return f"{value:,}"
    return "" if value is None else str(value)


def moment(at: datetime | None) -> str:
    """A time to the second, in UTC. None becomes an empty text."""
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def starting(at: datetime) -> str:
    """The start of an interval in UTC: its day, and the minute if it is not midnight."""
    return moment(at)[:16].removesuffix(" 00:00")


def ago(at: datetime | None, now: datetime) -> str:
    """The time since a moment: `3 d`, `5 h`, `12 min`, `40 s`."""
    if at is None:
        return ""
    seconds = max(0, (now - at).total_seconds())
    for least, unit, name in _STEPS:
        if seconds >= least:
            return f"{seconds // unit:.0f} {name}"
    return f"{seconds:.0f} s"


def seconds(start: datetime | None, end: datetime | None) -> str:
    """A duration in seconds. Empty if its start or end is unknown."""
    return "" if start is None or end is None else f"{(end - start).total_seconds():,.1f} s"
