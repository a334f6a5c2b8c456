"""A table as a sink: what lands, once, and what comes back."""

import datetime as dt
import math
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from fixtures.batches.faults import dies_at
from fixtures.postgres.warehouse import MODES, OWN, UPSERT, Warehouse, flights
from semel.errors import CorruptionError, UnavailableError
from semel.sinks import Presence

UTC = dt.UTC
FIRST, LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)
D = Decimal

ALL_TYPES = pa.table(
    {
        "b": pa.array([True, False, None]),
        "i1": pa.array([-128, 127, None], pa.int8()),
        "i2": pa.array([-(2**15), 2**15 - 1, None], pa.int16()),
        "i4": pa.array([-(2**31), 2**31 - 1, None], pa.int32()),
        "i8": pa.array([-(2**63), 2**63 - 1, None]),
        "f4": pa.array([0.1, -math.inf, None], pa.float32()),
        "f8": pa.array([0.1, math.inf, None]),
        "dec": pa.array(
            [D("-99999999999999999999.999999999999999999"), D("1E-18"), None], pa.decimal128(38, 18)
        ),
        "whole": pa.array([D("9" * 38), D("-10000"), None], pa.decimal128(38, 0)),
        "t": pa.array(["", 'h\u00e9 \U0001f600\n\t\\N "\'', None]),
        "j": pa.array(['{"a": [1.50, null, "\\u00e9"]}', "null", None]),
        "by": pa.array([b"\0\xff", b"", None]),
        "d": pa.array([FIRST.date(), LAST.date(), None]),
        "ts": pa.array([FIRST, LAST, None], pa.timestamp("us", "UTC")),
        "tn": pa.array([FIRST, LAST, None], pa.timestamp("us")),
        "l": pa.array([["a", None, '"'], [], None]),
        "s": pa.array(
            [
                {"x": D("12345678901234567890.12"), "n": None, "y": b"\0\xff", "at": LAST},
                {"x": None, "n": [1], "y": b"", "at": FIRST},
                None,
            ],
            pa.struct(
                [
                    ("x", pa.decimal128(38, 2)), ("n", pa.list_(pa.int64())), ("y", pa.binary()),
                    ("at", pa.timestamp("us", "UTC")),
                ]
            ),
        ),
        "m": pa.array([[("a", 0.1), ("b", None)], [], None], pa.map_(pa.string(), pa.float64())),
    }
)  # fmt: skip


# Attacks PG1, PG5.
def test_every_type_lands_and_comes_back(warehouse: Warehouse) -> None:
    """Each value of each type is in the table as it was, and `rows` gives it with its type."""
    sink = warehouse.sink("every", json_columns=("j",))
    won = warehouse.won(ALL_TYPES.slice(0, 2), ALL_TYPES.slice(2))
    sink.examine(won.schema)
    warehouse.finalize(won, sink)
    row = warehouse.run(
        "SELECT i8, dec, whole, t, j, by, ts, s->>'x', m->'a', l->0, _semel_batch, _semel_seq "
        "FROM every WHERE b"
    )[0]
    assert row[:4] == (-(2**63), D("-99999999999999999999.999999999999999999"), D("9" * 38), "")
    assert row[4] == {"a": [1.5, None, "\u00e9"]} and row[5] == b"\0\xff"
    assert row[7:] == ("12345678901234567890.12", 0.1, "a", 1, 1)
    found = pa.concat_tables(sink.rows_of(1, won.schema)).to_pylist()
    wanted = ALL_TYPES.to_pylist()
    for row in found:  # jsonb writes its spaces itself.
        assert row.pop("j") in ('{"a": [1.50, null, "\u00e9"]}', "null", None)
    for row in wanted:
        row.pop("j")
    assert sorted(found, key=str) == sorted(wanted, key=str)


def test_a_batch_is_noted(warehouse: Warehouse) -> None:
    """semel_batch says which attempt's rows landed, and how many."""
    sink, won = warehouse.sink(), warehouse.won(flights([1, 2]), flights([3]))
    sink.publish(won, won.files)
    noted = "SELECT table_name, pipeline, batch_id, fence, commit_seq, rows, refused, digest"
    assert warehouse.run(f"{noted} FROM semel_batch") == [
        ("flights", "flights", 1, 1, 1, 3, 0, won.digest)
    ]


def test_two_tables_of_one_schema_share_the_notes(warehouse: Warehouse) -> None:
    """A batch of one table is not taken for the other's, whose pipeline has the same name."""
    for table in ("a", "b"):
        won = warehouse.won(flights([1]))
        warehouse.finalize(won, warehouse.sink(table))
    assert warehouse.run("SELECT count(*) FROM a, b WHERE a.id = b.id") == [(1,)]


