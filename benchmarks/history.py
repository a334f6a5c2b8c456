"""B8: what a history costs: the verbs after 100,000 batches, beside the same on a new ledger.

    python benchmarks/history.py
    python benchmarks/history.py --quick
    python benchmarks/history.py --smallest

1. Two ledgers, of which one has a history: as many batches and files, ten claims a file, a segment
   for each hundred batches. Its files are gone from the folder; half of them were short, of all
   lengths up to 4 KiB, the others had one inode in turn. In turn, a file of `--records` lands on
   both sides and goes through the verbs; `ratio_max` is the largest ratio of a step.
2. `limits.keep_history` packs the history of part 1: seconds, bytes before and after, and the steps
   of a batch behind it.
3. `--there` files that did not change lie in a folder: `plan_idle_s` is a plan with nothing to do,
   `plan_one_s` one with a new file beside them.
4. `--small` files of one record land at once: `small_files_s` is `semel run` on two cores.
5. The reader and find, by the number of markers: they may be linear in it.

Stage runs without Spark in part 1 (tests/fixtures/spark/local.py): what differs is the ledger.
"""

import json
import os
import shutil
import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

import harness
from data import Shape, made
from fixtures.spark.local import LocalEngine
from harness import Place, WatchedLedger, quiet
from semel.archive import layout
from semel.archive.ownership import NOTES_COMPARED
from semel.cli.reports import BATCHES_SHOWN
from semel.collect import collect
from semel.collect.pack import PACK_BATCHES_MIN
from semel.commit import commit
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.ledger.migrate import migrate
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.reader import dataset
from semel.reports.find import find
from semel.reports.gaps import gaps
from semel.runs.run import run_batch
from semel.sinks.spec import archive_of
from semel.stage import stage

_SQL = Path(__file__).with_suffix(".sql")
_CLAIMS_A_FILE = 10
_BATCHES_A_SEGMENT = 100
_LOCKED = "FOR NO KEY UPDATE"
_THERE = ("first", "idle", "one", "locked")
_NAMES = {
    "idle": "plan with nothing to do",
    "plan": "plan of one new file",
    "stage": "stage",
    "commit": "commit",
    "finalize": "finalize",
    "collect": "collect",
    "batches": "semel batches",
    "quiet": "semel batches of another pipeline",
    "gaps": "semel gaps",
}


def main() -> None:
    parser = harness.options_of(__doc__, runs=21, default=10_000, help="of a batch in part 1")
    parser.add_argument("--batches", type=int, default=100_000, help="in the history")
    parser.add_argument("--there", type=int, default=100_000, help="files that did not change")
    parser.add_argument("--small", type=int, default=10_000, help="files of one record")
    parser.add_argument("--markers", type=int, default=20_000, help="that reader and find read")
    parser.add_argument("--quick", action="store_true", help="fewer runs and markers")
    options = harness.parsed(
        parser, records=100, batches=1_000, there=200, small=50, markers=20, quick=True
    )
    if options.quick:
        options.runs, options.markers = min(options.runs, 9), min(options.markers, 3_000)
    options.repeats = 1 if options.quick else 3
    with harness.open_place() as place:
        report = _measure(place, options)
    harness.save("history", options, report)


def _measure(place: Place, options: Namespace) -> dict[str, Any]:
    small = _small(place, options)
    grown_dsn = _database(place.dsn, "grown")
    with Ledger(place.dsn) as new, WatchedLedger(grown_dsn) as grown:
        sides = {"new": _Side(place, new, "new"), "grown": _Side(place, grown, "grown")}
        fill(grown_dsn, sides["grown"].spec.name, options.batches)
        found = _in_turn(sides, options)
        packed = _packed(sides["grown"], options)
        there = _there(place, grown, options)
    markers = _markers(place, sides["new"].spec, options)
    middle = {
        side: {step: statistics.median(run[step] for run in runs) for step in _NAMES}
        for side, runs in found.items()
    }
    ratios = {step: middle["grown"][step] / middle["new"][step] for step in _NAMES}
    most = max(markers)
    headline = {
        "ratio_max": round(max(ratios.values()), 2),
        "plan_idle_s": round(there["idle"], 2),
        "plan_idle_lock_ms": round(1000 * there["locked"], 1),
        "plan_one_s": round(there["one"], 2),
        "small_files_s": round(small["whole"], 2),
        "reader_us_a_marker": round(1e6 * markers[most]["reader"] / most),
        "find_us_a_marker": round(1e6 * markers[most]["find"] / most),
        "ledger_bytes_a_packed_batch": round(packed["after"]["ledger"] / options.batches),
        "packed_batches_a_second": round(options.batches / packed["seconds"]),
    }
    return {
        "title": "B8: history",
        "headline": headline,
        "tables": [
            *_tables(options, middle, ratios, there | small, markers),
            _packed_table(options, packed),
        ],
        "plots": [
            {
                "kind": "bars",
                "title": f"Time after {options.batches:,} batches, to that on a new ledger",
                "bars": {_NAMES[step]: round(ratio, 2) for step, ratio in ratios.items()},
            },
            {
                "kind": "lines",
                "title": "Seconds by the number of markers",
                "x": list(markers),
                "lines": {
                    name: [each[name] for each in markers.values()] for name in ("reader", "find")
                },
            },
        ],
    }


