"""Which Arrow types a declared column takes exactly, and the cast that does it.

Whether a type is taken depends on the types alone, so each value of it is: a number is never
rounded, a text never parsed. Values are judged later, by `semel.formats.columns`.
"""

from decimal import Decimal, localcontext

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as at

from semel.declare.ddl import ColumnType
from semel.formats.words import near

_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
"""The digits of a whole number of so many bits."""

_MANTISSA = {32: 24, 64: 53}
"""The bits of a whole number that a floating-point number of so many bits keeps."""

_DIGITS_MAX = 100
"""More than any decimal has."""

_PRECISION_MAX = 38

_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
_YEARS = 10_000
_BEYOND = _YEARS * 366 * 86_400 * 1_000_000
"""Microseconds that are in no year that a column holds: a time that is longer is cut to these."""


def misfit(found: pa.DataType, kind: ColumnType, *, within: bool = False) -> str | None:
    """Why a declared type does not hold each value of a type that was found; None: it does. A
    double holds most whole numbers: `taken` rounds the others, so these are for who judges values.

    The sentence goes on behind the column's name. `within`: it is part of a nested value.
    """
    found = _plain(found)
    if at.is_integer(found) and kind.word == "double" and not within:
        return None
    if instead := _instead(found):
        return f" is {found}, which semel does not read; let its writer write {instead}"
    if at.is_null(found) or found == kind.arrow():
        return None
    if kind.word == "struct" and at.is_struct(found):
        return _struct(found, kind)
    if kind.word == "map" and at.is_map(found) and _holds(_plain(found.key_type), pa.string()):
        return _within("{}", misfit(found.item_type, kind.element, within=True))
    if kind.word == "array" and _is_list(found):
        return _within("[]", misfit(found.value_type, kind.element, within=True))
    if not kind.nested and _holds(found, kind.arrow()):
        return None
    return f" is {found}, which {kind} does not hold"


def _instead(found: pa.DataType) -> pa.DataType | None:
    """What to write in place of a type that few readers have; None of the others."""
    if isinstance(found, pa.BaseExtensionType):
        return found.storage_type
    if at.is_float16(found):
        return pa.float32()
    if at.is_decimal(found) and not at.is_decimal128(found) and found.precision <= _PRECISION_MAX:
        return pa.decimal128(found.precision, found.scale)
    return None


def _within(place: str, why: str | None) -> str | None:
    return None if why is None else f"{place}{why}"


def _struct(found: pa.StructType, kind: ColumnType) -> str | None:
    for name, inner in kind.fields:
        places = found.get_all_field_indices(name)
        if len(places) != 1:
            like = "" if places else near(name, (field.name for field in found))
            return f".{name} is {'twice or more' if places else 'not'} in the file{like}"
        if why := misfit(found.field(places[0]).type, inner, within=True):
            return f".{name}{why}"
    return None


def _plain(kind: pa.DataType) -> pa.DataType:
    return _plain(kind.value_type) if at.is_dictionary(kind) else kind


def _is_list(kind: pa.DataType) -> bool:
    return at.is_list(kind) or at.is_large_list(kind) or at.is_fixed_size_list(kind)


def _holds(found: pa.DataType, declared: pa.DataType) -> bool:
    if found == declared:
        return True
    if at.is_integer(declared):
        # One bit of an unsigned number's type is for the sign.
        needs = at.is_integer(found) and found.bit_width + at.is_unsigned_integer(found)
        return bool(needs) and needs <= declared.bit_width
    if at.is_floating(declared):
        if at.is_integer(found):
            return found.bit_width <= _MANTISSA[declared.bit_width]
        return found == pa.float32()
    if at.is_decimal(declared):
        whole = declared.precision - declared.scale
        if at.is_integer(found):
            return _DIGITS[found.bit_width] <= whole
        return (
            at.is_decimal128(found)
            and found.scale <= declared.scale
            and found.precision - found.scale <= whole
        )
    if at.is_timestamp(declared):
        return at.is_timestamp(found)
    if at.is_date(declared):
        return at.is_date(found)
    if at.is_string(declared):
        return at.is_large_string(found) or at.is_string_view(found)
    if at.is_binary(declared):
        return (
            at.is_large_binary(found) or at.is_binary_view(found)
            or at.is_fixed_size_binary(found)
        )  # fmt: skip
    return False


