"""A table that PostgreSQL cannot have, or cannot fill, is refused before any work; what a page cannot
hold is a dead letter; and a batch that committed before semel knew of such limits has a way out.
"""

import random
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fixtures.batches.account import committed, quiet, run
from fixtures.batches.replays import proven
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.documents import ROOT
from fixtures.commands.shell import Shell
from fixtures.postgres.warehouse import OWN, TABLE, UPSERT, Warehouse
from fixtures.spark.local import LocalEngine
from semel import limits
from semel.errors import LimitError, RetryableError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.reports.dead_letters import letters
from semel.runs.run import run_batch
from semel.sinks.postgres import facts, landing, row_check
from semel.sinks.postgres import sink as postgres_sink
from semel.sinks.postgres.sink import PostgresSink

COLUMNS = f"id bigint, city text, {OWN}"


def rows(**more: Any) -> pa.Table:
    """Two rows, with more columns."""
    return pa.table({"id": pa.array([1, 2], pa.int64()), "city": ["Oslo", "Bonn"], **more})


def numbers(count: int) -> dict[str, list[int]]:
    return {f"c{n}": [1, 2] for n in range(count)}


def relations(warehouse: Warehouse) -> list[tuple]:
    return warehouse.run("SELECT oid, relname, reltuples FROM pg_class ORDER BY 1")


OUTPUTS: dict[str, tuple[pa.Table, dict[str, Any], str]] = {
    **{
        name: (rows(**{name: ["a", "b"]}), {}, f"the column name '{name}' is reserved for PostgreSQL")
        for name in ("tableoid", "ctid", "xmin", "cmin", "xmax", "cmax")
    },
    "many": (rows(**numbers(1_597)), {}, "have 1,601 columns, and PostgreSQL's limit is 1,600"),
}  # fmt: skip


# Attacks PG4.
@pytest.mark.parametrize("exists", [False, True], ids=["made", "there"])
@pytest.mark.parametrize("case", OUTPUTS)
def test_columns_that_no_table_can_have(warehouse: Warehouse, case: str, exists: bool) -> None:
    """They are refused whether the table is there or not, and nothing is made; the server refuses
    them, too, so semel refuses nothing that would land.
    """
    table, declared, words = OUTPUTS[case]
    sink = warehouse.sink(**declared)
    made = facts.create_statement(sink._target, table.schema)
    with pytest.raises(Exception, match="conflicts with a system column|at most 1600"):
        warehouse.run(made)
    if exists:
        warehouse.run(f"CREATE TABLE flights ({COLUMNS})")
    before = relations(warehouse)
    with pytest.raises(TerminalError, match=words):
        sink.examine(table.schema)
    assert relations(warehouse) == before


FOREIGN = ("CREATE EXTENSION file_fdw; CREATE SERVER s FOREIGN DATA WRAPPER file_fdw; "
           "CREATE FOREIGN TABLE p PARTITION OF flights DEFAULT SERVER s "
           "OPTIONS (filename '/dev/null')")  # fmt: skip
PARTITIONED = f"CREATE TABLE flights ({COLUMNS}) PARTITION BY LIST"
PLAIN = f"CREATE TABLE flights ({COLUMNS})"
NOTES = ("CREATE TABLE semel_batch (table_name text, pipeline text, batch_id bigint, fence integer, "
         "commit_seq bigint, digest text, rows bigint, refused bigint DEFAULT 0, generation integer, "
         "ledger text, {}, PRIMARY KEY (table_name, pipeline, batch_id))")  # fmt: skip
CITY = {"mode": "upsert", "key": ("city",)}

