"""B15: counts by window of time, beside writing the rows, and the windows of a long history.

    python benchmarks/windows.py                    # 4 million records, 100,000 keys
    python benchmarks/windows.py --no-slow-peers    # without Structured Streaming
    python benchmarks/windows.py --smallest

`rows` is stage of a pipeline that writes its survivors, `windows` stage of one that counts them by
hour and key, with a sum: both by position, in Parquet. Structured Streaming counts the same from
eight files, a batch each, with its state in RocksDB; beside it, eight batches of semel, whole. The
view is asked for a day's rows in PostgreSQL, over the partial rows of many batches.
"""

import os
import shutil
from argparse import Namespace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import psycopg
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import harness
import others
from data import DDL, SCHEMA, Shape, landed
from harness import Clock, Place, Side, check, in_turn, medians, ratio, table
from semel import reader
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.runs.run import run_batch
from semel.spark.engine import SparkEngine

_KEYS = 100_000
_NAMES = {
    "rows": "the rows",
    "day": "counts by day and key",
    "hour": "counts by hour and key",
    "semel": "semel, counts by hour and key",
    "streaming": "Structured Streaming, RocksDB, the same",
}
_SCHEMA = SCHEMA | {"amount": "decimal(12,2)"}
_DAYS, _HOURS, _ROWS = 100, 24, 10
"""What the view merges: so many days of so many windows, each of so many keys in each batch."""

_HISTORY_OF_PARTS = """
INSERT INTO counts_parts ("user", window_start, events, spent, _semel_n, _semel_batch, _semel_seq)
SELECT k, timestamptz '2025-01-01Z' + b %% %(days)s * interval '1 day' + h * interval '1 hour', 1,
       b, 1, b + 100, b + 100
FROM generate_series(0, %(batches)s - 1) AS b, generate_series(0, 23) AS h,
     generate_series(1, %(keys)s) AS k
ORDER BY b
"""
_HISTORY_OF_WINDOWS = """
INSERT INTO counts_windows
SELECT w, w, w + interval '1 hour'
FROM generate_series(timestamptz '2025-01-01Z',
                     timestamptz '2025-01-01Z' + %(days)s * interval '1 day' - interval '1 hour',
                     interval '1 hour') AS w
"""
_DAY = "SELECT events, * FROM counts WHERE window_start >= %s AND window_start < %s"


def main() -> None:
    parser = harness.options_of(__doc__, runs=5, default=4_000_000, help="default 4 million")
    parser.add_argument("--batches", type=int, default=8, help="of the series (default 8)")
    parser.add_argument("--history", type=int, default=10_000, help="batches behind the view")
    parser.add_argument("--no-slow-peers", action="store_true")
    options = harness.parsed(parser, records=4_000, batches=2, history=200)
    with (
        harness.open_place() as place,
        harness.open_spark(place, harness.LOCAL) as spark,
        Ledger(place.dsn) as ledger,
    ):
        report = _Bench(place, spark, ledger).measure(options)
    harness.save("windows", options, report)


