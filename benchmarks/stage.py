"""A batch of semel beside Spark's own pass-through, on the same file, in one run, both warm.

    python benchmarks/stage.py [--records 4000000] [--runs 5]

The pass-through is `spark.read.schema(...).json(...).write.parquet(...)`: it reads and writes, and
promises nothing. semel's figure is the whole of plan, stage, commit and finalize. The first run of
each is thrown away; the ratios are of medians. The last line is one JSON object.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import yaml  # noqa: E402
from data import SCHEMA, write_records  # noqa: E402
from fix_postgres import server  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402

from semel import pipeline  # noqa: E402
from semel.ledger import Ledger  # noqa: E402
from semel.migrate import migrate  # noqa: E402
from semel.run import Ran, run_batch  # noqa: E402
from semel.spark.engine import SparkEngine  # noqa: E402

_DDL = ", ".join(f"`{name}` {kind}" for name, kind in SCHEMA.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--repeats", type=float, default=0.02, help="share of repeated records")
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each, after one warm")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="semel-bench-"))
    try:
        with server() as dsn, _spark(folder) as spark, Ledger(dsn) as ledger:
            migrate(dsn)
            print(json.dumps(_measure(folder, spark, ledger, options)))
    finally:
        shutil.rmtree(folder)


def _measure(folder: Path, spark: SparkSession, ledger: Ledger, options: object) -> dict:
    data = folder / "data"
    os.environ["SEMEL_DATA_ROOTS"] = str(data)
    os.environ["SEMEL_CACHE_DIR"] = str(folder / "cache")
    source = data / "in" / "records.jsonl"
    new = write_records(source, options.records, repeats=options.repeats)
    size = source.stat().st_size
    per_record = size / options.records
    print(f"{options.records} records, {size / 1e6:.0f} MB, {per_record:.0f} bytes each")
    engine = SparkEngine(spark)
    verbs: dict[str, list[dict[str, float]]] = {"id": [], "position": []}

    def pass_through(number: int) -> None:
        target = str(data / f"spark{number}")
        spark.read.schema(_DDL).json(str(source)).write.parquet(target)
        shutil.rmtree(target)

    def semel(number: int, kind: str) -> None:
        name = f"{kind}{number}"
        ran = run_batch(ledger, _spec(folder, name, kind), "bench", engine, say=lambda _: None)
        _check(ran, options.records, new if kind == "id" else options.records)
        verbs[kind].append(ran.seconds)
        shutil.rmtree(data / "out" / name)

    seconds = _in_turn(
        {
            "pass_through": pass_through,
            "id": lambda number: semel(number, "id"),
            "position": lambda number: semel(number, "position"),
        },
        options.runs,
    )
    median = {name: statistics.median(found) for name, found in seconds.items()}
    for name, found in seconds.items():
        print(f"{name:13} median {median[name]:6.2f} s  of {[round(s, 2) for s in found]}")
    for kind, found in verbs.items():
        print(f"{kind:13} seconds per verb in the last run: {found[-1]}")
    return {
        "records": options.records,
        "seconds": {name: round(value, 3) for name, value in median.items()},
        "ratio_id": round(median["id"] / median["pass_through"], 3),
        "ratio_position": round(median["position"] / median["pass_through"], 3),
        "bytes_per_id": round(_bytes_per_id(ledger), 2),
    }


def _in_turn(sides: dict[str, Callable[[int], None]], runs: int) -> dict[str, list[float]]:
    """Run the sides in turn, so that a drift of the machine meets them alike."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(runs + 1):
        for name, side in sides.items():
            started = time.perf_counter()
            side(number)
            if number:
                found[name].append(time.perf_counter() - started)
    return found


def _check(ran: Ran, records: int, survivors: int) -> None:
    counts = ran.finalized.counts
    if (counts.records_read, counts.survivors) != (records, survivors):
        raise SystemExit(f"wrong result: {counts}, expected {survivors} of {records}")


def _bytes_per_id(ledger: Ledger) -> float:
    """All that the catalog takes on disk, headers, indexes and TOAST included, by id."""
    with ledger.engine.connect() as connection:
        tables = connection.exec_driver_sql(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class AS c"
            " JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname = 'semel' AND c.relkind = 'r'"
            " AND (c.relname LIKE 'ids_%%' OR c.relname = 'id_run')"
        ).scalar()
        ids = connection.exec_driver_sql("SELECT sum(ids) FROM semel.id_run").scalar()
    return float(tables) / float(ids)


def _spec(folder: Path, name: str, kind: str) -> pipeline.Spec:
    declared = {
        "name": name,
        "source": {"type": "files", "path": "in/*.jsonl", "format": "jsonl", "schema": SCHEMA},
        "sink": {"type": "files", "path": f"out/{name}", "format": "parquet"},
    }
    if kind == "id":
        declared["record_id"] = ["id"]
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(declared, sort_keys=False))
    return pipeline.load(path)


@contextmanager
def _spark(folder: Path):  # noqa: ANN202
    builder = SparkSession.builder.master("local[2]").appName("semel-benchmark")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.stage.maxAttempts": "1",
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


if __name__ == "__main__":
    main()