def _tables(
    options: Namespace,
    middle: dict[str, dict[str, float]],
    ratios: dict[str, float],
    many: dict[str, float],
    markers: dict[int, dict[str, float]],
) -> list[dict[str, Any]]:
    rows = [
        [_NAMES[step], *(round(1000 * middle[side][step], 1) for side in ("new", "grown")), ratio]
        for step, ratio in ((step, round(ratio, 2)) for step, ratio in ratios.items())
    ]
    there, small = f"{options.there:,} files there", f"{options.small:,} files of one record"
    titles = {
        "first": f"{there}: first plan",
        "idle": f"{there}: plan with nothing to do",
        "one": f"{there}: plan of one new file",
        **{step: f"{small}: {step}" for step in many if step not in _THERE},
    }
    return [
        {
            "title": f"A batch of {options.records:,} records, medians of {options.runs}",
            "columns": ["step", "new ledger, ms", f"{options.batches:,} batches, ms", "ratio"],
            "rows": rows,
        },
        {
            "title": "Many files",
            "columns": ["what", "seconds"],
            "rows": [[title, round(many[name], 2)] for name, title in titles.items()],
        },
        {
            "title": "By the number of markers",
            "columns": ["markers", "reader, s", "find, s"],
            "rows": [
                [f"{count:,}", round(each["reader"], 2), round(each["find"], 2)]
                for count, each in markers.items()
            ],
        },
    ]


class _Side:
    """A pipeline on one ledger, with as many batches as `semel batches` lists. What these leave is
    the mould of the history. Another pipeline has one batch, from before that.
    """

    def __init__(self, place: Place, ledger: Ledger, name: str) -> None:
        self.ledger, self.name = ledger, name
        self.folder = place.data / name
        self.folder.mkdir()
        self.spec = place.spec(name, record_id=["id"])
        self.quiet = place.spec(f"{name}_quiet", path=f"{name}/*.jsonl", record_id=["id"])
        self._landed = 0
        self.land(100)
        harness.tasks_use(ledger.dsn)
        run_batch(ledger, self.quiet, "once", LocalEngine(), log=quiet)
        for number in range(BATCHES_SHOWN):
            self.land(100)
            run_batch(ledger, self.spec, f"before-{number}", LocalEngine(), log=quiet)

    def land(self, records: int) -> None:
        """A new file of new records. Those that were read are gone."""
        for path in self.folder.iterdir():
            path.unlink()
        shape = Shape(records=records, first=self._landed, repeats=0)
        # A file of its own: another name of one file would change its time.
        shutil.copyfile(made(shape), self.folder / f"{self._landed:012d}.jsonl")
        self._landed += records

    def run(self, number: int, records: int) -> dict[str, float]:
        """The seconds of each step."""
        ledger, spec, key, shown = self.ledger, self.spec, f"r{number}", BATCHES_SHOWN
        harness.tasks_use(ledger.dsn)
        seconds = {"idle": _timed(lambda: _nothing(plan(ledger, spec, f"idle-{key}")))}
        self.land(records)
        seconds["plan"] = _timed(lambda: plan(ledger, spec, key))
        batch_id = plan(ledger, spec, key).batch.batch_id
        steps: dict[str, Callable[[], object]] = {
            "stage": lambda: stage(ledger, spec, batch_id, LocalEngine(), quiet),
            "commit": lambda: commit(ledger, spec, batch_id, _never, quiet),
            "finalize": lambda: finalize(ledger, spec, batch_id),
            "collect": lambda: collect(ledger, spec, quiet),
            "batches": lambda: ledger.rows("look", "batches", name=spec.name, count=shown),
            "quiet": lambda: ledger.rows("look", "batches", name=self.quiet.name, count=shown),
            "gaps": lambda: gaps(ledger, spec),
        }
        return seconds | {step: _timed(call) for step, call in steps.items()}


def _in_turn(sides: dict[str, _Side], options: Namespace) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number in range(options.runs + 1):
        for name, side in sides.items():
            os.sync()
            seconds = side.run(number, options.records)
            shown = {step: round(1000 * each) for step, each in seconds.items()}
            harness.tell(f"  {name}: {shown} ms{'' if number else ' (warming up)'}")
            if number:
                found[name].append(seconds)
    return found


