"""Texts that are no values of a decimal type, as pyarrow's readers see it in JSON and in CSV."""

import re

import pyarrow as pa

NO_NUMBER = "is no number"
_NUMBER = re.compile(r"[+-]?([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")
_EXPONENT_CHARS_MAX = 5
# pyarrow 26 reads some numbers with more digits than that as 0.
_EXCESS_MAX = 38


def decimal_fault(text: str, kind: pa.Decimal128Type) -> str | None:
    """Why a text is surely no value of the type. None: it is one, or the reader must say."""
    number = _NUMBER.fullmatch(text)
    whole, part, power = number.groups("") if number else ("", "", "")
    if not whole and not part:
        return NO_NUMBER
    if len(power) > _EXPONENT_CHARS_MAX:
        return None
    digits = (whole + part).lstrip("0")
    exponent = int(power or 0) - len(part)
    excess = -exponent - kind.scale
    if excess > _EXCESS_MAX:
        return None
    if excess > 0 and digits[-excess:].strip("0"):
        return f"has more than {kind.scale} digits behind the point"
    if digits and len(digits) + max(exponent, 0) > kind.precision:
        return f"has more than {kind.precision} digits"
    return None
