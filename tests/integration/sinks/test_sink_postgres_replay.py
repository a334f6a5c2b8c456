"""A replay in a table: old rows go and new ones come in one transaction, or nothing happens."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pyarrow as pa
import pytest

from fixtures.batches.faults import dies_at
from fixtures.postgres.warehouse import OWN, Warehouse, flights, never
from semel.errors import RetryableError, TerminalError
from semel.sinks import CommittedBatch, Presence, ReplacedOutput
from semel.sinks.postgres.sink import REFUSAL_COLUMN, PostgresSink

OLD = ReplacedOutput(pipeline="flights", commit_seq=1, batches=(1,))
OLD_ROWS, NEW_ROWS = [(1, 1, "old", 10, 10)], [(2, 1, "new", 7, 7)]
"""What `counted` gives before and after the replay of `planned`."""

COLUMNS = f"id bigint PRIMARY KEY, city text, {OWN}"
WAIT_SECONDS = 30


def counted(warehouse: Warehouse) -> list[tuple]:
    """Rows and different ids of each batch and place, with their city."""
    return warehouse.run(
        "SELECT _semel_batch, _semel_seq, city, count(*), count(DISTINCT id) FROM flights "
        "GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
    )


def first(warehouse: Warehouse, sink: PostgresSink, count: int = 10) -> CommittedBatch:
    """The root, batch 1, in the table."""
    won = warehouse.won(flights(range(count), "old"))
    warehouse.finalize(won, sink)
    return won


def planned(
    warehouse: Warehouse, columns: str = "", count: int = 7, **declared: object
) -> tuple[PostgresSink, CommittedBatch]:
    """A table, the user's own where its columns are given, with the root in it; and a replay."""
    if columns:
        warehouse.run(f"CREATE TABLE flights ({columns})")
    sink = warehouse.sink(**declared)
    first(warehouse, sink)
    return sink, warehouse.replay(flights(range(count), "new"), batch_id=2)


# Attacks PG9.
def test_the_newest_output_is_there_once(warehouse: Warehouse) -> None:
    """Generation 2 and 3 replace what was before them, published twice or late; others stay."""
    sink = warehouse.sink()
    root = first(warehouse, sink)
    warehouse.finalize(warehouse.won(flights(range(20, 25), "old"), batch_id=2), sink)
    second = warehouse.replay(flights(range(8), "new"), batch_id=3)
    third = warehouse.replay(flights(range(9), "newest"), batch_id=4, of=(1, 3))
    assert sink.query_presence(second) == [Presence.ABSENT]
    sink.publish(second, second.files)
    sink.publish(second, second.files)
    assert counted(warehouse) == [(2, 2, "old", 5, 5), (3, 1, "new", 8, 8)]
    warehouse.finalize(third, sink)
    for late in (root, second, third):
        sink.publish(late, late.files)
        assert sink.query_presence(late) == [Presence.RIGHT]
    assert counted(warehouse) == [(2, 2, "old", 5, 5), (4, 1, "newest", 9, 9)]


def test_a_table_of_an_earlier_time(warehouse: Warehouse) -> None:
    """The table was restored to before generation 2: generation 3 replaces what is there."""
    sink = warehouse.sink()
    first(warehouse, sink)
    warehouse.finalize(warehouse.replay(flights(range(9), "old"), batch_id=4, of=(1, 3)), sink)
    assert counted(warehouse) == [(4, 1, "old", 9, 9)]
    warehouse.run("DROP TABLE flights")
    warehouse.finalize(warehouse.replay(flights(range(8), "old"), batch_id=5, of=(1, 3, 4)), sink)
    assert counted(warehouse) == [(5, 1, "old", 8, 8)]


READ = "SELECT count(*), count(DISTINCT id), min(city), max(city) FROM flights"


@contextmanager
def readers(warehouse: Warehouse, *levels: psycopg.IsolationLevel) -> Iterator[list[set]]:
    """Connections that count all the while; yields what each has seen."""
    seen: list[set] = [set() for _ in levels]
    end = threading.Event()

    def read(level: psycopg.IsolationLevel, into: set) -> None:
        with psycopg.connect(warehouse.dsn) as connection:
            connection.isolation_level = level
            while not end.is_set():
                with connection.transaction():
                    found = connection.execute(READ).fetchone()
                    if level is psycopg.IsolationLevel.REPEATABLE_READ:
                        assert connection.execute(READ).fetchone() == found
                into.add(found)

    with ThreadPoolExecutor(len(levels)) as pool:
        asked = [pool.submit(read, *pair) for pair in zip(levels, seen, strict=True)]
        try:
            yield seen
        finally:
            end.set()
        for one in asked:
            one.result(WAIT_SECONDS)


