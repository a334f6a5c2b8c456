"""Numbers and lists of things, in words."""

from collections.abc import Collection, Sequence

FILES_NAMED_MAX = 10
"""Files that a summary or an error names; `semel gaps` lists them all."""

KEYS_NAMED_MAX = 10
"""Keys, or columns, that one message names."""


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 file`, `2,000 files`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def batch_list(batches: Collection[int]) -> str:
    """A part of a pipeline's batches: `batch 7`, `5 of the batches (1 to 7)`."""
    if len(batches) == 1:
        return f"batch {min(batches)}"
    return f"{len(batches)} of the batches ({min(batches)} to {max(batches)})"


def named(names: tuple[str, ...]) -> str:
    """The first of some names, quoted."""
    first = ", ".join(map(repr, names[:FILES_NAMED_MAX]))
    return first + (", ..." if len(names) > FILES_NAMED_MAX else "")


def some_of(faults: Sequence[str]) -> str:
    """The first faults as a part of a sentence, and the number of the others."""
    more = len(faults) - KEYS_NAMED_MAX
    return "; ".join(faults[:KEYS_NAMED_MAX]) + (f", and {more} more" if more > 0 else "")


def size(count: int) -> str:
    """Bytes with a unit: `35.2 MiB`."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:,.1f} {unit}" if unit != "bytes" else f"{count} bytes"
        value /= 1024
    return f"{value:,.1f} TiB"


def place(line: int | None, offset: int, unit: str) -> str:
    """The place of a record in its source: its position, and its line (from 1) if it is known.

    `unit`: the unit of positions, such as "bytes".
    """
    at = f"{unit.removesuffix('s')} {offset}"
    return f"line {line:,} ({at})" if line else at
