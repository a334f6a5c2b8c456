"""Sentences about a bad value for its user: `flight: expected a whole number, found "N/A"`.

Excerpts of a record are short, without control characters.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from semel.declare.naming import nearest

FOUND_CHARS_MAX = 40
"""Characters of a value in a sentence: enough to recognise it, with little private data."""

RECORD_SHOWN_CHARS = 100
"""Characters of a record in a message. Log lines have 110, as Airflow's page does not wrap."""

RECORD_SHOWN_BYTES = 512
"""Bytes of a record that semel reads to show its beginning."""

_CUT = "..."
_RECORD_CHARS = RECORD_SHOWN_CHARS + len(_CUT)
_BITS_WRITTEN_OUT = 31
YEARS = "a {} in the years 1 to 9999"
TIME = "a time such as 2026-01-01T00:00:00Z"
DATE = "a date such as 2026-01-31"
BASE64 = "base64 with its padding"


def misfit(place: str, expected: str, excerpt: str) -> str:
    """The sentence. `place`: a column, or a value in it. `excerpt`: the value's."""
    return f"{place}: expected {expected}, found {excerpt}"


def similar_name_hint(name: str, names: Iterable[str]) -> str:
    """A hint if a file lacks a column but has one of almost that name; otherwise empty."""
    if (other := nearest(name, names)) is None:
        return ""
    return (
        f", which has {other!r}: semel compares names letter by letter. Declare that name in "
        "source.schema, or have its writer write the declared one"
    )


def excerpt(text: str, chars_max: int = FOUND_CHARS_MAX) -> str:
    """A text, shortened and escaped, without quotes around it."""
    cut = text[:chars_max]
    if not cut.isprintable():
        cut = "".join(map(_escaped, cut))
    return cut + _CUT if len(text) > chars_max else cut


def record_excerpt(raw: bytes) -> str:
    """The beginning of a record for a message; bytes that are not text appear as `\\xff`."""
    text = raw[:RECORD_SHOWN_BYTES].decode(errors="backslashreplace")
    text = excerpt(text, RECORD_SHOWN_CHARS)
    # Escapes make the text longer.
    return text if len(text) <= _RECORD_CHARS else text[:RECORD_SHOWN_CHARS] + _CUT


def quote(text: str) -> str:
    """A text, shortened and escaped, in quotes."""
    cut = text[:FOUND_CHARS_MAX]
    if '"' in cut or "\\" in cut or not cut.isprintable():
        cut = "".join("\\" + char if char in '"\\' else _escaped(char) for char in cut)
    return f'"{cut}{_CUT}"' if len(text) > FOUND_CHARS_MAX else f'"{cut}"'


def _escaped(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def quote_all(texts: Iterable[str | None]) -> list[str]:
    """Texts in quotes; "nothing" for None."""
    return ["nothing" if text is None else quote(text) for text in texts]


def expected_value(kind: pa.DataType) -> str:
    """The values that a column of a type holds."""
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
    """The values that a column holds, for a number that its type is too small for."""
    if pa.types.is_integer(kind):
        bits = kind.bit_width - 1
        if bits > _BITS_WRITTEN_OUT:
            return f"a whole number from -2^{bits} to 2^{bits} - 1"
        return f"a whole number from {-(1 << bits)} to {(1 << bits) - 1}"
    if pa.types.is_floating(kind):
        return f"a number up to {np.finfo(kind.to_pandas_dtype()).max:.2g}"
    return expected_value(kind)
