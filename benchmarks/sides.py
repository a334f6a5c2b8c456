"""The sides of a comparison: batches of semel, and what others do with the same file."""

import os
import shutil
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import harness
import others
from data import Shape, landed, landed_csv, landed_parquet
from harness import TRANSFORM, Clock, Place, Side, check, in_turn, medians
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.runs.run import run_batch
from semel.spark.engine import SparkEngine

SEMEL = {
    "id": "semel, by record id",
    "position": "semel, by position",
    "at_least_once": "semel, at least once",
    "id_transformed": "semel, by record id, the projection as transform",
}
LANDED = {".jsonl": landed, ".parquet": landed_parquet, ".csv": landed_csv}
_OTHERS: dict[str, Callable] = {
    "pass_through": others.pass_through,
    "transformed": others.transformed,
    "floor": others.floor,
    "drop_duplicates": others.drop_duplicates,
}
_EARLIER_SHARE = 20
"""Each batch of semel is its pipeline's second. The first has so much fewer records, of the same
kind: by it the second decides how it writes."""


class Sides:
    """Makes sides by name, and keeps how long each verb took."""

    def __init__(self, place: Place, spark: SparkSession, ledger: Ledger) -> None:
        self.place, self.ledger = place, ledger
        self.engine = SparkEngine(spark)
        self.spark = others.own_session(spark)
        self.verbs: dict[str, dict[str, float]] = {}
        self.stage_seconds: dict[str, list[float]] = {}
        self._names = 0

    def compared(self, shape: Shape, options: Namespace, *names: str) -> dict[str, list[float]]:
        """The seconds of sides over a file of JSON Lines of this shape."""
        source = landed(shape, self.fresh("in") / "records.jsonl")
        harness.tell(f"{shape.records} records, {source.stat().st_size / shape.records:.0f} bytes")
        found = in_turn({name: self.side(name, shape, source) for name in names}, options.runs)
        shutil.rmtree(source.parent)
        return found

    def side(self, name: str, shape: Shape, source: Path) -> Side:
        """A side of SEMEL, or one of Spark's."""
        if name in SEMEL:
            return self._semel(name, shape, source)
        expected = shape.new if name == "drop_duplicates" else shape.records
        return self.other(name, lambda target: _OTHERS[name](self.spark, source, target), expected)

    def other(self, name: str, work: Callable[[Path], object], expected: int) -> Side:
        """A side that writes Parquet into a fresh folder. `expected`: how many rows are in it."""

        def side(_: int, clock: Clock) -> None:
            target = self.fresh("peer")
            with clock:
                work(target)
            self.settle(name, target, expected)

        return side

    def _semel(self, kind: str, shape: Shape, source: Path) -> Side:
        few = shape.records // _EARLIER_SHARE
        repeats = 0.0 if shape.bursts else shape.repeats  # A burst is in one task of twenty.
        earlier = replace(shape, records=few, first=shape.records, repeats=repeats, bursts=False)

        def side(number: int, clock: Clock) -> None:
            arriving = self.fresh("arriving")
            form = source.suffix
            spec = self.spec(kind, f"{arriving.relative_to(self.place.data)}/*{form}")
            LANDED[form](earlier, arriving / f"0{form}")
            self.batch(spec, "earlier")
            os.link(source, arriving / f"1{form}")
            with clock:
                seconds = self.batch(spec, "one")
            wide = " (2 kB)" if shape.wide else ""
            self.verbs[kind + wide] = seconds
            if number:  # The first is not counted.
                self.stage_seconds.setdefault(kind, []).append(seconds["stage"])
            all_stay = kind in ("position", "at_least_once")
            expected = sum(s.records if all_stay else s.new for s in (earlier, shape))
            self.settle(kind, spec.sink_path(), expected)
            shutil.rmtree(arriving)

        return side

    def spec(self, kind: str, path: str) -> Spec:
        """A new pipeline of one of SEMEL over files below the place's data."""
        self._names += 1
        declared: dict[str, Any] = {} if kind == "position" else {"record_id": ["id"]}
        if kind == "at_least_once":
            declared["guarantee"] = kind
        if kind == "id_transformed":
            declared["transforms"] = [TRANSFORM]
        return self.place.spec(f"p{self._names}", path=path, **declared)

    def batch(self, spec: Spec, request: str) -> dict[str, float]:
        """Run a batch. Returns the seconds of each verb."""
        return run_batch(self.ledger, spec, request, self.engine, log=harness.quiet).seconds

    def fresh(self, name: str) -> Path:
        """A path that nobody used."""
        self._names += 1
        return self.place.data / f"{name}{self._names}"

    def settle(self, name: str, target: Path, expected: int) -> None:
        """Count a side's rows, and remove them."""
        files = [p for p in target.rglob("*") if p.is_file() and _is_data(p)]
        check(name, sum(pq.ParquetFile(p).metadata.num_rows for p in files), expected)
        shutil.rmtree(target)


def bars(title: str, found: dict[str, list[float]], names: dict[str, str]) -> dict[str, Any]:
    """A plot of the medians of sides."""
    seconds = {names[name]: median for name, median in medians(found).items()}
    return {"kind": "bars", "title": title, "bars": seconds}


def _is_data(path: Path) -> bool:
    """Not Spark's success marker, checksum or log, and nothing of semel's own folder."""
    return not path.name.startswith((".", "_")) and not {"_semel", "_spark_metadata"} & set(
        path.parts
    )
