"""The reader for others, and find: whole batches only, by what the markers list."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.files.honest import HonestSink
from fixtures.files.markers import duckdb_count
from semel import settings
from semel.archive.marker import markers
from semel.errors import CorruptionError, TerminalError
from semel.formats.table import SINKS
from semel.model.arrow import arrow_type
from semel.reader import dataset
from semel.reports.find import find


@pytest.fixture(autouse=True)
def roots(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "data_roots", lambda: [tmp_path.resolve()])


def two_batches(folder: Path, **changes) -> HonestSink:
    made = HonestSink(folder, **changes)
    made.land("a.jsonl", {"id": "1", "n": 1, "at": "2024-01-01T00:00:00Z"}, {"id": "2", "n": None})
    made.batch()
    made.land("a.jsonl", {"id": "1"}, {"id": "3/x", "n": 3}, b'{"id":"4"', {"id": "3/x"})
    made.batch()
    return made


@pytest.mark.parametrize(
    "changes",
    [
        {**change, "sink__format": form}
        for form in SINKS
        for change in ({}, {"sink__partition_by": ["n"]}, {"sink__partition_by": ["id"]})
    ],
)
def test_dataset_is_the_output(tmp_path, changes):
    """The rows and types of all batches, with columns that are folders, in all formats."""
    made = two_batches(tmp_path, **changes)
    table = dataset(made.path).to_table().sort_by("id")
    assert table.column("id").to_pylist() == ["1", "2", "3/x"]
    assert table.column("n").to_pylist() == [1, None, 3]
    assert table.column("at").to_pylist() == [datetime(2024, 1, 1, tzinfo=UTC), None, None]
    assert table.schema.field("n").type == pa.int64()


# Attacks R1, R2.
def test_only_whole_batches(tmp_path):
    """A batch without its marker is not read, though its files have their final names."""
    made = two_batches(tmp_path)
    made.marker_path(2).rename(made.marker_path(2).with_name(".b00000002.json.1.ab"))
    assert dataset(made.path).to_table().column("id").to_pylist() == ["1", "2"]
    assert [marker.batch_id for marker in markers(made.path)] == [1]


def test_empty_sink_says_so(tmp_path):
    """No finalized batch is an error with the path, not an empty table."""
    with pytest.raises(TerminalError, match="no finalized batch"):
        dataset(tmp_path)


def test_batch_without_rows(tmp_path):
    """Batches that wrote no file still give the columns."""
    made = HonestSink(tmp_path)
    made.land("a.jsonl", b"{")
    made.batch()
    table = dataset(made.path).to_table()
    assert (table.num_rows, table.column_names) == (0, ["id", "n", "at"])


FILE = {
    "kind": "data", "root": "sink", "path": "x", "records": 1, "bytes": 1, "checksum": "",
}  # fmt: skip


# Attacks R3, R4.
@pytest.mark.parametrize(
    "change",
    [
        {"files": [{"kind": "data"}]}, {"batch_id": 7}, {"counts": None}, {"spec": {}},
        {"sink_schema": [["a", "int65"]]}, {"claims": [{"start": 0}]}, {"sink": None},
        {"files": [{**FILE, "path": "../x"}]}, {"files": [{**FILE, "root": "archive"}]},
        {"files": [{**FILE, "kind": "decisions"}]},
    ],
)  # fmt: skip
def test_damaged_marker(tmp_path, change):
    """A marker that is not one is told by name, and never passed over."""
    made = two_batches(tmp_path)
    made.rewrite_marker(2, made.marker(2) | change)
    with pytest.raises(CorruptionError, match="b00000002.json"):
        markers(made.path)


TYPES = st.recursive(
    st.sampled_from(
        [pa.int16(), pa.int64(), pa.string(), pa.bool_(), pa.float32(), pa.float64(), pa.date32(),
         pa.binary(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(6, 2)]
    ),
    lambda inner: st.one_of(
        st.builds(pa.list_, inner),
        st.builds(lambda a, b: pa.struct([("x", a), ("y z", b)]), inner, inner),
        st.builds(lambda value: pa.map_(pa.string(), value), inner),
    ),
    max_leaves=5,
)  # fmt: skip


@given(kind=TYPES)
def test_types_are_read_back(kind):
    """Each type that a marker can name is read back as it was written."""
    assert arrow_type(str(kind)) == kind


def test_columns_that_do_not_go_together(tmp_path):
    """Two batches with one column of two types are told apart, not mixed."""
    made = two_batches(tmp_path)
    content = made.marker(2)
    content["sink_schema"][1] = ["n", "string"]
    made.rewrite_marker(2, content)
    with pytest.raises(TerminalError, match="are not compatible"):
        dataset(made.path)


def test_find(tmp_path):
    """An id is found in the output, as duplicate, in a dead letter; or nowhere at all."""
    made = two_batches(tmp_path, sink__position_columns=True)
    where = [(p.what, p.batch_id, p.offset) for p in find(made.spec, ["1"], made.path).places]
    start = made.marker(2)["claims"][0]["start"]
    assert where[:2] == [("output", 1, 0), ("duplicate_in_catalog", 2, start)]
    found = find(made.spec, ["3/x"], made.path).places
    assert [(p.what, p.batch_id) for p in found] == [("output", 2), ("duplicate_in_batch", 2)]
    (letter,) = find(made.spec, ['"4"'], made.path).places
    assert (letter.what, letter.source) == ("dead_letter", str(made.source / "a.jsonl"))
    found = find(made.spec, ['{"id": "nope"}'], made.path)
    assert (found.places, found.batches) == ((), 2)


@pytest.mark.parametrize("form", SINKS)
def test_find_in_every_format(tmp_path, form):
    """Again and again: pyarrow ends the process, mostly, when asked for a JSON file's name."""
    made = two_batches(tmp_path, sink__format=form, sink__partition_by=["n"])
    for _ in range(20):
        (place, *_) = find(made.spec, ["3/x"], made.path).places
        assert (place.what, place.file) == ("output", f"n=3/clicks-b00000002-00000.{form}")


