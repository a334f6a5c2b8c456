"""The scene of the chaos tests: what was there before, and two files with common ids."""

from pathlib import Path

import pytest
from checker import Found, assert_exact
from fix_engine import LocalEngine
from fix_faults import quiet
from fix_pipelines import Workbench, events

from semel.ledger import Ledger
from semel.pipeline import Spec
from semel.run import run_batch


class Scene:
    """A pipeline with one finalized batch (r0), and two files that r1 and r2 will take.

    Each has repeats within itself, repeats of r0, ids that the other has too, and bad lines.
    """

    def __init__(self, bench: Workbench, ledger: Ledger, **changes: object) -> None:
        self.bench, self.ledger = bench, ledger
        first = bench.write("in/a.jsonl", events(0, 40))
        self.sources = [first]
        self.spec = self.declare(**changes)
        run_batch(ledger, self.spec, "r0", LocalEngine(), say=quiet)
        bad = [b"{not json"]
        self.add("b.jsonl", [*events(30, 80), *events(50, 55), *bad])
        self.add("c.jsonl", [*events(60, 110), *events(70, 75), *bad])

    def declare(self, **changes: object) -> Spec:
        parts = {
            "dedup": {"shards": 2},
            "sink": {"position_columns": True},
            # Room for one of the files, so that each plan takes one.
            "limits": {"bytes_per_batch_max": 4000},
        }
        return self.bench.spec(**{**parts, **changes})

    def add(self, name: str, records: list) -> Path:
        path = self.bench.write(f"in/{name}", records)
        self.sources.append(path)
        return path

    def run(self, *requests: str) -> None:
        for request in requests:
            run_batch(self.ledger, self.spec, request, LocalEngine(), say=quiet)

    def finish(self, *requests: str) -> Found:
        """Run the same requests again and one more, as a scheduler would; then all is exact."""
        self.run(*requests, "last", "last")
        return self.check()

    def check(self) -> Found:
        return assert_exact(self.spec, self.sources)


@pytest.fixture
def scene(bench: Workbench, ledger: Ledger) -> Scene:
    return Scene(bench, ledger)
