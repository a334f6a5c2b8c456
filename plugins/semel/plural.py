"""Numbers and lists of things, in words."""

from semel import limits


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 file`, `2,000 files`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def named(names: tuple[str, ...]) -> str:
    """The first of some names, quoted."""
    shown = ", ".join(map(repr, names[: limits.FILES_NAMED_MAX]))
    return shown + (", ..." if len(names) > limits.FILES_NAMED_MAX else "")