def _there(place: Place, ledger: WatchedLedger, options: Namespace) -> dict[str, float]:
    """The seconds of the first plan of many files; the medians of those of a plan when they did not
    change, of the lock that it holds, and of a plan of one more.
    """
    folder = place.data / "there"
    folder.mkdir()
    for number in range(options.there):
        (folder / f"{number:06d}.jsonl").write_bytes(b'{"id": "%020d"}\n' % number)
    spec = place.spec("there", record_id=["id"])
    found: dict[str, list[float]] = {name: [] for name in _THERE}
    found["first"].append(_timed(lambda: plan(ledger, spec, "first")))
    harness.tell(f"  first plan: {found['first'][0]:.1f} s")
    for number in range(options.repeats + 1):
        ledger.transactions.clear()
        idle = _timed(lambda: _nothing(plan(ledger, spec, "second")))
        locked = ledger.seconds_of(_LOCKED)
        (folder / f"one-{number}.jsonl").write_bytes(b'{"id": "one-%d"}\n' % number)
        request = f"one-{number}"
        one = _timed(lambda request=request: plan(ledger, spec, request))
        first = "" if number else " (warming up)"
        harness.tell(f"  plan with nothing to do: {idle:.2f} s, of one file: {one:.2f} s{first}")
        if number:
            for name, seconds in (("idle", idle), ("one", one), ("locked", locked)):
                found[name].append(seconds)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def _small(place: Place, options: Namespace) -> dict[str, float]:
    """The seconds of a run of many files of one record on Spark, and of each verb."""
    found = []
    harness.tasks_use(place.dsn)
    with Ledger(place.dsn) as ledger, harness.open_spark(place) as session:
        from semel.spark.engine import SparkEngine

        engine = SparkEngine(session)
        for number in range(options.repeats + 1):
            spec = place.spec(f"small{number}", record_id=["id"])
            folder = place.data / spec.name
            folder.mkdir()
            count = options.small if number else min(100, options.small)
            for each in range(count):
                (folder / f"{each:06d}.jsonl").write_bytes(b'{"id": "%020d"}\n' % each)
            started = time.perf_counter()
            ran = run_batch(ledger, spec, "r1", engine, log=quiet)
            seconds = {"whole": time.perf_counter() - started, **ran.seconds}
            harness.check("records of small files", ran.finalized.counts.survivors, count)
            harness.tell(f"  {count:,} files: {seconds}")
            if number:
                found.append(seconds)
    return {step: statistics.median(each[step] for each in found) for step in found[0]}