TARGETS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "type": ("CREATE TYPE flights AS ENUM ('a')", {}, 'type "flights" already exists',
             "DROP TYPE flights"),
    "event trigger": (
        "CREATE FUNCTION no() RETURNS event_trigger LANGUAGE plpgsql AS "
        "'begin raise exception ''no tables on a Friday''; end'; CREATE EVENT TRIGGER no ON "
        "ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION no()", {},
        "no tables on a Friday", "DROP EVENT TRIGGER no"),
    "notes of another shape": ("CREATE TABLE semel_batch (a int)", {}, '"table_name" of relation',
                               "DROP TABLE semel_batch"),
    "notes that lack one": (NOTES.format("at text"), {}, 'column "mode" of relation',
                            "ALTER TABLE semel_batch ADD mode text"),
    "notes that ask more": (NOTES.format("mode text, more text NOT NULL"), {}, 'column "more"',
                            "ALTER TABLE semel_batch DROP more"),
    "notes in a view": ("CREATE VIEW semel_batch AS SELECT 1 AS a", {}, '"semel_batch"',
                        "DROP VIEW semel_batch"),
    "replicated": (f"{PLAIN}; CREATE UNIQUE INDEX ON flights (id); CREATE PUBLICATION p FOR TABLE "
                   "flights", UPSERT, "does not have a replica identity and publishes updates",
                   "ALTER TABLE flights REPLICA IDENTITY FULL"),
    "replicated, without its key": (
        f"{PLAIN}; CREATE PUBLICATION p FOR TABLE flights", UPSERT,
        "does not have a replica identity", "ALTER TABLE flights REPLICA IDENTITY FULL"),
    "partitioned by another": (f"{PARTITIONED} (city); CREATE TABLE p PARTITION OF flights DEFAULT",
                               UPSERT, "it is partitioned by city, and its unique index over ['id']", "city"),
    "partitioned by an expression": (
        f"{PARTITIONED} ((id + 1)); CREATE TABLE p PARTITION OF flights DEFAULT", UPSERT,
        "by an expression, and its unique index", ""),
    "parts partitioned by another": (
        f"{PARTITIONED} (id); CREATE TABLE p PARTITION OF flights DEFAULT PARTITION BY LIST "
        "(city); CREATE TABLE q PARTITION OF p DEFAULT", UPSERT, "by id, city, and its unique", "city"),
    "part unlogged": (f"{PARTITIONED} (id); CREATE UNLOGGED TABLE p PARTITION OF flights DEFAULT",
                      {}, "public.p is UNLOGGED", r"ALTER TABLE public.p SET LOGGED"),
    "part of another database": (
        f"{PARTITIONED} (id); {FOREIGN}", {}, "a foreign table or partition",
        "ALTER TABLE flights DETACH PARTITION p"),
    "key in json": (f"CREATE TABLE flights (id bigint, city json, {OWN})", CITY,
                    "equality operator for type json", "ALTER TABLE flights ALTER city TYPE text"),
    "identity": (
        f"CREATE TABLE flights (id bigint GENERATED ALWAYS AS IDENTITY UNIQUE, city text, {OWN})",
        UPSERT, "'id' is generated", r"ALTER TABLE \S+ ALTER COLUMN \S+ SET GENERATED BY DEFAULT"),
    "generated": (
        f"CREATE TABLE flights (id bigint GENERATED ALWAYS AS (1) STORED, city text, {OWN})",
        UPSERT, "'id' is generated", r"ALTER TABLE \S+ ALTER COLUMN \S+ DROP EXPRESSION"),
    "semel's own generated": (
        "CREATE TABLE flights (id bigint, city text, _semel_batch bigint GENERATED ALWAYS AS (1) "
        "STORED, _semel_seq bigint)", {}, "'_semel_batch' is generated",
        r"ALTER TABLE \S+ ALTER COLUMN \S+ DROP EXPRESSION"),
    "semel's own an identity": (
        "CREATE TABLE flights (id bigint UNIQUE, city text, _semel_batch bigint, "
        "_semel_seq bigint GENERATED ALWAYS AS IDENTITY)", UPSERT, "'_semel_seq' is generated",
        r"ALTER TABLE \S+ ALTER COLUMN \S+ SET GENERATED BY DEFAULT"),
}  # fmt: skip
"""What is there, how the sink is declared, words of the refusal, and what ends it."""


# Attacks PG4.
@pytest.mark.parametrize("case", TARGETS)
def test_a_target_where_no_batch_lands(warehouse: Warehouse, case: str) -> None:
    """The server is asked in a transaction that is rolled back: nothing is made. After the remedy,
    which the message has where semel knows it, a batch lands.
    """
    there, declared, words, remedy = TARGETS[case]
    warehouse.run(there)
    sink, before = warehouse.sink(**declared), relations(warehouse)
    with pytest.raises(TerminalError, match=re.escape(words)) as told:
        sink.examine(rows().schema)
    assert relations(warehouse) == before
    if "partitioned" in case:
        more = ("id", remedy) if remedy else ()
        sink = warehouse.sink("flights" if more else "other", mode="upsert", key=more or ("id",))
    else:
        found = re.search(remedy, str(told.value))
        warehouse.run(found[0] if found else remedy)
    if case == "part of another database":
        warehouse.run("CREATE TABLE q PARTITION OF flights DEFAULT")
    if case.startswith("notes"):
        warehouse.run("ALTER TABLE IF EXISTS semel_batch ADD published_at timestamptz")
    sink.examine(rows().schema)
    warehouse.finalize(warehouse.won(rows()), sink)
    assert warehouse.run(f"SELECT count(*) FROM {sink._target.sql_name}") == [(2,)]