# Attacks PG9.
def test_a_reader_sees_the_old_rows_or_the_new(warehouse: Warehouse) -> None:
    """Who counts all the while never sees both, a part, or neither, at either isolation level."""
    sink = warehouse.sink()
    first(warehouse, sink, 3_000)
    levels = psycopg.IsolationLevel.READ_COMMITTED, psycopg.IsolationLevel.REPEATABLE_READ
    outputs = [(3_000, 3_000, "old", "old")]
    with readers(warehouse, *levels) as seen:
        for batch in range(2, 9):
            count, city = 3_000 - 50 * batch, f"of {batch}"
            won = warehouse.replay(
                flights(range(count), city), batch_id=batch, of=tuple(range(1, batch))
            )
            warehouse.finalize(won, sink)
            outputs.append((count, count, city, city))
    assert all(found <= {*outputs} for found in seen), seen
    assert all(len(found) > 2 for found in seen), "they looked while rows were replaced"


# Attacks PG3, PG9.
def test_twins_at_once(warehouse: Warehouse) -> None:
    """Each of several publishes of one replay, begun together, ends well; its rows are there once,
    and old ones are not.
    """
    sink = warehouse.sink()
    first(warehouse, sink, 500)
    begin = threading.Barrier(4)

    def publish(won: CommittedBatch) -> None:
        begin.wait(WAIT_SECONDS)
        warehouse.finalize(won, warehouse.sink())

    with ThreadPoolExecutor(4) as pool:
        for batch in range(2, 7):
            won = warehouse.replay(
                flights(range(400), "new"), batch_id=batch, of=tuple(range(1, batch))
            )
            list(pool.map(publish, [won] * 4, timeout=WAIT_SECONDS))
            assert counted(warehouse) == [(batch, 1, "new", 400, 400)]


# Attacks PG9.
def test_rows_of_others_stay(warehouse: Warehouse) -> None:
    """The user's own rows, and a later batch's, are not touched."""
    warehouse.run(f"CREATE TABLE flights (id bigint, city text, more text DEFAULT 'x', {OWN})")
    warehouse.run("INSERT INTO flights (id, city) VALUES (1, 'mine'), (2, 'mine')")
    sink = warehouse.sink(create=False)
    first(warehouse, sink)
    warehouse.finalize(warehouse.won(flights(range(5), "later"), batch_id=2), sink)
    won = warehouse.replay(flights(range(7), "new"), batch_id=3)
    assert sink.check_replace(OLD)[0].startswith("no index is on _semel_batch")
    warehouse.finalize(won, sink)
    assert counted(warehouse) == [
        (2, 2, "later", 5, 5), (3, 1, "new", 7, 7), (None, None, "mine", 2, 2),
    ]  # fmt: skip


# Attacks PG13.
@pytest.mark.parametrize("other", [{"pipeline": "elsewhere"}, {"ledger": "theirs"}], ids=str)
def test_batches_of_another_pipeline(warehouse: Warehouse, other: dict[str, str]) -> None:
    """Of another pipeline, or another ledger's of the same name: nothing of theirs lands beside
    ours, whatever its number is.
    """
    sink = warehouse.sink()
    warehouse.finalize(replace(warehouse.won(flights(range(10), "old")), ledger="ours"), sink)
    theirs = replace(warehouse.won(flights(range(4), "theirs"), batch_id=7), **other)
    with pytest.raises(TerminalError, match="has batch 1 of pipeline 'flights'.*one pipeline"):
        warehouse.finalize(theirs, warehouse.sink())
    assert counted(warehouse) == [(1, 1, "old", 10, 10)]


def of_another_table(warehouse: Warehouse) -> None:
    warehouse.run("CREATE TABLE \"see also\" (flight bigint REFERENCES flights ON DELETE CASCADE)")


def of_itself(warehouse: Warehouse) -> None:
    warehouse.run("ALTER TABLE flights ADD before bigint REFERENCES flights")


def rule(warehouse: Warehouse) -> None:
    warehouse.run("CREATE RULE \"no!\" AS ON DELETE TO flights DO INSTEAD NOTHING")


def replicated(warehouse: Warehouse) -> None:
    warehouse.run("ALTER TABLE flights DROP CONSTRAINT flights_pkey")
    warehouse.run("CREATE PUBLICATION everything FOR ALL TABLES")


