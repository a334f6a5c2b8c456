"""A column of a file as the declared type: what `misfit` refuses is never cast."""

from decimal import Decimal

import pyarrow as pa
import pytest

from semel.declare import ddl
from semel.formats.exact import misfit, taken

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
    with pytest.raises(TypeError, match="does not hold"):
        taken(column, declared.arrow())
