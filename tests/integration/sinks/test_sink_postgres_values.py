"""Values that a table refuses: found without its server, or met by a committed batch."""

import datetime as dt
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from fixtures.postgres.warehouse import OWN, UPSERT, Warehouse, never
from semel import limits
from semel.errors import LimitError, TerminalError
from semel.model.manifest import Kind
from semel.sinks import CommittedBatch, Presence, keys
from semel.sinks.keys import find_duplicate_key
from semel.sinks.postgres.predicate import parse
from semel.sinks.postgres.row_check import find_refused_rows
from semel.sinks.postgres.sink import REFUSAL_COLUMN, PostgresSink
from semel.stage.part_files import write_table

D = Decimal


def told(sink: PostgresSink, table: pa.Table) -> dict[int, str]:
    """What is found in stage: the reason of each refused row, by its id."""
    facts = pickle.loads(pickle.dumps(sink.examine(table.schema)))
    ids = table.column("id").to_pylist()
    return {ids[n]: one.reason for one in find_refused_rows(facts, table) for n in one.rows.tolist()}


def met(warehouse: Warehouse, sink: PostgresSink, table: pa.Table) -> dict[int, str]:
    """What the server itself refuses of the same rows, by their id."""
    return accepted(sink, warehouse.won(table))


def accepted(sink: PostgresSink, won: CommittedBatch) -> dict[int, str]:
    """Let the rows land that the table takes. Why it refused the others, which are kept, by id."""
    kept: list[pa.Table] = []
    count = sink.publish_accepting(won, kept.append)
    named = [row for table in kept for row in table.select(["id", REFUSAL_COLUMN]).to_pylist()]
    assert count == len(named)
    return {row["id"]: row[REFUSAL_COLUMN] for row in named}


CASES: dict[str, tuple[str, pa.Array, list[str | None]]] = {
    "null": ("text NOT NULL", pa.array(["a", None]), [None, "null"]),
    "nul": ("text", pa.array(["a", "b\0", "\0", None]), [None, "nul", "nul", None]),
    "long": ("varchar(2)", pa.array(["aé", "aéo", "é" * 9, ""]), [None, "long", "long", None]),
    "smallint": ("smallint", pa.array([2**15 - 1, 2**15, -(2**15), -(2**15) - 1, None]),
                 [None, "range", None, "range", None]),
    "integer": ("integer", pa.array([2**31 - 1, 2**31, -(2**63)]), [None, "range", "range"]),
    "of numeric": ("numeric(4,1)", pa.array([999, 1000, -1000, 2**63 - 1, -(2**63)]),
                   [None, "range", "range", "range", "range"]),
    "numeric": ("numeric(4,2)",
                pa.array([D("99.99"), D("100.00"), D("-100"), D("-99.99"), None],
                         pa.decimal128(38, 2)),
                [None, "range", "range", None, None]),
    "date": ("date", pa.array([-2_440_588, -2_440_589, 2**31 - 1, None], pa.int32()).cast(
        pa.date32()), [None, "range", "range", None]),
    "timestamp": ("timestamptz", pa.array(
        [-210_866_803_200_000_000, -210_866_803_200_000_001, 2**63 - 1 - 946_684_800_000_000],
        pa.int64()).cast(pa.timestamp("us", "UTC")), [None, "range", None]),
    "jsonb": ("jsonb", pa.array([
        "{}", "[1", "1,2", "", " 1 ", "NaN", '"\\u0000"', '"\\\\u0000"', '"\\ud800"',
        '"\\ud83d\\ude00"', "1e131071", "1e131072", "-1e-16383", "1e-16384", '"1e999999"',
        "9" * 131_073, "1e9" + "9" * 30, "-1e-9" + "9" * 30, "[" * 400 + "]" * 400,
        '{"a": 1, "a": 2}', "[1,", "2]", "'a'", "nul"]),
        [None, "json", "json", "json", None, "json", "json", None, "json", None, None, "json",
         None, "json", None, "json", "json", "json", None, None, "json", "json", "json", "json"]),
    "json": ("json", pa.array(["{}", "[1", '"\\u0000"', "1e999999", "x", '{"a": "[[["}']),
             [None, "json", None, None, "json", None]),
    "list": ("jsonb", pa.array([["a"], ["b", "c\0"], [], None, ["\0"]]),
             [None, "nul", None, None, "nul"]),
    "struct": ("jsonb", pa.array([{"a": {"b": ["x"]}}, {"a": {"b": ["x", "\0"]}}, {"a": None}]),
               [None, "nul", None]),
}  # fmt: skip


