"""A replay into a table: its rows and those that it replaces change in one transaction."""

import pyarrow.parquet as pq
import pytest

from fix_account import quiet
from fix_engine import LocalEngine
from fix_pipelines import Workbench, events
from fix_postgres import lose
from fix_replay import allow, aside, refusal, replayed, run, two_batches
from fix_sink_postgres import Warehouse
from semel import faults, replay
from semel.adopt import adopt
from semel.audit import audit
from semel.cli import main
from semel.collect import collect
from semel.commit import commit
from semel.errors import RetryableError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.manifest import Kind
from semel.reader import markers_of
from semel.sinks.declared import open_sink
from semel.spec.pipeline import Spec
from semel.stage import stage

SINK = {"type": "postgres", "connection": "warehouse", "table": "events", "create": True}
SHORT = {"id": "string", "n": "bigint"}
"""The schema of a replay whose rows are told from those before: they have no time."""


@pytest.fixture
def table(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """The warehouse as the Airflow connection `warehouse`."""
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", warehouse.dsn)
    return warehouse


def without_time(bench: Workbench, ledger: Ledger) -> Spec:
    """The pipeline's declaration of now: its rows have no time."""
    spec = bench.spec(sink=SINK, source={"schema": SHORT})
    allow(ledger, spec)
    return spec


def made_by(table: Warehouse) -> list[tuple]:
    """The rows by the batch that wrote them: its number, place, rows, ids, and rows with a time."""
    return table.run(
        "SELECT _semel_batch, _semel_seq, count(*), count(DISTINCT id), count(at) FROM events "
        "GROUP BY 1, 2 ORDER BY 1, 2"
    )


def dies() -> None:
    raise faults.FaultError("died here")


def committed_replay(ledger: Ledger, spec: Spec, root: int, key: str) -> int:
    """The number of a replay that has committed, and is not finalized."""
    number = replay.plan(ledger, spec, key, root)[0].batch_id
    stage(ledger, spec, number, LocalEngine(), log=quiet)
    commit(ledger, spec, number, lambda: None, log=quiet)
    return number


# Attacks PG9, RP4.
def test_rows_are_replaced(bench: Workbench, ledger: Ledger, table: Warehouse) -> None:
    """The rows of each generation take the place of those before, at the root's place in the order
    of commits; the other batch's rows, and the user's own, stay as they are.
    """
    old = two_batches(bench, ledger, sink=SINK)
    table.run("ALTER TABLE events ALTER _semel_batch DROP NOT NULL, ALTER _semel_seq DROP NOT NULL")
    table.run("INSERT INTO events (id, n) VALUES ('mine', 1)")
    mine = (None, None, 1, 1, 0)
    assert made_by(table) == [(1, 1, 60, 60, 60), (2, 2, 10, 10, 10), mine]
    spec = without_time(bench, ledger)
    assert replayed(ledger, spec, 1, "again").batch.generation == 2
    assert made_by(table) == [(2, 2, 10, 10, 10), (3, 1, 60, 60, 0), mine]
    allow(ledger, old)
    assert replayed(ledger, old, 1, "once more").batch.generation == 3
    assert made_by(table) == [(2, 2, 10, 10, 10), (4, 1, 60, 60, 60), mine]
    assert table.run("SELECT batch_id, commit_seq, rows FROM semel_batch ORDER BY 1") == [
        (1, 1, 60), (2, 2, 10), (3, 1, 60), (4, 1, 60),
    ]  # fmt: skip
    first, second = markers_of(old)
    assert (first.generation, first.made_by, second.made_by) == (3, 4, 2)
    found = [r["id"] for t in open_sink(old).rows(first) for r in t.to_pylist()]
    assert sorted(found) == [e["id"] for e in events(0, 60)]


def test_a_new_column(bench: Workbench, ledger: Ledger, table: Warehouse) -> None:
    """The table lacks it: refused before the job, with the statement that adds it, which works."""
    two_batches(bench, ledger, sink=SINK)
    schema = {"id": "string", "n": "bigint", "at": "timestamp", "more": "string"}
    spec = bench.spec(sink=SINK, source={"schema": schema})
    allow(ledger, spec)
    with pytest.raises(TerminalError, match="lacks the column 'more'") as said:
        replayed(ledger, spec, 1, "again")
    table.run("ALTER TABLE " + str(said.value).partition("ALTER TABLE ")[2])
    replayed(ledger, spec, 1, "again")
    assert made_by(table) == [(2, 2, 10, 10, 10), (3, 1, 60, 60, 60)]
    assert table.run("SELECT count(more), count(*) FROM events") == [(0, 70)]


# Attacks PG9, F9.
@pytest.mark.parametrize(
    "point",
    [
        "sink.before_publish", "sink.before_commit", "sink.after_publish",
        "finalize.before_replace", "finalize.before_rename", "finalize.after_rename",
        "finalize.before_finalized",
    ],
)  # fmt: skip
def test_a_finalizer_that_died(
    bench: Workbench, ledger: Ledger, table: Warehouse, point: str
) -> None:
    """The table has the old rows or the new ones; the next finalize ends it, and the audit proves
    the account.
    """
    old = two_batches(bench, ledger, sink=SINK)
    spec = without_time(bench, ledger)
    number = committed_replay(ledger, spec, 1, "again")
    with faults.armed(point, dies) as passed, pytest.raises(faults.FaultError):
        finalize(ledger, spec, number)
    landed = point not in ("sink.before_publish", "sink.before_commit")
    second = (2, 2, 10, 10, 10)
    there = [second, (3, 1, 60, 60, 0)] if landed else [(1, 1, 60, 60, 60), second]
    assert passed.hit and made_by(table) == there
    finalize(ledger, spec, number)
    assert made_by(table) == [second, (3, 1, 60, 60, 0)]
    assert markers_of(old)[0].made_by == number


# Attacks PG9, RP5.
@pytest.mark.parametrize(
    "point",
    ["finalize.after_look", "sink.before_publish", "sink.after_publish", "finalize.before_replace"],
)
def test_a_finalizer_that_slept(
    bench: Workbench, ledger: Ledger, table: Warehouse, point: str
) -> None:
    """A twin finalizes, and generation 3 follows; who slept meanwhile changes nothing."""
    two_batches(bench, ledger, sink=SINK)
    spec = without_time(bench, ledger)
    number = committed_replay(ledger, spec, 1, "a")

    def meanwhile() -> None:
        assert not finalize(ledger, spec, number).found
        assert replayed(ledger, spec, 1, "b").batch.generation == 3

    with faults.armed(point, meanwhile) as slept:
        assert finalize(ledger, spec, number).found
    assert slept.hit
    assert made_by(table) == [(2, 2, 10, 10, 10), (4, 1, 60, 60, 0)]
    assert markers_of(spec)[0].generation == 3


# Attacks RP8, PG10.
def test_what_cannot_be_replaced_is_refused_before_any_work(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """By plan, which writes nothing, and again by stage, which starts no job."""
    spec = two_batches(bench, ledger, sink=SINK)
    number = replay.plan(ledger, spec, "first", 1)[0].batch_id
    table.run("CREATE RULE no AS ON DELETE TO events DO INSTEAD NOTHING")
    engine = LocalEngine()
    with pytest.raises(TerminalError, match="DROP RULE no"):
        stage(ledger, spec, number, engine, log=quiet)
    assert not engine.jobs
    assert "DROP RULE no ON events" in str(refusal(ledger, spec, 2))
    table.run("DROP RULE no ON events")
    table.run("DROP INDEX events__semel_batch_idx")
    said: list[str] = []
    stage(ledger, spec, number, engine, log=said.append)
    assert any("CREATE INDEX ON \"public\".\"events\" USING brin" in line for line in said)
    upsert = {**SINK, "table": "newest", "mode": "upsert", "key": ["id"]}
    other = bench.spec("newest", sink=upsert)
    run(ledger, other, "r1")
    (marker,) = markers_of(other)
    assert "mode upsert" in str(refusal(ledger, other, marker.batch_id))


# Attacks PG7, PG9.
def test_refused_rows_of_a_replay_are_accepted(
    bench: Workbench,
    ledger: Ledger,
    table: Warehouse,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """A CHECK that came in between: `semel accept --refused` ends the replay. Its refused rows are
    in a file of its own, also when the batch that it replays had some.
    """
    spec = two_batches(bench, ledger, sink=SINK)
    monkeypatch.setenv("SEMEL_LEDGER_DSN", ledger.dsn)
    for generation, lost in ((2, 7), (3, 8)):
        number = committed_replay(ledger, spec, 1, f"again {generation}")
        table.run(f"ALTER TABLE events ADD CONSTRAINT no_{lost} CHECK (abs(n) <> {lost}) NOT VALID")
        with pytest.raises(TerminalError, match=f"semel accept events --refused {number}"):
            finalize(ledger, spec, number)
        assert main(["accept", "events", "--refused", str(number)]) == 0
        marker = markers_of(spec)[0]
        (kept,) = marker.of_kind(Kind.REFUSED)
        ids = pq.read_table(marker.path_of(kept)).column("id").to_pylist()
        assert f"b{number:08d}" in kept.path and f"e00000{lost}" in ids
        assert (marker.made_by, kept.records, len(ids)) == (number, generation - 1, generation - 1)
        assert made_by(table)[1][0] == number and made_by(table)[1][2] == 61 - generation
    capsys.readouterr()


# Attacks RP3.
def test_a_survivor_that_the_table_does_not_take_now(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """A CHECK that came since: the attempt stops before its commit, and names row and remedy."""
    spec = two_batches(bench, ledger, sink=SINK)
    table.run("ALTER TABLE events ADD CONSTRAINT no_7 CHECK (n <> 7) NOT VALID")
    said = r"line 8 \(byte 392\): sink_refuses .*no_7.*The table does not take it; change the table"
    with pytest.raises(TerminalError, match=said):
        replayed(ledger, spec, 1, "again")
    assert made_by(table) == [(1, 1, 60, 60, 60), (2, 2, 10, 10, 10)]
    table.run("ALTER TABLE events DROP CONSTRAINT no_7")
    assert replayed(ledger, spec, 1, "again").batch.generation == 2


# Attacks PG11.
def test_who_reads_by_a_marker_is_told(
    bench: Workbench, ledger: Ledger, table: Warehouse  # noqa: ARG001
) -> None:
    """Between the rows and the marker of a replay, or with a marker that was read before both: not
    "no rows", but an error that may be retried; then the new rows.
    """
    spec = two_batches(bench, ledger, sink=SINK)
    number = committed_replay(ledger, spec, 1, "again")
    before = markers_of(spec)[0]
    with faults.armed("finalize.after_publish", dies), pytest.raises(faults.FaultError):
        finalize(ledger, spec, number)
    sink = open_sink(spec)
    assert markers_of(spec)[0].made_by == 1
    with pytest.raises(RetryableError, match="rows of batch 3 in the place of those of batch 1"):
        audit(spec)
    finalize(ledger, spec, number)
    with pytest.raises(RetryableError, match="run this again"):
        list(sink.rows(before))
    assert sum(t.num_rows for t in sink.rows(markers_of(spec)[0])) == 60
    assert sum(t.num_rows for t in sink.rows(markers_of(spec)[1])) == 10


# Attacks D10.
def test_adopt_knows_the_rows_of_replays(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """Each generation is noted in the table, and listed by a marker or by one kept aside: none of
    them is taken for rows that no marker lists.
    """
    spec = two_batches(bench, ledger, sink=SINK)
    for key in ("a", "b"):
        replayed(ledger, spec, 1, key)
    assert aside(spec, 1, 2).exists()
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).batches == 2
    bench.write("in/c.jsonl", events(65, 80))
    run(ledger, spec, "r3")
    assert table.run("SELECT count(*), count(DISTINCT id) FROM events") == [(80, 80)]


# Attacks D10.
def test_adopt_names_rows_of_a_replay_without_a_marker(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """The ledger is lost between landing and marker: the rows that were there before are gone, so
    these are not to be deleted. What adopt says works, and no row is missing at any time.
    """
    spec = two_batches(bench, ledger, sink=SINK)
    number = committed_replay(ledger, spec, 1, "again")
    with faults.armed("finalize.after_publish", dies), pytest.raises(faults.FaultError):
        finalize(ledger, spec, number)
    lose(ledger)
    with pytest.raises(TerminalError, match="batch 3, which replaced those of batch 1") as said:
        adopt(ledger, spec, log=quiet)
    assert "SET _semel_batch = 1 WHERE _semel_batch = 3" in str(said.value)
    table.run("UPDATE events SET _semel_batch = 1 WHERE _semel_batch = 3")
    table.run("DELETE FROM semel_batch WHERE batch_id = 3")
    adopt(ledger, spec, log=quiet)
    replayed(ledger, spec, 1, "anew")
    assert [row[1:4] for row in made_by(table)] == [(2, 10, 10), (1, 60, 60)]


# Attacks PG9, PG11.
def test_the_audit_proves_replayed_rows(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """Of each generation, also behind collect; a row that is missing of the newest is found."""
    old = two_batches(bench, ledger, sink=SINK)
    replayed(ledger, old, 1, "a")
    assert audit(old).ok
    spec = without_time(bench, ledger)
    replayed(ledger, spec, 1, "b")
    assert audit(spec).ok
    assert collect(ledger, spec, quiet).damaged == ()
    assert audit(spec).ok and made_by(table)[1] == (4, 1, 60, 60, 0)
    table.run("DELETE FROM events WHERE id = 'e000003'")
    assert not audit(spec).ok


# Attacks RP8, PG10.
def test_what_landed_in_mode_upsert(bench: Workbench, ledger: Ledger, table: Warehouse) -> None:
    """Also where the mode is append today: a later batch has rows in the place of this one's, which
    a replay would put beside them.
    """
    upsert = bench.spec(sink={**SINK, "mode": "upsert", "key": ["n"]})
    for number in (1, 2):
        rows = [{"id": f"{number}-{n}", "n": n, "at": None} for n in range(number, number + 5)]
        bench.write(f"in/{number}.jsonl", rows)
        run(ledger, upsert, f"r{number}")
    assert made_by(table) == [(1, 1, 1, 1, 0), (2, 2, 5, 5, 0)]
    spec = bench.spec(sink=SINK)
    table.run("DROP INDEX IF EXISTS events_n_idx")
    table.run("ALTER TABLE events DROP CONSTRAINT IF EXISTS events_pkey")
    assert "mode upsert" in str(refusal(ledger, spec, 1))
    bench.write("in/3.jsonl", events(10, 15))
    run(ledger, spec, "r3")
    assert replayed(ledger, spec, 3, "again").batch.generation == 2
