"""B19: other tools beside semel, from the same JSON Lines, each with what it promises.

    python benchmarks/peers.py                  # 4 million records, and 500 thousand for dlt
    python benchmarks/peers.py --no-dlt         # without the tool that comes from the package index
    python benchmarks/peers.py --smallest

All write Parquet, on two cores, from one file of records of 160 bytes of which 2 % repeat an
earlier one. The row counts of each are checked. dlt handles Python objects, so it gets fewer
records, and its seconds are scaled to the others' number. Structured Streaming and semel also take
the records as a series of files, a batch each: later batches know the ids of earlier ones.
"""

import json
import os
import shutil
import subprocess
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.dataset as ds
from deltalake import DeltaTable

import harness
import others
from data import SCHEMA, Shape, landed
from fixtures.environment import python_with
from harness import Clock, Side, check, in_turn, medians, ratio, table
from semel.ledger import Ledger
from sides import SEMEL, Sides, bars

_NO, _AGAIN, _NONE = "no", "writes all of it again", "drops none"
_PROMISES = {
    "pass_through": ("Spark's pass-through", _NO, _AGAIN, _NONE),
    "duckdb_copy": ("DuckDB, COPY", _NO, _AGAIN, _NONE),
    "polars_sink": ("polars, sink_parquet", _NO, _AGAIN, _NONE),
    "dlt_append": ("dlt, files of Parquet", _NO, "loads what is pending", _NONE),
    "position": (SEMEL["position"], "each position", "goes on, each record once", _NONE),
    "drop_duplicates": ("Spark, dropDuplicates", _NO, _AGAIN, _NO),
    "duckdb_distinct": ("DuckDB, DISTINCT ON", _NO, _AGAIN, _NO),
    "polars_unique": ("polars, unique", _NO, _AGAIN, _NO),
    "dlt_delta": (
        "dlt, merge into Delta", "yes, and keeps repeats of one load", "loads what is pending", _NO,
    ),
    "dlt_duckdb": ("dlt, merge into DuckDB", "yes", "loads what is pending", _NO),
    "row_per_id": (
        "a row per id, INSERT ... ON CONFLICT", "yes", "loses rows whose ids were inserted", _NO,
    ),
    "streaming": (
        "Structured Streaming, dropDuplicatesWithinWatermark", "until the watermark passes them",
        "goes on from its checkpoint; `_spark_metadata` says which files count", "how many",
    ),
    "id": (SEMEL["id"], "for the horizon", "goes on, each record once", "how many, and which"),
}  # fmt: skip
"""How each is called, whether it remembers ids of earlier batches, the next run's work after a
kill, and whether it tells what it dropped."""
_NAMES = {name: promise[0] for name, promise in _PROMISES.items()}
_DLT_SHARE = 8
_CORES = 2
_HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = harness.options_of(__doc__, runs=3, default=4_000_000, help="default 4 million")
    parser.add_argument("--batches", type=int, default=8, help="of the series (default 8)")
    parser.add_argument("--no-dlt", action="store_true")
    options = harness.parsed(parser, records=4_000, batches=2)
    with (
        harness.open_place() as place,
        harness.open_spark(place) as spark,
        Ledger(place.dsn) as ledger,
    ):
        report = _Peers(place, spark, ledger).measured(options)
    harness.save("peers", options, report)


