"""The Arrow types that a declared column stores exactly, and the cast to it.

The types alone decide, for all their values: semel never rounds a number or parses a text.
`semel.formats.columns` checks the values later.
"""

from decimal import Decimal, localcontext

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from semel.declare.ddl import ColumnType
from semel.formats.words import similar_name_hint

_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
"""Maximum digits of an integer, by its bits."""

_MANTISSA = {32: 24, 64: 53}
"""The bits of an integer that a floating-point number represents exactly, by its bits."""

_DIGITS_MAX = 100
"""More than any decimal has."""

_PRECISION_MAX = 38

_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
_YEARS = 10_000
_BEYOND = _YEARS * 366 * 86_400 * 1_000_000
"""Microseconds outside of all years that a column supports. Larger times become this value."""


def misfit(file_type: pa.DataType, kind: ColumnType, *, within: bool = False) -> str | None:
    """Why a declared type cannot store all values of a file's type. None if it can. A double
    cannot store all integers: `cast_exactly` rounds these, and the check of values finds them.

    The sentence continues after the column's name. `within`: the value is nested.
    """
    file_type = _plain(file_type)
    if at.is_integer(file_type) and kind.word == "double" and not within:
        return None
    if instead := _instead(file_type):
        return f" is {file_type}, which semel does not read; have its writer write {instead}"
    if at.is_null(file_type) or file_type == kind.arrow():
        return None
    if kind.word == "struct" and at.is_struct(file_type):
        return _struct(file_type, kind)
    has_text_keys = at.is_map(file_type) and _holds(_plain(file_type.key_type), pa.string())
    if kind.word == "map" and has_text_keys:
        return _within("{}", misfit(file_type.item_type, kind.element, within=True))
    if kind.word == "array" and _is_list(file_type):
        return _within("[]", misfit(file_type.value_type, kind.element, within=True))
    if not kind.nested and _holds(file_type, kind.arrow()):
        return None
    return f" is {file_type}, which {kind} cannot store"


def _instead(file_type: pa.DataType) -> pa.DataType | None:
    """The type to write instead of one that few readers support. None for all other types."""
    if isinstance(file_type, pa.BaseExtensionType):
        return file_type.storage_type
    if at.is_float16(file_type):
        return pa.float32()
    is_other_decimal = at.is_decimal(file_type) and not at.is_decimal128(file_type)
    if is_other_decimal and file_type.precision <= _PRECISION_MAX:
        return pa.decimal128(file_type.precision, file_type.scale)
    return None


def _within(place: str, why: str | None) -> str | None:
    return None if why is None else f"{place}{why}"


def _struct(file_type: pa.StructType, kind: ColumnType) -> str | None:
    for name, inner in kind.fields:
        places = file_type.get_all_field_indices(name)
        if len(places) != 1:
            like = "" if places else similar_name_hint(name, (field.name for field in file_type))
            return f".{name} is {'twice or more' if places else 'not'} in the file{like}"
        if why := misfit(file_type.field(places[0]).type, inner, within=True):
            return f".{name}{why}"
    return None


def _plain(kind: pa.DataType) -> pa.DataType:
    return _plain(kind.value_type) if at.is_dictionary(kind) else kind


def _is_list(kind: pa.DataType) -> bool:
    return at.is_list(kind) or at.is_large_list(kind) or at.is_fixed_size_list(kind)


def _holds(file_type: pa.DataType, declared: pa.DataType) -> bool:
    if file_type == declared:
        return True
    if at.is_integer(declared):
        # An unsigned type needs one more bit, for the sign.
        needs = at.is_integer(file_type) and file_type.bit_width + at.is_unsigned_integer(file_type)
        return bool(needs) and needs <= declared.bit_width
    if at.is_floating(declared):
        if at.is_integer(file_type):
            return file_type.bit_width <= _MANTISSA[declared.bit_width]
        return file_type == pa.float32()
    if at.is_decimal(declared):
        digits = declared.precision - declared.scale
        if at.is_integer(file_type):
            return _DIGITS[file_type.bit_width] <= digits
        return (
            at.is_decimal128(file_type)
            and file_type.scale <= declared.scale
            and file_type.precision - file_type.scale <= digits
        )
    if at.is_timestamp(declared):
        return at.is_timestamp(file_type)
    if at.is_date(declared):
        return at.is_date(file_type)
    if at.is_string(declared):
        return at.is_large_string(file_type) or at.is_string_view(file_type)
    if at.is_binary(declared):
        return (
            at.is_large_binary(file_type) or at.is_binary_view(file_type)
            or at.is_fixed_size_binary(file_type)
        )  # fmt: skip
    return False


