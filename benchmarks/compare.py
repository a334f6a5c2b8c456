"""B11: `semel compare` beside the batches that it reads again.

    python benchmarks/compare.py                    # 1 million records in 10 batches
    python benchmarks/compare.py --smallest

The batches come one after the other, the whole of plan, stage, commit and finalize each; 2 % of a
file's records repeat earlier ones, of its own and of files before it. A compare of all of them, and
one of their later half, for which ids of the others are known; both find them equal.
"""

import shutil
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import harness
from data import Shape, landed
from harness import Clock, Place, Side, check, in_turn, ratio, table
from semel.compare import BatchRange, compare
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.runs.run import run_batch
from semel.spark.engine import SparkEngine

_NAMES = {
    "batches": "the batches, one after the other",
    "one": "one batch of all of it",
    "all": "the compare of all of them",
    "half": "the compare of their later half",
}
_REPEATS = 0.02


def main() -> None:
    parser = harness.options_of(__doc__, runs=5, default=1_000_000, help="default 1 million")
    parser.add_argument("--batches", type=int, default=10, help="default 10")
    options = harness.parsed(parser, records=4_000, batches=2)
    with (
        harness.open_place() as place,
        harness.open_spark(place) as spark,
        Ledger(place.dsn) as ledger,
    ):
        report = _Bench(place, spark, ledger, options).measure()
    harness.save("compare", options, report)


class _Bench:
    """The sides, and what they need."""

    def __init__(
        self, place: Place, spark: SparkSession, ledger: Ledger, options: Namespace
    ) -> None:
        self.place, self.ledger, self.engine = place, ledger, SparkEngine(spark)
        self._names, self._runs, self._batches = 0, options.runs, options.batches
        each = options.records // options.batches
        firsts = [at * each for at in range(options.batches)]
        self._shapes = [
            Shape(records=each, repeats=_REPEATS, first=first, known=(0, first) if first else None)
            for first in firsts
        ]

    def measure(self) -> dict[str, Any]:
        """Both identities, as harness.save takes them."""
        found = {"by record id": self._compared(record_id=["id"]), "by position": self._compared()}
        tables = [table(title, times, _NAMES) for title, times in found.items()]
        headline = {
            "ratio_compare": ratio(found["by record id"], "all"),
            "ratio_compare_position": ratio(found["by position"], "all"),
        }
        title = "B11: a compare beside the batches that it reads again"
        return {"title": title, "headline": headline, "tables": tables}

    def _compared(self, **declared: Any) -> dict[str, list[float]]:
        spec, folder = self._fresh(**declared)
        self._run(spec, folder, Clock())
        numbers = [r["batch_id"] for r in self.ledger.rows("look", "finalized", name=spec.name)]
        sides = {
            "batches": self._side(declared),
            "one": self._side(declared, at_once=True),
            "all": self._compare(spec, numbers),
            "half": self._compare(spec, numbers[len(numbers) // 2 :]),
        }
        return in_turn(sides, self._runs)

    def _side(self, declared: dict[str, Any], *, at_once: bool = False) -> Side:
        def side(_: int, clock: Clock) -> None:
            spec, folder = self._fresh(**declared)
            self._run(spec, folder, clock, at_once=at_once)
            shutil.rmtree(folder)
            shutil.rmtree(spec.sink_path())

        return side

    def _compare(self, spec: Spec, numbers: list[int]) -> Side:
        wanted, job = BatchRange(first=numbers[0], last=numbers[-1]), nullcontext(self.engine)

        def side(_: int, clock: Clock) -> None:
            with clock:
                found = compare(
                    self.ledger, spec, wanted,
                    open_job=lambda: job, difference_limit=1, log=harness.quiet,
                )  # fmt: skip
            check("differences", found.total, 0)
            check("batches", len(found.batches), len(numbers))

        return side

    def _run(self, spec: Spec, folder: Path, clock: Clock, *, at_once: bool = False) -> None:
        for at, shape in enumerate(self._shapes):
            landed(shape, folder / f"{at:05d}.jsonl")
            if not at_once or at == len(self._shapes) - 1:
                with clock:
                    run_batch(self.ledger, spec, "one", self.engine, log=harness.quiet)

    def _fresh(self, **declared: Any) -> tuple[Spec, Path]:
        self._names += 1
        name = f"p{self._names}"
        return self.place.spec(name, **declared), self.place.data / name


if __name__ == "__main__":
    main()
