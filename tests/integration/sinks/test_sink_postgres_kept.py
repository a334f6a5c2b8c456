"""What goes into a table comes out: rows that it keeps back without an error land nothing."""

import pyarrow as pa
import pytest

from fixtures.postgres.warehouse import Warehouse
from semel.errors import TerminalError
from semel.sinks import Presence
from semel.sinks.postgres.sink import REFUSAL_COLUMN

OWN = "_semel_batch bigint, _semel_seq bigint"
TABLE = f"CREATE TABLE flights (id bigint PRIMARY KEY, city text, {OWN})"
PARTS = (
    f"{TABLE} PARTITION BY RANGE (id)",
    "CREATE TABLE flights_0 PARTITION OF flights FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE flights_10 PARTITION OF flights FOR VALUES FROM (10) TO (100)",
)
EVENTS = {"append": "BEFORE INSERT", "upsert": "BEFORE INSERT OR UPDATE"}
BODIES = {
    "null": "if new.id in (3, 12) then return null; end if; return new;",
    "renumbered": "if new.id in (3, 12) then new._semel_batch := 99; end if; return new;",
    "deleted": "delete from flights where id in (3, 12); return null;",
}


def flights(start: int, stop: int, city: str = "Oslo") -> pa.Table:
    ids = pa.array(range(start, stop), pa.int64())
    return pa.table({"id": ids, "city": [city] * (stop - start)})


def trigger(warehouse: Warehouse, mode: str, body: str, on: str = "flights") -> None:
    when = EVENTS[mode]
    if body == "deleted":
        when = when.replace("BEFORE", "AFTER")
    warehouse.run(f"CREATE FUNCTION quiet() RETURNS trigger LANGUAGE plpgsql AS "
                  f"'begin {BODIES[body]} end'")  # fmt: skip
    warehouse.run(f"CREATE TRIGGER quiet {when} ON {on} FOR EACH ROW EXECUTE FUNCTION quiet()")


def counted(warehouse: Warehouse) -> list[tuple]:
    return warehouse.run("SELECT _semel_batch, count(*) FROM flights GROUP BY 1 ORDER BY 1")


def declared(mode: str) -> dict:
    return {"mode": mode, "key": ("id",) if mode == "upsert" else (), "create": False}


# Attacks PG12.
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("mode", EVENTS)
def test_what_a_trigger_keeps_back_is_named(
    warehouse: Warehouse, mode: str, body: str
) -> None:
    """Nothing lands, also no note; the message has the number of rows, the rows and the trigger.
    Disabled, the same batch lands whole.
    """
    warehouse.run(TABLE)
    sink, won = warehouse.sink(**declared(mode)), warehouse.won(flights(0, 10), flights(10, 20))
    trigger(warehouse, mode, body)
    said = r"silently dropped 2 of 20 rows \(the trigger quiet of flights\): rows 4, 13 "
    with pytest.raises(TerminalError, match=said) as raised:
        warehouse.finalize(won, sink)
    assert "semel accept flights --refused 1" in str(raised.value)
    assert sink.query_presence(won) == [Presence.ABSENT] * 2 and counted(warehouse) == []
    warehouse.run("ALTER TABLE flights DISABLE TRIGGER quiet")
    warehouse.finalize(won, sink)
    assert counted(warehouse) == [(1, 20)]


# Attacks PG7, PG12.
@pytest.mark.parametrize("body", ["null", "renumbered"])
@pytest.mark.parametrize("mode", EVENTS)
def test_what_is_kept_back_can_be_kept_apart(
    warehouse: Warehouse, mode: str, body: str
) -> None:
    """The others land; what the table leaves out is kept with the reason, and counted."""
    warehouse.run(TABLE)
    sink, won = warehouse.sink(**declared(mode)), warehouse.won(flights(0, 10), flights(10, 20))
    trigger(warehouse, mode, body)
    kept: list[pa.Table] = []
    assert sink.publish_accepting(won, kept.append) == 2 == sink.count_refused(won)
    assert kept[0].column("id").to_pylist() == [3, 12]
    assert "the trigger quiet" in kept[0].column(REFUSAL_COLUMN)[0].as_py()
    assert counted(warehouse) == [(1, 18)]
    assert warehouse.run("SELECT rows, refused FROM semel_batch") == [(18, 2)]


# Attacks PG12.
@pytest.mark.parametrize("mode", EVENTS)
def test_a_trigger_of_a_partition(warehouse: Warehouse, mode: str) -> None:
    """It acts on the rows of its part alone, and is found there."""
    for statement in PARTS:
        warehouse.run(statement)
    sink, won = warehouse.sink(**declared(mode)), warehouse.won(flights(0, 20))
    trigger(warehouse, mode, "null", "flights_10")
    with pytest.raises(TerminalError, match=r"silently dropped 1 of 20 .*quiet of flights_10\): row 13"):
        warehouse.finalize(won, sink)
    assert counted(warehouse) == []


# Attacks PG12.
def test_rows_of_later_commits_are_not_missed(warehouse: Warehouse) -> None:
    """In mode upsert a key that a later batch has is no row that was kept back, with a trigger and
    without one.
    """
    warehouse.run(TABLE)
    sink = warehouse.sink(**declared("upsert"))
    warehouse.finalize(warehouse.won(flights(0, 10, "later"), batch_id=3), sink)
    warehouse.finalize(warehouse.won(flights(5, 15, "first")), sink)
    assert counted(warehouse) == [(1, 5), (3, 10)]
    trigger(warehouse, "upsert", "null")
    warehouse.finalize(warehouse.won(flights(4, 12, "second"), batch_id=2), sink)
    assert counted(warehouse) == [(1, 3), (2, 2), (3, 10)]


# Attacks PG4, PG12.
def test_who_may_not_count(warehouse: Warehouse) -> None:
    """Where triggers act, rows are counted; without the right to, it is refused before any work."""
    warehouse.run(TABLE)
    warehouse.sink(**declared("append"))
    trigger(warehouse, "append", "null")
    role = warehouse.role()
    warehouse.run(f"GRANT INSERT ON flights TO {role.name}")
    warehouse.run(f"GRANT CREATE ON SCHEMA public TO {role.name}")
    sink = warehouse.sink(dsn=role.dsn, **declared("append"))
    schema = flights(0, 1).schema
    with pytest.raises(TerminalError, match="may not count its rows") as raised:
        sink.examine(schema)
    grant = str(raised.value).rpartition("; ")[2]
    warehouse.run(f"{grant} TO {role.name}")
    sink.examine(schema)
    warehouse.finalize(warehouse.won(flights(4, 9)), sink)
    assert counted(warehouse) == [(1, 5)]