def test_find_of_several_columns_and_types(tmp_path):
    """Values are read as the columns' types, whatever form the sink has."""
    made = HonestSink(tmp_path, record_id=["n", "at"], sink__partition_by=["n"])
    made.land("a.jsonl", *2 * [{"id": "1", "n": 5, "at": "2024-01-01T00:00:00Z"}])
    made.batch()
    for values in (["5", "2024-01-01"], ["05", "2024-01-01T02:00:00+02:00"], ['[5, "2024-01-01"]']):
        places = find(made.spec, values, made.path).places
        assert [place.what for place in places] == ["output", "duplicate_in_batch"]
    for values in (["x", "2024-01-01"], ["5"], ["{"], ["5", "soon"]):
        with pytest.raises(TerminalError):
            find(made.spec, values, made.path)


def test_readme_in_duckdb(tmp_path, monkeypatch):
    """The README's way in DuckDB reads what the dataset reads, also from folders."""
    made = two_batches(tmp_path, sink__partition_by=["n"])
    out = tmp_path / "data" / "out"
    (out / "_semel").mkdir(parents=True)
    made.path.rename(out / "flights")
    made.archive.rename(out / "_semel" / "flights")
    monkeypatch.chdir(tmp_path)
    assert duckdb_count() == 3


def test_decimal_and_date_ids(tmp_path):
    """Ids that are decimals and dates are found by their written form."""
    made = two_batches(tmp_path)
    table = pa.table(
        {"id": pa.array([Decimal("1.50")], pa.decimal128(6, 2)), "at": [date(2024, 1, 2)]}
    )
    entry = made.add("data", "x.parquet", table)
    schema = [[field.name, str(field.type)] for field in table.schema]
    content = made.marker(1) | {"files": [entry], "sink_schema": schema}
    content["spec"]["source"]["schema"] = [["id", "decimal(6,2)"], ["at", "date"]]
    content["spec"]["record_id"] = ["id", "at"]
    made.rewrite_marker(1, content)
    made.marker_path(2).unlink()
    spec = markers(made.path)[0].spec
    assert pq.read_table(made.path / "x.parquet").num_rows == 1
    assert [p.file for p in find(spec, ["1.5", "2024-01-02"], made.path).places] == ["x.parquet"]
    assert find(spec, [json.dumps(["1.5", "2024-01-03"])], made.path).places == ()
