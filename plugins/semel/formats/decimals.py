"""Check the digits of decimal texts before pyarrow reads them: in JSON, in CSV, in a query.

pyarrow 26 supports powers of ten up to 38. If a number needs a larger one, pyarrow misreads it
(`1e-41` becomes 0, `7` in a decimal(38,38) becomes 0.194) or crashes (`1e-9999999`).
"""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.formats.lines import RecordLines

DIGITS_MAX = 38
"""Maximum digits of a decimal: in its text, zeros included, and in the number at its scale."""

_NUMBER = re.compile(r"[+-]?([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?)([0-9]+))?")
_POWER_CHARS_MAX = 3
_PLAIN = b"0123456789.-"
_ONE_DIGIT_MAX = 9


def is_no_decimal(text: str, kind: pa.Decimal128Type) -> bool:
    """Whether a text cannot be a decimal of the type's scale. Returns False if pyarrow reads the
    text correctly or refuses it; a later check compares the precision.
    """
    number = _NUMBER.fullmatch(text)
    integer, fraction, sign, power = number.groups("") if number else ("", "", "", "")
    power = power.lstrip("0")
    if not integer and not fraction or len(power) > _POWER_CHARS_MAX:
        return True
    digits = (integer + fraction).lstrip("0")
    exponent = int(f"{sign}{power or 0}") - len(fraction)
    excess = -exponent - kind.scale
    if excess > DIGITS_MAX or len(digits) > DIGITS_MAX:
        return True
    if excess > 0 and digits[-excess:].strip("0"):
        return True
    return bool(digits) and len(digits) - excess > DIGITS_MAX


def plain(kind: pa.Decimal128Type) -> str:
    """A pattern for unsigned texts that certainly fit the type."""
    digits = kind.precision - kind.scale
    if digits <= 0:
        return r"0(?:\.0{0,9})?"
    return rf"[0-9]{{1,{digits}}}(?:\.[0-9]{{0,{kind.scale}}})?"


def no_decimals(texts: pa.StringArray, kind: pa.Decimal128Type) -> np.ndarray:
    """Mark the rows whose text cannot be a decimal of the type's scale."""
    encoded = texts.dictionary_encode()
    fine = pc.match_substring_regex(encoded.dictionary, f"^-?{plain(kind)}$")
    bad = ~fine.to_numpy(zero_copy_only=False)
    suspects = encoded.dictionary.filter(pa.array(bad)).to_pylist()
    bad[bad] = [is_no_decimal(text, kind) for text in suspects]
    return pc.fill_null(pa.array(bad).take(encoded.indices), False).to_numpy(zero_copy_only=False)


def all_plain(texts: pa.StringArray, kind: pa.Decimal128Type) -> bool:
    """Whether pyarrow reads all texts correctly, judged by their lengths and characters."""
    if not len(texts):
        return True
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    if np.diff(bounds).max() > DIGITS_MAX - kind.scale:
        return False
    content = data.slice(int(bounds[0]), int(bounds[-1] - bounds[0])).to_pybytes() if data else b""
    return not content.translate(None, _PLAIN)


def suspicious(lines: RecordLines, scale: int) -> np.ndarray:
    """The records that may have a number which pyarrow misreads at a scale up to `scale`. A number
    is harmless if its exponent has at most one digit, its digits fit, and it lacks escapes.
    """
    run = DIGITS_MAX + 1 - scale
    beside_power = max(run - _ONE_DIGIT_MAX, 1)
    return lines.matching(
        rf"[0-9]{{{run}}}|[0-9]{{{beside_power}}}[0-9.]*[eE]|\\u00|"
        r"[\x00-\x20,\[:\"+-][0-9]*\.?[0-9]*[eE][+-]?0*[1-9][0-9]+[\x00-\x20,\]}\"]"
    )
