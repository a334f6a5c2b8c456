"""The target is a witness too: what a table holds, against what markers and ledger say.

What may happen to a table, by append and by upsert: each is told, with a way out that works.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from fixtures.batches.account import committed, quiet, run
from fixtures.batches.workbench import Workbench, events
from fixtures.postgres.server import database, lose
from fixtures.postgres.warehouse import Warehouse
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.archive import layout, ownership, traces
from semel.archive.marker import markers_of
from semel.audit import AuditVerdict, audit
from semel.cli import main
from semel.collect import collect
from semel.commit import commit
from semel.errors import CorruptionError, StateError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.pipeline.opening import open_sink
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.repair.adopt import adopt
from semel.reports.find import find
from semel.runs import replay
from semel.spark.check import check
from semel.stage import stage

TABLE = {"type": "postgres", "connection": "warehouse", "table": "events", "create": True}
MODES = {"append": TABLE, "upsert": {**TABLE, "mode": "upsert", "key": ["id"]}}
ALL = [(1, 10), (2, 10), (3, 10)]


@pytest.fixture
def table(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", warehouse.dsn)
    return warehouse


@pytest.fixture(params=MODES)
def spec(
    request: pytest.FixtureRequest,
    bench: Workbench,
    ledger: Ledger,
    table: Warehouse,  # noqa: ARG001
) -> Spec:
    """A pipeline into a table, with three finalized batches of ten rows."""
    made = bench.spec(sink=MODES[request.param])
    for number in (1, 2, 3):
        come(bench, ledger, made, number)
    return made


def come(bench: Workbench, ledger: Ledger, spec: Spec, number: int) -> None:
    """Batch `number`: ten more records."""
    bench.write(f"in/{number}.jsonl", events(10 * number, 10 * number + 10))
    run(ledger, spec, f"r{number}")


def counted(table: Warehouse) -> list[tuple]:
    return table.run("SELECT _semel_batch, count(*) FROM events GROUP BY 1 ORDER BY 1")


def noted(table: Warehouse) -> list[int]:
    return [n for (n,) in table.run("SELECT batch_id FROM semel_batch ORDER BY 1")]


def is_append(spec: Spec) -> bool:
    return spec.sink.mode == "append"


def replayed(ledger: Ledger, spec: Spec, roots: range) -> None:
    """What `semel replay events --batches 1..3` does."""
    for root in roots:
        replay.run(ledger, spec, f"mend {root}", root, LocalEngine(), log=quiet)


def blamed(verdict: AuditVerdict) -> dict[str, set[int | None]]:
    """The batches that each check blames."""
    return {c.name: {o.batch for o in c.offenders} for c in verdict.checks if not c.ok}


def dies() -> None:
    raise failpoints.FaultError("died here")


def restored(table: Warehouse, batch: int) -> None:
    """The table as it was before a batch landed."""
    table.run(f"DELETE FROM events WHERE _semel_batch >= {batch}")
    table.run(f"DELETE FROM semel_batch WHERE batch_id >= {batch}")


@contextmanager
def elsewhere(
    postgres: str, table: Warehouse, patch: pytest.MonkeyPatch, *, copied: bool
) -> Iterator[Warehouse]:
    """The connection leads to another database: a copy, or one without anything in it."""
    name = table.dsn.rpartition("/")[2]
    with database(postgres, name if copied else "template1") as dsn:
        patch.setenv("AIRFLOW_CONN_WAREHOUSE", dsn)
        yield Warehouse(dsn=dsn, folder=table.folder)


# Attacks H2, H3.
def test_an_edited_connection_moves_nothing(
    bench: Workbench, ledger: Ledger, spec: Spec, table: Warehouse, postgres: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """To a database without the rows: the next plan is refused, and so is the verb; readers are
    told; put back, the pipeline goes on.
    """
    with elsewhere(postgres, table, monkeypatch, copied=False) as other:
        with pytest.raises(StateError, match=r"Put the .*connection back.*accept events --moved`"):
            come(bench, ledger, spec, 4)
        assert main(["accept", "events", "--moved"]) == 1
        made = other.run("SELECT to_regclass('events'), to_regclass('semel_batch')")
        assert made == [(None, None)]
        with pytest.raises(TerminalError):
            find(spec, ["e000012"])
        assert blamed(audit(spec))["files"] == {1, 2, 3}
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", table.dsn)
    come(bench, ledger, spec, 4)
    assert counted(table) == [*ALL, (4, 10)] and audit(spec).ok


# Attacks H3.
def test_a_table_that_was_moved(
    bench: Workbench, ledger: Ledger, spec: Spec, table: Warehouse, postgres: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """With its rows and notes: the verb takes it, once; readers and the next batches go there."""
    with elsewhere(postgres, table, monkeypatch, copied=True) as other:
        with pytest.raises(StateError, match="accept events --moved"):
            come(bench, ledger, spec, 4)
        assert main(["accept", "events", "--moved"]) == 0
        assert f"was {open_sink(spec).address}" not in capsys.readouterr().out
        come(bench, ledger, spec, 4)
        assert counted(other) == [*ALL, (4, 10)] and counted(table) == ALL
        assert audit(spec).ok
        [place] = [p for p in find(spec, ["e000012"]).places if p.what == "output"]
        assert place.batch_id == 1
        assert main(["accept", "events", "--moved"]) == 1, "there is nothing more to accept"


# Attacks H3, F10.
def test_a_host_that_has_another_name(
    bench: Workbench, ledger: Ledger, spec: Spec, table: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a batch is committed, and another one has landed and has no marker: each verb says what
    to do; the verb that it names works, and both are finalized.
    """
    bench.write("in/4.jsonl", events(40, 50))
    first = committed(ledger, spec, "r4")
    with failpoints.armed("sink.after_publish", dies), pytest.raises(failpoints.FaultError):
        finalize(ledger, spec, first)
    bench.write("in/5.jsonl", events(50, 60))
    second = committed(ledger, spec, "r5")
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", table.dsn.replace("127.0.0.1", "localhost"))
    for batch in (first, second):
        with pytest.raises(StateError, match="`semel accept events --moved`"):
            finalize(ledger, spec, batch)
    with ledger.transaction() as connection:
        connection.exec_driver_sql(
            "UPDATE semel.batch SET committed_at = '1970-01-01 00:00+00', "
            "seen_at = '1970-01-01 00:00+00' WHERE status = 'committed'"
        )
    told = collect(ledger, spec, log=quiet).damaged
    assert len(told) == 2 and all("accept events --moved" in one for one in told)
    assert main(["accept", "events", "--moved"]) == 0
    assert collect(ledger, spec, log=quiet).batches_finalized == 2
    assert counted(table) == [*ALL, (4, 10), (5, 10)] and audit(spec).ok
    come(bench, ledger, spec, 6)
    names = {file.path for m in markers_of(spec) for file in m.of_kind("data")}
    assert all(re.fullmatch(r"b\d{8}-\d{5}", name) for name in names), names


