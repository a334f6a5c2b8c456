"""A pipeline whose sink is a table: each record once in it, from plan to audit."""

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from fixtures.batches.account import committed, ids, quiet, run
from fixtures.batches.faults import dies_at
from fixtures.batches.replays import proven
from fixtures.batches.workbench import Workbench, events
from fixtures.postgres.server import lose
from fixtures.postgres.warehouse import MODES, OWN, TABLE, Warehouse
from semel.archive import layout
from semel.archive.marker import markers_of
from semel.audit import audit
from semel.cli import main
from semel.errors import StateError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.model.manifest import Kind
from semel.pipeline.opening import open_sink
from semel.pipeline.spec import Spec
from semel.repair.adopt import adopt
from semel.reports.dead_letters import letters
from semel.reports.find import find
from semel.sinks import note_comparison
from semel.sinks.postgres.sink import PostgresSink
from semel.spark.check import check


def declared(bench: Workbench, **sink: object) -> Spec:
    """A pipeline by id into a table."""
    return bench.spec(sink={**TABLE, **sink})


def there(table: Warehouse) -> list[str]:
    return [i for (i,) in table.run("SELECT id FROM events ORDER BY id")]


def test_records_are_in_the_table_once(bench: Workbench, ledger: Ledger, table: Warehouse) -> None:
    """Two batches, repeats among them: each id once, with its batch; the audit proves it."""
    spec = declared(bench, position_columns=True)
    bench.write("in/a.jsonl", [*events(0, 50), *events(0, 5)])
    run(ledger, spec, "r1")
    bench.write("in/b.jsonl", [*events(40, 80), b"{bad"])
    done = run(ledger, spec, "r2")
    assert there(table) == ids(0, 80)
    counts = table.run("SELECT _semel_batch, _semel_seq, count(*) FROM events GROUP BY 1, 2")
    assert sorted(counts) == [(1, 1, 50), (2, 2, 30)]
    proven(spec)
    kept = layout.archive_folder(spec)
    assert kept == bench.data / "_semel" / "events"
    assert done.finalized.marker.is_relative_to(kept)
    assert not list((kept / "staging").glob("b*/f*"))
    [place] = find(spec, ["e000003"]).places[:1]
    assert (place.what, place.batch_id) == ("output", 1) and place.file.endswith("public.events")