class _Peers(Sides):
    def measured(self, options: Namespace) -> dict[str, Any]:
        """Both comparisons, as harness.save takes them."""
        seconds = self._one_batch(options)
        series, batch_seconds = self._series(options)
        whole = {name: medians(seconds)[name] for name in _PROMISES if name in seconds}
        first = whole["pass_through"]
        rows = [
            [_NAMES[name], round(median, 2), round(median / first, 3), *_PROMISES[name][1:]]
            for name, median in whole.items()
        ]
        columns = [
            "tool", "median, s", "ratio", "remembers ids of earlier batches",
            "after a kill, the next run", "says what it dropped",
        ]  # fmt: skip
        title = f"One batch of {options.records:,} records of 160 bytes, 2 % of them repeats"
        one = {"title": title, "columns": columns, "rows": rows}
        titles = f"{options.batches} batches, {options.records:,} records"
        speedup = medians(series)["streaming"] / medians(series)["id"]
        headline = {f"ratio_{name}": round(whole[name] / first, 3) for name in list(whole)[1:]}
        return {
            "title": "B19: semel beside other tools",
            "headline": {**headline, "speedup_structured_streaming": round(speedup, 3)},
            "tables": [one, table(titles, series, _NAMES)],
            "plots": [
                bars(title, seconds, _NAMES),
                {
                    "kind": "lines",
                    "title": f"Seconds of each of {options.batches} batches, last run",
                    "x": list(range(1, options.batches + 1)),
                    "lines": {_NAMES[name]: took for name, took in batch_seconds.items()},
                },
            ],
        }

    def _one_batch(self, options: Namespace) -> dict[str, list[float]]:
        shape = Shape(records=options.records)
        source = landed(shape, self.fresh("in") / "records.jsonl")
        sides = {
            name: self.side(name, shape, source)
            for name in ("pass_through", "drop_duplicates", "position", "id")
        }
        local: dict[str, tuple[Callable, int]] = {
            "duckdb_copy": (_duckdb_copy, shape.records),
            "duckdb_distinct": (_duckdb_distinct, shape.new),
            "polars_sink": (_polars_sink, shape.records),
            "polars_unique": (_polars_unique, shape.new),
        }
        for name, (work, expected) in local.items():
            sides[name] = self.other(name, partial(work, source), expected)
        sides["row_per_id"] = self._row_per_id(shape, source)
        sides["streaming"] = self._streaming([source], shape.new, {})
        found = in_turn(sides, options.runs)
        shutil.rmtree(source.parent)
        return found if options.no_dlt else found | self._dlt(options)

    def _row_per_id(self, shape: Shape, source: Path) -> Side:
        def side(number: int, clock: Clock) -> None:
            others.make_rows(self.place.dsn)
            one(number, clock)

        work = partial(others.row_per_id, self.spark, source, dsn=self.place.dsn)
        one = self.other("row_per_id", work, shape.new)
        return side

    def _dlt(self, options: Namespace) -> dict[str, list[float]]:
        """The seconds of each of dlt's ways, for as many records as the others had."""
        shape = Shape(records=options.records // _DLT_SHARE)
        source = landed(shape, self.fresh("in") / "records.jsonl")
        ways = {"append": shape.records, "delta": shape.records, "duckdb": shape.new}
        found: dict[str, list[float]] = {f"dlt_{way}": [] for way in ways}
        for _ in range(options.runs):  # Each is a process of its own, so none warms another.
            for way, expected in ways.items():
                target = self.fresh("peer")
                seconds = _dlt_load(way, source, target)
                check(f"dlt_{way}", _loaded(way, target), expected)
                shutil.rmtree(target)
                harness.tell(f"  dlt_{way}: {seconds:.2f} s")
                found[f"dlt_{way}"].append(seconds * options.records / shape.records)
        shutil.rmtree(source.parent)
        return found

    def _series(
        self, options: Namespace
    ) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
        """The same records as many batches. Returns the seconds of all, and of each batch."""
        shapes = _series_shapes(Shape(records=options.records), options.batches)
        folder = self.fresh("in")
        files = [landed(s, folder / f"{at:02d}.jsonl") for at, s in enumerate(shapes)]
        for at, file in enumerate(files):
            os.utime(file, (at, at))  # Spark takes the oldest file first.
        new = sum(s.new for s in shapes)
        batch_seconds: dict[str, list[float]] = {}

        def pass_through(_: int, clock: Clock) -> None:
            targets = [self.fresh("peer") for _ in files]
            for file, target in zip(files, targets, strict=True):
                with clock:
                    others.pass_through(self.spark, file, target)
            for shape, target in zip(shapes, targets, strict=True):
                self.settle("pass_through", target, shape.records)

        def semel(_: int, clock: Clock) -> None:
            arriving = self.fresh("arriving")
            arriving.mkdir()
            spec = self.spec("id", f"{arriving.relative_to(self.place.data)}/*.jsonl")
            took = []
            for file in files:
                os.link(file, arriving / file.name)
                with clock:
                    took.append(sum(self.batch(spec, file.name).values()))
            batch_seconds["id"] = took
            self.settle("id", spec.sink_path(), new)

        streaming = self._streaming(files, new, batch_seconds)
        sides = {"pass_through": pass_through, "id": semel, "streaming": streaming}
        return in_turn(sides, options.runs), batch_seconds

    def _streaming(
        self, files: list[Path], new: int, batch_seconds: dict[str, list[float]]
    ) -> Side:
        """Each file is a batch. The seconds of each of the last run go into `batch_seconds`."""

        def side(_: int, clock: Clock) -> None:
            target, checkpoint = self.fresh("peer"), self.fresh("checkpoint")
            with clock:
                took = others.streaming(self.spark, files[0].parent, target, checkpoint)
            check("streaming's batches", len(took), len(files))
            batch_seconds["streaming"] = took
            self.settle("streaming", target, new)
            shutil.rmtree(checkpoint)

        return side


def _duckdb_copy(source: Path, target: Path) -> None:
    """DuckDB reads and writes, and promises nothing."""
    _duckdb_writes("SELECT * FROM records", source, target)


def _duckdb_distinct(source: Path, target: Path) -> None:
    """DuckDB drops repeats within the batch, and knows of no other batch."""
    _duckdb_writes("SELECT DISTINCT ON (id) * FROM records", source, target)


def _duckdb_writes(query: str, source: Path, target: Path) -> None:
    target.mkdir()
    kinds = {"string": "VARCHAR", "timestamp": "TIMESTAMPTZ"}
    columns = {name: kinds.get(kind, kind.upper()) for name, kind in SCHEMA.items()}
    with duckdb.connect(config={"threads": _CORES}) as connection:
        connection.read_json(
            str(source), columns=columns, format="newline_delimited"
        ).create_view("records")
        connection.sql(query).write_parquet(str(target / "records.parquet"))


def _polars_sink(source: Path, target: Path) -> None:
    """polars reads and writes in a stream, and promises nothing."""
    _polars_frame(source).sink_parquet(target / "records.parquet", compression="snappy", mkdir=True)


def _polars_unique(source: Path, target: Path) -> None:
    """polars drops repeats within the batch, and knows of no other batch."""
    frame = _polars_frame(source).unique("id")
    frame.sink_parquet(target / "records.parquet", compression="snappy", mkdir=True)


def _polars_frame(source: Path) -> pl.LazyFrame:
    kinds = {"string": pl.String, "bigint": pl.Int64, "double": pl.Float64, "timestamp": pl.String}
    frame = pl.scan_ndjson(source, schema={name: kinds[kind] for name, kind in SCHEMA.items()})
    return frame.with_columns(pl.col("ts").str.to_datetime(time_unit="us", time_zone="UTC"))


def _dlt_load(way: str, source: Path, target: Path) -> float:
    """dlt reads and loads, in one of the ways of dlt_load.py. Returns its seconds."""
    python = python_with("dlt", _HERE / "dlt.txt")
    words = [python, _HERE / "dlt_load.py", way, source.parent, target]
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, env=alone, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])["seconds"]


def _loaded(way: str, target: Path) -> int:
    """How many rows dlt made."""
    if way == "delta":
        return DeltaTable(target / "out" / "peer").to_pyarrow_dataset().count_rows()
    if way == "append":
        return ds.dataset(target / "out" / "peer", format="parquet").count_rows()
    with duckdb.connect(target / "peer.duckdb", read_only=True) as connection:
        return len(connection.table("out.peer"))


def _series_shapes(shape: Shape, batches: int) -> list[Shape]:
    """The files of a series. Repeats are of records of all earlier files."""
    part = replace(shape, records=shape.records // batches)
    later = [
        replace(part, first=at * part.new, known=(0, at * part.new)) for at in range(1, batches)
    ]
    return [part, *later]


if __name__ == "__main__":
    main()
