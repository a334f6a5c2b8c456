"""A week of flights, counted by window: the same rows, whatever the batches, their order and their
deaths.
"""

import multiprocessing.context
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest

from fixtures.batches.account import quiet
from fixtures.batches.faults import Child, Children
from fixtures.batches.workbench import Workbench
from fixtures.postgres.warehouse import TABLE, Warehouse
from fixtures.spark.local import LocalEngine
from semel import failpoints, reader
from semel.audit import audit
from semel_local.demo import flights
from semel.errors import RetryableError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.runs.run import run_batch
from tiers import SEED

Interval = tuple[datetime, datetime]

BEGIN, END = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 8, tzinfo=UTC)
FILE_NAME = "flights-%Y-%m-%dT%H%M.jsonl"
BACKFILLS = 4
LIVE_DAYS = 1
VERBS = ("plan", "stage", "commit", "finalize", "sink", "storage")
"""Each batch passes all points of these that one passes; what is cached is made now and then."""

RETRIES = 3  # As many as a task has in Airflow.
WAIT_SECONDS = 3_000

SCHEMA = {
    "year": "int", "month": "int", "day": "int", "carrier": "string", "flight": "int",
    "origin": "string", "dest": "string", "dep_time": "int", "dep_delay": "int",
    "arr_delay": "int", "air_time": "decimal(8,2)", "tailnum": "string", "time_hour": "timestamp",
}  # fmt: skip
COLUMNS = {
    "flights": "count()", "departed": "count(dep_time)", "delay": "sum(dep_delay)",
    "air": "sum(air_time)", "best": "min(arr_delay)", "last": "max(tailnum)",
    "places": "distinct(dest)",
}  # fmt: skip

COUNTED = """
    WITH good AS (
        SELECT DISTINCT ON (raw->'$.year', raw->'$.month', raw->'$.day', raw->'$.carrier',
                            raw->'$.flight', raw->'$.origin')
            raw->>'$.carrier' AS carrier, raw->>'$.dest' AS dest, raw->>'$.tailnum' AS tailnum,
            CAST(raw->>'$.dep_time' AS INTEGER) AS dep_time,
            CAST(raw->>'$.dep_delay' AS INTEGER) AS dep_delay,
            CAST(raw->>'$.arr_delay' AS INTEGER) AS arr_delay,
            CAST(raw->>'$.air_time' AS DECIMAL(8, 2)) AS air_time,
            CAST(replace(raw->>'$.time_hour', 'Z', '') AS TIMESTAMP) AS hour
        FROM lines
        WHERE json_valid(raw) AND (raw->>'$.origin') IS NOT NULL
            AND json_type(raw, '$.flight') = 'UBIGINT'
    )
    SELECT window_start, window_start + INTERVAL 3 HOURS AS window_end, carrier,
        count(*) AS flights, count(dep_time) AS departed, sum(dep_delay) AS delay,
        sum(air_time) AS air, min(arr_delay) AS best, max(tailnum) AS last,
        count(DISTINCT dest) AS places, GROUPING(carrier) AS level
    FROM (SELECT *, hour - to_hours(back) AS window_start FROM good, range(3) AS of(back))
    GROUP BY GROUPING SETS ((window_start, carrier), (window_start))
"""
"""The lines, read by DuckDB alone: each flight once, in each window of three hours."""