# Keeps P23.
def taken(array: pa.Array, declared: pa.DataType) -> pa.Array:
    """A column of a type that fits as the declared one. A time of more digits is cut.

    TypeError: it does not fit, as `misfit` says.
    """
    if array.type == declared:
        return array
    if at.is_null(array.type):
        return pa.nulls(len(array), declared)
    if at.is_integer(array.type) and at.is_float64(declared):
        return array.cast(declared, safe=False)
    if not _is_like(array.type, declared):
        raise TypeError(f"{declared} does not hold {array.type}")
    if at.is_timestamp(declared):
        return _moments(array, declared)
    if at.is_decimal(declared) and at.is_decimal(array.type):
        return _decimals(array, declared)
    if at.is_struct(declared):
        inner = array.flatten()  # A part of nothing is nothing.
        places = [array.type.get_field_index(field.name) for field in declared]
        parts = [taken(inner[k], field.type) for k, field in zip(places, declared, strict=True)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(declared), mask=mask)
    if at.is_map(declared) or at.is_list(declared):
        array = array.take(pa.array(np.arange(len(array)))) if array.offset else array
        mask = array.is_null() if array.null_count else None
    if at.is_map(declared):
        keys, items = taken(array.keys, declared.key_type), taken(array.items, declared.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=declared, mask=mask)
    if at.is_list(declared):
        if not at.is_list(array.type):
            array = array.cast(pa.list_(array.type.value_field))
        values = taken(array.values, declared.value_type)
        return pa.ListArray.from_arrays(array.offsets, values, type=declared, mask=mask)
    return array.cast(declared)


def decoded(array: pa.Array, declared: pa.DataType) -> pa.Array:
    """The same values without dictionaries and views, which few functions take, and without the
    fields of structs that are not declared. `declared`: a type that takes them.

    pa.ArrowException: an index leads out of its dictionary.
    """
    kind = array.type
    if at.is_dictionary(kind):
        return decoded(array.dictionary.take(array.indices), declared)
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
        parts = [decoded(inner[k], f.type) for k, f in zip(places, declared, strict=True)]
        return pa.StructArray.from_arrays(parts, names, mask=mask)
    if at.is_fixed_size_list(kind):
        size = kind.list_size
        bounds = np.arange(array.offset, array.offset + len(array) + 1) * size
        bounds = pa.array(bounds, pa.int32())
        values = decoded(array.values, declared.value_type)
        return pa.ListArray.from_arrays(bounds, values, mask=mask)
    # A mask takes no bounds that are part of others.
    bounds = pa.array(array.offsets.to_numpy(), array.offsets.type)
    if at.is_map(kind):
        keys = decoded(array.keys, declared.key_type)
        items = decoded(array.items, declared.item_type)
        return pa.MapArray.from_arrays(bounds, keys, items, mask=mask)
    made = pa.LargeListArray if at.is_large_list(kind) else pa.ListArray
    return made.from_arrays(bounds, decoded(array.values, declared.value_type), mask=mask)


def _is_decoded(kind: pa.DataType, declared: pa.DataType) -> bool:
    if at.is_struct(kind) and [f.name for f in kind] != [f.name for f in declared]:
        return False
    if at.is_struct(kind) or at.is_map(kind) or _is_list(kind):
        inner = range(kind.num_fields)
        return all(_is_decoded(kind.field(k).type, declared.field(k).type) for k in inner)
    return not (at.is_dictionary(kind) or at.is_string_view(kind) or at.is_binary_view(kind))


def _decimals(array: pa.Array, declared: pa.DataType) -> pa.Array:
    """Decimals of other digits. One beyond its own type's precision is beyond the declared one's:
    whoever judges values finds it.
    """
    most = Decimal(10) ** (array.type.precision - array.type.scale)
    bounds = pc.min_max(array).as_py()
    with localcontext(prec=_DIGITS_MAX):
        if all(v is None or abs(v) < most for v in bounds.values()):
            return array.cast(declared)
        over = np.array([v is not None and abs(v) >= most for v in array.to_pylist()], bool)
    made = pc.if_else(pa.array(over), pa.scalar(None, array.type), array).cast(declared)
    words = np.frombuffer(made.buffers()[1], np.int64).copy()[: 2 * len(made)].reshape(-1, 2)
    low, high = divmod(10**declared.precision, 1 << 64)[::-1]
    words[over] = np.array([low, high], np.uint64).view(np.int64)
    missing = pa.py_buffer(np.packbits(array.is_valid().to_numpy(False), bitorder="little"))
    return pa.Array.from_buffers(declared, len(made), [missing, pa.py_buffer(words.tobytes())])


def _is_like(found: pa.DataType, declared: pa.DataType) -> bool:
    """Whether a type is taken, apart from what is nested in it."""
    if at.is_struct(declared):
        return at.is_struct(found) and all(found.get_field_index(f.name) >= 0 for f in declared)
    if at.is_map(declared):
        return at.is_map(found)
    if at.is_list(declared):
        return _is_list(found)
    return _holds(found, declared)


def _moments(array: pa.Array, declared: pa.TimestampType) -> pa.Array:
    """Times in microseconds. One without a zone is UTC."""
    numbers = array.view(pa.int64())
    unit = array.type.unit
    if unit == "us":
        return array.cast(declared)
    known = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    if unit == "ns":
        known = np.floor_divide(known, 1_000)
    else:
        most = _BEYOND // _PER_UNIT[unit]
        known = np.clip(known, -most, most) * _PER_UNIT[unit]
    missing = array.is_null().to_numpy(zero_copy_only=False)
    return pa.array(known, mask=missing).cast(pa.timestamp("us")).cast(declared)
