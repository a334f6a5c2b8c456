"""A column of a file as the declared type: what `misfit` refuses is never cast."""

from decimal import Decimal, localcontext

import pyarrow as pa
import pytest

from semel.declare import ddl
from semel.formats.exact import cast_exactly, misfit, plain_values

_TWICE = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])


# Attacks P23.
@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("int", pa.array([1])),
        ("float", pa.array([0.1])),
        ("bigint", pa.array(["1"])),
        ("boolean", pa.array([7])),
        ("string", pa.array([1])),
        ("string", pa.array([b"a"])),
        ("timestamp", pa.array([1])),
        ("date", pa.array([1], pa.timestamp("us"))),
        ("double", pa.array([Decimal("1.25")])),
        ("decimal(9,1)", pa.array([Decimal("1.25")])),
        ("struct<a: bigint, z: bigint>", pa.array([{"a": 1, "b": 2}])),
        ("struct<a: bigint>", _TWICE),
        ("struct<a: int>", pa.array([{"a": 1}])),
        ("array<int>", pa.array([[1]])),
        ("array<bigint>", pa.array([1])),
        ("map<string, int>", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))),
        ("map<string, int>", pa.array([[(1, 1)]], pa.map_(pa.int32(), pa.int32()))),
    ],
)
def test_what_does_not_fit_is_not_cast(kind: str, column: pa.Array) -> None:
    declared = ddl.parse(kind)
    assert misfit(column.type, declared)
    with pytest.raises(TypeError, match="cannot store"):
        cast_exactly(column, declared.arrow())


_INDEXES = pa.array([0, 1, 0, None, 1], pa.int32())
_CODED = pa.DictionaryArray.from_arrays(_INDEXES, pa.array(["a", "b"]))


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("string", _CODED),
        ("string", pa.array(["a", None], pa.string_view())),
        ("binary", pa.array([b"\xff", None], pa.binary_view())),
        (
            "struct<v: string>",
            pa.StructArray.from_arrays([_CODED], ["v"], mask=pa.array([False, True] + [False] * 3)),
        ),
        (
            "array<string>",
            pa.ListArray.from_arrays([0, 2, 3, 5], _CODED, mask=pa.array([False, True, False])),
        ),
        ("array<string>", pa.LargeListArray.from_arrays([0, 2, 3, 5], _CODED)),
        ("array<string>", pa.array([["a", "b"], None, ["c", None]], pa.list_(pa.string_view()))),
        ("array<string>", pa.FixedSizeListArray.from_arrays(_CODED[:4], 2)),
        (
            "map<string, string>",
            pa.MapArray.from_arrays([0, 2, 3], pa.array(["x", "y", "z"]), _CODED[:3]),
        ),
    ],
)
def test_what_is_coded_is_decoded(kind: str, column: pa.Array) -> None:
    """All of it, and a part."""
    for some in (column, column[1:], column[1:2], column[:0]):
        found = plain_values(some, ddl.parse(kind).arrow())
        assert found.to_pylist() == some.to_pylist()
        found.validate(full=True)
        assert found.take(pa.array([*range(len(some))], pa.int64())).equals(found)


@pytest.mark.parametrize("kind", ["struct<b: bigint, a: string>", "struct<a: string>"])
def test_fields_that_are_not_declared_go(kind: str) -> None:
    """Within lists and maps as well; nothing stays nothing."""
    declared = ddl.parse(kind).arrow()
    rows = [{"a": "x", "b": 1, "c": 2.5}, None, {"a": None, "b": 2, "c": None}]
    kept = [row and {f.name: row[f.name] for f in declared} for row in rows]
    column = pa.array(rows)
    assert plain_values(column, declared).to_pylist() == kept
    assert plain_values(pa.array([rows, None]), pa.list_(declared)).to_pylist() == [kept, None]
    pairs = pa.MapArray.from_arrays([0, 2, 3], pa.array(["x", "y", "z"]), column)
    found = plain_values(pairs, pa.map_(pa.string(), declared))
    assert found.to_pylist() == [[("x", kept[0]), ("y", None)], [("z", kept[2])]]


def test_an_index_out_of_its_dictionary() -> None:
    wrong = pa.DictionaryArray.from_arrays(pa.array([0, 7]), pa.array(["a"]), safe=False)
    with pytest.raises(pa.ArrowException):
        plain_values(wrong, pa.string())


@pytest.mark.parametrize("kind", ["decimal(6,3)", "decimal(8,3)", "decimal(38,4)"])
def test_a_decimal_beyond_its_precision(kind: str) -> None:
    """It is beyond the declared one as well, and no other value is touched."""
    raw = b"".join(n.to_bytes(16, "little", signed=True) for n in (8_388_606, 5, -8_388_606, 9))
    column = pa.Array.from_buffers(
        pa.decimal128(5, 2), 4, [pa.py_buffer(b"\x07"), pa.py_buffer(raw)]
    )
    declared = ddl.parse(kind)
    found = cast_exactly(column, declared.arrow()).to_pylist()
    assert found[1] == Decimal("0.05") and found[3] is None
    with localcontext(prec=60):
        most = Decimal(10) ** (declared.precision - declared.scale)
        assert abs(found[0]) >= most and abs(found[2]) >= most
    column = pa.array([Decimal("1.25"), None], pa.decimal128(5, 2))
    assert cast_exactly(column, declared.arrow()).to_pylist() == column.to_pylist()