def test_what_no_server_makes(warehouse: Warehouse) -> None:
    """A table in a schema of its own, whatever the rights say; an index of 33 columns."""
    for schema in ("pg_catalog", "pg_toast"):
        with pytest.raises(TerminalError, match=f'permission denied to create "{schema}'):
            warehouse.sink(f"{schema}.flights").examine(rows().schema)
    key = {"mode": "upsert", "key": tuple(numbers(33))}
    with pytest.raises(TerminalError, match="cannot use more than 32 columns in an index"):
        warehouse.sink(**key).examine(rows(**numbers(33)).schema)


LANDS: dict[str, tuple[str, dict[str, Any], pa.Table]] = {
    "a name that was the system's": ("", {}, rows(oid=["a", "b"])),
    "1,600 columns": ("", {}, rows(**{f"c{n}": [True, None] for n in range(1_596)})),
    "32 columns in the key": (
        "", {"mode": "upsert", "key": tuple(numbers(32))}, rows(**numbers(32))),
    "1,100 doubles, few of them there": (
        "", {}, rows(**{f"c{n}": pa.array([None, n / 2 if n < 9 else None], pa.float64())
                        for n in range(1_100)})),
    "400 long texts": ("", {}, rows(**{f"c{n}": [f"{n} x" * 99, "é" * 99] for n in range(400)})),
    "names": ("", UPSERT, rows(**{name: [1, 2] for name in (
        "n" * 63, "n" * 62 + "m", "ID", "Id", "select", "user", 'a"b', "a b", "a%b", "a{b}", "$1",
        "é", "a\nb", "excluded", "stored", "incoming", "there")})),
    "partitioned by the key": (
        f"{PARTITIONED} (id); CREATE TABLE p PARTITION OF flights DEFAULT", UPSERT, rows()),
    "inherited": (f"{PLAIN}; CREATE TABLE p () INHERITS (flights)", UPSERT, rows()),
    "identity by default": (
        f"CREATE TABLE flights (id bigint GENERATED BY DEFAULT AS IDENTITY UNIQUE, city text, {OWN})",
        UPSERT, rows()),
    "replicated by its key": ("CREATE PUBLICATION p FOR ALL TABLES", UPSERT, rows()),
    "all columns in the key": ("", {"mode": "upsert", "key": ("id", "city")}, rows()),
}  # fmt: skip


# Attacks PG4, PG5.
@pytest.mark.parametrize("case", LANDS)
def test_what_is_no_limit(warehouse: Warehouse, case: str) -> None:
    """Near a limit, and where a name is odd, rows land and are read back as they were."""
    there, declared, table = LANDS[case]
    if there:
        warehouse.run(there)
    sink = warehouse.sink(**declared)
    assert not sink.check(table.schema, warehouse.folder)(table)
    warehouse.finalize(warehouse.won(table), sink)
    assert pa.concat_tables(sink.rows_of(1, table.schema)).sort_by("id") == table


# Attacks PG4.
@pytest.mark.parametrize("mode", [{}, UPSERT], ids=["append", "upsert"])
def test_who_makes_nothing_needs_no_right_to(warehouse: Warehouse, mode: dict[str, Any]) -> None:
    """All is there, and the user may write to it alone: nothing is refused, and a batch lands."""
    warehouse.finalize(warehouse.won(rows()), warehouse.sink(**mode))
    role = warehouse.role()
    warehouse.run("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    warehouse.run(f"GRANT SELECT, INSERT, UPDATE ON flights, semel_batch TO {role.name}")
    sink = warehouse.sink(dsn=role.dsn, **mode)
    sink.examine(rows().schema)
    warehouse.finalize(warehouse.won(rows(), batch_id=2), sink)
    assert warehouse.run("SELECT count(*) FROM flights WHERE _semel_batch = 2") == [(2,)]


# Attacks PG4.
def test_many_look_at_a_table_that_others_make(warehouse: Warehouse) -> None:
    """Nobody is told that it does not fit, and each batch lands."""
    def one(number: int) -> None:
        sink = warehouse.sink("flights" if number % 2 else "other")
        for _ in range(3):
            sink.examine(rows().schema)
        warehouse.finalize(warehouse.won(rows(), batch_id=number), sink)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(one, range(1, 13)))
    counts = "SELECT (SELECT count(*) FROM flights), (SELECT count(*) FROM other)"
    assert warehouse.run(counts) == [(12, 12)]


