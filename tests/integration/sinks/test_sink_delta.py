"""Commits to a Delta table: each row is there once, whatever somebody else does to the table."""

import itertools
import random
import signal
import time
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from fixtures.batches.account import committed, ids, quiet
from fixtures.batches.faults import Children, children, dies_at, forks  # noqa: F401
from fixtures.batches.workbench import Workbench, events
from fixtures.contract.sinks import won_of
from fixtures.delta.outlet import EVENTS, OWN, Delta
from fixtures.objects.s3 import S3
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.archive.marker import markers_of
from semel.audit import audit
from semel.errors import CorruptionError, RetryableError, TerminalError, UnavailableError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.runs.run import run_batch, steps_of
from semel.sinks import MiscountError, NotesQuery, Presence
from semel.sinks.delta import landing
from semel.sinks.delta.table import DeltaTarget, with_semel_columns

LAST_FIRST = [6, 5, 8, 7]


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, bench: Workbench) -> Delta:
    """A table, in a folder or in a store."""
    return Delta(bench, request.getfixturevalue("s3") if request.param == "s3" else None)


@pytest.fixture
def folder(bench: Workbench) -> Delta:
    """A table in a folder."""
    return Delta(bench)


def found(place: Delta) -> list[str]:
    """All ids that are there."""
    return sorted(place.read()["id"].to_pylist())


def proven(spec: Spec) -> None:
    verdict = audit(spec)
    assert verdict.ok, {c.name: c.offenders for c in verdict.checks if not c.ok}


def run(place: Delta, ledger: Ledger, key: str, start: int, stop: int) -> None:
    """A batch of new events."""
    place.bench.write(f"in/{key}.jsonl", events(start, stop))
    run_batch(ledger, place.spec(), key, LocalEngine(), log=quiet)


# Attacks DL1, DL2.
def test_batches_are_finalized_in_any_order(place: Delta) -> None:
    """The later first: no batch counts as landed for one behind it that has, and none lands twice,
    though each is published again by somebody who found nothing there."""
    batches = {n: place.won((10 * n, 10 * n + 10), batch_id=n) for n in LAST_FIRST}
    for number, won in batches.items():
        assert place.sink().query_presence(won) == [Presence.ABSENT]
        place.finalize(won)
        assert place.sink().query_presence(won) == [Presence.RIGHT]
        for landed in LAST_FIRST[: LAST_FIRST.index(number) + 1]:
            place.sink().publish(batches[landed], batches[landed].files)
    for won in batches.values():
        place.finalize(won)
    assert found(place) == sorted(ids(50, 90))


