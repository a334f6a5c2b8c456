"""Texts of decimals, judged by their digits before pyarrow sees them: in JSON, in CSV, in a query.

pyarrow 26 keeps powers of ten up to 38. Of a number that needs a larger one it reads something
else (`1e-41` is 0, `7` in a decimal(38,38) is 0.194), or ends the process (`1e-9999999`).
"""

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

DIGITS_MAX = 38
"""Of a decimal: of its text, those that are zeros too, and of the number with its type's scale."""

_NUMBER = re.compile(r"[+-]?([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?)([0-9]+))?")
_POWER_CHARS_MAX = 3
_PLAIN = b"0123456789.-"
_LOOKED_AT = 12
_ONE_DIGIT_MAX = 9
_STRIDES = 4
_PIECE = 1 << 17
_ESCAPE = re.compile(rb"\\u00")
_POINT_E = re.compile(rb"\.[eE]")
# Of one byte: else numpy makes wider numbers of them.
_ZERO, _TEN, _POINT, _SMALL, _E = (np.uint8(n) for n in (48, 10, ord("."), 32, ord("e")))
_BEFORE, _BEHIND = np.zeros((2, 256), bool)
_BEFORE[list(b"\0 \t,[:\"+-")] = True
_BEHIND[list(b"\0 \t\r\n,]}\"")] = True


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


def suspicious(data: bytes | bytearray, start: int, end: int, scale: int) -> np.ndarray:
    """Where in [start, end) a number may be that pyarrow must not read with a scale up to `scale`,
    in order. It is nowhere else: a number is harmless whose exponent has one digit, or none, and
    whose digits fit; and which is written without escapes.
    """
    codes = np.frombuffer(data, np.uint8)[start:end]
    letters = _exponents(codes)
    found = [_large(codes, letters)]
    run = DIGITS_MAX + 1 - scale - (_ONE_DIGIT_MAX if len(letters) else 0)
    found.append(_digits_in_a_row(codes, max(run, 1)))
    if b"\\" in data:
        # Digits and letters may be written as escapes.
        found.append([match.start() - start for match in _ESCAPE.finditer(data, start, end)])
    return np.unique(np.concatenate(found).astype(np.int64)) + start


def _digits_in_a_row(codes: np.ndarray, run: int) -> np.ndarray:
    """A place in each row of at least `run` digits; in rows of three quarters of that, perhaps."""
    # Of each few bytes one is looked at, and what lies between them only where all of these fit.
    step, steps = max(run // _STRIDES, 1), min(run, _STRIDES)
    digit = codes[::step] - _ZERO < _TEN
    many = digit[: max(len(digit) - steps + 1, 0)].copy()
    for shift in range(1, steps):
        many &= digit[shift : shift + len(many)]
    places = np.flatnonzero(many) * step
    for shift in range(1, (steps - 1) * step):
        places = places[codes[places + shift] - _ZERO < _TEN]
    return places


def _exponents(codes: np.ndarray) -> np.ndarray:
    """Where an `e` stands behind a digit or a point. In pieces that stay in the processor's cache:
    at once it takes three times as long."""
    found = [np.zeros(0, np.int64)]
    for at in range(0, len(codes), _PIECE):
        piece = codes[at : at + _PIECE + 1]
        before, letter = piece[:-1], piece[1:] | _SMALL == _E
        near = (before - _ZERO < _TEN) & letter
        if _POINT_E.search(piece):
            near |= (before == _POINT) & letter
        found.append(np.flatnonzero(near) + at + 1)
    return np.concatenate(found)


def _large(codes: np.ndarray, letters: np.ndarray) -> np.ndarray:
    """Those of the exponents that have two digits and more, but for zeros before them, in what
    begins and ends as a number: in the texts of ids few do."""
    edge = np.zeros(_LOOKED_AT + 3, np.uint8)
    padded = np.concatenate((edge, codes, edge))
    places = letters + len(edge)
    behind = padded[places + 1]
    first = places + 1 + ((behind == ord("+")) | (behind == ord("-")))
    is_digit = [padded[first + step] - _ZERO < _TEN for step in (0, 1, 2)]
    large = is_digit[0] & is_digit[1] & ((padded[first] != _ZERO) | is_digit[2])
    places, first = places[large], first[large]
    places = places[_leads_out(padded, first, 1, _BEHIND)]
    return places[_leads_out(padded, places - 1, -1, _BEFORE)] - len(edge)


def _leads_out(padded: np.ndarray, places: np.ndarray, step: int, outside: np.ndarray) -> np.ndarray:
    """Whether digits and points lead from each place, in steps of 1 or -1, to a byte that is marked
    in `outside`; or further than is looked."""
    open_, out = np.arange(len(places)), np.ones(len(places), bool)
    for shift in range(1, _LOOKED_AT):
        found = padded[places[open_] + step * shift]
        goes_on = (found - _ZERO < _TEN) | (found == _POINT)
        out[open_] = goes_on | outside[found]
        open_ = open_[goes_on]
    return out
