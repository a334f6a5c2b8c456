"""Attacks on the files of a sink: values that a format does not hold."""

import json
import math
from pathlib import Path

import pyarrow as pa
import pytest

from semel.errors import TerminalError
from semel.formats.table import SINKS
from semel.manifest import Kind
from semel.sinks.files import write_table

NAN, INFINITE = math.nan, -math.inf
YEAR_10000 = 253_402_300_800_000_000  # Microseconds.


# Attacks S22.
@pytest.mark.parametrize("number", [NAN, INFINITE])
@pytest.mark.parametrize(
    "shape",
    [
        lambda x: pa.array([1.0, x, None]),
        lambda x: pa.array([1.0, x, None], pa.float32()),
        lambda x: pa.array([[1.0], None, [2.0, x]]),
        lambda x: pa.array([{"a": 1.0}, {"a": x}]),
        lambda x: pa.array([{"a": [{"b": [x]}]}]),
        lambda x: pa.array([[("k", x)]], pa.map_(pa.string(), pa.float64())),
    ],
)
def test_json_lines_hold_no_nan(tmp_path: Path, shape, number: float) -> None:
    """It is refused, at any depth, and not made null; Parquet takes it as it is."""
    table = pa.table({"x": shape(number)})
    with pytest.raises(TerminalError, match="column 'x' holds NaN or an infinity.*nanvl"):
        write_table(tmp_path / "a", table, Kind.DATA, "", "jsonl")
    write_table(tmp_path / "b", table, Kind.DATA, "", "parquet")


# Attacks S22.
@pytest.mark.parametrize("form", [name for name in SINKS if name != "parquet"])
@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, YEAR_10000, None], pa.timestamp("us", "UTC")),
        pa.array([-62_135_596_800_000_001], pa.timestamp("us")),
        pa.array([0, YEAR_10000 // 86_400_000_000], pa.date32()),
    ],
)
def test_text_has_years_of_four_digits(tmp_path: Path, form: str, column: pa.Array) -> None:
    """Readers take no +10000-01-01 and no year 0: they are refused, with the column's name."""
    table = pa.table({"x": column})
    with pytest.raises(TerminalError, match="column 'x' holds dates of years .*1 to 9999"):
        write_table(tmp_path / "a", table, Kind.DATA, "", form)
    write_table(tmp_path / "b", table, Kind.DATA, "", "parquet")


def test_numbers_and_nulls_pass(tmp_path: Path) -> None:
    """What is null stays null, also where a NaN lies below a null."""
    below = pa.StructArray.from_arrays(
        [pa.array([NAN, 1.0])], ["a"], mask=pa.array([True, False])
    )
    table = pa.table({"x": [None, 1.5], "l": [[], None], "s": below})
    write_table(tmp_path / "a", table, Kind.DATA, "", "jsonl")
    rows = [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()]
    assert [row["x"] for row in rows] == [None, 1.5] and rows[1]["s"] == {"a": 1.0}
