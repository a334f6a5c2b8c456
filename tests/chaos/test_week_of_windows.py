"""A week of flights, counted by window: the same rows, whatever the batches, their order and their
deaths, the zone, the windows' size, and whether a record has a time or a date.

The seed draws these, and moves the week to where the zone's clock changes. The judge finds windows
minute by minute, with Python's zoneinfo alone.
"""

import multiprocessing.context
import os
import random
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

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
from semel.errors import RetryableError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.runs.run import run_batch
from semel_local.demo import flights
from tiers import SEED

Interval = tuple[datetime, datetime]

BEGIN, WEEK = datetime(2013, 1, 1, tzinfo=UTC), timedelta(days=7)
"""When the flights were."""

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
ZONES = (
    "Australia/Lord_Howe", "Antarctica/Troll", "Pacific/Chatham", "Pacific/Apia",
    "Africa/Casablanca", "America/Sao_Paulo", "America/Havana", "America/St_Johns",
    "Asia/Kathmandu", "Europe/Berlin",
)  # fmt: skip
"""Drawn as often as all others together."""

NO_ZONES = {"localtime", "Factory"}

YEARS = 1973, 2025
"""Before, some clocks differ from UTC by seconds; after, the week would not be over."""

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
    "flown": "date",
}  # fmt: skip
COLUMNS = {
    "flights": "count()", "departed": "count(dep_time)", "delay": "sum(dep_delay)",
    "air": "sum(air_time)", "best": "min(arr_delay)", "last": "max(tailnum)",
    "places": "distinct(dest)",
}  # fmt: skip
TIME = re.compile(rb'"time_hour":"([^"]+)"')

COUNTED = """
    WITH good AS (
        SELECT DISTINCT ON (raw->'$.year', raw->'$.month', raw->'$.day', raw->'$.carrier',
                            raw->'$.flight', raw->'$.origin')
            raw->>'$.carrier' AS carrier, raw->>'$.dest' AS dest, raw->>'$.tailnum' AS tailnum,
            CAST(raw->>'$.dep_time' AS INTEGER) AS dep_time,
            CAST(raw->>'$.dep_delay' AS INTEGER) AS dep_delay,
            CAST(raw->>'$.arr_delay' AS INTEGER) AS arr_delay,
            CAST(raw->>'$.air_time' AS DECIMAL(8, 2)) AS air_time,
            raw->>'$.time_hour' AS time, raw->>'$.flown' AS date
        FROM lines
        WHERE json_valid(raw) AND (raw->>'$.origin') IS NOT NULL
            AND json_type(raw, '$.flight') = 'UBIGINT'
    )
    SELECT "begin", "end", carrier,
        count(*) AS flights, count(dep_time) AS departed, sum(dep_delay) AS delay,
        sum(air_time) AS air, min(arr_delay) AS best, max(tailnum) AS last,
        count(DISTINCT dest) AS places, GROUPING(carrier) AS level
    FROM good JOIN windows ON of = {of}
    GROUP BY GROUPING SETS (("begin", "end", carrier), ("begin", "end"))
"""
"""The lines, read by DuckDB alone: each flight once, in each window of its time."""


