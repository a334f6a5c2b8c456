"""Readers beside a replay: of each batch they see the old output or the new one, whole."""

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable

import duckdb
import pytest

from fix_scene import ROOT, Scene, outputs, replayed
from fixtures.batches.faults import collecting
from fixtures.batches.replays import hours_pass
from fixtures.batches.workbench import Workbench
from semel import failpoints
from semel.archive import layout
from semel.ledger import Ledger
from semel.reader import dataset

FIRE_TURNS = 5


class Readers:
    """Two readers of whole batches, by the markers: semel's own, and the README's query."""

    def __init__(self, scene: Scene) -> None:
        self.sink, self.kept = scene.spec.sink_path(), layout.archive_folder(scene.spec)
        self.roots = {frozenset(ids): root for root, ids in _batches(self.own()).items()}
        """The batches by the ids that each holds, when the reading begins."""

    def own(self) -> list[tuple[str, str]]:
        """Id and file of each row."""
        found = dataset(self.sink).to_table(columns=["id", "__filename"])
        return list(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def duckdb(self) -> list[tuple[str, str]]:
        """The same by the README's query."""
        with duckdb.connect() as connection:
            connection.execute(
                f"SET VARIABLE files = (SELECT list('{self.sink}/' || file.path) FROM (SELECT "
                f"unnest(files) AS file FROM read_json('{self.kept}/markers/b*.json')) "
                "WHERE file.kind = 'data')"
            )
            rows = "SELECT id, filename FROM read_parquet(getvariable('files'), filename = true)"
            return connection.execute(rows).fetchall()

    def whole(self, rows: list[tuple[str, str]]) -> dict[int, int]:
        """By root the batch that wrote what was read. AssertionError: one is there by half, twice
        or not at all."""
        found: dict[int, int] = {}
        for number, ids in _batches(rows).items():
            root = self.roots.get(frozenset(ids))
            assert root and len(ids) == len(set(ids)), f"batch {number} by half, or twice"
            assert root not in found, f"batches {found[root]} and {number}, of one root"
            found[root] = number
        missing = set(self.roots.values()) - found.keys()
        assert not missing, f"no output of batches {missing}"
        return found


def _batches(rows: list[tuple[str, str]]) -> dict[int, list[str]]:
    """The ids by the batch that wrote them, as the names of files say."""
    found = defaultdict(list)
    for record_id, path in rows:
        found[int(re.search(r"-b(\d{8})-\d{5}\.parquet$", path)[1])].append(record_id)
    return found


# Attacks RP5, RP7, R1.
def test_a_reader_at_each_point(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """At whichever point of a replay one reads, each batch is the old one or the new one, whole."""
    scene.run("r1", "r2")
    readers = Readers(scene)
    seen: dict[str, set[int]] = defaultdict(set)
    passed = []

    def look(point: str) -> None:
        passed.append(point)
        for how in (readers.own, readers.duckdb):
            seen[how.__name__].add(readers.whole(how())[ROOT])

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "point", look)
        numbers = {ROOT, replayed(scene, "x").batch_id, replayed(scene, "y").batch_id}
        hours_pass(scene.ledger)
        collecting(scene.ledger, scene.spec)
    assert seen == {"own": numbers, "duckdb": numbers}
    wanted = {"finalize.before_replace", "storage.before_swap", "collect.after_removed"}
    assert wanted <= set(passed)
    scene.check()


# Attacks RP5, RP7, R1.
@pytest.mark.rest
def test_readers_under_fire(bench: Workbench, ledger: Ledger) -> None:
    """Who reads all the while sees of each batch the old output or the new one, whole; a file is
    missing only to who reads longer than keep_replaced.
    """
    scene = Scene(bench, ledger, limits={"bytes_per_batch_max": 4000, "keep_replaced": "1s"})
    scene.run("r1", "r2")
    readers, over = Readers(scene), threading.Event()
    found: dict[str, list[dict[int, int]]] = {"own": [], "duckdb": []}
    wrong: list[BaseException] = []

    def read(how: Callable[[], list[tuple[str, str]]]) -> None:
        while not over.is_set() and not wrong:
            began = time.monotonic()
            try:
                found[how.__name__].append(readers.whole(how()))
            except BaseException as error:  # noqa: BLE001 - handed to the test
                gone = isinstance(error, (FileNotFoundError, duckdb.IOException))
                if not gone or time.monotonic() - began < 1:
                    wrong.append(error)

    threads = [threading.Thread(target=read, args=(how,)) for how in (readers.own, readers.duckdb)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(FIRE_TURNS):
            for root in (1, 2, 3):
                replayed(scene, f"x{turn}", root)
            collecting(scene.ledger, scene.spec)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    if wrong:
        raise wrong[0]
    for results in found.values():
        assert all(len({result[root] for result in results}) > 1 for root in (1, 2, 3))
    assert not any(path.exists() for path in outputs(scene, 1))
    print({how: len(results) for how, results in found.items()}, "readings")
    scene.check()
