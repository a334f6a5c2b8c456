"""B1: whole batches of semel beside Spark's own pass-through and other ways of dropping repeats.

    python benchmarks/stage.py                      # 4 million records, all peers
    python benchmarks/stage.py --no-slow-peers      # without dropDuplicates, streaming, row per id
    python benchmarks/stage.py --cluster --no-slow-peers --no-variants
    python benchmarks/stage.py --source parquet     # of the same records in a file of Parquet
    python benchmarks/stage.py --source csv         # or of CSV, each text in quotes
    python benchmarks/stage.py --smallest

The pass-through is `spark.read.schema(...).json(...).write.parquet(...)`: it reads and writes, and
promises nothing. semel's figure is the whole of plan, stage, commit and finalize. Structured
Streaming reads the same records in eight files, one a batch, beside eight batches of semel. Of
Parquet and CSV the pass-through reads these too, and the figure is that of stage alone as well.
"""

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
import peers
from data import Shape, landed, landed_csv, landed_parquet
from harness import TRANSFORM, Clock, Place, Side, check, in_turn, medians, ratio, table
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.runs.run import run_batch
from semel.spark.engine import SparkEngine

_NAMES = {
    "pass_through": "Spark's pass-through",
    "floor": "semel's reader and writer alone",
    "id": "semel, by record id",
    "position": "semel, by position",
    "at_least_once": "semel, at least once",
    "transformed": "Spark's pass-through with a projection",
    "id_transformed": "semel, by record id, the projection as transform",
    "drop_duplicates": "Spark's dropDuplicates, within the batch",
    "row_per_id": "a row per id, INSERT ... ON CONFLICT",
    "streaming": "Structured Streaming, RocksDB",
}
_LANDED = {".jsonl": landed, ".parquet": landed_parquet, ".csv": landed_csv}
_REPEATS = {
    "none": {"repeats": 0.0},
    "0.1 %, in bursts": {"repeats": 0.001, "bursts": True},
    "2 % at random": {"repeats": 0.02},
    "10 % at random": {"repeats": 0.1},
    "50 % at random": {"repeats": 0.5},
    "2 %, ids in order of time": {"ordered": True},
}
_EARLIER_SHARE = 20
"""Each batch of semel is its pipeline's second. The first has so much fewer records, of the same
kind: by it the second decides how it writes."""


def main() -> None:
    parser = harness.options_of(__doc__, runs=5, default=4_000_000, help="default 4 million")
    parser.add_argument("--repeats", type=float, default=0.02, help="share of repeated records")
    parser.add_argument("--wide", type=int, help="records of 2 kB (default an eighth of --records)")
    parser.add_argument("--batches", type=int, default=8, help="of the series (default 8)")
    parser.add_argument("--no-slow-peers", action="store_true")
    parser.add_argument("--no-variants", action="store_true", help="only one share of repeats")
    parser.add_argument("--cluster", action="store_true", help="a standalone Spark, two workers")
    parser.add_argument("--source", choices=("jsonl", "parquet", "csv"), default="jsonl")
    options = harness.parsed(parser, records=4_000, batches=2)
    master = harness.CLUSTER if options.cluster else harness.LOCAL
    with (
        harness.open_place() as place,
        harness.open_spark(place, master) as spark,
        Ledger(place.dsn) as ledger,
    ):
        bench = _Bench(place, spark, ledger)
        other = options.source != "jsonl"
        report = bench.measure_other(options) if other else bench.measure(options)
    if options.cluster:
        report["title"] += ", on a standalone cluster of two workers"
        report["headline"] = {f"{key}_cluster": x for key, x in report["headline"].items()}
    parts = [options.source] * other + ["cluster"] * options.cluster
    harness.save("stage", options, report, part="-".join(parts))