def test_a_table_that_somebody_holds_is_asked_again(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What passes by itself is no reason to refuse a table."""
    monkeypatch.setitem(postgres_sink.transaction.__wrapped__.__globals__, "_SETTINGS",
                        {"lock": "200ms", "idle": "60s"})  # fmt: skip
    sink = warehouse.sink(**UPSERT)
    warehouse.finalize(warehouse.won(rows()), sink)
    with warehouse.sink()._open_connection() as other, other.transaction():
        other.execute("LOCK TABLE flights IN SHARE MODE")
        with pytest.raises(RetryableError, match="did not give a lock in time"):
            sink.examine(rows().schema)


KINDS: dict[str, Callable[[random.Random], Any]] = {
    "bool": lambda r: r.random() < 0.5,
    "int16": lambda r: r.randrange(99),
    "int32": lambda r: r.randrange(99),
    "int64": lambda r: r.randrange(99),
    "float32": lambda r: 1.5,
    "float64": lambda r: 2.5,
    "date32": lambda r: r.randrange(9_999),
    "timestamp": lambda r: r.randrange(10**15),
    "decimal": lambda r: r.randrange(10**6),
    "short": lambda r: "x" * r.randrange(24),
    "binary": lambda r: b"y" * r.randrange(24),
    "long": lambda r: r.randbytes(r.randrange(12, 99)).hex(),
    "alike": lambda r: "x" * r.randrange(24, 999),
}
EXACT = [name for name in KINDS if name not in ("decimal", "long", "alike")]
ARROW = {"short": pa.string(), "long": pa.string(), "alike": pa.string(), "date32": pa.date32(),
         "timestamp": pa.timestamp("us", "UTC"), "decimal": pa.decimal128(12, 2)}  # fmt: skip


def odd(rand: random.Random, names: list[str]) -> pa.Table:
    """Rows of many columns about as large as a page, with more and fewer nulls."""
    kinds, size = [], 0
    while size < 9_500:
        kinds.append(rand.choice(names))
        size += {"bool": 1, "int16": 2, "int32": 4, "float32": 4, "date32": 4}.get(kinds[-1], 10)
    kinds = kinds[:1_590]
    shares = [rand.uniform(0, 0.4) for _ in range(12)]
    columns = {"id": pa.array(range(12), pa.int64())}
    for at, kind in enumerate(kinds):
        values = [None if rand.random() < share else KINDS[kind](rand) for share in shares]
        arrow = ARROW.get(kind) or getattr(pa, kind.replace("bool", "bool_"))()
        columns[f"c{at}"] = pa.array(values, pa.int64()).cast(arrow) \
            if kind in ("timestamp", "date32") and arrow != pa.date32() else pa.array(values, arrow)
    return pa.table(columns)


# Attacks PG6.
@pytest.mark.parametrize("exists", [pytest.param(False, marks=pytest.mark.proof), True],
                         ids=["made", "there"])  # fmt: skip
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=pytest.mark.proof) for n in (0, 2, 3))])
def test_rows_that_no_page_holds(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, seed: int, exists: bool
) -> None:
    """Stage finds the rows that the server refuses: no others, and of values of fixed size and short
    texts each, whatever the order of the table's columns.
    """
    rand = random.Random(f"{seed} {exists}")
    names = EXACT if seed else [*KINDS]
    table = odd(rand, names)
    sink = warehouse.sink()
    if exists:
        lines = facts.create_statement(sink._target, table.schema)
        first, *columns = re.sub(r"^.*?\(|\)$", "", lines).split(", ")
        rand.shuffle(columns)
        warehouse.run(f"CREATE TABLE flights ({', '.join([*columns, first])})")
    check = sink.check(table.schema, warehouse.folder)
    known = {n for one in check(table) for n in one.rows.tolist()}
    monkeypatch.setattr(landing, "too_wide", lambda _, some: np.zeros(len(some), bool))
    kept: list[pa.Table] = []
    sink.publish_accepting(warehouse.won(table), kept.append)
    refuses = {n for some in kept for n in some.column("id").to_pylist()}
    assert 0 < len(refuses) < len(table), "rows on both sides of the limit"
    assert known <= refuses and (not seed or known == refuses), (known, refuses)


WIDE = {f"d{n}": "double" for n in range(1_100)}


def wide_events(start: int, stop: int, *narrow: int) -> list[dict]:
    return [{**event, **({} if n in narrow else dict.fromkeys(WIDE, 1.5))}
            for n, event in enumerate(events(start, stop), start)]  # fmt: skip


# Attacks PG6, S27.
@pytest.mark.proof
def test_a_row_that_no_page_holds_is_a_dead_letter(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """It is there with the reason, the others land; where all are too wide, the batch stops."""
    schema = {"id": "string", "n": "bigint", "at": "timestamp", **WIDE}
    spec = bench.spec(sink=TABLE, source={"schema": schema},
                      limits={"quarantine_ratio_max": 0.5})  # fmt: skip
    bench.write("in/a.jsonl", wide_events(0, 4, 0, 1, 2))
    run(ledger, spec, "r1")
    assert table.run("SELECT n FROM events ORDER BY n") == [(0,), (1,), (2,)]
    [letter] = letters(spec, count=9).letters
    assert (letter.line, letter.reason) == (4, "sink_refuses") and "than a page" in letter.detail
    proven(spec)
    bench.write("in/b.jsonl", wide_events(4, 9))
    with pytest.raises(LimitError, match="quarantine"):
        run_batch(ledger, spec, "r2", LocalEngine(), log=quiet)


def as_before(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As stage looked at a table before it knew of these limits."""
    monkeypatch.setattr(facts, "output_problems", lambda *_: [])
    monkeypatch.setattr(PostgresSink, "_rehearse", lambda *_: None)
    monkeypatch.setattr(row_check, "too_wide", lambda _, some: np.zeros(len(some), bool))
    return monkeypatch




OLD = {"a name of the system's": {"xmin": "bigint"},
       "too many": {f"c{n}": "int" for n in range(1_700)}, "too wide": WIDE}  # fmt: skip
LONG = [pytest.param(case, marks=pytest.mark.proof) if len(OLD[case]) > 1 else case for case in OLD]


# Attacks PG7.
@pytest.mark.parametrize("mode", [{}, {"mode": "upsert", "key": ["id"]}], ids=["append", "upsert"])
@pytest.mark.parametrize("case", LONG)
def test_a_batch_that_committed_before(
    bench: Workbench, ledger: Ledger, table: Warehouse, shell: Shell,
    monkeypatch: pytest.MonkeyPatch, case: str, mode: dict[str, Any],
) -> None:  # fmt: skip
    """Its advice is followed: all its rows are in the archive, more than are tried one by one, the
    audit proves it, and the next batches land. In mode append its records get there, too.
    """
    monkeypatch.setattr(limits, "REFUSED_ROWS_MAX", 5)
    plain = {"id": "string", "n": "bigint", "at": "timestamp"}
    sink = {**TABLE, **mode}
    bench.write("in/a.jsonl", [{**event, **dict.fromkeys(OLD[case], 1)} for event in events(0, 20)])
    spec = bench.spec(sink=sink, source={"schema": {**plain, **OLD[case]}})
    with monkeypatch.context() as patch:
        as_before(patch)
        batch = committed(ledger, spec, "r1")
    with pytest.raises(TerminalError, match="Nothing was written, and the batch stays committed") as told:
        finalize(ledger, spec, batch)
    [accept] = re.findall(r"`(semel [^`]+)`", str(told.value))
    text = (ROOT / "docs" / "postgres.md").read_text(encoding="utf-8")
    page = re.search(r"```\n(semel accept PIPELINE --refused BATCH\n[^`]*)```", text)[1]
    lines = page.replace("PIPELINE", "events").replace("BATCH", str(batch)).splitlines()
    assert accept == lines[0]
    shell.runs(accept)
    proven(spec)
    found = letters(spec, count=99)
    assert found.total == 20 and {one.reason for one in found.letters} == {"refused"}
    assert shell.runs("semel audit events")
    spec = bench.spec(sink=sink, source={"schema": plain, "unknown": "ignore"})
    shell.runs(lines[1])
    shell.runs(lines[2], code=1 if mode else 0)
    bench.write("in/b.jsonl", events(20, 30))
    run(ledger, spec, "r2")
    there = [n for (n,) in table.run("SELECT n FROM events ORDER BY n")]
    assert there == [*range(20 if mode else 0, 30)]
    proven(spec)
