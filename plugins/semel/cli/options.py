"""Options that several commands share: days, a range of batches, the Spark to use."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Annotated

import typer

DATES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"]
"""The formats of a time on the command line."""

Span = tuple[datetime, datetime]

Spark = Annotated[
    str | None,
    typer.Option(
        help="sc://host:port, or a master such as local[2] or spark://host:7077; else "
        "SEMEL_SPARK_REMOTE, else the local stack's."
    ),
]
"""The --spark option of a command: `spark: Spark = None`."""


_DAY = {"formats": DATES[:1], "metavar": "DAY"}

Since = Annotated[datetime | None, typer.Option("--from", help="The first day (UTC).", **_DAY)]
Until = Annotated[datetime | None, typer.Option("--to", help="The last day (UTC).", **_DAY)]
"""The --from and --to of a command, for `days`."""


def resumes(command: Callable[..., None]) -> Callable[..., None]:
    """Mark a command that resumes where it stopped when a user runs the same line again."""
    command.resumes = True  # type: ignore[attr-defined]
    return command


def days(since: datetime | None, until: datetime | None) -> dict[str, date | None]:
    """The days of `--from` and `--to`. Raises BadParameter if `--from` is the later one."""
    if since and until and since > until:
        raise typer.BadParameter(f"--from {since:%F} is later than --to {until:%F}")
    return {"since": since and since.date(), "until": until and until.date()}


def window(interval: Span) -> Span:
    """The times of `--interval START END`, in UTC if they lack a zone. Raises BadParameter if END
    is not after START.
    """
    start, end = (t.replace(tzinfo=t.tzinfo or UTC) for t in interval)
    if start >= end:
        raise typer.BadParameter("--interval: END must be after START")
    return start, end


def range_of(
    interval: Span | None, batches: str | None
) -> tuple[Span | None, tuple[int, int] | None]:
    """The window of `--interval`, or the first and last number of `--batches`. The other is None.

    Raises BadParameter if both or neither are set, or the value is not a range.
    """
    from semel.errors import TerminalError
    from semel.model.batch import numbers

    if (interval is None) == (batches is None):
        raise typer.BadParameter("give either --interval START END or --batches A..B")
    if interval is not None:
        return window(interval), None
    try:
        return None, numbers(batches)
    except TerminalError as error:
        raise typer.BadParameter(f"--batches: {error}") from error