# Attacks PG6.
@pytest.mark.parametrize("case", CASES)
def test_what_is_found_is_what_the_server_refuses(warehouse: Warehouse, case: str) -> None:
    """Row by row, stage's answer is the server's own; the other rows land."""
    declared, values, wanted = CASES[case]
    warehouse.run(f"CREATE TABLE flights (id bigint, v {declared}, {OWN})")
    table = pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": values})
    sink = warehouse.sink(create=False)
    reasons = {n: reason for n, reason in enumerate(wanted) if reason}
    assert told(sink, table) == reasons
    assert met(warehouse, sink, table).keys() == reasons.keys()
    landed = warehouse.run("SELECT id FROM flights ORDER BY id")
    assert landed == [(n,) for n in range(len(values)) if n not in reasons]


def test_what_is_stricter_than_the_server(warehouse: Warehouse) -> None:
    """Blanks that PostgreSQL would cut, JSON that nests very deep, NaN that JSON does not have."""
    warehouse.run(f"CREATE TABLE flights (id bigint, t varchar(1), j json, n jsonb, {OWN})")
    table = pa.table(
        {
            "id": [0, 1, 2],
            "t": ["a", "a ", "a"],
            "j": ["[]", "[]", "[" * 501 + "]" * 501],
            "n": [[0.5], [0.5], [math.nan]],
        }
    )
    reasons = {
        one.reason: one.rows.tolist()
        for one in find_refused_rows(warehouse.sink(create=False).examine(table.schema), table)
    }
    assert reasons == {"long": [1], "json": [2], "number": [2]}


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")])
def test_times_within_json(warehouse: Warehouse, kind: pa.DataType) -> None:
    """They are texts there, of four digits a year: others are found before they commit."""
    one = 1 if kind == pa.date32() else 86_400_000_000
    days = [[0], [-719_162, 2_932_896], [None, -719_163], [2_932_897], None]
    texts = pa.array([[d and d * one for d in some] if some else None for some in days],
                     pa.list_(pa.int64()))  # fmt: skip
    sizes = pa.int32() if kind == pa.date32() else pa.int64()
    values = texts.cast(pa.list_(sizes)).cast(pa.list_(kind))
    table = pa.table({"id": list(range(5)), "n": values})
    sink = warehouse.sink()
    assert told(sink, table) == {2: "range", 3: "range"}
    good = table.filter(pa.array([True, True, False, False, True]))
    warehouse.finalize(warehouse.won(good), sink)
    found = pa.concat_tables(sink.rows_of(1, table.schema)).sort_by("id")
    assert found.column("n").cast(pa.list_(sizes)).to_pylist() == [
        [0], [-719_162 * one, 2_932_896 * one], None,
    ]  # fmt: skip


def test_a_null_in_the_key(warehouse: Warehouse) -> None:
    """It equals nothing there: rows of it would pile up, so none is taken."""
    sink = warehouse.sink(mode="upsert", key=("id", "c"))
    table = pa.table({"id": [1, 2], "c": ["x", None]})
    assert told(sink, table) == {2: "null"}


