"""The output of commands: results on standard output, progress and errors on standard error.

A command ends with `emit`, and then raises `typer.Exit(1)` if its result is bad news.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from rich.table import Table

result = Console(highlight=False, soft_wrap=True)
"""For results. With --json only `emit` may print here."""

progress = Console(stderr=True, highlight=False, soft_wrap=True)
"""For lines that a waiting person follows."""

_FOLDED_WIDTH_MIN = 12  # A narrower column, with its space, is not legible.

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else.")
]
"""The --json option of a command: `as_json: AsJson = False`."""


def say(line: str) -> None:
    """Print a progress line verbatim, because it may have text that looks like rich's markup."""
    progress.print(line, markup=False)


command: ContextVar[str | None] = ContextVar("command", default=None)
"""The command that runs, for its answer. None if the command line does not name a command."""


def emit(payload: Any, *, as_json: bool, render: Callable[[], None]) -> None:
    """Print the result: `payload` (a mapping or a dataclass) in one JSON object, or by `render`."""
    if as_json:
        print(to_json({"command": command.get(), "answer": payload}))
    else:
        render()


def table(
    *columns: str,
    numbers: Collection[str] = (),
    folded: Collection[str] = (),
    cut: Collection[str] = (),
) -> "Table":
    """A table without lines, for `show`. `numbers`: right-aligned columns. In a narrow terminal
    `folded` columns take several lines and `cut` columns end with …; others keep their width."""
    from rich.table import Table

    lineless = Table(box=None, padding=(0, 1, 0, 0))
    for name in columns:
        lineless.add_column(
            name,
            justify="right" if name in numbers else "left",
            no_wrap=name not in folded,
            overflow="ellipsis" if name in cut else "fold",
        )
    return lineless


def show(lineless: "Table") -> None:
    """Print a table. In a pipe each row is one line; a narrow terminal wraps the lines itself."""
    widths = [max(map(_width, (column.header, *column.cells))) + 1 for column in lineless.columns]
    if result.is_terminal:
        over = max(sum(widths) - result.width, 0)
        for at, column in enumerate(lineless.columns):
            if not column.no_wrap or column.overflow == "ellipsis":
                less = min(over, max(widths[at] - _FOLDED_WIDTH_MIN, 0))
                widths[at], over = widths[at] - less, over - less
    for width, column in zip(widths, lineless.columns, strict=True):
        column.width = width - 1
    result.width = max(result.width, sum(widths))  # Otherwise rich cuts longer lines.
    with result.capture() as drawn:
        result.print(lineless, crop=False)
    for line in drawn.get().splitlines():
        print(line.rstrip(), file=result.file)  # rich pads the last column.


def _width(cell: Any) -> int:
    from rich.cells import cell_len
    from rich.text import Text

    plain = cell.plain if isinstance(cell, Text) else Text.from_markup(cell).plain
    return max(map(cell_len, plain.split("\n")))


def fail(error: BaseException, message: str, next: str, *, as_json: bool) -> None:
    """Print why a command failed and the next step: as one JSON object on standard output, or as
    lines on standard error. There `next: ...` is the last line, if there is a step.
    """
    if as_json:
        failure = {"kind": type(error).__name__, "message": message, "next": next}
        print(to_json({"command": command.get(), "error": failure}))
    else:
        # Not through rich: a path in the message may look like its markup.
        print(f"semel: {message}" + f"\nnext: {next}" * bool(next), file=sys.stderr)


def to_json(payload: Mapping[str, Any]) -> str:
    """One line of JSON in ASCII, so that any file name fits any terminal's encoding.

    Times are ISO 8601, durations seconds, bytes hexadecimal. Raises TypeError for unknown types.
    """
    return json.dumps(payload, default=_plain, allow_nan=False)


def _plain(value: object) -> Any:
    from semel.storage import StorePath  # A command that prints no JSON starts without it.

    match value:
        case datetime() | date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case PurePath() | StorePath() | Decimal():
            return str(value)
        case bytes() | memoryview():
            return value.hex()
        case Enum():
            return value.value
        case set() | frozenset():
            return sorted(value)
        case Mapping():  # a row of the ledger
            return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no form in JSON")
