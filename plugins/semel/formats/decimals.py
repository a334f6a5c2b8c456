"""Texts that no decimal can be read from, as pyarrow's readers see it in JSON and in CSV."""

import re

import pyarrow as pa

_NUMBER = re.compile(r"[+-]?([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")
DIGITS_MAX = 38
"""Of a decimal, those of its text that are zeros too."""

_EXPONENT_CHARS_MAX = 5
# pyarrow 26 reads some numbers with more digits than that as 0.
_EXCESS_MAX = 38


def is_no_decimal(text: str, kind: pa.Decimal128Type) -> bool:
    """Whether a text surely cannot be read with the type's scale. If not, it can, or the reader
    must say; whether the number has too many digits for the type shows behind that.
    """
    number = _NUMBER.fullmatch(text)
    whole, part, power = number.groups("") if number else ("", "", "")
    if not whole and not part:
        return True
    if len(power) > _EXPONENT_CHARS_MAX:
        return False
    digits = (whole + part).lstrip("0")
    exponent = int(power or 0) - len(part)
    excess = -exponent - kind.scale
    if excess > _EXCESS_MAX:
        return False
    if excess > 0 and digits[-excess:].strip("0"):
        return True
    return bool(digits) and len(digits) + max(exponent, 0) > DIGITS_MAX