# Attacks H2.
def test_a_table_of_an_earlier_time(
    bench: Workbench, ledger: Ledger, spec: Spec, table: Warehouse
) -> None:
    """It was restored to before batch 3: nothing more is staged, and no reader is content. In mode
    append a replay puts the rows in again; else a backup, or what adopt does.
    """
    restored(table, 3)
    what = "has no note of batch 3, which the markers"
    with pytest.raises(TerminalError, match=what) as told:
        come(bench, ledger, spec, 4)
    with pytest.raises(TerminalError, match="has no note on batch 3"):
        find(spec, ["e000032"])
    assert 3 in blamed(audit(spec))["files"]
    if is_append(spec):
        assert told.value.next == "semel replay events --batches 3 --request mend-3"
        replayed(ledger, spec, range(3, 4))
        run(ledger, spec, "r4")
        assert counted(table) == [(1, 10), (2, 10), (4, 10), (5, 10)]
        assert audit(spec).ok
        return
    assert "replay" not in told.value.next and "treat the ledger as lost" in str(told.value)


# Attacks D10, H2.
def test_adopt_beside_a_table_of_an_earlier_time(
    bench: Workbench, ledger: Ledger, spec: Spec, table: Warehouse
) -> None:
    """Adopted so, rows would be missing for ever: it is refused. With the marker aside they are
    read again.
    """
    restored(table, 3)
    lose(ledger)
    with pytest.raises(
        TerminalError, match="has no note of batch 3, but the archive has their markers"
    ):
        adopt(ledger, spec, log=quiet)
    marker = layout.marker(layout.archive_folder(spec), 3)
    marker.rename(bench.folder / "aside.json")
    for kind in ("ids", "decisions", "dead_letters", "claims"):
        for path in (layout.archive_folder(spec) / kind).glob("b00000003-*"):
            path.unlink()
    assert adopt(ledger, spec, log=quiet).batches == 2
    come(bench, ledger, spec, 4)
    assert table.run("SELECT count(*), count(DISTINCT id) FROM events") == [(40, 40)]
    assert audit(spec).ok