CHECKS = [
    "a > 0", "a >= -5 AND a < 3", "a <> 2 OR b IS NULL", "NOT (a = 1)", "a IN (1, 2, -3)",
    "a NOT IN (1, 2)", "a BETWEEN 0 AND 2", "a < b", "a = b", "n > 0.5", "n <= 1.25", "n < a",
    "n IN (0.5, 1.25)", "f >= 0", "f < 1e300", "f <> 0.5", "r > 0.5", "t = 'x'", "t <> ''",
    "t IN ('x', 'it''s')", "length(t) = 1", "char_length(v) <= 2", "octet_length(t) < 3",
    "t LIKE 'x%'", "t NOT LIKE '_'", "v IN ('x', 'yy')", "d >= '2020-01-01'",
    "d < date '2021-01-01'",
    "z >= '2020-01-01 00:00:00+00'", "s < '2020-01-01'", "o", "NOT o", "o IS NOT NULL",
    "o OR a > 0", "a IS NULL OR length(t) > 0", f"a < 1{'0' * 90}", f"n > -1{'0' * 90}",
    f"a NOT IN ({', '.join(map(str, range(1, 2_000)))})", "(a > 0) = (b > 0)",
    "a + b > 0", "abs(a) < 5", "t < 'm'", "t ~ '^x'", "lower(t) = t", "n::int > 0",
    "a::text = '1'", "f::real > 0.5", "a > n", "t IS NOT DISTINCT FROM 'x'",
    "a > 0 IS TRUE", "coalesce(a, 0) > 0", "f = 'NaN'",
    "d > CURRENT_DATE", "t COLLATE \"C\" > 'a'", "r = 0.1", "t LIKE 'x\\%'", "a = ANY ('{1,2}')",
    "r = '1e50'::numeric::real", "a > (- b)", "t = CURRENT_USER", "'x'::varchar(1) = v",
]  # fmt: skip
UNKNOWN_FROM = CHECKS.index("(a > 0) = (b > 0)")
COLUMNS = (
    "id bigint, a bigint, b integer, n numeric(10,2), f double precision, r real, t text, "
    f"v varchar(5), d date, z timestamptz, s timestamp, o boolean, {OWN}"
)
MOMENT = dt.datetime(2020, 1, 1)
VALUES = {
    "a": ([-5, -3, 0, 1, 2, 3, None], pa.int64()),
    "b": ([-1, 0, 1, 2, None], pa.int32()),
    "n": ([D("0.50"), D("0.51"), D("1.25"), D("-1.00"), D("3.00"), None], pa.decimal128(10, 2)),
    "f": ([0.0, -0.0, 0.5, math.nan, math.inf, -math.inf, 1e300, None], pa.float64()),
    "r": ([0.5, 0.1, math.nan, None], pa.float32()),
    "t": (["", "x", "xy", "x%", "it's", "é", "\n", None], pa.string()),
    "v": (["x", "yy", "éé", "abc", None], pa.string()),
    "d": ([dt.date(2019, 12, 31), dt.date(2020, 1, 1), dt.date(2021, 1, 1), None], pa.date32()),
    "z": ([MOMENT, MOMENT - dt.timedelta(microseconds=1), None], pa.timestamp("us", "UTC")),
    "s": ([MOMENT, MOMENT - dt.timedelta(microseconds=1), None], pa.timestamp("us")),
    "o": ([True, False, None], pa.bool_()),
}


# Attacks PG6.
@pytest.mark.parametrize("check", CHECKS)
def test_a_check_means_the_same_here(warehouse: Warehouse, check: str) -> None:
    """Each row is refused here exactly when its server refuses it; or the CHECK is a note."""
    warehouse.run(f"CREATE TABLE flights ({COLUMNS}, CONSTRAINT odd CHECK ({check}))")
    sink, table = warehouse.sink(create=False), rows_of_all_values()
    facts = sink.examine(table.schema)
    if facts.notes:
        assert facts.notes[0].endswith(": the CHECK 'odd'") and CHECKS.index(check) >= UNKNOWN_FROM
        return
    assert told(sink, table).keys() == met(warehouse, sink, table).keys()


