"""Aggregates: the rows of a window are those of all committed survivors of that window."""

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from psycopg.rows import dict_row

from fixtures.batches.account import quiet, run, settled
from fixtures.batches.compares import compared, forge
from fixtures.batches.replays import broken, proven, replayed
from fixtures.batches.workbench import Workbench
from fixtures.postgres.server import lose
from fixtures.postgres.warehouse import TABLE, Warehouse
from semel import reader
from semel.archive import provenance
from semel.archive.marker import markers_of
from semel.audit import audit
from semel.audit import windows as audit_windows
from semel.audit.windows import clock
from semel.cli import main
from semel.compare import BatchRange
from semel.errors import CorruptionError, LimitError, SpecError, TerminalError
from semel.ledger import Ledger
from semel.model.windows import zones_version
from semel.pipeline.opening import open_sink
from semel.pipeline.spec import Spec
from semel.repair.accept import accept_columns
from semel.repair.adopt import adopt
from semel.reports import window_rows
from semel.reports.dead_letters import letters
from semel.runs import replay
from semel.spark.engine import SparkEngine
from semel.stage import combine, part_files

SCHEMA = {"id": "string", "user": "string", "n": "bigint", "at": "timestamp"}
COLUMNS = {"events": "count()", "spent": "sum(n)", "first": "min(at)", "users": "distinct(user)"}


def clicks(start: int, stop: int, *, users: int = 5, step: int = 600) -> list[dict]:
    """Events of some users, one each ten minutes, from the eve of a change of Berlin's clock."""
    begin = datetime(2013, 10, 26, 12, tzinfo=UTC)
    return [
        {
            "id": f"e{i:06d}", "user": f"u{i % users}", "n": i,
            "at": (begin + timedelta(seconds=step * i)).isoformat(),
        }
        for i in range(start, stop)
    ]  # fmt: skip


def counting(bench: Workbench, *, name: str = "counts", **changes: Any) -> Spec:
    """Events per user and in all, by hour in Berlin."""
    changes = {
        "source": {"schema": SCHEMA},
        "record_time": "at",
        "window": {"size": "1 hour", "zone": "Europe/Berlin"},
        "aggregate": {"by": [["user"], []], "columns": COLUMNS},
        **changes,
    }
    return bench.spec(name, **changes)


def expected(records: list[dict], *, hours: int = 1, zone: str = "Europe/Berlin") -> dict:
    """Windows of some hours, one each hour, counted one record after the other."""
    found: dict[tuple, list[dict]] = defaultdict(list)
    for record in records:
        begin = datetime.fromisoformat(record["at"]).replace(minute=0, second=0)
        for back in range(hours):
            for user in (record["user"], None):
                found[begin - timedelta(hours=back), user].append(record)
    return {
        key: (
            len(of), Decimal(sum(r["n"] for r in of)),
            min(datetime.fromisoformat(r["at"]) for r in of), len({r["user"] for r in of}),
        )
        for key, of in found.items()
    }  # fmt: skip


def finals(spec: Spec, warehouse: Warehouse | None = None) -> dict[datetime, bool]:
    """Whether each window is final."""
    if warehouse is None:
        rows = reader.windows(spec.sink_path()).select(["window_start", "final"]).to_pylist()
        return {in_utc(row["window_start"]): row["final"] for row in rows}
    rows = warehouse.run(f"SELECT window_start, final FROM {spec.sink.table}")
    return {in_utc(start): final for start, final in rows}


def plain(rows: Iterable[Iterable]) -> list[str]:
    """Rows that can be compared, with their times in UTC."""
    return sorted(str([in_utc(v) if isinstance(v, datetime) else v for v in row]) for row in rows)


def in_utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def merged(spec: Spec, warehouse: Warehouse | None = None) -> dict:
    """What readers see: of each window and user (None: in all) the columns."""
    if warehouse is None:
        rows = reader.windows(spec.sink_path()).to_pylist()
    else:
        with psycopg.connect(warehouse.dsn, row_factory=dict_row) as connection:
            rows = connection.execute(f"SELECT * FROM {spec.sink.table}").fetchall()
    found = {}
    for row in rows:
        assert row["_semel_level"] == (row["user"] is None)
        key = in_utc(row["window_start"]), row["user"]
        assert key not in found
        found[key] = row["events"], row["spent"], in_utc(row["first"]), row["users"]
    return found


# Attacks AG7.
@pytest.mark.pairs
@pytest.mark.parametrize("size", ["1 day", "1 week"])
@pytest.mark.parametrize("zone", ["America/Sao_Paulo", "Antarctica/Troll", "Pacific/Chatham", "UTC"])
@pytest.mark.parametrize("kind", ["files", "postgres"])
def test_a_date_is_a_day_by_the_clock_of_its_window(
    bench: Workbench, ledger: Ledger, table: Warehouse, kind: str, zone: str, size: str
) -> None:
    """Each date counts in the window that begins at its own midnight; the audit finds it apart."""
    changes = {"window": {"size": size, "zone": zone}}
    if kind == "postgres":
        changes["sink"] = TABLE
    spec = counting(
        bench, source={"schema": {"id": "string", "n": "bigint", "day": "date"}}, record_time="day",
        aggregate={"columns": {"events": "count()"}}, **changes,
    )  # fmt: skip
    first = date(2013, 10, 7)  # A Monday; Sao Paulo skips a midnight twelve days later.
    days = [first + timedelta(days=n % 28) for n in range(100)]
    rows = [{"id": f"e{n}", "n": n, "day": str(day)} for n, day in enumerate(days)]
    bench.write("in/d.jsonl", rows)
    run(ledger, spec, "r1")
    if kind == "files":
        found = reader.windows(spec.sink_path()).select(["window_start", "events"]).to_pylist()
        found = [(in_utc(row["window_start"]), row["events"]) for row in found]
    else:
        found = table.run(f"SELECT window_start, events FROM {spec.sink.table}")
    shown = {in_utc(start).astimezone(ZoneInfo(zone)).date(): events for start, events in found}
    weeks = size == "1 week"
    assert shown == Counter(day - timedelta(days=day.weekday() * weeks) for day in days)
    proven(spec)


