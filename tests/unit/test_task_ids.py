"""The ids of a task: each shard gets its own, in the order of their rows."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.catalog.ids import HashedIds
from semel.errors import CorruptionError
from semel.stage.task_ids import IdsPlace, read_task_ids, write_task_ids

IDS = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 3))


def hashed(ids: list[tuple[int, int, int]]) -> HashedIds:
    return HashedIds(
        h1=np.array([h1 for h1, _, _ in ids], np.uint64),
        h2=np.array([h2 for _, h2, _ in ids], np.uint32),
        shard=np.array([shard for _, _, shard in ids], np.uint16),
        valid=np.ones(len(ids), bool),
    )


def job(folder: Path) -> SimpleNamespace:
    return SimpleNamespace(spill_dir=folder, shards=4)


@given(parts=st.lists(st.lists(IDS, max_size=8), max_size=4))
def test_each_shard_finds_its_ids(
    parts: list[list[tuple[int, int, int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever ids the splits had, also none: a place for every shard, and no id is lost."""
    folder = tmp_path_factory.mktemp("ids")
    places = write_task_ids(job(folder), 7, map(hashed, parts))
    assert [place.shard for place in places] == [0, 1, 2, 3]
    everything = [one for part in parts for one in part]
    for place in places:
        got = read_task_ids(job(folder), IdsPlace.from_bytes(place.to_bytes()))
        wanted = [
            (h1, h2, row) for row, (h1, h2, shard) in enumerate(everything) if shard == place.shard
        ]
        columns = got.h1.tolist(), got.h2.tolist(), got.row.tolist()
        assert list(zip(*columns, strict=True)) == wanted
        assert (got.task, place.count) == (7, len(wanted))


@pytest.mark.parametrize("bytes_left", [0, 40, 47])
def test_a_file_that_was_cut_is_refused(bytes_left: int, tmp_path: Path) -> None:
    """A task that wrote less than it said loses no id: classify says which file, and what to do."""
    *_, place = write_task_ids(job(tmp_path), 0, [hashed([(1, 2, 3)] * 3)])
    file = tmp_path / place.name
    file.write_bytes(file.read_bytes()[:bytes_left])
    with pytest.raises(CorruptionError, match=r"ends before the ids of shard 3\..*Run stage again"):
        read_task_ids(job(tmp_path), place)