# Attacks PG1.
def test_a_file_that_lacks_rows_lands_nothing(warehouse: Warehouse) -> None:
    """The manifest says how many rows there are; with fewer nothing is written."""
    sink, won = warehouse.sink(), warehouse.won(flights([1, 2]), flights([3]))
    short = warehouse.won(flights([1]))
    object.__setattr__(won.files[0], "staged_path", short.files[0].staged_path)
    with pytest.raises(CorruptionError, match="have 2 rows, and its manifest lists 3"):
        sink.publish(won, won.files)
    assert sink.query_presence(won) == [Presence.ABSENT] * 2
    assert warehouse.run("SELECT * FROM flights") == []


NAMES = ['semi;colon', 'quo"te', "per%cent{}", "Ümlaut", "select", "a.b", "'; DROP TABLE x; --"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_hostile_names(warehouse: Warehouse, name: str, mode: str) -> None:
    """Schemas, tables and columns may have any name that PostgreSQL takes."""
    quoted = '"' + name.replace('"', '""') + '"'
    warehouse.run(f"CREATE SCHEMA {quoted}")
    key = (name,) if mode == "upsert" else ()
    sink = warehouse.sink(f"{quoted}.{quoted}", mode=mode, key=key)
    won = warehouse.won(pa.table({name: [1, 2], "other": ["a", "b"]}))
    sink.examine(won.schema)
    warehouse.finalize(won, sink)
    assert pa.concat_tables(sink.rows_of(1, won.schema)).sort_by(name).to_pydict() == {
        name: [1, 2], "other": ["a", "b"],
    }  # fmt: skip
    sink.publish(won, won.files)
    assert warehouse.run(f"SELECT count(*) FROM {quoted}.{quoted}") == [(2,)]


# Attacks PG3.
@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_the_later_commit_wins_in_any_order(warehouse: Warehouse, order: tuple[int, int]) -> None:
    """upsert: whichever batch is finalized first, a key has the row of the later commit."""
    sink = warehouse.sink(**UPSERT)
    old = warehouse.won(flights([1, 2], "old"), batch_id=7, commit_seq=1)
    new = warehouse.won(flights([2, 3], "new"), batch_id=5, commit_seq=2)
    for number in order:
        warehouse.finalize({1: old, 2: new}[number], sink)
    found = warehouse.run("SELECT id, city, _semel_batch, _semel_seq FROM flights ORDER BY id")
    assert found == [(1, "old", 7, 1), (2, "new", 5, 2), (3, "new", 5, 2)]


def test_upsert_updates_a_users_own_row(warehouse: Warehouse) -> None:
    """A row that was there before semel has no sequence, and is below any."""
    columns = "id bigint PRIMARY KEY, city text, more text DEFAULT 'm'"
    warehouse.run(f"CREATE TABLE flights ({columns}, {OWN})")
    warehouse.run("INSERT INTO flights (id, city, more) VALUES (1, 'mine', 'kept')")
    warehouse.finalize(
        warehouse.won(flights([1, 2])), warehouse.sink(**UPSERT, create=False)
    )
    found = warehouse.run("SELECT id, city, more FROM flights ORDER BY id")
    assert found == [(1, "Oslo", "kept"), (2, "Oslo", "m")]


@MODES
def test_what_failed_leaves_nothing_in_the_connection(warehouse: Warehouse, mode: dict) -> None:
    """Calls that share a connection share no transaction: locks and rows of a failed one are gone
    before the next one, and one that the server ended is made anew.
    """
    won, other = warehouse.won(flights([1, 2])), warehouse.sink(**mode)

    with warehouse.sink(**mode) as sink:
        assert sink.query_presence(won) == [Presence.ABSENT]
        with dies_at("sink.before_commit"):
            sink.publish(won, won.files)
        other.publish(won, won.files)  # It would wait for the row in semel_batch.
        assert sink.query_presence(won) == [Presence.RIGHT]
        ours = "application_name = 'semel' AND datname = current_database()"
        warehouse.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")
        with pytest.raises(UnavailableError, match="connection was lost"):
            sink.query_presence(won)
        assert (sink.query_presence(won), sink.count_refused(won)) == ([Presence.RIGHT], 0)
    assert warehouse.run("SELECT count(*) FROM flights") == [(2,)]


# Attacks PG5.
def test_nobody_changes_a_column_meanwhile(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at its type and the rows: the 8 bytes of a number are another number in
    another type. Whoever changes it waits until the batch has landed.
    """
    sink = warehouse.sink(mode="upsert", key=("id",))
    won = warehouse.won(flights([1, 2]))
    warehouse.finalize(warehouse.won(flights([9]), batch_id=9), sink)
    begin = sink._begin_landing

    def begun(*given: object) -> object:
        facts = begin(*given)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            warehouse.run("SET lock_timeout = '100ms'; ALTER TABLE flights ALTER id TYPE float8")
        return facts

    monkeypatch.setattr(sink, "_begin_landing", begun)
    sink.publish(won, won.files)
    assert warehouse.run("SELECT id FROM flights ORDER BY id") == [(1,), (2,), (9,)]
