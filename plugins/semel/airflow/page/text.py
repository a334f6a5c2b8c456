"""Values in words, for the pages' templates."""

from datetime import UTC, datetime

from semel.reports.days import State

SYMBOLS = {
    State.COMPLETE: "✓",
    State.PARTLY: "◐",
    State.UNCLAIMED: "○",
    State.REFUSED: "✕",
    State.IN_WORK: "▶",
    State.WAITING: "…",
    State.DONE: "●",
    State.HOLE: "?",
    State.NOTHING: "·",
    State.NO_BATCH: "·",
}
"""Beside its colour, so that a state can be told without one."""

MEANINGS = {
    State.COMPLETE: "All that the source shows of it is finalized. `semel audit` proves the output.",
    State.PARTLY: "Some of it is finalized; some is in no batch: it came late.",
    State.UNCLAIMED: "Records are there, and no batch has any of them.",
    State.REFUSED: "A file of it is refused: somebody has to decide. `semel gaps` says why.",
    State.IN_WORK: "A batch that is not finalized yet has some of it.",
    State.WAITING: "All complete records are finalized; a last line or a file is not complete.",
    State.DONE: "Its batches are finalized. Whether the source holds more is not known here.",
    State.HOLE: "The source shows nothing of it, but of time before and after: is a file missing?",
    State.NOTHING: "The source shows nothing of it, and no batch is of it.",
    State.NO_BATCH: "No batch is of it. Whether the source holds some of it is not known here.",
}

_STEPS = ((86_400 * 2, 86_400, "d"), (3_600 * 2, 3_600, "h"), (120, 60, "min"))


def css_class(state: State) -> str:
    """`in work` as `s-in-work`."""
    return "s-" + state.value.replace(" ", "-")


def number(value: int) -> str:
    return f"{value:,}"


def moment(at: datetime | None) -> str:
    """A moment to the second, in UTC; nothing for none."""
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def ago(at: datetime | None, now: datetime) -> str:
    """How long ago: `3 d`, `5 h`, `12 min`, `40 s`."""
    if at is None:
        return ""
    seconds = max(0, (now - at).total_seconds())
    for least, unit, name in _STEPS:
        if seconds >= least:
            return f"{seconds // unit:.0f} {name}"
    return f"{seconds:.0f} s"


def seconds(start: datetime | None, end: datetime | None) -> str:
    """How long something took."""
    return "" if start is None or end is None else f"{(end - start).total_seconds():,.1f} s"
