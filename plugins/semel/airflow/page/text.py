"""Format values for the templates of semel's pages."""

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
"""A symbol for each state, so that states differ by more than their colour."""

_UNITS = ((86_400 * 2, 86_400, "d"), (3_600 * 2, 3_600, "h"), (120, 60, "min"))


def css_class(state: CellState | complete.WindowState) -> str:
    """The CSS class of a state: `s-in-work` for `in work`."""
    return "s-" + state.value.replace(" ", "-")


def number(value: int) -> str:
    """A number with commas between thousands."""
    return f"{value:,}"


def is_number(value: object) -> bool:
    """True if a value of a row is an integer or a decimal. A boolean or a float is not."""
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def cell(value: object) -> str:
    """A value of a row, as text. None becomes an empty text."""
    if isinstance(value, datetime):
        return moment(value if value.tzinfo else value.replace(tzinfo=UTC))
    if is_number(value):
        return f"{value:,}"
    return "" if value is None else str(value)


def moment(at: datetime | None) -> str:
    """A time to the second, in UTC. None becomes an empty text."""
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def interval_start(at: datetime) -> str:
    """The start of an interval in UTC: its day, and its hour and minute if it is not midnight."""
    return moment(at)[:16].removesuffix(" 00:00")


def ago(at: datetime | None, now: datetime) -> str:
    """The time since a moment: `3 d`, `5 h`, `12 min`, `40 s`. None becomes an empty text."""
    if at is None:
        return ""
    elapsed = max(0, (now - at).total_seconds())
    for seconds_min, unit_seconds, unit in _UNITS:
        if elapsed >= seconds_min:
            return f"{elapsed // unit_seconds:.0f} {unit}"
    return f"{elapsed:.0f} s"


def seconds(start: datetime | None, end: datetime | None) -> str:
    """The seconds from a start to an end. Empty if either is unknown."""
    return "" if start is None or end is None else f"{(end - start).total_seconds():,.1f} s"