# Attacks PG4.
def test_a_table_that_another_batch_makes_meanwhile(
    bench: Workbench, ledger: Ledger, table: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch tries a table that is not there, while another one makes it; the server remembers
    that it has answered no.
    """
    spec = declared(bench)
    bench.write("in/a.jsonl", events(0, 5))
    lacks, others = PostgresSink._lacks_table, iter([lambda: run(ledger, spec, "r1")])

    def meanwhile(self: PostgresSink, connection: object, facts: object) -> bool:
        found = lacks(self, connection, facts)
        for other in others:
            other()
        return found

    monkeypatch.setattr(PostgresSink, "_lacks_table", meanwhile)
    with open_sink(spec) as sink:
        assert sink.count_strays(()) == {}
        sink.examine(pa.schema({"id": pa.string(), "n": pa.int64()}))
    assert there(table) == ids(0, 5)


def test_the_notes_go_during_an_audit(
    bench: Workbench, ledger: Ledger, table: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note that is missing is looked for again; where no note can be read by then, the audit says
    so, and ends as any other: a broken promise is in the verdict.
    """
    spec = declared(bench)
    for number in (1, 2):
        bench.write(f"in/{number}.jsonl", events(number * 10, number * 10 + 5))
        run(ledger, spec, f"r{number}")
    table.run("DELETE FROM semel_batch WHERE batch_id = 2")
    compare = note_comparison.compare

    def then_it_goes(*told: object) -> note_comparison.Differences:
        found = compare(*told)
        table.run("DROP TABLE IF EXISTS semel_batch")
        return found

    monkeypatch.setattr(note_comparison, "compare", then_it_goes)
    [strays] = [check for check in audit(spec).checks if check.name == "strays"]
    assert "semel_batch" in strays.offenders[0].what


@MODES
def test_finalize_connects_once(
    bench: Workbench, ledger: Ledger, table: Warehouse, monkeypatch: pytest.MonkeyPatch, mode: dict
) -> None:
    """A connection costs more than a small batch; when finalize has ended, none is left."""
    spec = declared(bench, **mode)
    made: list[psycopg.Connection] = []
    connect = psycopg.connect

    def counted(dsn: str = "", **options: object) -> psycopg.Connection:
        connection = connect(dsn, **options)
        if connection.info.dbname == sa.make_url(table.dsn).database:  # And not the ledger's.
            made.append(connection)
        return connection

    for number in (1, 2):
        bench.write(f"in/{number}.jsonl", events(number * 10, number * 10 + 5))
        batch = committed(ledger, spec, f"r{number}")
        made.clear()
        with monkeypatch.context() as patch:
            patch.setattr("semel.sinks.postgres.link.psycopg.connect", counted)
            finalize(ledger, spec, batch)
        assert [connection.closed for connection in made] == [True]
    assert there(table) == [*ids(10, 15), *ids(20, 25)]


def test_the_later_commit_wins_in_any_order_of_finalize(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """Two batches with one key are finalized the other way round: the second one's row stays."""
    spec = declared(bench, mode="upsert", key=["n"])
    batches = []
    for number in (1, 2):
        bench.write(f"in/{number}.jsonl", [{"id": f"of {number}", "n": 7, "at": None}])
        batches.append(committed(ledger, spec, f"r{number}"))
    for batch in reversed(batches):
        finalize(ledger, spec, batch)
    assert table.run("SELECT id, n, _semel_batch FROM events") == [("of 2", 7, batches[1])]


def test_what_was_replaced_is_not_missing(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """The audit takes it so, and says so; a row that is missing of the last batch is found."""
    spec = declared(bench, mode="upsert", key=["n"])
    for number in (1, 2):
        records = [{"id": f"{number}-{n}", "n": n, "at": None} for n in range(number, number + 5)]
        bench.write(f"in/{number}.jsonl", records)
        run(ledger, spec, f"r{number}")
    assert there(table) == ["1-1", "2-2", "2-3", "2-4", "2-5", "2-6"]
    verdict = audit(spec)
    assert verdict.ok and any("last upsert as replaced" in note for note in verdict.notes)
    table.run("INSERT INTO events SELECT 'more', 99, at, 1, 1 FROM events LIMIT 1")
    assert not audit(spec).ok, "a row that no record made"
    table.run("DELETE FROM events WHERE n IN (6, 99)")
    assert not audit(spec).ok, "a row of the last batch is missing"


# Attacks PG8.
def test_a_key_that_is_twice_in_a_batch_fails_at_stage(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """Nothing has committed; with one row for the key the batch goes on."""
    spec = declared(bench, mode="upsert", key=["n"])
    bench.write("in/a.jsonl", [{"id": "a", "n": 1}, {"id": "b", "n": 1}])
    with pytest.raises(TerminalError, match=r"1 keys are in more than one row .*'n': 1"):
        run(ledger, spec, "r1")
    assert table.run("SELECT to_regclass('events')") == [(None,)]


# Attacks S27.
def test_what_the_table_will_refuse_is_a_dead_letter(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """NOT NULL, a CHECK, NUL in a text: set aside with reason; the others land, and are proven."""
    columns = "id text NOT NULL, n bigint NOT NULL CHECK (n < 100), at timestamptz"
    table.run(f"CREATE TABLE events ({columns}, {OWN})")
    spec = declared(bench, create=False)
    bad = [{"id": "x", "n": None}, {"id": "y", "n": 100}, {"id": "z\0", "n": 1}]
    bench.write("in/a.jsonl", [*events(0, 10), *bad])
    done = run(ledger, spec, "r1")
    assert there(table) == ids(0, 10)
    assert done.staged.aside.reasons == {"sink_refuses": 3}
    proven(spec)
    # It was never registered: corrected, it passes.
    bench.write("in/b.jsonl", [{"id": "x", "n": 1}])
    run(ledger, spec, "r2")
    assert there(table) == [*ids(0, 10), "x"]


# Attacks PG7.
def test_rows_that_the_table_refuses_after_the_commit(
    bench: Workbench, ledger: Ledger, table: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CHECK that came in between: finalize says how to go on, and what it says works.

    The refused row is in the archive, the others are in the table, and the audit counts both.
    """
    spec = declared(bench)
    bench.write("in/a.jsonl", events(0, 20))
    batch = committed(ledger, spec, "r1")
    table.run(f"CREATE TABLE events (id text, n bigint CHECK (n <> 7), at timestamptz, {OWN})")
    with pytest.raises(TerminalError, match=f"semel accept events --refused {batch}"):
        finalize(ledger, spec, batch)
    assert there(table) == []
    monkeypatch.setenv("SEMEL_LEDGER_DSN", ledger.dsn)
    assert main(["accept", "events", "--refused", str(batch)]) == 0
    assert there(table) == [i for i in ids(0, 20) if i != "e000007"]
    (marker,) = markers_of(spec)
    (kept,) = marker.of_kind(Kind.REFUSED)
    (row,) = pq.read_table(marker.path_of(kept)).to_pylist()
    assert row["id"] == "e000007" and "events_n_check" in row["_semel_refusal"]
    (letter,) = letters(spec, reason="refused", count=5).letters
    assert (letter.batch_id, letter.source, letter.reason) == (batch, None, "refused")
    assert "events_n_check" in letter.detail and '"id": "e000007"' in letter.text
    proven(spec)


# Attacks D10.
def test_rows_without_a_marker_are_settled_before_adopt(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """The ledger is lost between landing and marker: adopt names the rows, and how to settle it."""
    spec = declared(bench)
    bench.write("in/a.jsonl", events(0, 20))
    with dies_at("sink.after_publish"):
        run(ledger, spec, "r1")
    lose(ledger)
    with pytest.raises(TerminalError, match=r"this sink has .* of semel"):
        run(ledger, spec, "r1")
    with pytest.raises(TerminalError, match=r"rows of batch 1, .*_semel_batch IN \(1\)"):
        adopt(ledger, spec, log=quiet)
    table.run("DELETE FROM events WHERE _semel_batch IN (1)")
    table.run("DELETE FROM semel_batch WHERE batch_id IN (1)")
    adopt(ledger, spec, log=quiet)
    run(ledger, spec, "r1")
    assert there(table) == ids(0, 20)
    proven(spec)


def test_a_batch_lands_where_it_was_planned(
    bench: Workbench, ledger: Ledger, table: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that was changed after the commit is refused; put back, finalize ends."""
    spec = declared(bench)
    bench.write("in/a.jsonl", events(0, 20))
    batch = committed(ledger, spec, "r1")
    other = table.dsn.rpartition("/")[0] + "/nowhere"
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", other)
    with pytest.raises(StateError, match="Put the declaration or the connection back"):
        finalize(ledger, spec, batch)
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", table.dsn)
    finalize(ledger, spec, batch)
    assert there(table) == ids(0, 20)


def test_check_looks_at_its_archive(
    bench: Workbench, ledger: Ledger, table: Warehouse  # noqa: ARG001
) -> None:
    """Where rows go to a table, executors write to the archive: `semel check` tries that folder."""
    bench.write("in/a.jsonl", events(0, 5))
    spec = declared(bench)
    layout.archive_folder(spec).mkdir(parents=True)
    found = [one for one in check([spec], "sc://127.0.0.1:1", quiet).checks if one.name == "sink"]
    assert all(one.ok for one in found)
    assert sum(str(layout.archive_folder(spec)) in one.detail for one in found) == 1
    assert not list(layout.archive_folder(spec).iterdir())