# Keeps P23.
def cast_exactly(array: pa.Array, declared: pa.DataType) -> pa.Array:
    """Cast a column to the declared type. Truncates a time with more digits.

    Raises TypeError if the types do not fit; see `misfit`.
    """
    if array.type == declared:
        return array
    if at.is_null(array.type):
        return pa.nulls(len(array), declared)
    if at.is_integer(array.type) and at.is_float64(declared):
        return array.cast(declared, safe=False)
    if not _is_like(array.type, declared):
        raise TypeError(f"{declared} cannot store {array.type}")
    if at.is_timestamp(declared):
        return _moments(array, declared)
    if at.is_decimal(declared) and at.is_decimal(array.type):
        return _decimals(array, declared)
    if at.is_struct(declared):
        inner = array.flatten()  # The fields of a null are null.
        places = [array.type.get_field_index(field.name) for field in declared]
        parts = [cast_exactly(inner[k], f.type) for k, f in zip(places, declared, strict=True)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(declared), mask=mask)
    if at.is_map(declared) or at.is_list(declared):
        array = array.take(pa.array(np.arange(len(array)))) if array.offset else array
        mask = array.is_null() if array.null_count else None
    if at.is_map(declared):
        keys = cast_exactly(array.keys, declared.key_type)
        items = cast_exactly(array.items, declared.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=declared, mask=mask)
    if at.is_list(declared):
        if not at.is_list(array.type):
            array = array.cast(pa.list_(array.type.value_field))
        values = cast_exactly(array.values, declared.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=declared, mask=mask)
    return array.cast(declared)


def plain_values(array: pa.Array, declared: pa.DataType) -> pa.Array:
    """The same values without dictionaries and views, which few functions accept, and without
    undeclared fields of structs. `declared`: a type that fits.

    Raises pa.ArrowException if an index is outside of its dictionary.
    """
    kind = array.type
    if at.is_dictionary(kind):
        return plain_values(array.dictionary.take(array.indices), declared)
    if at.is_string_view(kind):
        return array.cast(pa.large_string())
    if at.is_binary_view(kind):
        return array.cast(pa.large_binary())
    if _is_decoded(kind, declared):
        return array
    mask = array.is_null() if array.null_count else None
    if at.is_struct(kind):
        inner, names = array.flatten(), [field.name for field in declared]
        places = map(kind.get_field_index, names)
        parts = [plain_values(inner[k], f.type) for k, f in zip(places, declared, strict=True)]
        return pa.StructArray.from_arrays(parts, names, mask=mask)
    if at.is_fixed_size_list(kind):
        size = kind.list_size
        bounds = np.arange(array.offset, array.offset + len(array) + 1) * size
        bounds = pa.array(bounds, pa.int32())
        values = plain_values(array.values, declared.value_type)
        return pa.ListArray.from_arrays(bounds, values, mask=mask)
    # pyarrow refuses a mask together with sliced offsets.
    bounds = pa.array(array.offsets.to_numpy(), array.offsets.type)
    if at.is_map(kind):
        keys = plain_values(array.keys, declared.key_type)
        items = plain_values(array.items, declared.item_type)
        return pa.MapArray.from_arrays(bounds, keys, items, mask=mask)
    list_class = pa.LargeListArray if at.is_large_list(kind) else pa.ListArray
    values = plain_values(array.values, declared.value_type)
    return list_class.from_arrays(bounds, values, mask=mask)


def _is_decoded(kind: pa.DataType, declared: pa.DataType) -> bool:
    if at.is_struct(kind) and [f.name for f in kind] != [f.name for f in declared]:
        return False
    if at.is_struct(kind) or at.is_map(kind) or _is_list(kind):
        inner = range(kind.num_fields)
        return all(_is_decoded(kind.field(k).type, declared.field(k).type) for k in inner)
    return not (at.is_dictionary(kind) or at.is_string_view(kind) or at.is_binary_view(kind))


def _decimals(array: pa.Array, declared: pa.DataType) -> pa.Array:
    """Cast decimals to another precision and scale. A value beyond its own type's precision becomes
    one beyond the declared precision, so that the check of values finds it.
    """
    most = Decimal(10) ** (array.type.precision - array.type.scale)
    bounds = pc.min_max(array).as_py()
    with localcontext(prec=_DIGITS_MAX):
        if all(v is None or abs(v) < most for v in bounds.values()):
            return array.cast(declared)
        over = np.array([v is not None and abs(v) >= most for v in array.to_pylist()], bool)
    cast = pc.if_else(pa.array(over), pa.scalar(None, array.type), array).cast(declared)
    words = np.frombuffer(cast.buffers()[1], np.int64).copy()[: 2 * len(cast)].reshape(-1, 2)
    low, high = divmod(10**declared.precision, 1 << 64)[::-1]
    words[over] = np.array([low, high], np.uint64).view(np.int64)
    missing = pa.py_buffer(np.packbits(array.is_valid().to_numpy(False), bitorder="little"))
    return pa.Array.from_buffers(declared, len(cast), [missing, pa.py_buffer(words.tobytes())])


def _is_like(file_type: pa.DataType, declared: pa.DataType) -> bool:
    """Whether a type fits, apart from its nested types."""
    if at.is_struct(declared):
        if not at.is_struct(file_type):
            return False
        return all(file_type.get_field_index(f.name) >= 0 for f in declared)
    if at.is_map(declared):
        return at.is_map(file_type)
    if at.is_list(declared):
        return _is_list(file_type)
    return _holds(file_type, declared)


def _moments(array: pa.Array, declared: pa.TimestampType) -> pa.Array:
    """Times in microseconds. A time without a zone is UTC."""
    numbers = array.view(pa.int64())
    unit = array.type.unit
    if unit == "us":
        return array.cast(declared)
    micros = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    if unit == "ns":
        micros = np.floor_divide(micros, 1_000)
    else:
        most = _BEYOND // _PER_UNIT[unit]
        micros = np.clip(micros, -most, most) * _PER_UNIT[unit]
    missing = array.is_null().to_numpy(zero_copy_only=False)
    return pa.array(micros, mask=missing).cast(pa.timestamp("us")).cast(declared)
