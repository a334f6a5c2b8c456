"""Texts of decimals, judged by their digits before pyarrow sees them: in JSON, in CSV, in a query.

pyarrow 26 keeps powers of ten up to 38. Of a number that needs a larger one it reads something
else (`1e-41` is 0, `7` in a decimal(38,38) is 0.194), or ends the process (`1e-9999999`).
"""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.formats.lines import RecordLines

DIGITS_MAX = 38
"""Of a decimal: of its text, those that are zeros too, and of the number with its type's scale."""

_NUMBER = re.compile(r"[+-]?([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?)([0-9]+))?")
_POWER_CHARS_MAX = 3
_PLAIN = b"0123456789.-"
_ONE_DIGIT_MAX = 9


def is_no_decimal(text: str, kind: pa.Decimal128Type) -> bool:
    """Whether a text surely cannot be read with the type's scale. If not, pyarrow reads it as it
    is meant, or refuses it; whether it has too many digits for the type shows behind that.
    """
    number = _NUMBER.fullmatch(text)
    whole, part, sign, power = number.groups("") if number else ("", "", "", "")
    power = power.lstrip("0")
    if not whole and not part or len(power) > _POWER_CHARS_MAX:
        return True
    digits = (whole + part).lstrip("0")
    exponent = int(f"{sign}{power or 0}") - len(part)
    excess = -exponent - kind.scale
    if excess > DIGITS_MAX or len(digits) > DIGITS_MAX:
        return True
    if excess > 0 and digits[-excess:].strip("0"):
        return True
    return bool(digits) and len(digits) - excess > DIGITS_MAX


def plain(kind: pa.Decimal128Type) -> str:
    """A pattern of the texts that are surely numbers of the type, without a sign."""
    whole = kind.precision - kind.scale
    return rf"[0-9]{{1,{whole}}}(?:\.[0-9]{{0,{kind.scale}}})?" if whole > 0 else r"0(?:\.0{0,9})?"


def no_decimals(texts: pa.StringArray, kind: pa.Decimal128Type) -> np.ndarray:
    """The rows whose text is surely no number of the type's scale."""
    encoded = texts.dictionary_encode()
    fine = pc.match_substring_regex(encoded.dictionary, f"^-?{plain(kind)}$")
    bad = ~fine.to_numpy(zero_copy_only=False)
    suspects = encoded.dictionary.filter(pa.array(bad)).to_pylist()
    bad[bad] = [is_no_decimal(text, kind) for text in suspects]
    return pc.fill_null(pa.array(bad).take(encoded.indices), False).to_numpy(zero_copy_only=False)


def all_plain(texts: pa.StringArray, kind: pa.Decimal128Type) -> bool:
    """Whether all texts are so short, and of such characters, that pyarrow may read them."""
    if not len(texts):
        return True
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    if np.diff(bounds).max() > DIGITS_MAX - kind.scale:
        return False
    content = data.slice(int(bounds[0]), int(bounds[-1] - bounds[0])).to_pybytes() if data else b""
    return not content.translate(None, _PLAIN)


def suspicious(lines: RecordLines, scale: int) -> np.ndarray:
    """The records in which a number may be that pyarrow must not read with a scale up to `scale`.
    In no other: a number is harmless whose exponent has one digit, or none, and whose digits fit;
    and which is written without escapes.
    """
    run = DIGITS_MAX + 1 - scale
    beside_power = max(run - _ONE_DIGIT_MAX, 1)
    return lines.matching(
        rf"[0-9]{{{run}}}|[0-9]{{{beside_power}}}[0-9.]*[eE]|\\u00|"
        r"[\x00-\x20,\[:\"+-][0-9]*\.?[0-9]*[eE][+-]?0*[1-9][0-9]+[\x00-\x20,\]}\"]"
    )