REFUSALS: dict[Callable, str] = {
    of_another_table: 'the foreign key "?see also_flight_fkey"? of "see also" references it',
    of_itself: "the foreign key flights_before_fkey of flights references it",
    rule: 'its rule "no!" rewrites DELETE',
    replicated: "does not have a replica identity and publishes deletes",
}


# Attacks PG10.
@pytest.mark.parametrize("change", REFUSALS)
def test_what_would_keep_rows_is_refused(warehouse: Warehouse, change: Callable) -> None:
    """Each is named; the statement of the message, run as it stands, lets the replay land."""
    sink, won = planned(warehouse, COLUMNS, create=False)
    change(warehouse)
    with pytest.raises(TerminalError, match=REFUSALS[change]) as raised:
        sink.check_replace(OLD)
    assert counted(warehouse) == OLD_ROWS
    warehouse.run(str(raised.value).rpartition("; ")[2])
    sink.check_replace(OLD)
    warehouse.finalize(won, sink)
    assert counted(warehouse) == NEW_ROWS


# Attacks PG10.
def test_rights(warehouse: Warehouse) -> None:
    """DELETE, and SELECT on what finds the rows; row security hides rows, and is refused."""
    _, won = planned(warehouse)
    role = warehouse.role()
    warehouse.run(f"GRANT INSERT ON flights TO {role.name}")
    warehouse.run(f"GRANT SELECT, INSERT, UPDATE ON semel_batch TO {role.name}")
    sink = warehouse.sink(dsn=role.dsn, create=False)
    for right in ("DELETE", "SELECT (_semel_batch, _semel_seq)"):
        with pytest.raises(TerminalError, match="GRANT SELECT, DELETE ON \"public\".\"flights\""):
            sink.check_replace(OLD)
        warehouse.run(f"GRANT {right} ON flights TO {role.name}")
    sink.check_replace(OLD)
    warehouse.finalize(won, sink)
    assert counted(warehouse) == NEW_ROWS
    warehouse.run("ALTER TABLE flights ENABLE ROW LEVEL SECURITY")
    with pytest.raises(TerminalError, match="row security"):
        sink.check_replace(OLD)


KEEP = """CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS
'begin if old.id < 3 then return null; end if; return old; end'"""


# Attacks PG9.
def test_a_trigger_that_keeps_rows(warehouse: Warehouse) -> None:
    """It is a note before, and found in time: nothing lands beside rows that stay. Disabled, the
    same publish ends.
    """
    sink, won = planned(warehouse)
    warehouse.run(KEEP)
    warehouse.run("CREATE TRIGGER soft BEFORE DELETE ON flights FOR EACH ROW EXECUTE "
                  "FUNCTION keep()")  # fmt: skip
    assert sink.check_replace(OLD) == (
        "the trigger soft of flights fires when finalize deletes the old rows",
    )
    with pytest.raises(TerminalError, match=r"keeps 3 of them\)\. The batch stays committed"):
        sink.publish(won, won.files)
    assert sink.query_presence(won) == [Presence.ABSENT]
    assert counted(warehouse) == OLD_ROWS
    warehouse.run("ALTER TABLE flights DISABLE TRIGGER soft")
    assert sink.check_replace(OLD) == ()
    warehouse.finalize(won, sink)
    assert counted(warehouse) == NEW_ROWS


# Attacks PG9.
def test_what_came_after_the_look(warehouse: Warehouse) -> None:
    """A foreign key, a publication or a lock that came since: nothing lands, and the message does
    not send anybody to accept rows, which would not help.
    """
    sink, won = planned(warehouse, COLUMNS)
    warehouse.run("CREATE TABLE seats (flight bigint REFERENCES flights)")
    warehouse.run("INSERT INTO seats VALUES (3)")
    with pytest.raises(TerminalError, match="does not delete .*seats_flight_fkey.*Change the table") as said:
        sink.publish(won, won.files)
    assert "--refused" not in str(said.value)
    with pytest.raises(TerminalError, match="seats_flight_fkey"):
        sink.publish_accepting(won, never)
    warehouse.run("DROP TABLE seats")
    replicated(warehouse)
    with pytest.raises(TerminalError, match="replica identity"):
        sink.publish(won, won.files)
    warehouse.run("DROP PUBLICATION everything")
    assert counted(warehouse) == OLD_ROWS
    warehouse.finalize(won, sink)
    assert counted(warehouse) == NEW_ROWS