def test_how_often_a_batch_loads_the_table(
    place: Delta, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stage loads it before its job and after it, finalize before its commit and after it: a load
    takes longer with each commit."""
    run(place, ledger, "r0", 0, 10)
    load, loads = DeltaTarget.open_newest, []
    monkeypatch.setattr(DeltaTarget, "open_newest", lambda table: loads.append(1) or load(table))
    place.bench.write("in/r1.jsonl", events(10, 20))
    spec = place.spec()
    batch_id = plan(ledger, spec, "r1").batch.batch_id
    taken = {}
    for verb, step in steps_of(ledger, spec, batch_id, LocalEngine(), quiet).items():
        loads.clear()
        step()
        taken[verb] = len(loads)
    assert taken == {"stage": 2, "commit": 0, "finalize": 2}
    assert found(place) == ids(0, 20)


def test_the_newest_notes_open_no_file_of_one_batch(folder: Delta) -> None:
    """What is compared before each batch does not grow with the history: the log says which batch a
    file has, so a file may be gone. A compacted file has all of its batches, and is read."""
    for number in range(1, 6):
        folder.finalize(folder.won((10 * number, 10 * number + number), batch_id=number))
    earliest = next(uri for uri in folder.table.file_uris() if "b00000001" in uri)
    gone = Path(earliest.removeprefix("file://"))
    kept = gone.read_bytes()
    gone.unlink()
    theirs = pa.table({"id": ["theirs"]})
    write_deltalake(folder.table, theirs, mode="append", schema_mode="merge")

    def noted(count: int) -> list[tuple[int, int]]:
        notes = folder.sink().notes(NotesQuery("events", count, folder.bench.folder, 5))
        return [(note.batch_id, note.rows) for note in notes.batch_notes]

    for count in (2, 5, 6):
        assert noted(count) == [(n, n) for n in range(5, max(0, 5 - count), -1)]
    gone.write_bytes(kept)
    folder.table.optimize.compact()
    folder.finalize(folder.won((60, 66), batch_id=6))
    for count in (1, 2, 3, 6, 7):
        assert noted(count) == [(n, n) for n in range(6, max(0, 6 - count), -1)]
    [compacted] = (uri for uri in folder.table.file_uris() if "b00000006" not in uri)
    Path(compacted.removeprefix("file://")).unlink()
    assert noted(1) == [(6, 6)]
    with pytest.raises(CorruptionError, match="cannot be read"):
        noted(2)


# Attacks DL2.
def test_a_commit_after_the_first_look(place: Delta) -> None:
    """Others commit between the version that finalize judges by and its own commit: it judges
    again, by the version that they made."""
    place.finalize(place.won((20, 30), batch_id=2))
    won, twin = place.won((0, 10)), place.sink()
    with place.sink() as sink:
        assert sink.query_presence(won) == [Presence.ABSENT]
        twin.publish(won, won.files)
        sink.publish(won, won.files)
        assert sink.query_presence(won) == [Presence.RIGHT]
    other = place.won((40, 50), batch_id=3)
    with place.sink() as sink:
        assert sink.query_presence(other) == [Presence.ABSENT]
        place.append(foreign("theirs", _semel_batch=3))
        sink.publish(other, other.files)
        assert sink.query_presence(other) == [Presence.WRONG]
    assert found(place) == [*ids(0, 10), *ids(20, 30), "theirs"]


# Attacks DL2, DL7.
def test_a_table_that_is_compacted_and_vacuumed(place: Delta, ledger: Ledger) -> None:
    """Between batches: the files of a batch are gone, its rows are in others. The audit proves each
    batch, a finalize that comes again finds its own there, and the next one lands."""
    for number in range(3):
        run(place, ledger, f"r{number}", 10 * number, 10 * number + 10)
        place.table.optimize.compact()
        place.vacuum()
        proven(place.spec())
    again = place.won((0, 10), batch_id=7)
    place.finalize(again)
    place.table.optimize.z_order(["id"])
    place.vacuum()
    assert place.sink().query_presence(again) == [Presence.RIGHT]
    place.sink().publish(again, again.files)
    assert found(place) == sorted([*ids(0, 30), *ids(0, 10)])


# Attacks DL3.
def test_a_vacuum_between_the_files_and_their_commit(place: Delta) -> None:
    """It takes away what no commit names, however new: what the commit then names is put there
    again by the next look, and nothing is missing."""
    won = place.won((0, 10), (10, 15))
    with failpoints.armed("sink.before_delta", place.vacuum):
        place.sink().publish(won, won.files)
    assert place.sink().query_presence(won) == [Presence.ABSENT] * 2
    place.finalize(won)
    assert found(place) == ids(0, 15) and len(place.table.file_uris()) == 2
    with dies_at("sink.before_delta"):
        place.sink().publish(other := place.won((20, 30), batch_id=2), other.files)
    place.vacuum()
    place.finalize(other)
    assert found(place) == [*ids(0, 15), *ids(20, 30)]


# Attacks DL2.
def test_others_commit_while_a_batch_does(place: Delta) -> None:
    """Its commit fails as often as they do, and is made anew on what is there then: all rows are
    there, each once."""
    place.finalize(place.won((20, 30), batch_id=2))
    won, theirs = place.won((0, 10)), itertools.count()
    with ExitStack() as stack:
        for nth in (1, 2, 3):
            stack.enter_context(failpoints.armed(
                "sink.before_delta", lambda: place.append(foreign(f"theirs{next(theirs)}")), nth
            ))  # fmt: skip
        place.sink().publish(won, won.files)
    assert found(place) == [*ids(0, 10), *ids(20, 30), "theirs0", "theirs1", "theirs2"]
    assert place.sink().query_presence(won) == [Presence.RIGHT]


def foreign(record_id: str, **columns: object) -> pa.Table:
    """A row of somebody else's."""
    return pa.Table.from_pylist([{"id": record_id, **columns}], schema=with_semel_columns(EVENTS))


# Attacks DL2.
def test_one_who_commits_all_the_time(folder: Delta, monkeypatch: pytest.MonkeyPatch) -> None:
    """A publish gives up, and says what to do; nothing of the batch is visible."""
    monkeypatch.setattr(landing, "COMMITS_MAX", 2)
    folder.finalize(folder.won((20, 30), batch_id=2))
    won = folder.won((0, 10))
    with ExitStack() as stack:
        for nth in (1, 2):
            commit = failpoints.armed("sink.before_delta", lambda: folder.append(foreign("x")), nth)
            stack.enter_context(commit)
        with pytest.raises(RetryableError, match="committed to .* 2 times .*finalize again"):
            folder.sink().publish(won, won.files)
    assert found(folder) == [*ids(20, 30), "x", "x"]
    folder.finalize(won)
    assert found(folder) == [*ids(0, 10), *ids(20, 30), "x", "x"]


# Attacks DL1, DL2.
def test_a_twin_commits_while_a_batch_does(place: Delta) -> None:
    """Both have found nothing there, and both have put the files: one commit has them."""
    won = place.won((0, 10), (10, 15))
    with failpoints.armed("sink.before_delta", lambda: place.sink().publish(won, won.files)):
        place.sink().publish(won, won.files)
    assert found(place) == ids(0, 15) and place.table.version() == 1
    assert place.sink().query_presence(won) == [Presence.RIGHT] * 2


# Attacks DL2.
def test_a_commit_whose_answer_is_lost(place: Delta, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has the batch, and the client says that it failed: the next look finds it."""
    won, really = place.won((0, 10)), DeltaTable.create_write_transaction

    def lost(*args: object, **more: object) -> None:
        really(*args, **more)
        raise OSError("connection reset")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
    with pytest.raises(UnavailableError, match="does not answer .connection reset"):
        place.sink().publish(won, won.files)
    monkeypatch.undo()
    assert place.table.version() == 1 and found(place) == ids(0, 10)


def finalizing(ledger: Ledger, spec: Spec, batch: int) -> None:
    """What each of the sixteen does."""
    finalize(ledger, spec, batch)


# Attacks DL1, DL2, DL3, F9.
def test_sixteen_finalizers_killed_anywhere(
    folder: Delta, ledger: Ledger, children: Children
) -> None:
    """Processes finalize one batch at once, and are killed at points and at random moments: each
    row is there once. It takes 10 s: sixteen processes start."""
    folder.bench.write("in/a.jsonl", events(0, 50))
    spec = folder.spec()
    batch = committed(ledger, spec, "r1")
    points = ["sink.before_file", "sink.after_file", "sink.before_delta", "sink.after_delta",
              "finalize.after_mark"]  # fmt: skip
    chosen = random.Random(34)
    first = children.start(finalizing, "sink.before_delta:exit:1", None, batch)
    first.process.join(60)
    assert first.process.exitcode == failpoints.EXIT_CODE and not folder.rows()
    for number in range(15):
        at = f"{chosen.choice(points)}:exit:1" if number % 2 else ""
        children.start(finalizing, at, None, batch)
    for child in children.started[1:]:
        if chosen.random() < 0.5:
            time.sleep(chosen.random() / 10)
            child.process.kill()
    for child in children.started:
        child.process.join(60)
    assert -signal.SIGKILL in {child.process.exitcode for child in children.started}
    finalize(ledger, spec, batch)
    assert found(folder) == ids(0, 50) and folder.table.version() == 1
    proven(spec)


# Attacks DL2.
def test_a_log_that_is_cleaned_up_keeps_what_landed(folder: Delta) -> None:
    """Behind a checkpoint, with all commits before it gone, each batch is still found there."""
    batches = [folder.won((10 * n, 10 * n + 10), batch_id=n) for n in (1, 2, 3)]
    for won in batches:
        folder.finalize(won)
    folder.table.create_checkpoint()
    log = folder.bench.data / "out" / "table" / "_delta_log"
    for number in range(3):
        (log / f"{number:020d}.json").unlink()
    for won in batches:
        assert folder.sink().query_presence(won) == [Presence.RIGHT]
        folder.sink().publish(won, won.files)
    folder.finalize(folder.won((40, 50), batch_id=4))
    assert found(folder) == [*ids(10, 40), *ids(40, 50)]


# Attacks F4.
def test_rows_of_its_number_without_their_commit(place: Delta) -> None:
    """Somebody has written rows that say that they are of a batch: nothing lands beside them."""
    place.finalize(place.won((20, 30), batch_id=2))
    won = place.won((0, 10))
    place.append(foreign("theirs", _semel_batch=1))
    assert place.sink().query_presence(won) == [Presence.WRONG]
    place.sink().publish(won, won.files)
    with pytest.raises(CorruptionError):
        place.finalize(won)
    assert found(place) == [*ids(20, 30), "theirs"]


# Attacks DL2, DL3.
def test_rows_of_its_number_that_come_meanwhile(folder: Delta) -> None:
    """Between the look and the commit: that fails, and what is found then lets nothing land."""
    folder.finalize(folder.won((20, 30), batch_id=2))
    won = folder.won((0, 10))
    theirs = foreign("theirs", _semel_batch=1)
    with failpoints.armed("sink.before_delta", lambda: folder.append(theirs)):
        folder.sink().publish(won, won.files)
    assert found(folder) == [*ids(20, 30), "theirs"]
    assert folder.sink().query_presence(won) == [Presence.WRONG]


def columns(**kinds: pa.DataType) -> pa.Schema:
    return with_semel_columns(
        pa.schema({**dict(zip(EVENTS.names, EVENTS.types, strict=True)), **kinds})
    )


# Attacks DL4.
@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"schema": pa.schema([EVENTS.field("id"), EVENTS.field("at"), *OWN])},
         r"lacks 'n' \(long\): ALTER TABLE"),
        ({"schema": EVENTS}, r"lacks '_semel_batch' \(long\), '_semel_seq'"),
        ({"schema": columns(n=pa.int32())}, "has 'n' as integer, and the output's is long"),
        ({"schema": columns(at=pa.timestamp("us"))}, "has the feature timestampNtz|as timestamp_n"),
        ({"schema": with_semel_columns(pa.schema([("ID", pa.string()), *list(EVENTS)[1:]]))},
         "has 'id' in another case"),
        ({"schema": pa.schema([*EVENTS, *OWN, pa.field("k", pa.int64(), nullable=False)])},
         "has 'k', or a part of it, NOT NULL"),
        ({"schema": columns(), "partition_by": ["n"]}, "is partitioned by n"),
        ({"schema": columns(), "configuration":
          {"delta.setTransactionRetentionDuration": "interval 7 days"}}, "after which it forgets"),
        ({"schema": columns(), "configuration": {"delta.enableDeletionVectors": "true"}},
         "has the feature deletionVectors"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit(folder: Delta, made: dict[str, Any], said: str) -> None:
    """It is refused before any work, and again before the commit; nothing is touched."""
    table = DeltaTable.create(folder.where, **made)
    won = folder.won((0, 10))
    for call in (
        lambda: folder.sink().check(EVENTS, folder.staged),
        lambda: folder.sink().describe(EVENTS),
        lambda: folder.sink().publish(won, won.files),
    ):
        with pytest.raises(TerminalError, match=said):
            call()
    assert folder.table.version() == table.version() == 0


# Attacks DL4.
def test_a_constraint_is_refused(folder: Delta) -> None:
    """Only a writer of rows can check it. One that is added once the batch has committed stops its
    finalize; once it is gone, the batch lands."""
    won = folder.won((0, 10))
    with dies_at("sink.before_delta"):
        folder.sink().publish(won, won.files)
    folder.table.alter.add_constraint({"small": "n < 5"})
    with pytest.raises(TerminalError, match=r"delta.constraints.small|the feature checkConstr"):
        folder.finalize(won)
    folder.table.alter.drop_constraint("small")
    folder.finalize(won)
    assert found(folder) == ids(0, 10)


# Attacks DL5.
@pytest.mark.parametrize(
    ("output", "said"),
    [
        (pa.table({"a b": ["x"]}), "'a b', a name that Delta forbids"),
        (pa.table({"a": ["x"], "A": ["x"]}), "'A' that differ by their case alone"),
        (pa.table({"_semel_seq": [1]}), "'_semel_seq', a name that semel uses itself"),
    ],
)
def test_an_output_that_no_table_takes(folder: Delta, output: pa.Table, said: str) -> None:
    """It is refused before any work, though there is no table yet."""
    with pytest.raises(TerminalError, match=said):
        folder.sink().check(output.schema, folder.staged)
    assert not folder.is_there()


MOMENT = datetime(2026, 3, 29, 0, 59, 59, 999_999, UTC)
EVERY = pa.table({
    "yes": [True, None, False], "tiny": pa.array([1, None, -128], pa.int8()),
    "small": pa.array([1, None, -32_768], pa.int16()),
    "int": pa.array([1, None, -(2**31)], pa.int32()), "long": [2**63 - 1, None, -(2**63)],
    "float": pa.array([1.5, None, -0.25], pa.float32()), "double": [1e308, None, -0.5],
    "number": pa.array([Decimal("1.50"), None, Decimal("-99999999.99")], pa.decimal128(10, 2)),
    "text": ["", None, "é" * 40], "bytes": [b"", None, b"\x00\xff"],
    "day": [date(1, 1, 1), None, date(9999, 12, 31)],
    "time": pa.array([MOMENT, None, datetime(1, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
    "list": [[1, None], None, []],
    "inner": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": ""}]),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
})  # fmt: skip


# Attacks DL5, DL7.
def test_each_type_comes_back_as_it_was(place: Delta, ledger: Ledger) -> None:
    """Each value of each type, through the table and through a compaction of it."""
    target = place.sink().target
    first, second = (won_of(place.staged, target, [EVERY], batch_id=n) for n in (1, 2))
    place.finalize(first)
    place.finalize(second)
    for _ in range(2):
        read = pa.concat_tables(place.sink()._table.rows(2, EVERY.schema))
        assert read.sort_by("yes").equals(EVERY.sort_by("yes"))
        place.table.optimize.compact()


# Attacks DL6.
def test_what_a_commit_says_of_its_files_is_true(folder: Delta) -> None:
    """Readers pass over a file by what its commit says: of each row they find no fewer with it, at
    the bounds of times that are cut to milliseconds, of texts and of nulls."""
    folder.finalize(won_of(folder.staged, folder.sink().target, [EVERY]))
    told = pa.table(folder.table.get_add_actions(flatten=True)).to_pylist()[0]
    assert told["num_records"] == 3 and told["null_count.long"] == 1
    assert (told["min.long"], told["max.long"]) == (-(2**63), 2**63 - 1)
    assert told["max.time"] >= MOMENT and told["max.time"] - MOMENT < timedelta(milliseconds=1)
    assert (told["min.day"], told["max.day"]) == (date(1, 1, 1), date(9999, 12, 31))
    assert told["max.text"] == "é" * 31 + "ê" and told["max._semel_batch"] == 1
    data = folder.table.to_pyarrow_dataset()
    for name in ("yes", "tiny", "long", "double", "number", "text", "day", "time"):
        for value in EVERY[name].to_pylist():
            if value is not None:
                wanted = pa.compute.field(name) == pa.scalar(value, EVERY[name].type)
                assert data.to_table(filter=wanted).num_rows == 1, (name, value)


# Attacks H2.
def test_a_table_of_another_time_is_missed(place: Delta, ledger: Ledger) -> None:
    """Before the next batch: a table that was restored to what it was before the last one."""
    for number in range(3):
        run(place, ledger, f"r{number}", 10 * number, 10 * number + 10)
    place.table.restore(place.table.version() - 1)
    with pytest.raises(TerminalError, match="has no note of batch 3"):
        run(place, ledger, "r3", 30, 40)
    place.table.restore(3)
    for key in ("r3", "r4"):
        run_batch(ledger, place.spec(), key, LocalEngine(), log=quiet)
    assert found(place) == ids(0, 40)
    proven(place.spec())


# Attacks DL7.
@pytest.mark.parametrize("harm", ["removed", "doubled", "changed"])
def test_what_somebody_did_to_rows_is_told(place: Delta, ledger: Ledger, harm: str) -> None:
    """By the audit, for each row; a new commit of somebody's own rows is no harm."""
    run(place, ledger, "r1", 0, 10)
    place.append(foreign("theirs"))
    proven(place.spec())
    place.harms[harm]()
    assert not audit(place.spec()).ok


# Attacks DL7.
def test_rows_that_somebody_removed_are_missed(folder: Delta, ledger: Ledger) -> None:
    """Behind those that are there, by who reads them."""
    run(folder, ledger, "r1", 0, 10)
    folder.harms["removed"]()
    [marker] = markers_of(folder.spec())
    read = folder.sink().rows(marker)
    assert next(read).num_rows == 9
    with pytest.raises(MiscountError, match="has 9 rows of batch 1, and semel published 10"):
        next(read)


@pytest.mark.proof
def test_a_store_that_does_not_let_one_in(
    bench: Workbench, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong keys are told in words that quote none, and so is a store that is away, in ten seconds;
    it needs a store that looks at keys."""
    place = Delta(bench, s3)
    won = place.won((0, 10))
    place.finalize(won)
    monkeypatch.setenv("AIRFLOW_CONN_STORE_TESTS", s3.connection(password="geheim!"))
    with pytest.raises(TerminalError) as told:
        place.sink().check(EVENTS, place.staged)
    assert "store_tests" in str(told.value) and "geheim" not in str(told.value)
    monkeypatch.setenv("AIRFLOW_CONN_STORE_TESTS", s3.connection())
    s3.kill()
    begun = time.monotonic()
    with pytest.raises(UnavailableError):
        place.sink().query_presence(won)
    assert time.monotonic() - begun < 15
