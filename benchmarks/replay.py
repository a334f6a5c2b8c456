"""B10: the replay of a batch beside the same batch with its catalog, and without one.

    python benchmarks/replay.py                     # 4 million records, and 1,000 small files
    python benchmarks/replay.py --smallest

A replay reads the same ranges, takes the stored verdicts and writes the output anew. What it is
held against is the same batch by position, which asks no catalog: it is to cost no more than that
one. Each side is the whole of plan, stage, commit and finalize; that of a replay is looked at
first, as the command does.
"""

import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import harness
from data import Shape, landed
from harness import Clock, Place, Side, check, in_turn, ratio, table
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.reader import dataset
from semel.runs import replay
from semel.runs.run import run_batch
from semel.spark.engine import SparkEngine

_NAMES = {
    "position": "the batch without a catalog (by position)",
    "id": "the batch by record id",
    "replay": "its replay",
}
_REPEATS = 0.02


def main() -> None:
    parser = harness.options_of(__doc__, runs=5, default=4_000_000, help="default 4 million")
    parser.add_argument("--files", type=int, default=1_000, help="small files (default 1,000)")
    options = harness.parsed(parser, records=4_000, files=5)
    with (
        harness.open_place() as place,
        harness.open_spark(place) as spark,
        Ledger(place.dsn) as ledger,
    ):
        report = _Bench(place, spark, ledger).measure(options)
    harness.save("replay", options, report)


class _Bench:
    """The sides, and what they need."""

    def __init__(self, place: Place, spark: SparkSession, ledger: Ledger) -> None:
        self.place, self.ledger, self.engine = place, ledger, SparkEngine(spark)
        self._names = 0

    def measure(self, options: Namespace) -> dict[str, Any]:
        """Both comparisons, as harness.save takes them."""
        whole = Shape(records=options.records, repeats=_REPEATS)
        large = self._compared([whole], options.runs)
        each = Shape(records=max(options.records // 40 // options.files, 10), repeats=_REPEATS)
        small = self._compared([each] * options.files, options.runs)
        tables = [
            table(f"One file of {options.records:,} records", large, _NAMES),
            table(f"{options.files:,} files of {each.records:,} records", small, _NAMES),
        ]
        headline = {
            "ratio_replay": ratio(large, "replay"),
            "ratio_replay_small_files": ratio(small, "replay"),
        }
        title = "B10: a replay beside its batch, with and without the catalog"
        return {"title": title, "headline": headline, "tables": tables}

    def _compared(self, shapes: list[Shape], runs: int) -> dict[str, list[float]]:
        folder = self._fresh("in")
        first, new = 0, 0
        for at, shape in enumerate(shapes):
            part = Shape(records=shape.records, repeats=shape.repeats, first=first)
            landed(part, folder / f"{at:05d}.jsonl")
            first, new = first + part.new, new + part.new
        path = f"{folder.relative_to(self.place.data)}/*.jsonl"
        root = self._spec(path, record_id=["id"])
        number = self._batch(root)
        records = sum(shape.records for shape in shapes)
        sides = {
            "position": self._side(path, records),
            "id": self._side(path, new, record_id=["id"]),
            "replay": self._replay(root, number, new),
        }
        found = in_turn(sides, runs, both_ways=True)
        shutil.rmtree(folder)
        return found

    def _side(self, path: str, expected: int, **declared: Any) -> Side:
        def side(_: int, clock: Clock) -> None:
            spec = self._spec(path, **declared)
            with clock:
                self._batch(spec)
            check(spec.name, dataset(spec.sink_path()).count_rows(), expected)
            shutil.rmtree(spec.sink_path())

        return side

    def _replay(self, spec: Spec, number: int, expected: int) -> Side:
        def side(run: int, clock: Clock) -> None:
            request = f"run {run}"
            with clock:
                assert replay.check_root(self.ledger, spec, number, request).why is None
                done = replay.run(
                    self.ledger, spec, request, number, self.engine, log=harness.quiet
                )
            check("generation", done.batch.generation, run + 2)
            check("replay", dataset(spec.sink_path()).count_rows(), expected)

        return side

    def _spec(self, path: str, **declared: Any) -> Spec:
        self._names += 1
        return self.place.spec(f"p{self._names}", path=path, **declared)

    def _batch(self, spec: Spec) -> int:
        done = run_batch(self.ledger, spec, "one", self.engine, log=harness.quiet)
        return done.plan.batch.batch_id

    def _fresh(self, name: str) -> Path:
        self._names += 1
        folder = self.place.data / f"{name}{self._names}"
        folder.mkdir()
        return folder


if __name__ == "__main__":
    main()