@dataclass(frozen=True)
class Clock:
    """How flights are counted, and when they are. `every` is in seconds."""

    zone: str
    every: int
    count: int
    by_date: bool
    begin: datetime

    @classmethod
    def drawn(cls, draw: random.Random) -> "Clock":
        """Any zone, and any size of whole minutes that `validate` accepts."""
        zones = sorted(available_timezones() - NO_ZONES)
        zone = draw.choice([draw.choice(ZONES), draw.choice(zones)])
        by_date = draw.random() < 0.3
        sizes = [DAY.total_seconds(), WEEK.total_seconds()]
        parts = [n for n in range(60, 86_400, 60) if 86_400 % n == 0]
        every = draw.choice(sizes if by_date else [*parts, *sizes * 5])
        first, last = (datetime(year, 1, 2, tzinfo=UTC) for year in YEARS)
        days = [first + n * DAY for n in range((last - first).days)]
        ahead = [day.astimezone(ZoneInfo(zone)).utcoffset() for day in days]
        changes = [day for n, day in enumerate(days[1:]) if ahead[n] != ahead[n + 1]]
        begin = draw.choice(changes or days) - draw.randint(1, 8_000) * MINUTE
        return cls(zone, int(every), draw.choice([1, 1, 2, 3, 7]), by_date, begin)

    @property
    def end(self) -> datetime:
        """When the week is over."""
        return self.begin + WEEK

    @property
    def declared(self) -> dict[str, Any]:
        """The keys of a declaration."""
        window = {"size": f"{self.every * self.count} s", "every": f"{self.every} s",
                  "zone": self.zone}  # fmt: skip
        return {"record_time": "flown" if self.by_date else "time_hour", "window": window}

    def moved(self, line: bytes) -> bytes:
        """A flight's line, with its times in this week, and with its date."""

        def at(text: re.Match) -> bytes:
            time = datetime.fromisoformat(text[1].decode()) + (self.begin - BEGIN)
            return f'"time_hour":"{time:%Y-%m-%dT%H:%M:%SZ}","flown":"{time:%Y-%m-%d}"'.encode()

        return TIME.sub(at, line)

    def windows(self) -> pa.Table:
        """Begin and end of each window, and the times, as texts, of which it is."""
        around = 5 * DAY + (self.count + 1) * timedelta(seconds=self.every)
        zone = ZoneInfo(self.zone)
        since = datetime(1970, 1, 5) if self.every == WEEK.total_seconds() else datetime(1970, 1, 1)
        by_day = self.every % DAY.total_seconds() == 0
        newest, day, starts, times, dates = datetime.min, date.max, [], {}, {}
        for n in range((WEEK + 2 * around) // MINUTE):
            moment = self.begin - around + n * MINUTE
            shown = moment.astimezone(zone).replace(tzinfo=None)
            multiple = shown - (shown - since) % timedelta(seconds=self.every)
            if multiple > newest or (multiple == shown and not by_day):
                starts.append(moment)
            newest = max(newest, multiple) if by_day else multiple
            times[f"{moment:%Y-%m-%dT%H:%M:%SZ}"] = len(starts) - 1
            day = min(day, shown.date())
            while day < shown.date():
                day += DAY
                dates[f"{day}"] = len(starts) - 1
        near = (self.begin - 2 * DAY).isoformat(), (self.end + 3 * DAY).isoformat()
        rows = [
            {"of": text, "begin": starts[at - back], "end": starts[at - back + self.count]}
            for text, at in (dates if self.by_date else times).items()
            if near[0] <= text <= near[1] for back in range(self.count)
        ]  # fmt: skip
        return pa.Table.from_pylist(rows)


def write_week(folder: Path, files: int, clock: Clock) -> None:
    """The demo's first week, in so many files in place of one a day."""
    folder.mkdir(parents=True)
    per_day = files // flights.DAYS_PER_WEEK
    for day in flights.days_of(1):
        lines = flights.lines_of(day)[0]
        begin = datetime(*day.timetuple()[:3], tzinfo=UTC) + (clock.begin - BEGIN)
        for slot in range(per_day):
            part = lines[len(lines) * slot // per_day : len(lines) * (slot + 1) // per_day]
            path = folder / f"{begin + slot * timedelta(days=1) / per_day:{FILE_NAME}}"
            path.write_bytes(b"".join(clock.moved(line.raw) + b"\n" for line in part))


def counting(bench: Workbench, name: str, kind: str, clock: Clock) -> Spec:
    """Flights by carrier and in all."""
    sink = {"sink": {**TABLE, "table": name}} if kind == "postgres" else {}
    return bench.spec(
        name,
        source={"path": "week/*.jsonl", "schema": SCHEMA, "select": "interval",
                "interval_from": FILE_NAME},
        record_id=["year", "month", "day", "carrier", "flight", "origin"],
        aggregate={"by": [["carrier"], []], "columns": COLUMNS},
        schedule="*/10 * * * *",
        **clock.declared,
        **sink,
    )  # fmt: skip


def intervals(begin: datetime, number: int) -> list[Interval]:
    """So many, which make the week."""
    each = WEEK / number
    return [(begin + n * each, begin + (n + 1) * each) for n in range(number)]


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


def side_by_side(
    children: Children, todo: list[Interval], passed: set[str], draw: random.Random
) -> None:
    """A live schedule of the newest day, and four backfills of what was before: forwards,
    backwards, and in any order. At each point that a run passes one of them is killed; where there
    are many batches, each of them.
    """
    batches = len(todo)
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


def counted(folder: Path, clock: Clock) -> dict[tuple, tuple]:
    """The rows as DuckDB counts them, from the bytes of the files."""
    raw = [line for path in sorted(folder.iterdir()) for line in path.read_bytes().splitlines()]
    good = [line.decode() for line in raw if _is_text(line)]
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("lines", pa.table({"raw": good}))
        connection.register("windows", clock.windows())
        of = "date" if clock.by_date else "time"
        found = connection.sql(
            f"""SELECT "begin", carrier, "end", {', '.join(COLUMNS)},
            "begin" >= '{clock.begin}' AND "end" <= '{clock.end}', level
            FROM ({COUNTED.format(of=of)})"""
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
    draw = random.Random(f"{SEED} {kind}")
    clock = Clock.drawn(draw)
    print(clock)
    write_week(bench.data / "week", batches, clock)
    expected = counted(bench.data / "week", clock)
    arrivals = len(flights.flights_until(1))
    assert sum(row[1] for row in expected.values()) == 2 * clock.count * arrivals

    def in_order(spec: Spec, order: list[Interval]) -> None:
        for interval in order:
            run(ledger, spec, "scheduled", interval)

    todo = intervals(clock.begin, batches)
    in_order(counting(bench, "one", kind, clock), intervals(clock.begin, 1))
    in_order(counting(bench, "many", kind, clock), todo[:-1])
    with noticed() as passed:
        in_order(counting(bench, "many", kind, clock), todo[-1:])
    in_order(counting(bench, "backwards", kind, clock), todo[::-1])
    killed = counting(bench, "killed", kind, clock)
    path = bench.pipelines / f"{killed.name}.yaml"
    with Children(context=forks, dsn=ledger.dsn, spec_path=path, folder=tmp_path) as children:
        side_by_side(children, todo, passed, draw)
    found = []
    for name in ("one", "many", "backwards", "killed"):
        spec = counting(bench, name, kind, clock)
        seen = Seen(spec, warehouse)
        assert seen.rows == expected, (name, clock)
        found.append(seen.exact)
        verdict = audit(spec)
        assert verdict.ok and verdict.proved_by == "windows, counted again", verdict
        assert verdict.batches == (1 if name == "one" else batches)
    assert all(other == found[0] for other in found[1:]), clock