def _markers(place: Place, spec: Spec, options: Namespace) -> dict[int, dict[str, float]]:
    """The seconds of the reader and of find, by the number of markers of a sink."""
    mould = json.loads(min(layout.markers(layout.archive_folder(spec)).iterdir()).read_bytes())
    [data] = [file for file in mould["files"] if file["kind"] == "data"]
    source = spec.sink_path() / data["path"]
    sink = place.data / "out" / "many"
    folder = layout.markers(archive_of(sink))
    sink.mkdir()
    folder.mkdir(parents=True)
    found, there = {}, 0
    for count in sorted({max(1, options.markers // 10), options.markers}):
        for number in range(there + 1, count + 1):
            # Not one file for all: a file system gives it so many names and no more.
            path = f"{number // 10_000}-{source.name}"
            if not (sink / path).exists():
                (sink / path).write_bytes(source.read_bytes())
            os.link(sink / path, sink / f"{number}.parquet")
            files = [{**data, "path": f"{number}.parquet"}]
            content = {**mould, "batch_id": number, "commit_seq": number, "files": files}
            (folder / f"b{number:08d}.json").write_text(json.dumps(content))
        there = count
        found[count] = {
            "reader": _timed(lambda: dataset(sink)),
            "find": _timed(lambda: find(spec, ["nowhere"], sink)),
        }
        harness.tell(f"  {count:,} markers: {found[count]}")
    return found


def _packed(side: _Side, options: Namespace) -> dict[str, Any]:
    """The seconds to pack all of a history, and what ledger and archive have before and after."""
    spec = side.spec.model_copy(
        update={"limits": side.spec.limits.model_copy(update={"keep_history": timedelta(0)})}
    )
    before = _sizes(side)
    packed, started = 0, time.perf_counter()
    while batches := collect(side.ledger, spec, quiet).batches_packed:
        packed += batches
        harness.tell(f"  {packed:,} batches packed in {time.perf_counter() - started:.0f} s")
    found = {"seconds": time.perf_counter() - started, "before": before, "after": _sizes(side)}
    at_least = options.batches - PACK_BATCHES_MIN - NOTES_COMPARED
    harness.check("packed batches are nearly all", packed > at_least, True)
    steps = [side.run(10_000 + number, options.records) for number in range(options.repeats + 2)]
    found["steps"] = {step: statistics.median(run[step] for run in steps[1:]) for step in _NAMES}
    return found


def _sizes(side: _Side) -> dict[str, int]:
    """Bytes of the tables in the ledger without their free room, and files and bytes of markers."""
    with side.ledger.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.exec_driver_sql("VACUUM FULL ANALYZE")
        ledger = connection.exec_driver_sql(
            "SELECT CAST(sum(pg_total_relation_size(oid)) AS bigint) FROM pg_class"
            " WHERE relnamespace = 'semel'::regnamespace AND relkind = 'r'"
        ).scalar()
    archive = layout.archive_folder(side.spec)
    files = [*layout.markers(archive).iterdir(), *layout.packs(archive).glob("*")]
    blocks = sum(file.stat().st_blocks for file in files)
    return {"ledger": ledger, "files": len(files), "archive": 512 * blocks}


def _packed_table(options: Namespace, packed: dict[str, Any]) -> dict[str, Any]:
    before, after = packed["before"], packed["after"]
    rows = [
        ["ledger, MB", *(round(each["ledger"] / 1e6, 1) for each in (before, after))],
        ["markers and packs, files", before["files"], after["files"]],
        ["markers and packs, MB on disk", *(round(e["archive"] / 1e6, 1) for e in (before, after))],
        ["seconds to pack them", "", round(packed["seconds"], 1)],
        *([f"{_NAMES[step]}, ms", "", round(1000 * packed["steps"][step], 1)] for step in _NAMES),
    ]
    title = f"limits.keep_history, after {options.batches:,} batches"
    return {"title": title, "columns": ["what", "before", "packed"], "rows": rows}


def fill(dsn: str, pipeline: str, batches: int, first: int = 1_000) -> None:
    """Give a pipeline its history, with ids from `first` on.

    Exclusions are made anew at the end, which is faster.
    """
    values = {
        "batches": batches,
        "files": batches,
        "claims": _CLAIMS_A_FILE * batches,
        "segments": max(1, batches // _BATCHES_A_SEGMENT),
        "first": first,
    }
    started = time.perf_counter()
    with psycopg.connect(dsn) as connection:
        exclusions = connection.execute(
            "SELECT conrelid::regclass, conname, pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE contype = 'x' AND connamespace = 'semel'::regnamespace"
        ).fetchall()
        connection.execute("SET session_replication_role = replica")  # Keys are right by design.
        for table, name, _ in exclusions:
            connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
        mould = connection.execute(
            "SELECT max(b.batch_id), p.pipeline_id FROM semel.batch AS b"
            " JOIN semel.pipeline AS p USING (pipeline_id) WHERE p.name = %s GROUP BY 2",
            [pipeline],
        ).fetchone()
        values |= dict(zip(("batch", "pipeline"), mould, strict=True))
        connection.execute(_SQL.read_text(encoding="utf-8").format(**values))
        for table, name, definition in exclusions:
            connection.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}")
        _mark(connection, pipeline)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")
    harness.tell(f"  {batches:,} batches: filled in {time.perf_counter() - started:.0f} s")


def _mark(connection: psycopg.Connection, pipeline: str) -> None:
    """Give each batch a marker: a copy of a real one, with its number and its own claims."""
    found = connection.execute(
        "SELECT b.batch_id, p.archive_path FROM semel.batch AS b JOIN semel.pipeline AS p"
        " USING (pipeline_id) WHERE p.name = %s AND b.status = 'finalized' ORDER BY b.batch_id",
        [pipeline],
    )
    mould: dict[str, Any] = {}
    for batch_id, archive in found:
        path = layout.marker(Path(archive), batch_id)
        if path.exists():
            mould = mould or json.loads(path.read_bytes())
            continue
        numbers = range(_CLAIMS_A_FILE)
        claims = [{**mould["claims"][0], "ordinal": number} for number in numbers]
        content = {**mould, "batch_id": batch_id, "commit_seq": batch_id, "claims": claims}
        path.write_text(json.dumps(content, indent=1, sort_keys=True))


def _database(dsn: str, name: str) -> str:
    """Another empty ledger on the same server."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    made = sa.make_url(dsn).set(database=name).render_as_string(hide_password=False)
    migrate(made)
    return made


def _nothing(planned: Any) -> None:
    harness.check("a plan with nothing to do", planned.batch, None)


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _never() -> None:
    raise SystemExit("a batch of the benchmark was lost to another one")


if __name__ == "__main__":
    main()
