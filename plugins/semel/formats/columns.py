"""From what pyarrow's readers give to the declared types: the same answer in JSON and in CSV.

A value that its column cannot hold is found here, behind the parse, with all others like it. What
is said of a value depends on that value alone.
"""

from collections.abc import Callable
from decimal import Context, Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

Unfit = list[tuple[int, str]]
"""Rows whose value the column cannot hold, each with the reason."""

# A zone stands behind the date (10 characters), where there is no other sign or Z.
_ZONE = r"^.{10}.*[Z+-]"
# All that pyarrow takes for a time is of this form, and little else.
_TIME = (
    r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"([ T]([01]\d|2[0-3])[0-9:.]*)?(Z|[+-][0-9:]*)?$"
)
_DATE = r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"
_BEYOND_MICROSECONDS = r"(\.\d{6})\d+"
_LOSES_DIGITS = r"\.\d{6}\d*[1-9]"
_SHOWN_CHARS_MAX = 60
_DIGITS = Context(prec=38)
# The first and the last that Python, Spark and pandas can show: years 1 to 9999.
_MOMENTS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_DAYS = (-719_162, 2_932_896)


def as_read(declared: pa.DataType, *, times_as_text: bool = False) -> pa.DataType:
    """The type to read a JSON value with: pyarrow.json takes numbers for dates, so text."""
    if times_as_text and pa.types.is_timestamp(declared):
        return pa.string()
    if pa.types.is_date(declared) or pa.types.is_binary(declared):
        return pa.string()
    if pa.types.is_struct(declared):
        fields = [f.with_type(as_read(f.type, times_as_text=times_as_text)) for f in declared]
        return pa.struct(fields)
    if pa.types.is_list(declared):
        inner = as_read(declared.value_type, times_as_text=times_as_text)
        return pa.list_(declared.value_field.with_type(inner))
    return declared


def convert(
    column: pa.ChunkedArray, declared: pa.DataType, *, exact: bool = False
) -> tuple[pa.Array, Unfit]:
    """The column with its declared type, and the rows that do not fit, which mean nothing in it.

    Text becomes a date (YYYY-MM-DD) or a timestamp (ISO 8601, UTC where no zone is given, cut to
    microseconds), base64 becomes bytes. `exact`: a time that would lose digits does not fit.
    """
    read = column.combine_chunks()
    array, faults = _convert(read, declared, exact)
    unfit: dict[int, str] = {}
    for bad, why, text in faults:
        for at in np.flatnonzero(bad).tolist():
            if at not in unfit:
                shown = "" if text is None else f"{text[at].as_py()[:_SHOWN_CHARS_MAX]!r} "
                unfit[at] = shown + why
    return array, list(unfit.items())


_Faults = list[tuple[np.ndarray, str, pa.Array | None]]
"""Marks of the rows that do not fit, the reason, and the text that was read, if one was."""


def _convert(array: pa.Array, declared: pa.DataType, exact: bool) -> tuple[pa.Array, _Faults]:
    if pa.types.is_struct(declared):
        made = [
            _convert(inner, field.type, exact)
            for inner, field in zip(array.flatten(), declared, strict=True)
        ]
        if array.type != declared:
            inner = [one for one, _ in made]
            array = pa.StructArray.from_arrays(inner, fields=list(declared), mask=array.is_null())
        return array, [fault for _, faults in made for fault in faults]
    if pa.types.is_list(declared):
        return _list(array, declared, exact)
    faults: _Faults = []
    if array.type != declared:
        if pa.types.is_timestamp(declared):
            array, faults = _timestamps(array, declared, exact)
        elif pa.types.is_binary(declared):
            array, faults = _bytes(array)
        else:
            array, faults = _dates(array, declared)
    return array, faults + _unfit_values(array)


def _list(array: pa.ListArray, declared: pa.DataType, exact: bool) -> tuple[pa.Array, _Faults]:
    offsets = array.offsets
    values, inner = _convert(array.values, declared.value_type, exact)
    if array.type != declared:
        nulls = array.is_null() if array.null_count else None
        array = pa.ListArray.from_arrays(offsets, values, type=declared, mask=nulls)
    bounds = offsets.to_numpy()
    faults = []
    for bad, why, _ in inner:
        before = np.concatenate(([0], np.cumsum(bad)))
        faults.append((before[bounds[1:]] > before[bounds[:-1]], f"holds what {why}", None))
    return array, faults