class _Bench:
    """The sides, and what they need."""

    def __init__(self, place: Place, spark: SparkSession, ledger: Ledger) -> None:
        self.place, self.ledger = place, ledger
        self.engine = SparkEngine(spark)
        self.spark = peers.own_session(spark)
        self.verbs: dict[str, dict[str, float]] = {}
        self.batch_seconds: dict[str, list[float]] = {}
        self.stage_seconds: dict[str, list[float]] = {}
        self._names = 0

    def measure(self, options: Namespace) -> dict[str, Any]:
        """All comparisons of B1, as harness.save takes them."""
        shape = Shape(records=options.records, repeats=options.repeats)
        found = self._one_batch(shape, options)
        wide = Shape(records=options.wide or options.records // 8, wide=True)
        wide_found = self._compared(wide, options.runs, "pass_through", "id", "position")
        headline = {
            "ratio_id": ratio(found, "id"),
            "ratio_position": ratio(found, "position"),
            "ratio_at_least_once": ratio(found, "at_least_once"),
            "ratio_id_2kb": ratio(wide_found, "id"),
            "ratio_position_2kb": ratio(wide_found, "position"),
            "ratio_id_transformed": ratio(found, "id_transformed", "transformed"),
        }
        tables = [
            table(f"One batch of {options.records:,} records of 160 bytes", found, _NAMES),
            table(f"One batch of {wide.records:,} records of 2 kB", wide_found, _NAMES),
            self._verb_table(),
        ]
        plots = [_bars(f"Seconds for {options.records:,} records of 160 bytes", found)]
        if not options.no_variants:
            tables.append(self._variants(shape, options))
        if not options.no_slow_peers:
            series = self._series(options)
            times = medians(series)
            headline["speedup_structured_streaming"] = round(times["streaming"] / times["id"], 3)
            title = f"{options.batches} batches, {options.records:,} records"
            tables.append(table(title, series, _NAMES))
            plots.append(self._series_plot(options.batches))
        title = "B1: a batch beside Spark's pass-through"
        return {"title": title, "headline": headline, "tables": tables, "plots": plots}

    def measure_other(self, options: Namespace) -> dict[str, Any]:
        """One batch of a file of Parquet or CSV, as harness.save takes it."""
        shape, form = Shape(records=options.records, repeats=options.repeats), options.source
        source = _LANDED[f".{form}"](shape, self._fresh("in") / f"records.{form}")
        harness.tell(f"{source.stat().st_size / shape.records:.0f} bytes a record")
        names = "pass_through", "id", "position"
        found = in_turn({name: self._side(name, shape, source) for name in names}, options.runs)
        stages = {"pass_through": found["pass_through"], **self.stage_seconds}
        headline = {
            f"ratio_id_{form}": ratio(found, "id"),
            f"ratio_position_{form}": ratio(found, "position"),
            f"ratio_stage_id_{form}": ratio(stages, "id"),
            f"ratio_stage_position_{form}": ratio(stages, "position"),
        }
        named = {"parquet": "Parquet", "csv": "CSV"}[form]
        title = f"One batch of {options.records:,} records in a file of {named}"
        tables = [table(title, found, _NAMES), table("stage alone", stages, _NAMES)]
        plots = [_bars(f"Seconds for {options.records:,} records of {named}", found)]
        title = f"B1: a batch of {named} beside Spark's pass-through"
        return {"title": title, "headline": headline, "plots": plots,
                "tables": [*tables, self._verb_table()]}  # fmt: skip

    def _one_batch(self, shape: Shape, options: Namespace) -> dict[str, list[float]]:
        names = ["pass_through", "floor", "id", "position", "at_least_once"]
        names += ["transformed", "id_transformed"]
        if not options.no_slow_peers:
            names += ["drop_duplicates", "row_per_id"]
        return self._compared(shape, options.runs, *names)

    def _compared(self, shape: Shape, runs: int, *names: str) -> dict[str, list[float]]:
        source = landed(shape, self._fresh("in") / "records.jsonl")
        harness.tell(f"{shape.records} records, {source.stat().st_size / shape.records:.0f} bytes")
        found = in_turn({name: self._side(name, shape, source) for name in names}, runs)
        shutil.rmtree(source.parent)
        return found

    def _side(self, name: str, shape: Shape, source: Path) -> Side:
        if name in ("id", "position", "at_least_once", "id_transformed"):
            return self._semel(name, shape, source)
        calls: dict[str, tuple[Callable, int]] = {
            "pass_through": (peers.pass_through, shape.records),
            "transformed": (peers.transformed, shape.records),
            "floor": (peers.floor, shape.records),
            "drop_duplicates": (peers.drop_duplicates, shape.new),
            "row_per_id": (peers.row_per_id, shape.new),
        }
        call, expected = calls[name]
        more = (self.place.dsn,) if name == "row_per_id" else ()

        def side(_: int, clock: Clock) -> None:
            target = self._fresh("peer")
            if more:
                peers.make_rows(*more)
            with clock:
                call(self.spark, source, target, *more)
            self._settle(name, target, expected)

        return side

    def _semel(self, kind: str, shape: Shape, source: Path) -> Side:
        few = shape.records // _EARLIER_SHARE
        repeats = 0.0 if shape.bursts else shape.repeats  # A burst is in one task of twenty.
        earlier = replace(shape, records=few, first=shape.records, repeats=repeats, bursts=False)

        def side(number: int, clock: Clock) -> None:
            arriving = self._fresh("arriving")
            form = source.suffix
            spec = self._spec(kind, f"{arriving.relative_to(self.place.data)}/*{form}")
            _LANDED[form](earlier, arriving / f"0{form}")
            self._batch(spec, "earlier")
            os.link(source, arriving / f"1{form}")
            with clock:
                seconds = self._batch(spec, "one")
            wide = " (2 kB)" if shape.wide else ""
            self.verbs[kind + wide] = seconds
            if number:  # The first is not counted.
                self.stage_seconds.setdefault(kind, []).append(seconds["stage"])
            all_stay = kind in ("position", "at_least_once")
            expected = sum(s.records if all_stay else s.new for s in (earlier, shape))
            self._settle(kind, spec.sink_path(), expected)
            shutil.rmtree(arriving)

        return side

    def _series(self, options: Namespace) -> dict[str, list[float]]:
        """The same records as many batches: what later batches know grows."""
        shape = Shape(records=options.records, repeats=options.repeats)
        shapes = _series_shapes(shape, options.batches)
        folder = self._fresh("in")
        files = [landed(s, folder / f"{at:02d}.jsonl") for at, s in enumerate(shapes)]
        for at, file in enumerate(files):
            os.utime(file, (at, at))  # Spark takes the oldest file first.
        new = sum(s.new for s in shapes)

        def pass_through(_: int, clock: Clock) -> None:
            targets = [self._fresh("peer") for _ in files]
            for file, target in zip(files, targets, strict=True):
                with clock:
                    peers.pass_through(self.spark, file, target)
            for shape, target in zip(shapes, targets, strict=True):
                self._settle("pass_through", target, shape.records)

        def semel(_: int, clock: Clock) -> None:
            arriving = self._fresh("arriving")
            arriving.mkdir()
            spec = self._spec("id", f"{arriving.relative_to(self.place.data)}/*.jsonl")
            took = []
            for file in files:
                os.link(file, arriving / file.name)
                with clock:
                    took.append(sum(self._batch(spec, file.name).values()))
            self.batch_seconds["id"] = took
            self._settle("id", spec.sink_path(), new)

        def streaming(_: int, clock: Clock) -> None:
            target, checkpoint = self._fresh("peer"), self._fresh("checkpoint")
            with clock:
                took = peers.streaming(self.spark, folder, target, checkpoint)
            self.batch_seconds["streaming"] = took
            check("streaming's batches", len(took), len(files))
            self._settle("streaming", target, new)
            shutil.rmtree(checkpoint)

        sides = {"pass_through": pass_through, "id": semel, "streaming": streaming}
        return in_turn(sides, options.runs)

    def _variants(self, shape: Shape, options: Namespace) -> dict[str, Any]:
        names = "pass_through", "position", "id", "transformed", "id_transformed"
        wide = replace(shape, records=options.wide or shape.records // 8, wide=True)
        rows = []
        for size, of_size in {"160 bytes": shape, "2 kB": wide}.items():
            for repeats, changed in list(_REPEATS.items())[: 1 if options.smallest else None]:
                found = self._compared(replace(of_size, **changed), options.runs, *names)
                times = medians(found)
                rows.append(
                    [
                        size,
                        repeats,
                        *(round(times[name], 2) for name in names[:3]),
                        ratio(found, "id"),
                        ratio(found, "id", "position"),
                        ratio(found, "id_transformed", "transformed"),
                    ]
                )
        columns = [
            "records", "repeats", "pass-through, s", "by position, s", "by id, s",
            "id / pass-through", "id / position", "with a transform / pass-through with it",
        ]  # fmt: skip
        return {"title": "Repeats, same number of records", "columns": columns, "rows": rows}

    def _spec(self, kind: str, path: str) -> Spec:
        self._names += 1
        declared: dict[str, Any] = {} if kind == "position" else {"record_id": ["id"]}
        if kind == "at_least_once":
            declared["guarantee"] = kind
        if kind == "id_transformed":
            declared["transforms"] = [TRANSFORM]
        return self.place.spec(f"p{self._names}", path=path, **declared)

    def _batch(self, spec: Spec, request: str) -> dict[str, float]:
        return run_batch(self.ledger, spec, request, self.engine, log=harness.quiet).seconds

    def _fresh(self, name: str) -> Path:
        self._names += 1
        return self.place.data / f"{name}{self._names}"

    def _settle(self, name: str, target: Path, expected: int) -> None:
        """Count a side's rows, and remove them."""
        files = [p for p in target.rglob("*") if p.is_file() and _is_data(p)]
        check(name, sum(pq.ParquetFile(p).metadata.num_rows for p in files), expected)
        shutil.rmtree(target)

    def _verb_table(self) -> dict[str, Any]:
        rows = [[name, *seconds.values()] for name, seconds in self.verbs.items()]
        columns = ["semel", "plan, s", "stage, s", "commit, s", "finalize, s"]
        return {"title": "Each verb, in the last run", "columns": columns, "rows": rows}

    def _series_plot(self, batches: int) -> dict[str, Any]:
        return {
            "kind": "lines",
            "title": f"Seconds of each of {batches} batches, last run",
            "x": list(range(1, batches + 1)),
            "lines": {_NAMES[name]: took for name, took in self.batch_seconds.items()},
        }


def _series_shapes(shape: Shape, batches: int) -> list[Shape]:
    """The files of a series. Repeats are of records of all earlier files."""
    part = replace(shape, records=shape.records // batches)
    later = [
        replace(part, first=at * part.new, known=(0, at * part.new)) for at in range(1, batches)
    ]
    return [part, *later]


def _is_data(path: Path) -> bool:
    """Not Spark's success marker, checksum or log, and nothing of semel's own folder."""
    return not path.name.startswith((".", "_")) and not {"_semel", "_spark_metadata"} & set(
        path.parts
    )


def _bars(title: str, found: dict[str, list[float]]) -> dict[str, Any]:
    bars = {_NAMES[name]: median for name, median in medians(found).items()}
    return {"kind": "bars", "title": title, "bars": bars}


if __name__ == "__main__":
    main()
