"""The cache of filters holds what fits, and no fetch looks at all the others."""

import sys

import pytest

from fix_catalog import Catalog, random_ids
from semel.catalog.payload import FilterCache

_listed: list[list[str]] = []


def _hear(event: str, arguments: tuple) -> None:
    if _listed and event in ("os.listdir", "os.scandir"):
        _listed[-1].append(str(arguments[0]))


sys.addaudithook(_hear)  # It cannot be taken away; while no test asks, it does nothing.


@pytest.fixture
def listings() -> list[str]:
    """The folders that this process lists, from here on."""
    _listed.append([])
    yield _listed[-1]
    _listed.pop()


@pytest.fixture
def pipeline(ledger, tmp_path) -> Catalog:
    return Catalog(ledger, tmp_path / "filters")


def test_a_fetch_does_not_look_at_the_other_filters(pipeline, listings):
    """What a fetch costs does not depend on how many filters there are, in whichever process."""
    parts = [random_ids(100, seed) for seed in range(10)]
    runs = [pipeline.publish(ids) for ids in parts]
    assert pipeline.known(parts[0], runs[:1]) == parts[0]  # The first one counts what is there.
    listings.clear()
    for run, ids in zip(runs[1:], parts[1:], strict=True):
        assert pipeline.known(ids, [run], FilterCache(pipeline.folder)) == ids
    assert listings == []


def test_looks_at_all_filters_are_rare(pipeline, listings):
    """A cache that is full is looked through once for many fetches, and stays within its limit."""
    parts = [random_ids(100, seed) for seed in range(60)]
    runs = [pipeline.publish(ids) for ids in parts]
    size = runs[0].filter_bytes + 16
    for run, ids in zip(runs, parts, strict=True):
        cache = FilterCache(pipeline.folder, bytes_max=24 * size)
        assert pipeline.known(ids, [run], cache) == ids
        files = [p for p in pipeline.folder.iterdir() if p.name != ".room"]
        assert sum(path.stat().st_size for path in files) <= 24 * size
    kept = {path.name for path in pipeline.folder.iterdir()}
    assert {run.checksum for run in runs[-21:]} <= kept, "the newest are there"
    ours = [path for path in listings if path == str(pipeline.folder)]
    assert len(ours) - 61 <= 60 // 3 + 1, "61 are this test's own"


@pytest.mark.parametrize("said", [b"", b"x", b"-5", b"9" * 40])
def test_a_count_that_is_wrong_is_counted_anew(pipeline, said: bytes):
    """The file that says how much is there may be damaged or gone: the limit holds all the same."""
    parts = [random_ids(1000, seed) for seed in range(3)]
    runs = [pipeline.publish(ids) for ids in parts]
    size = runs[0].filter_bytes + 32
    for run, ids in zip(runs, parts, strict=True):
        (pipeline.folder / ".room").write_bytes(said)
        cache = FilterCache(pipeline.folder, bytes_max=2 * size)
        assert pipeline.known(ids, [run], cache) == ids
    files = [p for p in pipeline.folder.iterdir() if p.name != ".room"]
    assert sum(path.stat().st_size for path in files) <= 2 * size
