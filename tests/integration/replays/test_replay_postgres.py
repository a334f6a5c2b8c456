"""A replay into a table: its rows and those that it replaces change in one transaction."""

import pyarrow.parquet as pq
import pytest

from fixtures.batches.account import ids, quiet, run
from fixtures.batches.faults import dies_at
from fixtures.batches.replays import allow, broken, proven, refusal, replayed, two_batches, waiting
from fixtures.batches.workbench import Workbench, events
from fixtures.postgres.server import lose
from fixtures.postgres.warehouse import TABLE, Warehouse
from fixtures.spark.local import LocalEngine
from semel.archive.marker import markers_of
from semel.audit import audit
from semel.cli import main
from semel.collect import collect
from semel.errors import RetryableError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.model.manifest import Kind
from semel.pipeline.opening import open_sink
from semel.pipeline.spec import Spec
from semel.repair.adopt import adopt
from semel.runs import replay
from semel.stage import stage

SHORT = {"id": "string", "n": "bigint"}
"""The schema of a replay whose rows are told from those before: they have no time."""

FIRST, SECOND = (1, 1, 60, 60, 60), (2, 2, 10, 10, 10)
"""The rows of the two batches, as `writer_id` gives them."""


@pytest.fixture
def spec(bench: Workbench, ledger: Ledger, table: Warehouse) -> Spec:
    """Two batches are in the table."""
    made = two_batches(bench, ledger, sink=TABLE)
    assert made_by(table) == [FIRST, SECOND]
    return made


def without_time(bench: Workbench, ledger: Ledger) -> Spec:
    """The pipeline's declaration of now: its rows have no time."""
    spec = bench.spec(sink=TABLE, source={"schema": SHORT})
    allow(ledger, spec)
    return spec


def made_by(table: Warehouse) -> list[tuple]:
    """The rows by the batch that wrote them: its number, place, rows, ids, and rows with a time."""
    return table.run(
        "SELECT _semel_batch, _semel_seq, count(*), count(DISTINCT id), count(at) FROM events "
        "GROUP BY 1, 2 ORDER BY 1, 2"
    )


# Attacks PG9, RP4.
def test_rows_are_replaced(bench: Workbench, ledger: Ledger, table: Warehouse, spec: Spec) -> None:
    """The rows of each generation take the place of those before, at the root's place in the order
    of commits; the other batch's rows, and the user's own, stay as they are.
    """
    table.run("ALTER TABLE events ALTER _semel_batch DROP NOT NULL, ALTER _semel_seq DROP NOT NULL")
    table.run("INSERT INTO events (id, n) VALUES ('mine', 1)")
    mine = (None, None, 1, 1, 0)
    now = without_time(bench, ledger)
    assert replayed(ledger, now, 1, "again").batch.generation == 2
    assert made_by(table) == [SECOND, (3, 1, 60, 60, 0), mine]
    allow(ledger, spec)
    assert replayed(ledger, spec, 1, "once more").batch.generation == 3
    assert made_by(table) == [SECOND, (4, 1, 60, 60, 60), mine]
    assert table.run("SELECT batch_id, commit_seq, rows FROM semel_batch ORDER BY 1") == [
        (1, 1, 60), (2, 2, 10), (3, 1, 60), (4, 1, 60),
    ]  # fmt: skip
    first, second = markers_of(spec)
    assert (first.generation, first.writer_id, second.writer_id) == (3, 4, 2)
    found = [r["id"] for t in open_sink(spec).rows(first) for r in t.to_pylist()]
    assert sorted(found) == ids(0, 60)


@pytest.mark.usefixtures("spec")
def test_a_new_column(bench: Workbench, ledger: Ledger, table: Warehouse) -> None:
    """The table lacks it: refused before the job, with the statement that adds it, which works."""
    spec = bench.spec(sink=TABLE, source={"schema": {**SHORT, "at": "timestamp", "more": "string"}})
    allow(ledger, spec)
    with pytest.raises(TerminalError, match="lacks the column 'more'") as said:
        replayed(ledger, spec, 1, "again")
    table.run("ALTER TABLE " + str(said.value).partition("ALTER TABLE ")[2])
    replayed(ledger, spec, 1, "again")
    assert made_by(table) == [SECOND, (3, 1, 60, 60, 60)]
    assert table.run("SELECT count(more), count(*) FROM events") == [(0, 70)]