class _Bench:
    def __init__(self, place: Place, spark: SparkSession, ledger: Ledger) -> None:
        self.place, self.ledger = place, ledger
        self.engine = SparkEngine(spark)
        self.spark = others.own_session(spark)
        self._names = 0

    def measure(self, options: Namespace) -> dict[str, Any]:
        """The comparisons of B15, as harness.save takes them."""
        shape = Shape(records=options.records, repeats=0, users=_KEYS)
        stages = self._stages(shape, options.runs)
        headline = {
            "ratio_windows_day": ratio(stages, "day", "rows"),
            "ratio_windows_hour": ratio(stages, "hour", "rows"),
        }
        tables = [table(f"stage of {options.records:,} records, {_KEYS:,} keys", stages, _NAMES)]
        if not options.no_slow_peers:
            series = self._series(shape, options)
            times = medians(series)
            headline["speedup_windows"] = round(times["streaming"] / times["semel"], 3)
            tables.append(table(f"{options.batches} batches", series, _NAMES))
        headline["view_day_ms"] = round(self._view(options.history), 1)
        return {"title": "B15: counts by window", "headline": headline, "tables": tables}

    def _stages(self, shape: Shape, runs: int) -> dict[str, list[float]]:
        source = landed(shape, self._fresh("in") / "records.jsonl")
        path = str(source.relative_to(self.place.data))
        took: dict[str, list[float]] = {}

        def side(name: str) -> Side:
            def one(number: int, clock: Clock) -> None:
                spec = self._spec(path, None if name == "rows" else name)
                with clock:
                    seconds = run_batch(
                        self.ledger, spec, "one", self.engine, log=harness.quiet
                    ).seconds
                if number:  # The first is not counted.
                    took.setdefault(name, []).append(seconds["stage"])
                self._settle(spec, shape.records)

            return one

        in_turn({name: side(name) for name in ("rows", "day", "hour")}, runs)
        return took

    def _series(self, shape: Shape, options: Namespace) -> dict[str, list[float]]:
        """The same records as many files, a batch each."""
        count = shape.records // options.batches
        folder = self._fresh("in")
        files = []
        for at in range(options.batches):
            part = Shape(records=count, repeats=0, users=_KEYS, first=at * count)
            files.append(landed(part, folder / f"{at:02d}.jsonl"))
            os.utime(files[-1], (at, at))  # Spark takes the oldest file first.

        def semel(_: int, clock: Clock) -> None:
            arriving = self._fresh("arriving")
            arriving.mkdir()
            spec = self._spec(f"{arriving.relative_to(self.place.data)}/*.jsonl", "hour")
            for file in files:
                os.link(file, arriving / file.name)
                with clock:
                    run_batch(self.ledger, spec, file.name, self.engine, log=harness.quiet)
            self._settle(spec, count * len(files))

        def streaming(_: int, clock: Clock) -> None:
            target, checkpoint = self._fresh("peer"), self._fresh("checkpoint")
            with clock:
                self._stream(folder, target, checkpoint)
            shutil.rmtree(checkpoint)
            shutil.rmtree(target)

        return in_turn({"semel": semel, "streaming": streaming}, options.runs)

    def _stream(self, source: Path, target: Path, checkpoint: Path) -> None:
        """A windowed count and sum with a watermark of a day, each change of it written."""
        schema = DDL.replace("`amount` double", "`amount` decimal(12,2)")
        frame = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        counts = (
            frame.json(str(source))
            .withWatermark("ts", "1 day")
            .groupBy(F.window("ts", "1 hour"), "user")
            .agg(F.count("*").alias("events"), F.sum("amount").alias("spent"))
        )
        query = (
            counts.writeStream.outputMode("update")
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(lambda rows, n: rows.write.parquet(str(target / str(n))))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _view(self, batches: int) -> float:
        """Milliseconds, the median of eleven, that a day's rows of the view take, where so many
        batches have partial rows: each of one day, for each hour and key.
        """
        os.environ["AIRFLOW_CONN_WAREHOUSE"] = self.place.dsn
        source = landed(Shape(records=1_000, repeats=0, users=_ROWS), self._fresh("in") / "a.jsonl")
        sink = {"type": "postgres", "connection": "warehouse", "table": "counts", "create": True}
        spec = self._spec(str(source.relative_to(self.place.data)), "hour", sink=sink)
        run_batch(self.ledger, spec, "one", self.engine, log=harness.quiet)
        with psycopg.connect(self.place.dsn, autocommit=True) as connection:
            shape = {"days": _DAYS, "batches": batches, "keys": _ROWS}
            connection.execute(_HISTORY_OF_PARTS, shape)
            connection.execute(_HISTORY_OF_WINDOWS, {"days": _DAYS})
            connection.execute("ANALYZE")
            took = []
            for day in range(11):
                start = datetime(2025, 2, 1 + day, tzinfo=UTC)
                began = perf_counter()
                rows = connection.execute(_DAY, [start, start + timedelta(days=1)]).fetchall()
                took.append((perf_counter() - began) * 1_000)
                check("the view", sum(row[0] for row in rows), batches // _DAYS * _HOURS * _ROWS)
        return median(took)

    def _spec(self, path: str, window: str | None, **more: Any) -> Spec:
        self._names += 1
        declared: dict[str, Any] = more
        if window is not None:
            declared["record_time"] = "ts"
            declared["window"] = {"size": f"1 {window}"}
            declared["aggregate"] = {
                "by": ["user"], "columns": {"events": "count()", "spent": "sum(amount)"},
            }  # fmt: skip
        source = {"type": "files", "path": path, "format": "jsonl", "schema": _SCHEMA}
        return self.place.spec(f"p{self._names}", source=source, **declared)

    def _settle(self, spec: Spec, expected: int) -> None:
        """Count what a side has of records, and remove it."""
        rows = reader.dataset(spec.sink_path())
        found = rows.count_rows()
        if spec.aggregate is not None:
            found = sum(rows.to_table(columns=["_semel_n"]).column("_semel_n").to_pylist())
        check(spec.name, found, expected)
        shutil.rmtree(spec.sink_path())

    def _fresh(self, name: str) -> Path:
        self._names += 1
        return self.place.data / f"{name}{self._names}"


if __name__ == "__main__":
    main()
