"""Convert the columns of pyarrow's readers to the declared types, alike for JSON and CSV.

Finds the values that do not fit their columns, after the parse, for whole columns at once. The
verdict on a value depends on that value alone.
"""

from collections.abc import Callable
from decimal import Context, Decimal
from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from semel.formats import words
from semel.formats.decimals import DIGITS_MAX, all_plain, no_decimals
from semel.formats.words import FOUND_CHARS_MAX

Unfit = list[tuple[int, str]]
"""Rows whose value does not fit the column, each with a sentence."""

# A zone follows the date (10 characters), where no other sign or Z occurs.
_ZONE = r"^.{10}.*[Z+-]"
# Matches all texts that pyarrow reads as a time, and few others.
_TIME = (
    r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"([ T]([01]\d|2[0-3])[0-9:.]*)?(Z|[+-][0-9:]*)?$"
)
_DATE = r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"
_BEYOND_MICROSECONDS = r"(\.\d{6})\d+"
_LOSES_DIGITS = r"\.\d{6}\d*[1-9]"
_DIGITS = Context(prec=DIGITS_MAX)
# The first and last that Python, Spark and pandas support: years 1 to 9999.
_MOMENTS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_DAYS = (-719_162, 2_932_896)


def as_read(declared: pa.DataType, *, times_as_text: bool = False) -> pa.DataType:
    """The type to read a JSON value with. Dates are text, because pyarrow.json accepts numbers."""
    if times_as_text and pa.types.is_timestamp(declared):
        return pa.string()
    if pa.types.is_date(declared) or pa.types.is_binary(declared):
        return pa.string()
    if pa.types.is_decimal(declared):
        return widest(declared)
    if pa.types.is_struct(declared):
        fields = [f.with_type(as_read(f.type, times_as_text=times_as_text)) for f in declared]
        return pa.struct(fields)
    if pa.types.is_list(declared):
        inner = as_read(declared.value_type, times_as_text=times_as_text)
        return pa.list_(declared.value_field.with_type(inner))
    return declared


def widest(kind: pa.Decimal128Type) -> pa.Decimal128Type:
    """The type to read a decimal with: pyarrow counts zeros at the end of the text as digits."""
    return pa.decimal128(DIGITS_MAX, kind.scale)


def convert(
    column: pa.ChunkedArray, declared: pa.Field, *, exact: bool = False
) -> tuple[pa.Array, Unfit]:
    """The column with its declared type, and the rows that do not fit; ignore their values.

    Text becomes a date (YYYY-MM-DD) or a timestamp (ISO 8601, default UTC, truncated to
    microseconds), base64 becomes bytes. `exact`: a time that would lose digits does not fit.
    """
    read = column.combine_chunks()
    array, faults = _convert(read, declared.type, exact)
    unfit: dict[int, str] = {}
    for bad, path, expected, show in faults:
        rows, place = np.flatnonzero(bad), declared.name + path
        for at, text in zip(rows.tolist(), show(rows), strict=True):
            unfit.setdefault(at, words.misfit(place, expected, text))
    return array, list(unfit.items())


Show = Callable[[np.ndarray], list[str]]
"""Formats the values of some rows for a message."""

_Faults = list[tuple[np.ndarray, str, str, Show]]
"""A mask of the rows that do not fit, the path in the value, the expected type, the formatter."""


def _convert(array: pa.Array, declared: pa.DataType, exact: bool) -> tuple[pa.Array, _Faults]:
    if pa.types.is_struct(declared):
        columns, faults = [], []
        for inner, field in zip(array.flatten(), declared, strict=True):
            column, inner_faults = _convert(inner, field.type, exact)
            columns.append(column)
            faults += [(bad, f".{field.name}{path}", *more) for bad, path, *more in inner_faults]
        if array.type != declared:
            array = pa.StructArray.from_arrays(columns, fields=list(declared), mask=array.is_null())
        return array, faults
    if pa.types.is_list(declared):
        return _list(array, declared, exact)
    faults: _Faults = []
    if array.type != declared:
        if pa.types.is_timestamp(declared):
            array, faults = _timestamps(array, declared, exact)
        elif pa.types.is_binary(declared):
            array, faults = _bytes(array)
        elif pa.types.is_decimal(declared):
            array, faults = _decimals(array, declared)
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
    for bad, path, expected, show in inner:
        counts = np.concatenate(([0], np.cumsum(bad)))
        firsts = np.flatnonzero(bad), counts[bounds[:-1]]
        show = partial(_show_first, show, *firsts)
        faults.append((counts[bounds[1:]] > counts[bounds[:-1]], f"[]{path}", expected, show))
    return array, faults


def _show_first(show: Show, places: np.ndarray, firsts: np.ndarray, rows: np.ndarray) -> list[str]:
    """Format the first unfit value of each list. `places`: the unfit values; `firsts`: the index
    into them for each row."""
    return show(places[firsts[rows]])


def _quoting(text: pa.Array) -> Show:
    def show(rows: np.ndarray) -> list[str]:
        texts = pc.utf8_slice_codeunits(text.take(pa.array(rows)), 0, FOUND_CHARS_MAX + 1)
        return words.quote_all(texts.to_pylist())

    return show


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
        pass  # Some value is not a time, or has too many digits.
    faults: _Faults = []
    if exact:
        loses = _mask(pc.match_substring_regex(text, _LOSES_DIGITS))
        expected = "at most six digits of a second, as it is part of record_id"
        text, faults = _without(text, loses), [(loses, "", expected, _quoting(text))]
    short = pc.replace_substring_regex(text, _BEYOND_MICROSECONDS, r"\1")
    bad = _unlike(short, _TIME)
    times = cast(_without(short, bad), _cast_what_fits)
    bad |= _lost(text, times)
    return times, [*faults, (bad, "", words.TIME, _quoting(text))]