def write_week(folder: Path, files: int) -> None:
    """The demo's first week, in so many files in place of one a day."""
    folder.mkdir(parents=True)
    per_day = files // flights.DAYS_PER_WEEK
    for day in flights.days_of(1):
        lines, begin = flights.lines_of(day)[0], datetime(*day.timetuple()[:3], tzinfo=UTC)
        for slot in range(per_day):
            part = lines[len(lines) * slot // per_day : len(lines) * (slot + 1) // per_day]
            path = folder / f"{begin + slot * timedelta(days=1) / per_day:{FILE_NAME}}"
            path.write_bytes(b"".join(line.raw + b"\n" for line in part))


def counting(bench: Workbench, name: str, kind: str) -> Spec:
    """Flights by carrier and in all, of three hours each hour."""
    sink = {"sink": {**TABLE, "table": name}} if kind == "postgres" else {}
    return bench.spec(
        name,
        source={"path": "week/*.jsonl", "schema": SCHEMA, "select": "interval",
                "interval_from": FILE_NAME},
        record_id=["year", "month", "day", "carrier", "flight", "origin"],
        record_time="time_hour",
        window={"size": "3 hours", "every": "1 hour", "zone": "America/New_York"},
        aggregate={"by": [["carrier"], []], "columns": COLUMNS},
        schedule="*/10 * * * *",
        **sink,
    )  # fmt: skip


def intervals(number: int) -> list[Interval]:
    """So many, which make the week."""
    each = (END - BEGIN) / number
    return [(BEGIN + n * each, BEGIN + (n + 1) * each) for n in range(number)]


def run(ledger: Ledger, spec: Spec, kind: str, interval: Interval) -> None:
    """One run of an interval, retried as Airflow does."""
    for retry in range(RETRIES + 1):
        try:
            key = f"{kind}__{interval[0].isoformat()}"
            run_batch(ledger, spec, key, LocalEngine(), interval, log=quiet)
            return
        except RetryableError:
            if retry == RETRIES:
                raise


def running(
    ledger: Ledger, spec: Spec, kind: str, todo: Sequence[Interval], done: Path
) -> None:
    """The runs of a lane, one after the other; a line in `done` for each that has ended."""
    for interval in todo:
        run(ledger, spec, kind, interval)
        with done.open("a") as file:
            file.write(f"{interval[0].isoformat()}\n")


@dataclass
class Lane:
    """One of the runs that go on beside each other: its process dies at one point after another,
    and the next one goes on with the same run.
    """

    kind: str
    todo: list[Interval]
    done: Path
    deaths: dict[str, int]
    """The points to die at, and at which pass."""
    child: Child | None = None
    died_at: list[str] = field(default_factory=list)

    def start(self, children: Children) -> None:
        ended = self.done.read_text().splitlines() if self.done.exists() else []
        todo = [each for each in self.todo if each[0].isoformat() not in ended]
        armed = ",".join(f"{point}:pause:{nth}" for point, nth in self.deaths.items())
        self.child = children.start(running, armed, None, self.kind, todo, self.done)

    def goes_on(self, children: Children) -> bool:
        """Kill its process where it stands at a point, and start the next one. Whether there is
        more to do.
        """
        for point in self.deaths:
            if (self.child.folder / point).exists():
                os.kill(self.child.process.pid, signal.SIGKILL)
                assert self.child.ended()[0] == -signal.SIGKILL
                del self.deaths[point]
                self.died_at.append(point)
                self.start(children)
                return True
        if self.child.process.is_alive():
            return True
        assert self.child.ended() == (0, None), f"{self.kind}: {self.child.message}"
        return False


@contextmanager
def noticed() -> Iterator[set[str]]:
    """The fault points of these verbs that are passed in the block."""
    found: set[str] = set()
    with ExitStack() as stack:
        for point in failpoints.points():
            if point.partition(".")[0] not in VERBS:
                continue
            stack.enter_context(failpoints.armed(point, lambda point=point: found.add(point)))
        yield found


def side_by_side(children: Children, batches: int, passed: set[str], draw: random.Random) -> None:
    """A live schedule of the newest day, and four backfills of what was before: forwards,
    backwards, and in any order. At each point that a run passes one of them is killed; where there
    are many batches, each of them.
    """
    todo = intervals(batches)
    of_live = batches * LIVE_DAYS // flights.DAYS_PER_WEEK
    past, live = todo[:-of_live], todo[-of_live:]
    parts = [past[len(past) * n // BACKFILLS : len(past) * (n + 1) // BACKFILLS]
             for n in range(BACKFILLS)]  # fmt: skip
    parts[1].reverse()
    for part in parts[2:]:
        draw.shuffle(part)
    points = draw.sample(sorted(passed), len(passed))
    many = batches > len(points) * (BACKFILLS + 1)
    lanes = []
    for n, part in enumerate([live, *parts]):
        mine = points if many else points[n :: BACKFILLS + 1]
        deaths = {point: draw.randint(1, 3) if many else 1 for point in mine}
        kind = f"backfill{n}" if n else "scheduled"
        lanes.append(Lane(kind, part, children.folder / f"done{n}", deaths))
    for lane in lanes:
        lane.start(children)
    end, open_lanes = time.monotonic() + WAIT_SECONDS, lanes
    while open_lanes:
        assert time.monotonic() < end, [lane.kind for lane in open_lanes]
        open_lanes = [lane for lane in open_lanes if lane.goes_on(children)]
        time.sleep(0.01)
    left = passed.difference(*(lane.died_at for lane in lanes))
    assert not left, f"nobody was killed at {left}"
    print(f"{sum(len(lane.died_at) for lane in lanes)} killed, at {len(passed)} points")


class Seen:
    """What readers see of a pipeline."""

    def __init__(self, spec: Spec, warehouse: Warehouse) -> None:
        self.spec, self._dsn = spec, warehouse.dsn

    @property
    def exact(self) -> Any:
        """All bits of the rows, in order: an Arrow table, or what a COPY in binary sends."""
        if self.spec.sink.type == "files":
            return reader.windows(self.spec.sink_path())
        query = f"SELECT * FROM {self.spec.sink.table} ORDER BY window_start, carrier"
        with psycopg.connect(self._dsn) as connection, connection.cursor() as cursor:
            with cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT binary)") as copy:
                return b"".join(map(bytes, copy))

    @property
    def rows(self) -> dict[tuple, tuple]:
        """By begin of the window and carrier: its end, what is counted, final, level."""
        if self.spec.sink.type == "files":
            table = reader.windows(self.spec.sink_path())
            names, found = table.column_names, [tuple(row.values()) for row in table.to_pylist()]
        else:
            with psycopg.connect(self._dsn) as connection:
                cursor = connection.execute(f"SELECT * FROM {self.spec.sink.table}")
                names, found = [column.name for column in cursor.description], cursor.fetchall()
        at = [names.index(n) for n in ("window_start", "carrier", "window_end", *COLUMNS, "final",
                                       "_semel_level")]  # fmt: skip
        return keyed([tuple(row[n] for n in at) for row in found])


def keyed(found: list[tuple]) -> dict[tuple, tuple]:
    """Rows by their first two values; times are in UTC."""
    plain = [
        tuple(_in_utc(v) if isinstance(v, datetime) else v for v in row) for row in found
    ]
    made = {row[:2]: row[2:] for row in plain}
    assert len(made) == len(plain)
    return made


def _in_utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def counted(folder: Path) -> dict[tuple, tuple]:
    """The rows as DuckDB counts them, from the bytes of the files."""
    raw = [line for path in sorted(folder.iterdir()) for line in path.read_bytes().splitlines()]
    good = [line.decode() for line in raw if _is_text(line)]
    with duckdb.connect() as connection:
        connection.register("lines", pa.table({"raw": good}))
        found = connection.sql(
            f"SELECT window_start, carrier, window_end, {', '.join(COLUMNS)}, "
            f"window_start >= '{BEGIN:%F}' AND window_end <= '{END:%F}', level FROM ({COUNTED})"
        ).fetchall()
    return keyed(found)


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


# Attacks AG3, AG5, W1, C2, F1, PG1.
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("batches", [28, pytest.param(1_008, marks=pytest.mark.proof)])
@pytest.mark.parametrize("kind", ["files", "postgres"])
def test_a_week_of_flights(
    bench: Workbench, ledger: Ledger, warehouse: Warehouse, tmp_path: Path,
    forks: multiprocessing.context.BaseContext, monkeypatch: pytest.MonkeyPatch,
    kind: str, batches: int,
) -> None:  # fmt: skip
    """In one batch, in many, backwards, and by four backfills beside the live schedule, with
    kills: equal rows, bit for bit, and those that DuckDB counts. It takes so many batches three
    times: half a minute, and half an hour in `make proof`.
    """
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", warehouse.dsn)
    draw = random.Random(SEED)
    write_week(bench.data / "week", batches)
    expected = counted(bench.data / "week")
    assert sum(row[1] for row in expected.values()) == 2 * 3 * len(flights.come(1))

    def in_order(spec: Spec, order: list[Interval]) -> None:
        for interval in order:
            run(ledger, spec, "scheduled", interval)

    *most, last = intervals(batches)
    in_order(counting(bench, "one", kind), intervals(1))
    in_order(counting(bench, "many", kind), most)
    with noticed() as passed:
        in_order(counting(bench, "many", kind), [last])
    in_order(counting(bench, "backwards", kind), intervals(batches)[::-1])
    killed = counting(bench, "killed", kind)
    path = bench.pipelines / f"{killed.name}.yaml"
    with Children(context=forks, dsn=ledger.dsn, spec_path=path, folder=tmp_path) as children:
        side_by_side(children, batches, passed, draw)
    found = []
    for name in ("one", "many", "backwards", "killed"):
        spec = counting(bench, name, kind)
        seen = Seen(spec, warehouse)
        assert seen.rows == expected, name
        found.append(seen.exact)
        verdict = audit(spec)
        assert verdict.ok and verdict.proved_by == "windows, counted again", verdict
        assert verdict.batches == (1 if name == "one" else batches)
    assert all(other == found[0] for other in found[1:])
