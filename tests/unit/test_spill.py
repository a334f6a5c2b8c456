"""The spill: what read wrote for each split is what write reads for it."""

from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import CorruptionError
from semel.formats.records import with_offset
from semel.stage import spill as spill_module
from semel.stage.spill import Spill, Spilled

SCHEMA = pa.schema([("n", pa.int64())])


def job(folder: Path) -> SimpleNamespace:
    return SimpleNamespace(spill_dir=folder, spec=SimpleNamespace(arrow_schema=lambda: SCHEMA))


def table(start: int, count: int) -> pa.Table:
    numbers = pa.array(range(start, start + count), pa.int64())
    return pa.table([numbers, numbers], schema=with_offset(SCHEMA))


@given(
    splits=st.lists(st.lists(st.integers(0, 7), max_size=4), max_size=12),
    held=st.sampled_from([1, 100, 1 << 20]),
)
def test_each_split_finds_its_rows(
    splits: list[list[int]], held: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever blocks the splits had, also none, and however many rows a batch of the file has."""
    written, places = 0, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spill_module._FileWriter, "bytes_at_once", held)
        with Spill(job(tmp_path_factory.mktemp("spill")), 3) as spill:
            for blocks in splits:
                places.append((spill.rows, sum(blocks)))
                for count in blocks:
                    spill.write(table(written, count))
                    written += count
    found = Spilled(spill.path)
    for start, count in places:
        pieces = list(found.rows(start, count))
        assert all(piece.num_rows for piece in pieces)
        rows = [n for piece in pieces for n in piece.column("n").to_pylist()]
        assert rows == list(range(start, start + count))
    with pytest.raises(CorruptionError, match="Run stage again"):
        list(found.rows(written, 1))


def test_a_spill_that_failed_is_not_read(tmp_path: Path) -> None:
    """Its file is closed without an end: nobody takes it for a whole one."""
    with pytest.raises(ZeroDivisionError), Spill(job(tmp_path), 0) as spill:
        spill.write(table(0, 3))
        _ = 1 / 0
    with pytest.raises(pa.ArrowInvalid):
        Spilled(spill.path)