# Attacks D10, H2.
def test_adopt_at_an_empty_database(
    ledger: Ledger, spec: Spec, table: Warehouse, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection leads elsewhere: nothing is taken over; put back, all is."""
    lose(ledger)
    with elsewhere(postgres, table, monkeypatch, copied=False):
        with pytest.raises(TerminalError, match="has no note of batches 1, 2, 3"):
            adopt(ledger, spec, log=quiet)
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", table.dsn)
    assert adopt(ledger, spec, log=quiet).batches == 3
    assert audit(spec).ok


# Attacks D10.
def test_rows_of_a_second_replay_without_a_marker(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """The ledger is lost between its landing and its marker: what adopt says lets the rows be those
    of the replay before, whose marker is there, and readers find them.
    """
    spec = bench.spec(sink=TABLE)
    for number in (1, 2):
        come(bench, ledger, spec, number)
    replayed(ledger, spec, range(1, 2))
    second = replay.plan(ledger, spec, "again", 1)[0].batch_id
    stage(ledger, spec, second, LocalEngine(), log=quiet)
    commit(ledger, spec, second, lambda: None, log=quiet)
    with failpoints.armed("finalize.after_publish", dies), pytest.raises(failpoints.FaultError):
        finalize(ledger, spec, second)
    lose(ledger)
    with pytest.raises(
        TerminalError, match="the rows of batch 4 replaced those of batch 1"
    ) as told:
        adopt(ledger, spec, log=quiet)
    assert "1. UPDATE the table: SET _semel_batch = 3" in str(told.value)
    table.run("UPDATE events SET _semel_batch = 3 WHERE _semel_batch = 4")
    table.run("DELETE FROM semel_batch WHERE batch_id = 4")
    adopt(ledger, spec, log=quiet)
    assert sum(some.num_rows for some in open_sink(spec).rows(markers_of(spec)[0])) == 10
    assert audit(spec).ok


# Attacks H2.
def test_check_asks_the_target(spec: Spec, table: Warehouse) -> None:
    """`semel check` says what of the markers a table does not hold, and whose rows are there."""
    ownership.check_markers(spec, open_sink(spec))
    table.run("UPDATE semel_batch SET pipeline = 'theirs' WHERE batch_id = 2")
    with pytest.raises(TerminalError, match="has batch 2 of pipeline 'theirs'"):
        ownership.check_markers(spec, open_sink(spec))
    table.run("DELETE FROM semel_batch WHERE batch_id = 2")
    found = [one for one in check([spec], "sc://127.0.0.1:1", quiet).checks if not one.ok]
    assert any("has no note of batch 2" in one.detail for one in found)


# Attacks H2.
def test_a_note_that_somebody_damaged(
    bench: Workbench, ledger: Ledger, spec: Spec, table: Warehouse
) -> None:
    """The audit blames its batch alone, and a run goes on; check and adopt name it and refuse,
    until it is as it was.
    """
    table.run("ALTER TABLE semel_batch ALTER rows DROP NOT NULL")
    table.run("UPDATE semel_batch SET rows = NULL WHERE batch_id = 2")
    verdict = audit(spec)
    assert {batch for batches in blamed(verdict).values() for batch in batches} == {2}
    assert "pipeline events, batch 2 is not a valid note" in str(verdict)
    come(bench, ledger, spec, 4)
    lose(ledger)
    for refuses in (
        lambda: ownership.check_markers(spec, open_sink(spec)),
        lambda: adopt(ledger, spec, log=quiet),
    ):
        with pytest.raises(CorruptionError, match="batch 2 is not a valid note.*restore it"):
            refuses()
    table.run("UPDATE semel_batch SET rows = 10 WHERE batch_id = 2")
    adopt(ledger, spec, log=quiet)
    assert audit(spec).ok


# Attacks H2.
def test_batches_that_end_while_markers_are_listed(
    bench: Workbench, ledger: Ledger, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A batch reads which others are finalized. 2. Another one is finalized. 3. It lists the
    markers. 4. One more is finalized. 5. For the marker that it does not know it reads the ledger
    again. The last batch has no marker in that list, and lacks none.
    """
    listed, others = traces.marker_numbers, [5, 6]

    def markers(*asked: Any) -> set[int]:
        before, behind = (others.pop(0), others.pop(0)) if others else (None, None)
        if before:
            come(bench, ledger, spec, before)
        found = listed(*asked)
        if behind:
            come(bench, ledger, spec, behind)
        return found

    monkeypatch.setattr(traces, "marker_numbers", markers)
    come(bench, ledger, spec, 4)
    assert not others and audit(spec).ok


# Attacks H2.
def test_a_long_history_is_not_read(
    bench: Workbench, ledger: Ledger, spec: Spec, table: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a batch the newest ones are compared: what is missing of older ones is found by
    `semel check` and the audit.
    """
    monkeypatch.setattr("semel.archive.ownership.NOTES_COMPARED", 2)
    table.run("DELETE FROM semel_batch WHERE batch_id = 1")
    come(bench, ledger, spec, 4)
    with pytest.raises(TerminalError, match="has no note of batch 1"):
        ownership.check_markers(spec, open_sink(spec))
    assert blamed(audit(spec))["files"] == {1}
    table.run("DELETE FROM semel_batch WHERE batch_id = 4")
    with pytest.raises(TerminalError, match="has no note of batch 4"):
        come(bench, ledger, spec, 5)


# Attacks H2.
def test_a_pipeline_goes_on_after_adopt(
    bench: Workbench, ledger: Ledger, spec: Spec, table: Warehouse
) -> None:
    """The notes of the lost ledger are those of the new one from there on."""
    lose(ledger)
    adopt(ledger, spec, log=quiet)
    come(bench, ledger, spec, 4)
    assert len(table.run("SELECT DISTINCT ledger FROM semel_batch")) == 1
    assert counted(table) == [*ALL, (4, 10)] and audit(spec).ok


# Attacks H2, PG11.
@pytest.mark.parametrize("notes", [True, False], ids=["notes too", "rows alone"])
def test_an_emptied_table(
    bench: Workbench, ledger: Ledger, spec: Spec, table: Warehouse, notes: bool
) -> None:
    """Its notes tell it before the next batch, and readers count; append: a replay mends it."""
    table.run("TRUNCATE events")
    if notes:
        table.run("TRUNCATE semel_batch")
        with pytest.raises(TerminalError, match="has no note of batches 1, 2, 3"):
            come(bench, ledger, spec, 4)
    [*_, last] = markers_of(spec)
    what = "has no note on batch 3" if notes else "has 0 rows of batch 3, and semel published 10"
    with pytest.raises(TerminalError, match=what):
        list(open_sink(spec).rows(last))
    verdict = audit(spec)
    assert not verdict.ok and verdict.to_replay == (((1, 3),) if is_append(spec) else ())
    if is_append(spec):
        replayed(ledger, spec, range(1, 4))
        assert audit(spec).ok


# Attacks H2.
def test_rows_that_somebody_added(ledger: Ledger, spec: Spec, table: Warehouse) -> None:
    """Those of a batch that nobody knows, and of an output that was replaced, are named by it."""
    table.run("INSERT INTO events SELECT 'x' || id, n, at, 77, 77 FROM events "
              "WHERE _semel_batch = 1")  # fmt: skip
    verdict = audit(spec)
    assert blamed(verdict) == {"strays": {77}}
    [stray] = [o for c in verdict.checks for o in c.offenders]
    assert stray.what == "the sink has 10 rows of this batch, which no marker lists"
    table.run("DELETE FROM events WHERE _semel_batch = 77")
    assert audit(spec).ok
    if not is_append(spec):
        return
    table.run("CREATE TABLE backup AS SELECT * FROM events WHERE _semel_batch = 1")
    replayed(ledger, spec, range(1, 2))
    assert audit(spec).ok
    table.run("ALTER TABLE events DROP CONSTRAINT IF EXISTS events_pkey")
    table.run("INSERT INTO events SELECT * FROM backup")
    assert blamed(audit(spec))["strays"] == {1}, "an older generation has come back"


# Attacks PG11.
def test_rows_that_somebody_removed(ledger: Ledger, spec: Spec, table: Warehouse) -> None:
    """Who reads a batch by its marker is told; append: the command of the message mends it."""
    table.run("DELETE FROM events WHERE id IN ('e000032', 'e000033')")
    [*_, last] = markers_of(spec)
    with pytest.raises(
        TerminalError, match="has 8 rows of batch 3, and semel published 10"
    ) as told:
        list(open_sink(spec).rows(last))
    verdict = audit(spec)
    assert not verdict.ok and verdict.to_replay == (((3, 3),) if is_append(spec) else ())
    again = "semel replay events --batches 3 --request mend-3" if is_append(spec) else ""
    assert told.value.next == again
    if is_append(spec):
        replayed(ledger, spec, range(3, 4))
        assert audit(spec).ok


# Attacks PG13.
def test_notes_that_were_removed_before_the_marker(
    bench: Workbench, ledger: Ledger, table: Warehouse
) -> None:
    """Between landing and marker, of the first batch and of a later one: nothing is put in again.
    The statement of the message, as it stands, lets finalize end.
    """
    spec = bench.spec(sink=TABLE)
    for number, remove in ((1, "DROP TABLE semel_batch"), (2, "DELETE FROM semel_batch "
                                                              "WHERE batch_id = 2")):  # fmt: skip
        bench.write(f"in/{number}.jsonl", events(10 * number, 10 * number + 10))
        batch = committed(ledger, spec, f"r{number}")
        with failpoints.armed("sink.after_publish", dies), pytest.raises(failpoints.FaultError):
            finalize(ledger, spec, batch)
        table.run(remove)
        with pytest.raises(
            TerminalError, match="no notes on them: they were removed|its note was removed"
        ) as told:
            finalize(ledger, spec, batch)
        assert counted(table) == ALL[:number]
        if number == 1:
            table.run("DELETE FROM events")
        else:
            table.run(re.search(r"DELETE FROM [^;]+", str(told.value))[0])
        finalize(ledger, spec, batch)
    assert counted(table) == ALL[:2] and audit(spec).ok


# Attacks PG13, H2.
def test_notes_that_were_removed(
    bench: Workbench, ledger: Ledger, spec: Spec, table: Warehouse
) -> None:
    """All of them, with the rows there: the next batch is refused; restored, it lands."""
    table.run("ALTER TABLE semel_batch RENAME TO backup")
    with pytest.raises(TerminalError, match="has no notes on them"):
        come(bench, ledger, spec, 4)
    table.run("DROP TABLE IF EXISTS semel_batch")
    table.run("ALTER TABLE backup RENAME TO semel_batch")
    run(ledger, spec, "r4")
    assert counted(table)[:3] == ALL and audit(spec).ok


# Attacks H2, PG13.
def test_two_pipelines_under_two_names_of_a_host(
    bench: Workbench, ledger: Ledger, spec: Spec, table: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One table by `localhost` and by `127.0.0.1`: the second pipeline is refused at its plan; and
    where both were planned before a row was there, before any work.
    """
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", table.dsn.replace("127.0.0.1", "localhost"))
    other = bench.spec("other", sink={**spec.sink.model_dump(mode="json"), "connection": "other"})
    with pytest.raises(TerminalError, match=r"has batches 1, 2, 3 of pipeline 'events'"):
        plan(ledger, other, "r1")
    assert counted(table) == ALL


# Attacks H2, PG13.
@pytest.mark.parametrize("mode", MODES)
def test_two_pipelines_that_begin_together(
    bench: Workbench, ledger: Ledger, table: Warehouse, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Both were planned, or have committed, before a row was there: one lands, and the other one
    does nothing.
    """
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", table.dsn.replace("127.0.0.1", "localhost"))
    bench.write("in/1.jsonl", events(10, 20))
    one = bench.spec("one", sink=MODES[mode])
    two = bench.spec("two", sink={**MODES[mode], "connection": "other"})
    first, second = committed(ledger, one, "r1"), committed(ledger, two, "r1")
    finalize(ledger, one, first)
    with pytest.raises(TerminalError, match=r"has batch 1 of pipeline 'one'. A table"):
        finalize(ledger, two, second)
    assert counted(table) == [(first, 10)]
    bench.write("in/2.jsonl", events(20, 30))
    batch = plan(ledger, two, "r2").batch.batch_id
    engine = LocalEngine()
    with pytest.raises(TerminalError, match=r"has batch 1 of pipeline 'one'"):
        stage(ledger, two, batch, engine, log=quiet)
    assert not engine.jobs


# Attacks H2.
def test_two_ledgers(
    bench: Workbench, ledger: Ledger, table: Warehouse, postgres: str, template: str
) -> None:
    """The same pipeline in two ledgers, both planned before a row was there: what one has put in
    the other one does not know, and says so before any row of its own.
    """
    spec = bench.spec(sink=TABLE)
    bench.write("in/1.jsonl", events(10, 20))
    with database(postgres, template) as dsn, Ledger(dsn) as second:
        theirs = bench.spec(sink={**TABLE, "archive": "theirs"})
        plan(second, theirs, "r1")
        run(ledger, spec, "r1")
        with pytest.raises(TerminalError, match="pipeline 'events' of another ledger"):
            run(second, theirs, "r1")
    assert counted(table) == [(1, 10)]
    come(bench, ledger, spec, 2)


# Attacks H2.
def test_a_folder_of_an_earlier_time(bench: Workbench, ledger: Ledger) -> None:
    """Markers that the ledger has as finalized, and that are gone, are missed before the next batch
    lands; and such as it does not know.
    """
    spec = bench.spec()
    for number in (1, 2, 3):
        come(bench, ledger, spec, number)
    marker = layout.marker(layout.archive_folder(spec), 3)
    marker.rename(bench.folder / "aside.json")
    with pytest.raises(
        TerminalError, match="the markers of batch 3 are missing, though these are finalized"
    ):
        come(bench, ledger, spec, 4)
    (bench.folder / "aside.json").rename(marker)
    run(ledger, spec, "r4")
    other = layout.marker(layout.archive_folder(spec), 77)
    other.write_bytes(marker.read_bytes())
    with pytest.raises(
        TerminalError, match="the markers of batch 77 are not of 'events' in this ledger"
    ):
        come(bench, ledger, spec, 5)
    other.unlink()
    run(ledger, spec, "r5")
    assert audit(spec).ok


def test_a_connection_of_this_test_is_psycopg(table: Warehouse) -> None:
    """The name `localhost` leads to the test's server, as these tests need it to."""
    with psycopg.connect(table.dsn.replace("127.0.0.1", "localhost")) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