def rows_of_all_values() -> pa.Table:
    """Each value of each column, beside others that move on."""
    count = 60
    columns = {
        name: pa.array([some[(n // (1 + at)) % len(some)] for n in range(count)], kind)
        for at, (name, (some, kind)) in enumerate(VALUES.items())
    }
    return pa.table({"id": pa.array(range(count), pa.int64()), **columns})


@hypothesis.given(st.text("()'\"ANDORTab =<>:,[]-~1.e\\ ", max_size=40))
def test_a_check_that_is_nonsense(text: str) -> None:
    """Whatever stands in a definition, it is read or it is not: no other error."""
    parse(f"CHECK ({text})", {"a": "bigint", "b": "text"})


@pytest.mark.parametrize(
    "text",
    ["(" * 50 + "o" + ")" * 50, "NOT " * 50 + "o", "t = (CURRENT_USER)::text", "a > (- infinity)",
     '"length"(t) = 1', "t = 'x'::string"],
)  # fmt: skip
def test_a_check_that_is_not_read(text: str) -> None:
    """Too deep for a task's stack, or a name that is also a column's."""
    columns = dict.fromkeys(("t", "CURRENT_USER", "string"), "text")
    columns |= {"o": "boolean", "a": "bigint", "infinity": "bigint"}
    assert parse(f"CHECK ({text})", columns) is None


# Attacks PG6.
def test_a_backslash_is_one_whatever_the_server_writes(warehouse: Warehouse) -> None:
    """A definition is read by the rules of the standard, which a database may have off."""
    warehouse.run(f"CREATE TABLE flights (id bigint, t text, {OWN}, CHECK (t <> 'a\\b'))")
    name = warehouse.run("SELECT current_database()")[0][0]
    warehouse.run(f'ALTER DATABASE "{name}" SET standard_conforming_strings = off')
    sink, table = warehouse.sink(create=False), pa.table({"id": [1, 2], "t": ["a\\b", "a\\\\b"]})
    assert told(sink, table) == {1: "check"} and [*met(warehouse, sink, table)] == [1]


def test_a_check_of_other_columns_is_a_note(warehouse: Warehouse) -> None:
    """A column that the output lacks gets its default, of which nothing is known here."""
    warehouse.run(f"CREATE TABLE flights (id bigint, x int DEFAULT 1, {OWN}, CHECK (x > id))")
    facts = warehouse.sink(create=False).examine(pa.schema([("id", pa.int64())]))
    assert facts.notes[0].endswith(": the CHECK 'flights_check'") and not facts.checks


# Attacks PG7.
def test_a_committed_batch_that_is_refused(warehouse: Warehouse) -> None:
    """A CHECK that came meanwhile: nothing lands, the way on is named; then the others land."""
    sink = warehouse.sink()
    rows = pa.table({"id": pa.array(range(400), pa.int64())})
    won = warehouse.won(rows.slice(0, 300), rows.slice(300))
    warehouse.finalize(warehouse.won(rows.slice(0, 1), batch_id=9), sink)
    warehouse.run("ALTER TABLE flights ADD CONSTRAINT no_17 CHECK (id % 17 <> 3) NOT VALID")
    with pytest.raises(TerminalError, match="no_17.*keep these in the archive: `semel accept flights --refused 1`"):
        sink.publish(won, won.files)
    assert sink.query_presence(won) == [Presence.ABSENT] * 2
    found = accepted(sink, won)
    assert [*found] == [*range(3, 400, 17)] and all("no_17" in why for why in found.values())
    assert sink.query_presence(won) == [Presence.RIGHT] * 2
    landed = 400 - len(found)
    counts = "SELECT count(*), count(DISTINCT id) FROM flights WHERE _semel_batch = 1"
    assert warehouse.run(counts) == [(landed, landed)]
    # Again, after a lost reply: nobody is asked to keep anything, and nothing lands twice.
    assert sink.publish_accepting(won, never) == len(found)
    noted = warehouse.run("SELECT rows, refused FROM semel_batch WHERE batch_id = 1")
    assert noted == [(landed, len(found))]


# Attacks PG7.
def test_rows_that_cannot_be_kept_let_nothing_land(warehouse: Warehouse) -> None:
    """The archive's disk is full: no row is in the table, and the next call is as the first."""

    def full(_: pa.Table) -> None:
        raise OSError("the disk is full")

    sink = warehouse.sink(**UPSERT)
    won = warehouse.won(pa.table({"id": [1, 2, 3]}))
    warehouse.finalize(warehouse.won(pa.table({"id": [9]}), batch_id=9), sink)
    warehouse.run("ALTER TABLE flights ADD CHECK (id <> 2)")
    with pytest.raises(OSError, match="full"):
        sink.publish_accepting(won, full)
    assert sink.query_presence(won) == [Presence.ABSENT]
    assert [*accepted(sink, won)] == [2]
    assert warehouse.run("SELECT id FROM flights ORDER BY id") == [(1,), (3,), (9,)]


# Attacks PG7.
def test_a_column_that_was_narrowed(warehouse: Warehouse) -> None:
    """A value that its column does not hold any more is one that the table refuses."""
    sink = warehouse.sink()
    won = warehouse.won(pa.table({"id": [1, 2], "n": [2**40, 5]}))
    warehouse.finalize(warehouse.won(pa.table({"id": [9], "n": [9]}), batch_id=9), sink)
    warehouse.run("ALTER TABLE flights ALTER COLUMN n TYPE integer")
    with pytest.raises(TerminalError, match=r"for the column 'n' \(integer\).*--refused 1"):
        sink.publish(won, won.files)
    assert [*accepted(sink, won)] == [1]
    assert warehouse.run("SELECT id FROM flights ORDER BY id") == [(2,), (9,)]


def test_a_deferred_constraint_is_met_before_commit(warehouse: Warehouse) -> None:
    """Its refusal is one of rows as any other, and they are found one by one."""
    warehouse.run(f"CREATE TABLE flights (id bigint, {OWN})")
    warehouse.run("ALTER TABLE flights ADD CONSTRAINT once UNIQUE (id) DEFERRABLE "
                  "INITIALLY DEFERRED")  # fmt: skip
    sink, won = warehouse.sink(), warehouse.won(pa.table({"id": [1, 2, 2]}))
    with pytest.raises(TerminalError, match='"once".*--refused 1'):
        sink.publish(won, won.files)
    assert [*accepted(sink, won)] == [2]
    assert warehouse.run("SELECT id FROM flights ORDER BY id") == [(1,), (2,)]


def test_a_table_that_refuses_nearly_all(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the table is wrong, and not the rows: nothing lands."""
    monkeypatch.setattr(limits, "REFUSED_ROWS_MAX", 5)
    warehouse.run(f"CREATE TABLE flights (id bigint CHECK (id < 0), {OWN})")
    sink, won = warehouse.sink(), warehouse.won(pa.table({"id": list(range(50))}))
    with pytest.raises(LimitError, match="more than 5 of its rows .*Change the table"):
        sink.publish_accepting(won, never)
    assert sink.query_presence(won) == [Presence.ABSENT]


# Attacks PG8.
@pytest.mark.parametrize(
    ("key", "found"),
    [
        (lambda n: n, None),
        (lambda n: n if n != 777 else 3, ({"a": 3, "b": "x3"}, 2, 1)),
        (lambda n: n % 500, (None, 2, 500)),
        (lambda n: None, None),
    ],
)
def test_a_key_twice_in_one_batch(tmp_path: Path, key: Callable, found: tuple | None) -> None:
    """It is found over all files, and one of them is named with how many rows have it."""
    numbers = [key(n) for n in range(1_000)]
    table = pa.table({"a": pa.array(numbers, pa.int32()), "b": [f"x{n}" for n in numbers],
                      "c": list(range(1_000))})  # fmt: skip
    parts = (table.slice(0, 600), table.slice(600))
    files = [
        write_table(tmp_path / str(at), part, Kind.DATA, "", "parquet")
        for at, part in enumerate(parts)
    ]
    answer = find_duplicate_key(files, ("a", "b"))
    if found is None:
        assert answer is None
    else:
        assert found[0] in (None, answer.key) and (answer.rows, answer.keys) == found[1:]


# Attacks PG8.
def test_keys_of_one_hash_are_no_key_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where hashes agree the keys decide."""
    def one_hash(table: pa.Table, *_: object, **__: object) -> object:
        made = real(table, ("a",), shards=1)
        return replace(made, h1=np.full_like(made.h1, 7))

    real = keys.hash_ids
    monkeypatch.setattr(keys, "hash_ids", one_hash)
    file = write_table(tmp_path / "f", pa.table({"a": [1, 2, 3]}), Kind.DATA, "", "parquet")
    assert find_duplicate_key([file], ("a",)) is None
    file = write_table(tmp_path / "g", pa.table({"a": [1, 2, 1]}), Kind.DATA, "", "parquet")
    assert find_duplicate_key([file], ("a",)).key == {"a": 1}