# Attacks PG9, F9.
@pytest.mark.usefixtures("spec")
def test_a_finalizer_that_dies_again_and_again(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """Each time the next one comes farther: the table has the old rows, or the new ones."""
    spec = without_time(bench, ledger)
    number = waiting(ledger, spec, 1, "again")
    for point, there in (
        ("sink.before_publish", FIRST),
        ("sink.before_commit", FIRST),
        ("sink.after_publish", (3, 1, 60, 60, 0)),
        ("finalize.before_replace", (3, 1, 60, 60, 0)),
        ("storage.before_swap", (3, 1, 60, 60, 0)),
        ("storage.after_swap", (3, 1, 60, 60, 0)),
        ("finalize.before_finalized", (3, 1, 60, 60, 0)),
    ):
        with dies_at(point):
            finalize(ledger, spec, number)
        assert made_by(table) == sorted((there, SECOND)), point
    finalize(ledger, spec, number)
    assert made_by(table) == [SECOND, (3, 1, 60, 60, 0)]
    assert markers_of(spec)[0].writer_id == number


# Attacks RP8, PG10.
def test_what_cannot_be_replaced_is_refused_before_any_work(
    ledger: Ledger, table: Warehouse, spec: Spec
) -> None:
    """By plan, which writes nothing, and again by stage, which starts no job."""
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


# Attacks PG7, PG9.
def test_refused_rows_of_a_replay_are_accepted(
    ledger: Ledger, table: Warehouse, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CHECK that came in between: `semel accept --refused` ends the replay. Its refused rows are
    in a file of its own, also when the batch that it replays had some.
    """
    monkeypatch.setenv("SEMEL_LEDGER_DSN", ledger.dsn)
    for generation, lost in ((2, 7), (3, 8)):
        number = waiting(ledger, spec, 1, f"again {generation}")
        table.run(f"ALTER TABLE events ADD CONSTRAINT no_{lost} CHECK (abs(n) <> {lost}) NOT VALID")
        with pytest.raises(TerminalError, match=f"semel accept events --refused {number}"):
            finalize(ledger, spec, number)
        assert main(["accept", "events", "--refused", str(number)]) == 0
        marker = markers_of(spec)[0]
        (kept,) = marker.of_kind(Kind.REFUSED)
        refused = pq.read_table(marker.path_of(kept)).column("id").to_pylist()
        assert f"b{number:08d}" in kept.path and f"e00000{lost}" in refused
        assert (marker.writer_id, kept.records, len(refused)) == (
            number, generation - 1, generation - 1
        )  # fmt: skip
        assert made_by(table)[1][0] == number and made_by(table)[1][2] == 61 - generation


# Attacks RP3.
def test_a_survivor_that_the_table_does_not_take_now(
    ledger: Ledger, table: Warehouse, spec: Spec
) -> None:
    """A CHECK that came since: the attempt stops before its commit, and names row and remedy."""
    table.run("ALTER TABLE events ADD CONSTRAINT no_7 CHECK (n <> 7) NOT VALID")
    said = r"line 8 \(byte 392\): sink_refuses .*no_7.*The sink rejects it. Change the table"
    with pytest.raises(TerminalError, match=said):
        replayed(ledger, spec, 1, "again")
    assert made_by(table) == [FIRST, SECOND]
    table.run("ALTER TABLE events DROP CONSTRAINT no_7")
    assert replayed(ledger, spec, 1, "again").batch.generation == 2


# Attacks PG11.
def test_who_reads_by_a_marker_is_told(ledger: Ledger, spec: Spec) -> None:
    """Between the rows and the marker of a replay, or with a marker that was read before both: not
    "no rows", but an error that may be retried; then the new rows.
    """
    number = waiting(ledger, spec, 1, "again")
    before = markers_of(spec)[0]
    with dies_at("finalize.after_publish"):
        finalize(ledger, spec, number)
    sink = open_sink(spec)
    assert markers_of(spec)[0].writer_id == 1
    with pytest.raises(RetryableError, match="rows of batch 3 instead of batch 1"):
        audit(spec)
    finalize(ledger, spec, number)
    with pytest.raises(RetryableError, match="Run this again"):
        list(sink.rows(before))
    assert sum(t.num_rows for t in sink.rows(markers_of(spec)[0])) == 60
    assert sum(t.num_rows for t in sink.rows(markers_of(spec)[1])) == 10


# Attacks D10.
def test_adopt_names_rows_of_a_replay_without_a_marker(
    ledger: Ledger, table: Warehouse, spec: Spec
) -> None:
    """The ledger is lost between landing and marker: the rows that were there before are gone, so
    these are not to be deleted. What adopt says works, and no row is missing at any time.
    """
    number = waiting(ledger, spec, 1, "again")
    with dies_at("finalize.after_publish"):
        finalize(ledger, spec, number)
    lose(ledger)
    with pytest.raises(TerminalError, match="the rows of batch 3 replaced those of batch 1") as said:
        adopt(ledger, spec, log=quiet)
    assert "SET _semel_batch = 1 WHERE _semel_batch = 3" in str(said.value)
    table.run("UPDATE events SET _semel_batch = 1 WHERE _semel_batch = 3")
    table.run("DELETE FROM semel_batch WHERE batch_id = 3")
    adopt(ledger, spec, log=quiet)
    replayed(ledger, spec, 1, "anew")
    assert [row[1:4] for row in made_by(table)] == [(2, 10, 10), (1, 60, 60)]


# Attacks PG9, PG11.
def test_the_audit_proves_replayed_rows(
    bench: Workbench, ledger: Ledger, table: Warehouse, spec: Spec
) -> None:
    """Of the newest generation, also behind collect; a row of it that is gone or another one is
    found, and so are batches whose rows have landed and that are not finalized.
    """
    replayed(ledger, spec, 1, "a")
    assert audit(spec).notes == ()
    now = without_time(bench, ledger)
    replayed(ledger, now, 1, "b")
    assert collect(ledger, now, quiet).damaged == ()
    proven(now, 1)
    assert made_by(table)[1] == (4, 1, 60, 60, 0)
    bench.write("in/c.jsonl", events(70, 75))
    with dies_at("finalize.after_publish"):
        run(ledger, now, "r3")
    assert "the sink has rows of batches 5, which no marker lists" in audit(now).notes[0]
    assert broken(now) == {"strays"}
    finalize(ledger, now, 5)
    proven(now, 1)
    table.run("UPDATE events SET n = 7 WHERE id = 'e000003'")
    assert broken(now) == {"content"}
    table.run("DELETE FROM events WHERE id = 'e000003'")
    assert broken(now) == {"output", "sums"}


# Attacks RP8, PG10.
def test_what_landed_in_mode_upsert(bench: Workbench, ledger: Ledger, table: Warehouse) -> None:
    """Also where the mode is append today: a later batch has rows in the place of this one's, which
    a replay would put beside them.
    """
    upsert = bench.spec(sink={**TABLE, "mode": "upsert", "key": ["n"]})
    for number in (1, 2):
        rows = [{"id": f"{number}-{n}", "n": n, "at": None} for n in range(number, number + 5)]
        bench.write(f"in/{number}.jsonl", rows)
        run(ledger, upsert, f"r{number}")
    assert made_by(table) == [(1, 1, 1, 1, 0), (2, 2, 5, 5, 0)]
    spec = bench.spec(sink=TABLE)
    table.run("DROP INDEX IF EXISTS events_n_idx")
    table.run("ALTER TABLE events DROP CONSTRAINT IF EXISTS events_pkey")
    assert "mode upsert" in str(refusal(ledger, spec, 1))
    bench.write("in/3.jsonl", events(10, 15))
    run(ledger, spec, "r3")
    assert replayed(ledger, spec, 3, "again").batch.generation == 2