# Attacks AG5, AG6.
@pytest.mark.parametrize("window", [{}, {"every": "1 hour", "size": "3 hours"}])
@pytest.mark.parametrize("kind", ["files", "postgres"])
def test_the_rows_of_a_window(
    bench: Workbench, ledger: Ledger, table: Warehouse, window: dict[str, str], kind: str
) -> None:
    """Per user and in all, also where windows overlap and over midnight. Records that repeat count
    once, and rows of one hour come from many batches.
    """
    sink = {"sink": TABLE} if kind == "postgres" else {}
    spec = counting(bench, window={"size": "1 hour", "zone": "Europe/Berlin"} | window, **sink)
    for at in range(5):
        bench.write(f"in/{at}.jsonl", clicks(at * 20, at * 20 + 30))
        run(ledger, spec, f"r{at}")
    found = merged(spec, table if sink else None)
    assert found == expected(clicks(0, 110), hours=3 if window else 1)
    proven(spec)
    assert audit(spec).proved_by == "windows, counted again"


@pytest.mark.parametrize("kind", ["files", "postgres"])
def test_final(bench: Workbench, ledger: Ledger, table: Warehouse, kind: str) -> None:
    """A window is final when its time and the delay behind it are finalized: Tuesday failed, so
    Monday is not. A late file changes rows that are final, and they stay so.
    """
    sink = {"sink": TABLE} if kind == "postgres" else {}
    source = {"schema": SCHEMA, "path": "in/*.jsonl", "select": "interval"}
    source["interval_from"] = "%Y%m%dT%H.jsonl"
    window = {"size": "1 day", "delay": "6 hours"}
    spec = counting(bench, schedule="@daily", source=source, window=window, **sink)
    days = [datetime(2024, 1, day, tzinfo=UTC) for day in range(1, 6)]
    for at, (start, end) in enumerate(pairwise(days)):
        records = [{**c, "at": start.isoformat()} for c in clicks(at * 10, at * 10 + 10)]
        bench.write(f"in/{start:%Y%m%dT%H}.jsonl", records)
        if at != 1:
            run(ledger, spec, f"r{at}", (start, end))
    seen = table if sink else None
    assert finals(spec, seen) == {days[0]: False, days[2]: True, days[3]: False}
    run(ledger, spec, "r1", (days[1], days[2]))
    whole = {days[0]: True, days[1]: True, days[2]: True, days[3]: False}
    assert finals(spec, seen) == whole
    bench.write("in/20240102T05.jsonl", [{**c, "at": days[1].isoformat()} for c in clicks(90, 99)])
    run(ledger, spec, "late", (days[1], days[2]))
    assert finals(spec, seen) == whole
    proven(spec)


@pytest.mark.parametrize("kind", ["files", "postgres"])
def test_final_by_event_time(
    bench: Workbench, ledger: Ledger, table: Warehouse, kind: str
) -> None:
    """Of what arrives, the greatest record time that is finalized tells it: the first batch too."""
    sink = {"sink": TABLE} if kind == "postgres" else {}
    spec = counting(bench, window={"size": "1 hour"}, **sink)
    bench.write("in/a.jsonl", clicks(0, 20))
    run(ledger, spec, "r1")
    found = finals(spec, table if sink else None)
    assert found == {start: start != max(found) for start in found} and len(found) == 4


# Folder and key are hostile to a statement that quotes carelessly.
@pytest.mark.parametrize(
    "window", [{"size": "1 hour", "zone": "Europe/Berlin"}, {"size": "3 hours", "every": "1 hour"}]
)
@pytest.mark.parametrize("folders", [[], ["user"]], ids=["flat", "folders"])
def test_the_statement_for_duckdb(
    bench: Workbench, ledger: Ledger, window: dict, folders: list[str]
) -> None:
    """What `semel windows --query` prints finds the rows that the reader finds, of whole batches."""
    sink = {"path": "out/it's", "partition_by": folders}
    spec = counting(bench, window=window, sink=sink)
    records = [c | {"user": None if c["n"] % 7 == 0 else c["user"]} for c in clicks(0, 60)]
    for at in range(3):
        bench.write(f"in/{at}.jsonl", records[at * 20 : at * 20 + 30])
        run(ledger, spec, f"r{at}")
    (spec.sink_path() / "stray.parquet").write_bytes(b"of nobody")
    names = ["window_start", "user", *COLUMNS, "_semel_level"]
    whole = reader.windows(spec.sink_path()).select(names)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'Asia/Kolkata'")
        found = connection.execute(window_rows.query(spec)).fetchall()
    assert plain(found) == plain(row.values() for row in whole.to_pylist())


def test_the_statement_for_a_table(bench: Workbench, ledger: Ledger, table: Warehouse) -> None:
    """`semel windows --query` prints what reads the view; what nothing can read is said."""
    spec = counting(bench, sink=TABLE)
    bench.write("in/a.jsonl", clicks(0, 9))
    run(ledger, spec, "r1")
    assert len(table.run(window_rows.query(spec))) == len(merged(spec, table))
    for changes, said in (
        ({"aggregate": None, "window": None}, "has no windows to query"),
        ({"sink": {"format": "jsonl"}}, "the types of columns"),
        ({"window": {"size": "3 hours", "every": "1 hour", "zone": "Europe/Berlin"}}, "the zone's"),
    ):
        with pytest.raises(TerminalError, match=said):
            window_rows.query(counting(bench, name="other", **changes))


KEYS = (
    None, "", "null", "NULL", "Null", "nulls", "__HIVE_DEFAULT_PARTITION__", "2024-01-01",
    "2024-1-1", "01234", "1234", "1234.0", "1e3", "1000", "true", "TRUE", "nan", "a/user=b", "%41",
    "A", "a", "a b", "a+b", "=", "..", "\u00e9", "e\u0301", "\u0436", "\u6f22\U0001f600",
)  # fmt: skip
"""Each is a key of its own, whatever a reader would like to make of it."""


def hostile(n: int) -> list[dict]:
    """A record of each key, the first twice."""
    return [
        {"id": f"{n}-{at}", "user": key, "n": at, "at": "2013-10-26T12:00:00Z"}
        for at, key in enumerate((*KEYS, KEYS[0]))
    ]