def _timestamps(
    text: pa.Array, declared: pa.TimestampType, exact: bool
) -> tuple[pa.Array, _Faults]:
    # pyarrow casts text either with zones or without them.
    def cast(text: pa.Array, cast_as: Callable) -> pa.Array:
        zoned = pc.match_substring_regex(text, _ZONE)
        nothing = pa.scalar(None, pa.string())
        with_zone = cast_as(pc.if_else(zoned, text, nothing), pa.timestamp("us", "UTC"))
        without = cast_as(pc.if_else(zoned, nothing, text), pa.timestamp("us"))
        return pc.coalesce(with_zone, without.cast(with_zone.type)).cast(declared)

    try:
        return cast(text, pa.Array.cast), []
    except pa.ArrowInvalid:
        pass  # Some value is no time, or has more digits than fit.
    faults: _Faults = []
    if exact:
        loses = _mask(pc.match_substring_regex(text, _LOSES_DIGITS))
        why = "has more than six digits of a second, which an id may not lose"
        text, faults = _without(text, loses), [(loses, why, text)]
    short = pc.replace_substring_regex(text, _BEYOND_MICROSECONDS, r"\1")
    bad = _unlike(short, _TIME)
    made = cast(_without(short, bad), _cast_what_fits)
    bad |= _lost(text, made)
    return made, [*faults, (bad, "is no timestamp (ISO 8601)", text)]


def _dates(text: pa.Array, declared: pa.DataType) -> tuple[pa.Array, _Faults]:
    try:
        return text.cast(declared), []
    except pa.ArrowInvalid:
        bad = _unlike(text, _DATE)
    made = _cast_what_fits(_without(text, bad), declared)
    bad |= _lost(text, made)
    return made, [(bad, "is no date (YYYY-MM-DD)", text)]


def _bytes(text: pa.Array) -> tuple[pa.Array, _Faults]:
    made = pl.from_arrow(text).str.decode("base64", strict=False).to_arrow().cast(pa.binary())
    bad = _lost(text, made)
    return made, [(bad, "is no base64 (with its padding)", text)] if bad.any() else []


def _cast_what_fits(text: pa.Array, target: pa.DataType) -> pa.Array:
    """Each text as the cast of it alone would be; null where that fails."""
    encoded = text.dictionary_encode()
    values = encoded.dictionary
    parts, stack = [], [(0, len(values))]
    while stack:
        first, behind = stack.pop()
        try:
            parts.append(values.slice(first, behind - first).cast(target))
        except pa.ArrowInvalid:
            if behind - first == 1:
                parts.append(pa.nulls(1, target))
                continue
            middle = (first + behind) // 2
            stack += [(middle, behind), (first, middle)]
    return pa.concat_arrays(parts).take(encoded.indices)


def _unlike(text: pa.Array, form: str) -> np.ndarray:
    """The rows that hold a text of another form."""
    return _mask(pc.invert(pc.match_substring_regex(text, form)))


def _without(text: pa.Array, bad: np.ndarray) -> pa.Array:
    return pc.if_else(pa.array(bad), pa.scalar(None, text.type), text)


def _lost(text: pa.Array, made: pa.Array) -> np.ndarray:
    """The rows whose text became nothing."""
    return _mask(pc.and_(made.is_null(), text.is_valid()))


def _mask(found: pa.Array) -> np.ndarray:
    return pc.fill_null(found, False).to_numpy(zero_copy_only=False)


def _unfit_values(array: pa.Array) -> _Faults:
    """What pyarrow's readers let pass: NaN, overflow to infinity, more digits than declared."""
    kind = array.type
    if pa.types.is_floating(kind):
        if pc.all(pc.is_finite(array)).as_py() is False:
            bad = _mask(pc.invert(pc.is_finite(array)))
            return [(bad, f"is a number that {kind} cannot hold, or not a number", None)]
    elif pa.types.is_decimal(kind):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            wide = pa.decimal128(38, kind.scale)
            most = Decimal(10**kind.precision - 1).scaleb(-kind.scale, _DIGITS)
            bad = _mask(pc.greater(pc.abs(array.view(wide)), pa.scalar(most, wide)))
            return [(bad, f"is a number of more digits than {kind} holds", None)]
    elif pa.types.is_timestamp(kind):
        return _unfit_range(array.cast(pa.int64()), _MOMENTS, "lies beyond the years 1 to 9999")
    elif pa.types.is_date(kind):
        return _unfit_range(array.cast(pa.int32()), _DAYS, "lies beyond the years 1 to 9999")
    return []


def _unfit_range(numbers: pa.Array, bounds: tuple[int, int], why: str) -> _Faults:
    found = pc.min_max(numbers)
    low, high = found["min"].as_py(), found["max"].as_py()
    if low is None or bounds[0] <= low and high <= bounds[1]:
        return []
    inside = pc.and_(pc.greater_equal(numbers, bounds[0]), pc.less_equal(numbers, bounds[1]))
    return [(_mask(pc.invert(inside)), why, None)]