def _dates(text: pa.Array, declared: pa.DataType) -> tuple[pa.Array, _Faults]:
    try:
        return text.cast(declared), []
    except pa.ArrowInvalid:
        bad = _unlike(text, _DATE)
    dates = _cast_what_fits(_without(text, bad), declared)
    bad |= _lost(text, dates)
    return dates, [(bad, "", words.DATE, _quoting(text))]


def _decimals(array: pa.Array, declared: pa.Decimal128Type) -> tuple[pa.Array, _Faults]:
    """Decimals from text (CSV), or from decimals that pyarrow read as `widest` (JSON)."""
    if pa.types.is_decimal(array.type):
        return array.view(declared), []
    text, faults = array, []
    try:
        decimals = text.cast(widest(declared)) if all_plain(text, declared) else None
    except pa.ArrowInvalid:
        decimals = None  # Such as 1.2.3, or 1.234 if the scale is 2.
    if decimals is None:
        text = pc.ascii_trim(text, " \t")
        bad = no_decimals(text, declared)
        decimals = _cast_what_fits(_without(text, bad), widest(declared))
        bad |= _lost(text, decimals)
        faults = [(bad, "", words.expected_value(declared), _quoting(array))]
    return decimals.view(declared), faults


def _bytes(text: pa.Array) -> tuple[pa.Array, _Faults]:
    values = pl.from_arrow(text).str.decode("base64", strict=False).to_arrow().cast(pa.binary())
    bad = _lost(text, values)
    return values, [(bad, "", words.BASE64, _quoting(text))] if bad.any() else []


def _cast_what_fits(text: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast each text by itself; null where that fails. Bisects the distinct values."""
    encoded = text.dictionary_encode()
    values = encoded.dictionary
    parts, stack = [], [(0, len(values))]
    while stack:
        first, end = stack.pop()
        try:
            parts.append(values.slice(first, end - first).cast(target))
        except pa.ArrowInvalid:
            if end - first == 1:
                parts.append(pa.nulls(1, target))
                continue
            middle = (first + end) // 2
            stack += [(middle, end), (first, middle)]
    return pa.concat_arrays(parts).take(encoded.indices)


def _unlike(text: pa.Array, form: str) -> np.ndarray:
    """Mark the rows whose text does not match."""
    return _mask(pc.invert(pc.match_substring_regex(text, form)))


def _without(text: pa.Array, bad: np.ndarray) -> pa.Array:
    return pc.if_else(pa.array(bad), pa.scalar(None, text.type), text)


def _lost(text: pa.Array, values: pa.Array) -> np.ndarray:
    """Mark the rows whose text became null."""
    return _mask(pc.and_(values.is_null(), text.is_valid()))


def _mask(flags: pa.Array) -> np.ndarray:
    return pc.fill_null(flags, False).to_numpy(zero_copy_only=False)


def _unfit_values(array: pa.Array) -> _Faults:
    """Values that pyarrow's readers accept wrongly: NaN, overflow to infinity, too many digits."""
    kind = array.type
    if pa.types.is_floating(kind):
        if pc.all(pc.is_finite(array)).as_py() is False:
            return [
                (_mask(pc.is_nan(array)), "", words.expected_value(kind), _show_nan),
                (_mask(pc.is_inf(array)), "", words.expected_range(kind), _show_larger),
            ]
    elif pa.types.is_decimal(kind):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            wide = array.view(widest(kind))
            most = Decimal(10**kind.precision - 1).scaleb(-kind.scale, _DIGITS)
            bad = _mask(pc.greater(pc.abs(wide), pa.scalar(most, wide.type)))
            return [(bad, "", words.expected_value(kind), partial(_show_plain, wide))]
    elif pa.types.is_timestamp(kind):
        numbers, show = array.cast(pa.int64()), partial(_show_moments, array, "us", "Z")
        return _unfit_range(numbers, _MOMENTS, words.YEARS.format("time"), show)
    elif pa.types.is_date(kind):
        numbers, show = array.cast(pa.int32()), partial(_show_moments, array, "D", "")
        return _unfit_range(numbers, _DAYS, words.YEARS.format("date"), show)
    return []


def _show_nan(rows: np.ndarray) -> list[str]:
    return ["NaN"] * len(rows)


def _show_larger(rows: np.ndarray) -> list[str]:
    return ["a larger one"] * len(rows)


def _show_plain(numbers: pa.Array, rows: np.ndarray) -> list[str]:
    return numbers.take(pa.array(rows)).cast(pa.string()).to_pylist()


def _show_moments(moments: pa.Array, unit: str, zone: str, rows: np.ndarray) -> list[str]:
    """Formats by numpy, because Python's own times end at the year 9999."""
    integer = pa.int32() if unit == "D" else pa.int64()
    numbers = moments.take(pa.array(rows)).cast(integer).to_numpy(zero_copy_only=False)
    return [f"{text}{zone}" for text in numbers.astype(f"datetime64[{unit}]").astype(str).tolist()]


def _unfit_range(
    numbers: pa.Array, bounds: tuple[int, int], expected: str, show: Show
) -> _Faults:
    ends = pc.min_max(numbers)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if low is None or bounds[0] <= low and high <= bounds[1]:
        return []
    inside = pc.and_(pc.greater_equal(numbers, bounds[0]), pc.less_equal(numbers, bounds[1]))
    return [(_mask(pc.invert(inside)), "", expected, show)]