def test_an_old_row_that_a_user_holds(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An UPDATE that is not committed: the replay is to be tried again, and then replaces it."""
    from semel.sinks.postgres import link

    sink, won = planned(warehouse)
    monkeypatch.setitem(link._SETTINGS, "lock", "100ms")
    with psycopg.connect(warehouse.dsn) as user:
        user.execute("UPDATE flights SET city = 'mine' WHERE id = 3")
        with pytest.raises(RetryableError, match="did not give a lock in time"):
            sink.publish(won, won.files)
    assert ("mine",) in warehouse.run("SELECT city FROM flights")
    warehouse.finalize(won, sink)
    assert counted(warehouse) == NEW_ROWS


# Attacks PG9, PG10.
def test_a_partitioned_table(warehouse: Warehouse) -> None:
    """Rows go from all partitions and come into others; what acts on one of them is found."""
    warehouse.run(f"CREATE TABLE flights ({COLUMNS}) PARTITION BY RANGE (id)")
    for start in (0, 10):
        warehouse.run(f"CREATE TABLE flights_{start} PARTITION OF flights "
                      f"FOR VALUES FROM ({start}) TO ({start + 10})")  # fmt: skip
    sink = warehouse.sink(create=False)
    first(warehouse, sink, 15)
    warehouse.run("CREATE TABLE seats (flight bigint REFERENCES flights_10)")
    with pytest.raises(TerminalError, match="seats_flight_fkey of seats references it"):
        sink.check_replace(OLD)
    warehouse.run("DROP TABLE seats")
    warehouse.run(KEEP)
    warehouse.run("CREATE TRIGGER soft BEFORE DELETE ON flights_10 FOR EACH ROW EXECUTE "
                  "FUNCTION keep()")  # fmt: skip
    assert "the trigger soft of flights_10" in sink.check_replace(OLD)[0]
    warehouse.finalize(warehouse.replay(flights(range(5, 19), "new"), batch_id=2), sink)
    assert counted(warehouse) == [(2, 1, "new", 14, 14)]
    assert warehouse.run("SELECT count(*) FROM flights_10") == [(9,)]


# Attacks PG7, PG9.
def test_rows_of_a_replay_that_are_refused(warehouse: Warehouse) -> None:
    """They are kept, and the others take the place of the old rows; or all stays as it was."""
    sink, won = planned(warehouse, count=12)
    warehouse.run("ALTER TABLE flights ADD CONSTRAINT no_3 CHECK (id <> 3 OR city = 'old')")
    with pytest.raises(TerminalError, match="no_3.*semel accept flights --refused 2"):
        sink.publish(won, won.files)
    with dies_at("sink.before_accepted"):
        sink.publish_accepting(won, lambda _: None)
    assert counted(warehouse) == OLD_ROWS
    kept: list[pa.Table] = []
    assert sink.publish_accepting(won, kept.append) == 1
    assert [row["id"] for row in kept[0].to_pylist()] == [3]
    assert "no_3" in kept[0].column(REFUSAL_COLUMN).to_pylist()[0]
    assert counted(warehouse) == [(2, 1, "new", 11, 11)] and sink.count_refused(won) == 1
    assert sink.publish_accepting(won, never) == 1
    third = warehouse.replay(flights(range(5, 12), "newest"), batch_id=3, of=(1, 2))
    warehouse.finalize(third, sink)
    assert counted(warehouse) == [(3, 1, "newest", 7, 7)]
    assert (sink.count_refused(won), sink.count_refused(third)) == (1, 0)


# Attacks PG9.
@pytest.mark.parametrize("made", [True, False])
def test_rows_are_found_by_an_index(warehouse: Warehouse, made: bool) -> None:
    """The one that semel makes with a table; for a table of the user's, the statement of the note,
    run as it stands, makes one.
    """
    if not made:
        warehouse.run(f"CREATE TABLE flights (id bigint, city text, {OWN})")
    sink = warehouse.sink()
    for batch in range(1, 9):
        warehouse.finalize(warehouse.won(flights(range(20_000), "old"), batch_id=batch), sink)
    if not made:
        (note,) = sink.check_replace(OLD)
        warehouse.run(note.rpartition("; ")[2])
    assert sink.check_replace(OLD) == ()
    warehouse.run("VACUUM ANALYZE flights")
    plan = warehouse.run("EXPLAIN DELETE FROM flights WHERE _semel_batch IN (1) AND _semel_seq = 1")
    assert any("Bitmap Index Scan on flights__semel_batch_idx" in line for (line,) in plan), plan