# Attacks L9.
@pytest.mark.parametrize("by", [[], ["user"], ["n", "user"], ["window_start", "user"]], ids=str)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_keys_stay_apart_in_the_statement_and_the_reader(
    bench: Workbench, ledger: Ledger, by: list[str], zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of windows: as columns of files and as folders, also those that are folders alone, of before
    keys were in the files.
    """
    declared = {"by": [["user", "n"], ["user"]], "columns": {"events": "count()"}}
    spec = counting(bench, sink={"partition_by": by}, aggregate=declared)
    if zone != "UTC":
        bench.write("in/old.jsonl", [r for r in hostile(0) if r["user"] != ""])
        old = part_files.PartWriter.__init__
        with monkeypatch.context() as before:
            before.setattr(
                part_files.PartWriter, "__init__", lambda *a, **k: old(*a, **{**k, "keys": False})
            )
            run(ledger, spec, "r0")
    bench.write("in/new.jsonl", hostile(1))
    run(ledger, spec, "r1")
    proven(spec)
    wanted = Counter({key: 1 + (key is None) for key in KEYS})
    if zone != "UTC":
        wanted += Counter({key: 1 + (key is None) for key in KEYS if key != ""})
    with duckdb.connect() as connection:
        connection.execute(f"SET TimeZone = '{zone}'")
        rows = connection.sql(window_rows.query(spec)).to_arrow_table().to_pylist()
    for found in (rows, reader.windows(spec.sink_path()).to_pylist()):
        found = [row for row in found if row["_semel_level"] == 1]
        assert {row["user"]: row["events"] for row in found} == wanted
        assert len(found) == len(wanted)


# Attacks L9.
@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_keys_of_partial_rows_are_in_the_files(
    bench: Workbench, ledger: Ledger, form: str
) -> None:
    """In each format; compare and a pipeline behind see them as they are."""
    spec = counting(
        bench, sink={"partition_by": ["user"], "format": form},
        aggregate={"by": ["user"], "columns": {"events": "count()"}},
    )  # fmt: skip
    bench.write("in/a.jsonl", hostile(1))
    run(ledger, spec, "r1")
    proven(spec)
    rows = reader.windows(spec.sink_path()).to_pylist()
    assert Counter({row["user"]: row["events"] for row in rows}) == Counter([*KEYS, KEYS[0]])
    assert compared(ledger, spec).equal


def test_windows_between_two_times(bench: Workbench, ledger: Ledger) -> None:
    """A reader that asks for some windows gets all of these, also where windows overlap."""
    spec = counting(bench, window={"size": "3 hours", "every": "1 hour"})
    bench.write("in/a.jsonl", clicks(0, 60))
    run(ledger, spec, "r1")
    whole = reader.windows(spec.sink_path()).to_pylist()
    since, until = (datetime(2013, 10, 26, hour, tzinfo=UTC) for hour in (14, 16))
    found = reader.windows(spec.sink_path(), since=since, until=until).to_pylist()
    assert found == [row for row in whole if since <= in_utc(row["window_start"]) < until]


def test_final_by_any_clock(bench: Workbench, ledger: Ledger, table: Warehouse) -> None:
    """A delay of a day has 24 hours, also where the reader's clock goes forward in it."""
    spec = counting(bench, window={"size": "1 hour", "delay": "1 day"}, sink=TABLE)
    begin, [record] = datetime(2024, 3, 30, 12, 30, tzinfo=UTC), clicks(0, 1)
    for at, hours in enumerate((0, 24)):
        time = begin + timedelta(hours=hours)
        bench.write(f"in/{at}.jsonl", [{**record, "id": f"e{at}", "at": time.isoformat()}])
        run(ledger, spec, f"r{at}")
    with psycopg.connect(table.dsn) as connection:
        connection.execute("SET TIME ZONE 'Europe/Berlin'")
        [first, *_] = connection.execute("SELECT final FROM events ORDER BY window_start")
    assert first == (False,)


# Attacks AG3.
@pytest.mark.parametrize("by", [[["user"], []], [[]], ["user"]], ids=str)
def test_one_batch_or_many(bench: Workbench, ledger: Ledger, by: list) -> None:
    """In whatever batches and order the records come, the rows of the windows are equal: of any
    length and zone that `validate` takes. The audit counts them by a clock of its own.
    """
    seed = random.randrange(10**6)
    draw, records = random.Random(seed), clicks(0, 200)
    day = 86_400
    sizes = [n for n in range(1, day + 1) if day % n == 0] + [7 * day]
    zone = draw.choice(sorted(available_timezones() - {"localtime", "Factory"}))
    window = {"size": f"{draw.choice(sizes)} seconds", "zone": zone}
    declared = {
        "aggregate": {"by": by, "columns": COLUMNS}, "source": {"schema": SCHEMA}, "window": window,
    }  # fmt: skip
    found = []
    for name, batches in (("one", 1), ("many", 12)):
        source = {"schema": SCHEMA, "path": f"{name}/*.jsonl"}
        spec = counting(bench, name=name, **declared | {"source": source})
        parts = [records[at::batches] for at in range(batches)]
        draw.shuffle(parts)
        for at, part in enumerate(parts):
            bench.write(f"{name}/{at}.jsonl", draw.sample(part, len(part)))
            run(ledger, spec, f"r{at}")
        found.append(reader.windows(spec.sink_path()))
        proven(spec)
    assert found[0].equals(found[1]), f"seed {seed}: {window}"


def test_by_position_and_small_files(bench: Workbench, ledger: Ledger) -> None:
    """Without ids a record that comes again counts again; many small files are read together."""
    spec = counting(bench, record_id=None)
    for at in range(20):
        bench.write(f"in/{at:02d}.jsonl", clicks(at * 5, at * 5 + 10))
    run(ledger, spec, "r1")
    again = [record for at in range(20) for record in clicks(at * 5, at * 5 + 10)]
    assert merged(spec) == expected(again)
    proven(spec)


# Attacks AG1.
@pytest.mark.parametrize("ids", [["id"], None], ids=["by id", "by position"])
def test_records_of_no_window(bench: Workbench, ledger: Ledger, ids: list | None) -> None:
    """A time that is missing, or of a year that no window has, is a dead letter with its reason.
    Times before 1970 are as good as others.
    """
    good = clicks(0, 5) + [{**clicks(9, 10)[0], "at": "1913-05-05T05:05:05Z"}]
    bad = [{**clicks(20, 21)[0], "at": None}]
    bad += [{**c, "at": t} for c, t in zip(clicks(21, 23), ("9999-12-31T23:59:59Z", "0001-01-01"))]
    spec = counting(bench, record_id=ids)
    bench.write("in/a.jsonl", [*good, *bad])
    run(ledger, spec, "r1")
    assert merged(spec) == expected(good)
    assert settled(spec).reasons == {"record_time_missing": 1, "record_time_outside": 2}
    proven(spec)


# Attacks AG3.
def test_sums_are_exact_or_refused(bench: Workbench, ledger: Ledger) -> None:
    """Beyond 64 bits they go on; beyond 38 digits the batch is refused, nothing is committed."""
    schema = {**SCHEMA, "d": "decimal(38,2)"}
    columns = {"n": "sum(n)", "d": "sum(d)"}
    spec = counting(bench, source={"schema": schema}, aggregate={"columns": columns})
    large, half = 2**63 - 1, "4" + 35 * "9" + ".99"

    def lines(start: int, stop: int) -> list[bytes]:
        records = [{**c, "n": large, "d": 0} for c in clicks(start, stop, step=1)]
        return [json.dumps(r).replace('"d": 0', f'"d": {half}').encode() for r in records]

    bench.write("in/a.jsonl", lines(0, 2))
    run(ledger, spec, "r1")
    [row] = reader.windows(spec.sink_path()).to_pylist()
    assert (row["n"], str(row["d"])) == (2 * large, 36 * "9" + ".98")
    proven(spec)
    bench.write("in/b.jsonl", lines(2, 5))
    with pytest.raises(LimitError, match="more than 38 digits"):
        run(ledger, spec, "r2")
    assert len(reader.windows(spec.sink_path())) == 1


# Attacks AG3.
@pytest.mark.parametrize(
    "digits", [38 * "9", "4" + 37 * "0", "-" + 38 * "9", "5" + 36 * "0"],
    ids=["9.9", "4", "-9.9", "0.5"],
)  # fmt: skip
def test_batches_whose_sum_is_too_large(bench: Workbench, ledger: Ledger, digits: str) -> None:
    """Each fits, and what they make together does not, also where 128 bits would hold it: the
    reader says so, and what helps.
    """
    schema = {**SCHEMA, "d": "decimal(38,0)"}
    spec = counting(bench, source={"schema": schema}, aggregate={"columns": {"d": "sum(d)"}})
    for at in range(3):
        line = json.dumps({**clicks(at, at + 1, step=1)[0], "d": 0})
        bench.write(f"in/{at}.jsonl", [line.replace('"d": 0', f'"d": {digits}').encode()])
        run(ledger, spec, f"r{at}")
    if len(digits) == 37:
        [row] = reader.windows(spec.sink_path()).to_pylist()
        assert row["d"] == 3 * Decimal(digits)
        return
    with pytest.raises(LimitError, match="its partial rows by `dataset`"):
        reader.windows(spec.sink_path())
    assert reader.dataset(spec.sink_path()).count_rows() == 3


# Attacks AG2.
def test_rows_that_stand_for_too_few(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A combiner that loses a record is found before anything is staged."""
    whole = combine.lifted
    monkeypatch.setattr(combine, "lifted", lambda spec, rows: whole(spec, rows).slice(1))
    bench.write("in/a.jsonl", clicks(0, 50))
    with pytest.raises(CorruptionError, match="rows for 49 of 50 new records"):
        run(ledger, counting(bench), "r1")


# Attacks AG6.
@pytest.mark.parametrize("what", ["n", "_semel_n", "user", "gone"])
def test_the_audit_finds_one_changed_digit(bench: Workbench, ledger: Ledger, what: str) -> None:
    """Though file and marker fit each other, which is all that a checksum can tell."""
    spec = counting(bench, aggregate={"by": ["user"], "columns": {"n": "sum(n)"}})
    bench.write("in/a.jsonl", clicks(0, 50))
    run(ledger, spec, "r1")

    def change(rows: pa.Table) -> pa.Table:
        if what == "gone":
            return rows.slice(1)
        at = rows.schema.get_field_index(what)
        values = rows.column(at).to_pylist()
        values[0] = "u9" if what == "user" else values[0] + 1
        field = rows.schema.field(at)
        return rows.set_column(at, field, pa.array(values, field.type))

    forge(spec, 1, change)
    assert broken(spec) == {"content" if what == "n" else "output"}


@pytest.mark.parametrize("kind", ["files", "postgres"])
def test_a_replay_that_drops_a_key(
    bench: Workbench, ledger: Ledger, table: Warehouse, spark_engine: SparkEngine, kind: str
) -> None:
    """The windows are what they would be had it been so from the start. It needs Spark, for a
    transform is what a replay computes anew.
    """
    made = bench.transforms / "drop.sql"
    made.write_text("SELECT * FROM records")
    sink = {"sink": TABLE} if kind == "postgres" else {}
    spec = counting(bench, transforms=["drop.sql"], **sink)
    for at in range(2):
        bench.write(f"in/{at}.jsonl", clicks(at * 20, at * 20 + 20))
        run(ledger, spec, f"r{at}", engine=spark_engine)
    seen = table if sink else None
    assert merged(spec, seen) == expected(clicks(0, 40))
    made.write_text("SELECT * FROM records WHERE user <> 'u1'")
    replay.run(ledger, spec, "again", 1, spark_engine, log=quiet)
    left = [c for c in clicks(0, 20) if c["user"] != "u1"] + clicks(20, 40)
    assert merged(spec, seen) == expected(left)
    proven(spec, 1)


# Attacks AG1, AG3.
def test_columns_of_transforms_are_checked(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """What the transforms gave is held against the declaration before any row is written. Only
    Spark knows their columns.
    """
    made = bench.transforms / "made.sql"
    made.write_text("SELECT * FROM records")
    spec = counting(bench, transforms=["made.sql"])
    bench.write("in/a.jsonl", clicks(0, 20))
    for text, why in {
        "SELECT id, n, at FROM records": "'user' is not a column",
        "SELECT id, user, n FROM records": "'at' is not a column of times",
        "SELECT id, user, CAST(n AS double) AS n, at FROM records": "sum.n. of a double",
        "SELECT id, user, n, CAST(NULL AS timestamp) AS at FROM records": "belong to no window",
    }.items():
        made.write_text(text)
        with pytest.raises(TerminalError, match=why):
            run(ledger, spec, "r1", engine=spark_engine)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"window": None}, "window: is missing"),
        ({"record_time": None}, "record_time: is missing"),
        ({"source": {"schema": {**SCHEMA, "at": "date"}}}, "window.size: is shorter than a day"),
        ({"by": ["region"]}, "'region' is not a column"),
        ({"columns": {"x": "sum(user)"}}, "user is string"),
        ({"columns": {"x": "sum(gone)"}}, "'gone' is not a column"),
        ({"columns": {"x": "avg(n)"}}, "is not one of"),
        ({"columns": {"x": "sum()"}}, "needs a column"),
        ({"columns": {}}, "columns"),
        ({"columns": {"user": "count()"}}, "'user' twice"),
        ({"columns": {"final": "count()"}}, "'final' twice"),
        ({"columns": {"_semel_x": "count()"}}, "begins with _semel"),
        ({"by": [["user"], ["user"]]}, "same columns twice"),
        ({"sink": {**TABLE, "create": False}}, "create"),
        ({"sink": {**TABLE, "mode": "upsert", "key": ["user"]}}, "upsert"),
        ({"sink": {"position_columns": True}}, "lack a position"),
        ({"sink": {"partition_by": ["n"]}}, "not one of window_start, user"),
    ],
    ids=str,
)
def test_what_is_refused_before_any_work(bench: Workbench, changes: dict, why: str) -> None:
    """With the key and what is wrong with it."""
    declared = {"by": [["user"], []], "columns": COLUMNS}
    inner = {key: changes.pop(key) for key in ("by", "columns") if key in changes}
    changes = {"source": {"schema": {**SCHEMA, "f": "double"}}, **changes}
    with pytest.raises(SpecError, match=why):
        counting(bench, aggregate=declared | inner, **changes)


# Attacks AG3.
@pytest.mark.parametrize("function", ["sum(f)", "min(f)", "max(f)", "distinct(f)"])
def test_floats_are_refused(bench: Workbench, function: str) -> None:
    """Their sum depends on the order of the records, and so may the smallest: of 0.0 and -0.0."""
    schema = {**SCHEMA, "f": "double"}
    with pytest.raises(SpecError, match="would depend on the order of the records"):
        counting(bench, source={"schema": schema}, aggregate={"columns": {"x": function}})


def test_a_topic_cannot_be_merged(bench: Workbench) -> None:
    sink = {"type": "kafka", "connection": "kafka", "topic": "t"}
    with pytest.raises(SpecError, match="consumers of a topic cannot merge partial rows"):
        counting(bench, sink=sink)


# Attacks AG4.
@pytest.mark.parametrize(
    "changes",
    [
        {"window": {"size": "1 day", "zone": "Europe/Berlin"}},
        {"window": {"size": "1 hour"}},
        {"record_time": "seen", "source": {"schema": {**SCHEMA, "seen": "timestamp"}}},
        {"aggregate": {"by": ["user"], "columns": COLUMNS}},
        {"aggregate": {"by": [["user"], []], "columns": {"events": "count()"}}},
    ],
    ids=str,
)
def test_what_is_counted_does_not_change(
    bench: Workbench, ledger: Ledger, changes: dict[str, Any]
) -> None:
    """Old and new rows would not add up. How late a record may be may change."""
    bench.write("in/a.jsonl", clicks(0, 20))
    run(ledger, counting(bench), "r1")
    bench.write("in/b.jsonl", clicks(20, 40))
    with pytest.raises(TerminalError, match="would not add up"):
        run(ledger, counting(bench, **changes), "r2")
    later = {"size": "1 hour", "zone": "Europe/Berlin", "delay": "1 day"}
    run(ledger, counting(bench, window=later), "r3")
    assert merged(counting(bench)) == expected(clicks(0, 40))


# Attacks AG4.
def test_columns_of_another_type_are_refused(bench: Workbench, ledger: Ledger) -> None:
    """Sums of another scale are another column, and nobody can accept it: they would not add up."""
    bench.write("in/a.jsonl", clicks(0, 20))
    run(ledger, counting(bench), "r1")
    bench.write("in/b.jsonl", clicks(20, 40))
    spec = counting(bench, source={"schema": {**SCHEMA, "n": "decimal(20,1)"}})
    with pytest.raises(TerminalError, match="rows of both would not add up"):
        run(ledger, spec, "r2")
    with pytest.raises(TerminalError, match="Declare a new pipeline"):
        accept_columns(ledger, spec)
    again = counting(bench)
    run(ledger, again, "r2")
    assert merged(again) == expected(clicks(0, 40))


# Attacks AG5.
def test_a_table_of_the_views_name_is_left_alone(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """Refused before any work, with what to do."""
    table.run("CREATE TABLE events (x int)")
    bench.write("in/a.jsonl", clicks(0, 20))
    with pytest.raises(TerminalError, match="Give sink.table another name"):
        run(ledger, counting(bench, sink=TABLE), "r1")
    assert table.run("SELECT count(*) FROM events") == [(0,)]


# Attacks AG5.
def test_another_comment_on_the_view(bench: Workbench, ledger: Ledger, table: Warehouse) -> None:
    """A catalog tool comments on views, and a dump may lose comments: the view stays semel's."""
    spec = counting(bench, sink=TABLE)
    for at, comment in enumerate(("'orders, by the catalog'", "NULL", "''")):
        bench.write(f"in/{at}.jsonl", clicks(20 * at, 20 * at + 20))
        run(ledger, spec, f"r{at}")
        table.run(f"COMMENT ON VIEW events IS {comment}")
    assert merged(spec, table) == expected(clicks(0, 60))
    table.run("DROP VIEW events")
    table.run("CREATE VIEW events AS SELECT 1 AS x")
    bench.write("in/9.jsonl", clicks(60, 80))
    with pytest.raises(TerminalError, match="semel did not create it"):
        run(ledger, spec, "r9")


# Attacks AG5.
@pytest.mark.parametrize(
    "lost",
    ["DROP VIEW events", "DROP TABLE events_windows CASCADE", "DROP TABLE events_windows, semel_complete CASCADE"],
)
def test_a_view_that_is_made_again_has_all_windows(
    bench: Workbench, ledger: Ledger, table: Warehouse, lost: str
) -> None:
    """After a move or a restore without the tables beside the partial rows."""
    spec = counting(bench, window={"size": "3 hours", "every": "1 hour"}, sink=TABLE)
    bench.write("in/a.jsonl", clicks(0, 40))
    run(ledger, spec, "r1")
    table.run(lost)
    bench.write("in/b.jsonl", clicks(40, 60))
    run(ledger, spec, "r2")
    assert merged(spec, table) == expected(clicks(0, 60), hours=3)
    proven(spec)


# Attacks AG5.
@pytest.mark.parametrize("lost", ["TRUNCATE events_windows", "DELETE FROM events_windows WHERE slice < '2013-10-26 15:00Z'"])
def test_windows_that_are_lost_are_noticed(
    bench: Workbench, ledger: Ledger, table: Warehouse, lost: str
) -> None:
    """The audit and `semel check` compare the view with the partial rows; the advice helps."""
    spec = counting(bench, sink=TABLE)
    bench.write("in/a.jsonl", clicks(0, 40))
    run(ledger, spec, "r1")
    table.run(lost)
    assert broken(spec) == {"output"}
    with open_sink(spec) as sink, pytest.raises(TerminalError) as error:
        sink.describe(None)
    table.run(re.search("omits .*: (DROP VIEW .*)$", str(error.value))[1])
    bench.write("in/b.jsonl", clicks(40, 60))
    run(ledger, spec, "r2")
    assert merged(spec, table) == expected(clicks(0, 60))
    proven(spec)


# Attacks AG5.
@pytest.mark.parametrize("name", ["events_windows", "semel_complete"])
def test_a_table_of_a_name_beside_the_view_is_left_alone(
    bench: Workbench, ledger: Ledger, table: Warehouse, name: str
) -> None:
    """Refused before anything is committed, with what to do."""
    table.run(f"CREATE TABLE {name} (x int)")
    bench.write("in/a.jsonl", clicks(0, 20))
    with pytest.raises(TerminalError, match=f"{name}. exists, and semel did not create it"):
        run(ledger, counting(bench, sink=TABLE), "r1")
    [batch] = ledger.rows("look", "batches", name="counts", count=9)
    assert batch["status"] == "planned"


@pytest.mark.parametrize("name", ["semel_batch", "semel_complete"])
def test_a_view_of_the_name_of_semels_own_is_refused(
    bench: Workbench, table: Warehouse, name: str
) -> None:
    """Its view would take the place of a table that semel needs."""
    with pytest.raises(TerminalError, match=f"semel keeps its notes in .*{name}; declare"):
        counting(bench, sink={**TABLE, "table": name})


def test_a_table_that_is_made_again_is_not_final(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """What was complete of a table of that name, which is gone, says nothing of the new one."""
    bench.write("in/a.jsonl", clicks(0, 40))
    run(ledger, counting(bench, sink=TABLE), "r1")
    bench.write("in/b.jsonl", clicks(40, 41))
    run(ledger, counting(bench, sink=TABLE), "r2")
    assert any(finals(counting(bench, sink=TABLE), table).values())
    table.run("DROP TABLE events_parts CASCADE")
    table.run("DELETE FROM semel_batch")
    lose(ledger)
    bench.write("new/a.jsonl", clicks(0, 1))
    spec = counting(bench, name="new", sink=TABLE, source={"schema": SCHEMA, "path": "new/*.jsonl"})
    run(ledger, spec, "r1")
    assert not any(finals(spec, table).values())


def test_a_key_that_the_table_refuses(bench: Workbench, ledger: Ledger, table: Warehouse) -> None:
    """No PostgreSQL holds a NUL in a text: the record is a dead letter, and the others count."""
    bad = [{**c, "user": "a\0b"} for c in clicks(7, 8)]
    bench.write("in/a.jsonl", [*clicks(0, 7), *bad])
    spec = counting(bench, sink=TABLE)
    run(ledger, spec, "r1")
    assert merged(spec, table) == expected(clicks(0, 7))
    assert [letter.reason for letter in letters(spec, count=9).letters] == ["sink_refuses"]
    proven(spec)


DOCS = ('{"a":1}', '{"a": 1}', '{"a":1.0}', "null", '"null"', '[1,{"b":[]}]', "1")
"""Values of JSON; PostgreSQL's jsonb writes the first two alike."""


# Attacks AG3 and PG5.
@pytest.mark.parametrize("kind", ["files", "postgres"])
def test_json_is_a_key_by_its_text(
    bench: Workbench, ledger: Ledger, table: Warehouse, kind: str
) -> None:
    """Files and tables count as many values, whatever a column of the windows is called."""
    columns = {"doc2": "distinct(doc)", "least": "min(doc)", "most": "max(doc)", "n": "count()"}
    spec = counting(
        bench, source={"schema": {**SCHEMA, "doc": "json", "doc2": "json", "n": "json"}},
        aggregate={"by": [["doc"], []], "columns": columns},
        **({"sink": TABLE} if kind == "postgres" else {}),
    )  # fmt: skip
    for part in range(2):
        lines = [
            f'{{"id": "e{part}{at}", "at": "2013-10-26T12:0{at}:00Z", "doc": {DOCS[at % 7]}}}'
            for at in range(9)
        ]
        bench.write(f"in/{part}.jsonl", [line.encode() for line in lines])
        run(ledger, spec, f"r{part}")
    proven(spec)
    if kind == "files":
        rows = reader.windows(spec.sink_path()).to_pylist()
        found = [(r["_semel_level"], r["doc"], *(r[name] for name in columns)) for r in rows]
    else:
        names = ", ".join(('_semel_level', "doc", *columns))
        found = table.run(f"SELECT {names} FROM {spec.sink.table}")
    texts = [None if doc == "null" else doc for doc in DOCS]
    counts = Counter(texts[at % 7] for at in range(9))
    there = sorted(doc for doc in texts if doc is not None)
    wanted = [(0, doc, int(doc is not None), doc, doc, 2 * n) for doc, n in counts.items()]
    wanted.append((1, None, len(there), there[0], there[-1], 18))
    assert sorted(found, key=str) == sorted(wanted, key=str)


# Attacks PG5.
def test_a_json_column_is_no_place_for_keys(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """jsonb would merge texts that differ. A table that has it is refused before any commit, and
    the statements of the message make it fit, with the same windows.
    """
    bench.write("in/a.jsonl", clicks(0, 20))
    spec = counting(bench, sink=TABLE)
    run(ledger, spec, "r1")
    alter = 'ALTER TABLE events_parts ALTER COLUMN "user" TYPE'
    table.run(f'DROP VIEW events; {alter} jsonb USING to_jsonb("user")')
    bench.write("in/b.jsonl", clicks(10, 40))
    with pytest.raises(TerminalError, match="is jsonb, .*these fit: text, character") as refused:
        run(ledger, spec, "r2")
    table.run(f"CREATE VIEW events AS SELECT {', '.join(COLUMNS)} FROM events_parts")
    table.run(re.search(r"DROP VIEW IF .*$", str(refused.value))[0])
    table.run("UPDATE events_parts SET \"user\" = trim('\"' FROM \"user\")")
    run(ledger, spec, "r2")
    assert merged(spec, table) == expected(clicks(0, 40))
    proven(spec)


# Attacks PG5.
@pytest.mark.icu
def test_a_collation_that_merges_keys_is_refused(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """Windows would have one row for keys that differ."""
    bench.write("in/a.jsonl", clicks(0, 20))
    spec = counting(bench, sink=TABLE)
    run(ledger, spec, "r1")
    table.run("CREATE COLLATION odd (provider = icu, locale = 'und-u-ks-level2', "
              "deterministic = false)")  # fmt: skip
    alter = 'ALTER TABLE events_parts ALTER COLUMN "user" TYPE text COLLATE odd'
    table.run(f"DROP VIEW events; {alter}")
    bench.write("in/b.jsonl", clicks(10, 40))
    with pytest.raises(TerminalError, match="'user' treats different texts as equal"):
        run(ledger, spec, "r2")


# Attacks PG5.
def test_a_column_has_its_own_type_and_not_its_names(
    bench: Workbench, ledger: Ledger, table: Warehouse, spark_engine: SparkEngine
) -> None:
    """Transforms may name what they make after a column of JSON. Only Spark knows its type."""
    made = bench.transforms / "made.sql"
    made.write_text("SELECT id, length(doc) AS doc, upper(note) AS note FROM records")
    schema = {"id": "string", "doc": "json", "note": "json"}
    spec = bench.spec("plain", source={"schema": schema}, transforms=["made.sql"], sink=TABLE)
    bench.write("in/a.jsonl", [{"id": "a", "doc": [1], "note": "x"}])
    run(ledger, spec, "r1", engine=spark_engine)
    assert table.run("SELECT id, doc, note FROM events") == [("a", 3, '"X"')]
    proven(spec)
    assert compared(ledger, spec, engine=spark_engine).equal


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_in_each_format(bench: Workbench, ledger: Ledger, form: str) -> None:
    """Keys that are null, empty or not ASCII, sums with decimals, counts of what is not null."""
    columns = {**COLUMNS, "d": "sum(d)", "last": "max(user)", "there": "count(n)"}
    spec = counting(
        bench, sink={"format": form}, source={"schema": {**SCHEMA, "d": "decimal(10,3)"}},
        aggregate={"by": [["user"], []], "columns": columns},
    )  # fmt: skip
    users = (None, "", "\u00fc", "z")
    records = [
        {**c, "d": 1.125, "user": users[at % 4], "n": None if at % 3 == 0 else at}
        for at, c in enumerate(clicks(0, 60))
    ]
    bench.write("in/a.jsonl", records)
    run(ledger, spec, "r1")
    proven(spec)
    rows = reader.windows(spec.sink_path()).to_pylist()
    total = [row for row in rows if row["_semel_level"] == 1]
    assert sum(row["events"] for row in total) == 60
    assert sum(row["there"] for row in total) == 40
    assert sum(row["d"] for row in total) == Decimal("67.5")
    assert {(row["users"], row["last"]) for row in total} == {(3, "\u00fc")}
    assert {row["user"] for row in rows if row["_semel_level"] == 0} == {*users}


@pytest.mark.parametrize("kind", ["files", "postgres"])
def test_a_lost_ledger(bench: Workbench, ledger: Ledger, table: Warehouse, kind: str) -> None:
    """What was counted is not counted again, and what comes is."""
    spec = counting(bench, **({"sink": TABLE} if kind == "postgres" else {}))
    for at in range(3):
        bench.write(f"in/{at}.jsonl", clicks(at * 20, at * 20 + 30))
        run(ledger, spec, f"r{at}")
    lose(ledger)
    adopt(ledger, spec, log=quiet)
    bench.write("in/9.jsonl", clicks(40, 100))
    run(ledger, spec, "r9")
    replayed(ledger, spec, 2, "again")
    assert merged(spec, table if kind == "postgres" else None) == expected(clicks(0, 100))
    proven(spec)


def test_more_keys_than_a_task_holds(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partial rows are written early, and several of one key are added up."""
    monkeypatch.setattr(combine, "HELD_ROWS_MAX", 8)
    spec, records = counting(bench), clicks(0, 3_000, users=50, step=7)
    bench.write("in/a.jsonl", records)
    run(ledger, spec, "r1")
    assert merged(spec) == expected(records)
    proven(spec)


@pytest.mark.parametrize("kind", ["files", "jsonl", "csv", "postgres"])
def test_many_batches_compared_with_one(
    bench: Workbench, ledger: Ledger, table: Warehouse, kind: str
) -> None:
    """Windows of many batches, with repeats between them, are those of one; a changed count is
    found, with its window and key, both values and the cause.
    """
    sinks = {"files": {}, "postgres": TABLE}
    columns = {**COLUMNS, "d": "sum(d)"}
    spec = counting(
        bench, sink=sinks.get(kind, {"format": kind}),
        source={"schema": {**SCHEMA, "d": "decimal(10,3)"}},
        aggregate={"by": [["user"], []], "columns": columns},
    )  # fmt: skip
    for at in range(4):
        records = [{**c, "d": 1.125} for c in clicks(at * 20, at * 20 + 30)]
        bench.write(f"in/{at}.jsonl", records)
        run(ledger, spec, f"r{at}")
    found = compared(ledger, spec)
    assert found.equal and found.by == "window" and found.rows_live == found.rows_other == 75
    if kind == "postgres":
        parts = f"{spec.sink.table}_parts"
        table.run(f"UPDATE {parts} SET events = events + 1 WHERE _semel_batch = 3 AND spent = 68")
    elif kind == "files":
        forge(spec, 3, _one_more)
    else:
        return
    found = compared(ledger, spec)
    [one] = found.differences
    assert (found.total, one.kind) == (1, "values")
    assert '"user":"u3"' in one.id and '"window_start":"2013-10-26 23:00' in one.id
    assert (one.live.row["events"], one.other.row["events"]) == ("2", "1")
    assert one.cause == "unknown"


def _one_more(rows: pa.Table) -> pa.Table:
    """The event whose number is 68, counted twice."""
    at = rows.column_names.index("events")
    more = pc.equal(rows["spent"], pa.scalar(68).cast(rows["spent"].type)).cast(pa.int64())
    return rows.set_column(at, "events", pc.add(rows["events"], more))


def test_two_pipelines_compared(bench: Workbench, ledger: Ledger) -> None:
    """Of the same records in other batches: equal windows. What counts otherwise is refused."""
    specs = [counting(bench, name=name, sink={"path": f"out/{name}"}) for name in ("one", "two")]
    bench.write("in/a.jsonl", clicks(0, 30))
    run(ledger, specs[0], "r1")
    bench.write("in/b.jsonl", clicks(20, 60))
    run(ledger, specs[0], "r2")
    run(ledger, specs[1], "r1")
    wanted = BatchRange(start=datetime(2020, 1, 1, tzinfo=UTC), end=datetime(2099, 1, 1, tzinfo=UTC))
    found = compared(ledger, specs[0], wanted=wanted, other=specs[1])
    assert found.equal and found.by == "window" and found.other_batches == (3,)
    by_day = counting(bench, name="three", sink={"path": "out/three"}, window={"size": "1 day"})
    with pytest.raises(TerminalError, match="do not count the same"):
        compared(ledger, specs[0], wanted=wanted, other=by_day)


def test_find_says_what_it_cannot_see(
    bench: Workbench, ledger: Ledger, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A record that is counted has no row of its own; a repeat has its decision."""
    monkeypatch.setenv("SEMEL_LEDGER_DSN", ledger.dsn)
    bench.write("in/a.jsonl", [*clicks(0, 5), *clicks(3, 4)])
    run(ledger, counting(bench), "r1")
    assert main(["find", "counts", "e000001"]) == 0
    said = capsys.readouterr().out
    assert "the output does not have the id columns" in said
    assert "not among the repeats and dead letters of 1 finalized batches" in said
    assert main(["find", "counts", "e000003"]) == 0
    assert "duplicate_in_batch" in capsys.readouterr().out


def test_hostile_names(bench: Workbench, ledger: Ledger, table: Warehouse) -> None:
    """Names of keys and columns go through SQL as they are."""
    name = 'na"me {x} %s; --'
    schema = {"id": "string", name: "string", "at": "timestamp"}
    aggregate = {"by": [[name], []], "columns": {f"{name}2": f"max({name})"}}
    records = [{"id": c["id"], name: c["user"], "at": c["at"]} for c in clicks(0, 20)]
    bench.write("in/a.jsonl", records)
    for at, sink in enumerate(({}, {"sink": TABLE})):
        declared = {"source": {"schema": schema}, "aggregate": aggregate, **sink}
        spec = counting(bench, name=f"p{at}", **declared)
        run(ledger, spec, "r1")
        proven(spec)
    quoted = name.replace('"', '""')
    found = table.run(f'SELECT "{quoted}", "{quoted}2" FROM events WHERE _semel_level = 0')
    assert found and all(one == two for one, two in found)


# Attacks AG7.
@pytest.mark.parametrize("counts", [True, False])
def test_the_audit_names_the_tz_database_that_cut_other_windows(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, counts: bool
) -> None:
    """A batch's marker keeps the version. Another version alone is no failure, and nothing is said of
    a marker of before.
    """
    monkeypatch.setattr(provenance, "zones_version", lambda: "2020a")
    folder = {"window": "1 hour", "of": "at", "name": "hour", "zone": "Europe/Berlin"}
    own = {} if counts else {"aggregate": None, "window": None, "sink": {"partition_by": [folder]}}
    spec = counting(bench, **own)
    bench.write("in/a.jsonl", clicks(0, 50))
    run(ledger, spec, "r1")
    [marker] = markers_of(spec)
    assert marker.code.zones == "2020a"
    verdict = audit(spec)
    assert verdict.ok and not any("tz database" in note for note in verdict.notes)

    def half_an_hour_later(zone: str, first: datetime, last: datetime) -> pa.Table:
        periods = clock(zone, first, last)
        ahead = pc.add(periods["ahead"], 1_800)
        return periods.set_column(periods.column_names.index("ahead"), "ahead", ahead)

    monkeypatch.setattr(audit_windows, "clock", half_an_hour_later)
    verdict = audit(spec)
    assert not verdict.ok
    named = [note for note in verdict.notes if "tz database" in note]
    assert named == [
        "stage computed the windows of batch 1 with tz database 2020a. The audit has tz database "
        f"{zones_version()}, with other windows"
    ]
    plain = json.loads(marker.path.read_text())
    del plain["code"]["zones"]
    marker.path.write_text(json.dumps(plain))
    verdict = audit(spec)
    assert not verdict.ok and not any("tz database" in note for note in verdict.notes)
