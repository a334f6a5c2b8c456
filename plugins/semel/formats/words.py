"""What is wrong with a value, in the words of its user: `flight: expected a whole number, found
"N/A"`. What is shown of a record is short, and holds no control characters.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from semel.declare.naming import nearest

FOUND_CHARS_MAX = 40
"""Characters of a value that it shows: enough to see what it is, and little of what is private."""

RECORD_SHOWN_CHARS = 100
"""Characters of a record that are shown: a line of a log is 110, as Airflow's page wraps none."""

RECORD_SHOWN_BYTES = 512
"""Bytes of a record that are read to show its beginning."""

_CUT = "..."
_RECORD_CHARS = RECORD_SHOWN_CHARS + len(_CUT)
_BITS_WRITTEN_OUT = 31
YEARS = "a {} in the years 1 to 9999"
TIME = "a time such as 2026-01-01T00:00:00Z"
DATE = "a date such as 2026-01-31"
BASE64 = "base64 with its padding"


def misfit(place: str, expected: str, found: str) -> str:
    """The sentence. `place` is a column, or something in it; `found` is as it is to be shown."""
    return f"{place}: expected {expected}, found {found}"


def similar_name_hint(name: str, there: Iterable[str]) -> str:
    """What is said where a file lacks a column and has one of almost that name; else nothing."""
    if (other := nearest(name, there)) is None:
        return ""
    return (
        f", which has {other!r}: names are compared letter by letter. Declare that name in "
        "source.schema, or let its writer write the declared one"
    )


def excerpt(text: str, chars_max: int = FOUND_CHARS_MAX) -> str:
    """A text, cut and escaped, without quotes around it."""
    cut = text[:chars_max]
    if not cut.isprintable():
        cut = "".join(map(_escaped, cut))
    return cut + _CUT if len(text) > chars_max else cut


def record_excerpt(raw: bytes) -> str:
    """The beginning of a record, as it is shown; bytes that are no text are `\\xff`."""
    text = raw[:RECORD_SHOWN_BYTES].decode(errors="backslashreplace")
    text = excerpt(text, RECORD_SHOWN_CHARS)
    # What was escaped is longer.
    return text if len(text) <= _RECORD_CHARS else text[:RECORD_SHOWN_CHARS] + _CUT


def quote(text: str) -> str:
    """The same in quotes."""
    cut = text[:FOUND_CHARS_MAX]
    if '"' in cut or "\\" in cut or not cut.isprintable():
        cut = "".join("\\" + char if char in '"\\' else _escaped(char) for char in cut)
    return f'"{cut}{_CUT}"' if len(text) > FOUND_CHARS_MAX else f'"{cut}"'


def _escaped(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def quote_all(texts: Iterable[str | None]) -> list[str]:
    """The same of many."""
    return ["nothing" if text is None else quote(text) for text in texts]


def expected_value(kind: pa.DataType) -> str:
    """What a column of a type holds."""
    if pa.types.is_integer(kind):
        return "a whole number"
    if pa.types.is_floating(kind):
        return "a number"
    if pa.types.is_boolean(kind):
        return "true or false"
    if pa.types.is_decimal(kind):
        if not kind.scale:
            return f"a whole number of at most {kind.precision} digits"
        digits = f"{kind.precision} digits, {kind.scale} of them after the point"
        return f"a number of at most {digits}"
    if pa.types.is_timestamp(kind):
        return TIME
    if pa.types.is_date(kind):
        return DATE
    if pa.types.is_binary(kind):
        return BASE64
    if pa.types.is_list(kind):
        return "a list [...]"
    if pa.types.is_nested(kind):
        return "an object {...}"
    return "text"


def expected_range(kind: pa.DataType) -> str:
    """The same, for a number that its type is too small for."""
    if pa.types.is_integer(kind):
        bits = kind.bit_width - 1
        if bits > _BITS_WRITTEN_OUT:
            return f"a whole number from -2^{bits} to 2^{bits} - 1"
        return f"a whole number from {-(1 << bits)} to {(1 << bits) - 1}"
    if pa.types.is_floating(kind):
        return f"a number up to {np.finfo(kind.to_pandas_dtype()).max:.2g}"
    return expected_value(kind)
