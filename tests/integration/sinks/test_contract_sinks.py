"""The contract of sinks, by one suite for all: another kind is an entry of fixtures/kinds.py."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from fixtures.batches.account import quiet
from fixtures.batches.faults import dies_at
from fixtures.batches.workbench import Workbench, events
from fixtures.contract.sinks import Place
from fixtures.kinds import PLACES, place_of
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.archive import layout
from semel.archive.marker import markers_of
from semel.archive.ownership import refuse_traces
from semel.audit import audit
from semel.errors import CorruptionError, TerminalError
from semel.ledger import Ledger, pipelines
from semel.pipeline.opening import open_sink
from semel.plan import plan
from semel.runs import replay
from semel.runs.run import run_batch
from semel.sinks import CommittedBatch, Presence
from semel.stage import stage

WAIT_SECONDS = 30


@pytest.fixture(params=PLACES)
def place(
    request: pytest.FixtureRequest, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> Place:
    return place_of(request.param, request, bench, monkeypatch)


def rows(start: int, stop: int, batch_id: int = 1) -> list[tuple[int, str]]:
    """What `Place.rows` gives of a batch with `events(start, stop)`."""
    return [(batch_id, event["id"]) for event in events(start, stop)]


# Attacks F9, PG2.
def test_published_twice_lands_once(place: Place) -> None:
    """Each row is there once, however often a batch is published; look says when it is there."""
    sink, won = place.sink(), place.won((0, 10), (10, 15))
    assert sink.query_presence(won) == [Presence.ABSENT] * 2 and place.rows() == []
    sink.publish(won, won.files)
    assert sink.query_presence(won) == [Presence.RIGHT] * 2
    for missing in (won.files, (), won.files[1:]):
        sink.publish(won, missing)
    place.finalize(won)
    assert place.rows() == rows(0, 15) and not sink.count_refused(won)


@pytest.mark.parametrize("place", ["parquet"], indirect=True)
def test_a_sink_that_refuses_no_row_has_none_to_accept(place: Place) -> None:
    """It says so, and nothing is there."""
    sink, won = place.sink(), place.won((0, 10))
    with pytest.raises(TerminalError, match="out/events refused none of batch 1"):
        sink.publish_accepting(won, lambda _: pytest.fail("there are none"))
    assert place.rows() == []


# Attacks F1, PG1.
def test_a_publish_that_died_half_way_is_finished(place: Place) -> None:
    """The next one lands the rest, and nothing twice."""
    won = place.won((0, 10), (10, 15))
    with dies_at(place.half):
        place.finalize(won)
    assert Presence.ABSENT in place.sink().query_presence(won)
    assert len(place.rows()) < 15
    place.finalize(won)
    place.finalize(won)
    assert place.rows() == rows(0, 15)


# Attacks F9, PG1, PG3.
def test_what_looks_absent_does_not_land_beside_its_twin(place: Place) -> None:
    """One publish stands half way while another one finds the batch absent and publishes it: both
    end well, and each row is there once.
    """
    won = place.won((0, 10), (10, 15))
    inside, go = threading.Event(), threading.Event()

    def stand() -> None:
        inside.set()
        assert go.wait(WAIT_SECONDS)

    with ThreadPoolExecutor(2) as pool, failpoints.armed(place.half, stand):
        first = pool.submit(place.finalize, won)
        assert inside.wait(WAIT_SECONDS)
        assert Presence.ABSENT in place.sink().query_presence(won)
        second = pool.submit(place.finalize, won)
        time.sleep(0.3)
        go.set()
        assert first.result(WAIT_SECONDS) is second.result(WAIT_SECONDS) is None
    assert place.sink().query_presence(won) == [Presence.RIGHT] * 2
    assert place.rows() == rows(0, 15)


def test_a_batch_leaves_the_rows_of_others(place: Place) -> None:
    """In any order of batches, and published again: what was there stays as it was."""
    later, first = place.won((20, 30), batch_id=2), place.won((0, 10), batch_id=1)
    place.finalize(later)
    with dies_at(place.half):
        place.finalize(first)
    assert [row for row in place.rows() if row[0] == 2] == rows(20, 30, 2)
    for won in (first, later):
        place.finalize(won)
    assert place.rows() == [*rows(0, 10), *rows(20, 30, 2)]


# Attacks F2, F3, F4, PG2.
def test_what_another_batch_of_its_number_left_is_loud(place: Place) -> None:
    """Two ledgers write to one place: what landed first stays, and the other one is named."""
    sink, theirs, ours = place.sink(), place.won((0, 10)), place.won((20, 30), (30, 35))
    place.finalize(theirs)
    assert Presence.WRONG in sink.query_presence(ours)
    with pytest.raises(CorruptionError, match=r"batch 1: .*Nothing was touched"):
        place.finalize(ours)
    with suppress(CorruptionError):  # It was absent when it was looked at.
        sink.publish(ours, ours.files[:1])
    assert place.rows() == rows(0, 10) and Presence.WRONG in sink.query_presence(ours)
    assert sink.query_presence(theirs) == [Presence.RIGHT]


def lost(won: CommittedBatch) -> None:
    os.unlink(won.files[1].staged_path)


def cut(won: CommittedBatch) -> None:
    os.truncate(won.files[1].staged_path, won.files[1].bytes - 1)


# Attacks F2, F4.
@pytest.mark.parametrize("damage", [lost, cut])
def test_damaged_staged_files_are_loud(
    place: Place, damage: Callable[[CommittedBatch], None], tmp_path: Path
) -> None:
    """Nothing is touched, also of the files that are whole; restored, the batch lands."""
    won = place.won((0, 10), (10, 15))
    backup = shutil.copytree(place.staged, tmp_path / "backup")
    damage(won)
    with pytest.raises(CorruptionError, match=r"batch 1: 1 of 2 files.*Nothing was touched"):
        place.finalize(won)
    assert place.rows() == []
    shutil.copytree(backup, place.staged, dirs_exist_ok=True)
    place.finalize(won)
    assert place.rows() == rows(0, 15)


# Attacks D1.
def test_what_landed_is_known_without_its_ledger(place: Place) -> None:
    """A pipeline that is new to a ledger is refused where rows of one of its name lie."""
    spec, sink = place.spec(), place.sink()
    refuse_traces(spec, sink, layout.archive_folder(spec))
    place.finalize(place.won((0, 10), batch_id=7))
    with pytest.raises(TerminalError, match="does not know pipeline 'events'"):
        refuse_traces(spec, sink, layout.archive_folder(spec))


def test_one_place_has_one_address(place: Place) -> None:
    """However it is spelled; and another place has another one. It holds no secret."""
    *same, other = (open_sink(place.bench.spec(sink=s)).address for s in place.spellings())
    assert len({*same}) == 1 and other not in same
    assert not any("@" in address for address in same)


# Attacks P12.
def test_two_pipelines_do_not_share_a_place(place: Place, ledger: Ledger) -> None:
    """Whatever each of them calls it."""
    place.bench.write("in/a.jsonl", events(0, 10))
    first, *others, elsewhere = place.spellings()
    plan(ledger, place.bench.spec("first", sink=first), "r1")
    for sink in others:
        with pytest.raises(TerminalError, match="first"):
            plan(ledger, place.bench.spec("second", sink=sink), "r1")
    plan(ledger, place.bench.spec("second", sink=elsewhere), "r1")


def run(place: Place, ledger: Ledger, key: str) -> None:
    run_batch(ledger, place.spec(), key, LocalEngine(), log=quiet)


# Attacks R1.
def test_rows_are_what_a_batch_published(place: Place, ledger: Ledger) -> None:
    """By its marker, with types, though others lie there too, and in whichever order."""
    for number in range(3):
        place.bench.write(f"in/{number}.jsonl", events(10 * number, 10 * number + 10))
        run(place, ledger, f"r{number}")
    with ledger.transaction() as connection:
        ours = pipelines.find(connection, place.spec().name).ledger
    # Of no batch that a marker names.
    place.finalize(replace(place.won((70, 80), batch_id=9), ledger=ours))
    found = markers_of(place.spec())
    assert len(found) == 3
    for number, marker in reversed(list(enumerate(found))):
        read = pa.concat_tables(place.sink().rows(marker)).sort_by("id")
        assert read.column("id").to_pylist() == [e["id"] for e in events(10 * number,
                                                                         10 * number + 10)]
        assert read.column("n").to_pylist() == list(range(10 * number, 10 * number + 10))
        assert read.schema.field("n").type == pa.int64()


# Attacks RP5, RP8, PG9, KP8.
def test_an_output_is_replaced_or_the_sink_refuses(place: Place, ledger: Ledger) -> None:
    """A sink that can be replaced gives by its newest marker each row once; one that cannot refuses
    before any work, and stays as it is.
    """
    place.bench.write("in/a.jsonl", events(0, 10))
    run(place, ledger, "r1")
    before, engine = place.rows(), LocalEngine()
    if place.stays:
        with pytest.raises(TerminalError, match=place.stays):
            replay.run(ledger, place.spec(), "again", 1, engine, log=quiet)
        assert not engine.jobs and place.rows() == before
        return
    replay.run(ledger, place.spec(), "again", 1, engine, log=quiet)
    (marker,) = markers_of(place.spec())
    read = pa.concat_tables(place.sink().rows(marker)).sort_by("id")
    assert read.column("id").to_pylist() == [e["id"] for e in events(0, 10)]
    assert marker.writer_id == 2 and [row for row in place.rows() if row[0] == 2] == rows(0, 10, 2)


# Attacks PG4, L3.
def test_what_does_not_fit_is_refused_before_any_work(
    place: Place, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No attempt reads a byte, and nothing is there; mended, the same batch lands."""
    place.bench.write("in/a.jsonl", events(0, 10))
    batch = plan(ledger, place.spec(), "r1").batch.batch_id
    engine = LocalEngine()
    with monkeypatch.context() as patch:
        said = place.unfit(patch)
        with pytest.raises(TerminalError, match=said):
            stage(ledger, place.spec(), batch, engine, log=quiet)
        assert not engine.jobs and place.rows() == []
    place.mended()
    run(place, ledger, "r1")
    assert place.rows() == rows(0, 10)


@pytest.mark.parametrize("harm", ["removed", "doubled", "changed", "gone"])
def test_the_audit_sees_what_somebody_did_to_a_batch(
    place: Place, ledger: Ledger, harm: str
) -> None:
    """Rows that are missing, too many or other ones are never silent: batch or file is named."""
    place.bench.write("in/a.jsonl", events(0, 10))
    run(place, ledger, "r1")
    assert audit(place.spec()).ok
    place.harms[harm]()
    verdict = audit(place.spec())
    blamed = [offender for check in verdict.checks for offender in check.offenders]
    assert not verdict.ok and any(o.batch == 1 or "b00000001" in o.file for o in blamed), blamed


# Attacks PG2, F2.
def test_a_manifest_that_differs_in_a_byte_is_another_one(place: Place) -> None:
    """A batch that landed is right by its own manifest only."""
    sink, won = place.sink(), place.won((0, 10))
    place.finalize(won)
    [file] = won.files
    other = replace(file, checksum=file.checksum[::-1])
    assert sink.query_presence(replace(won, files=(other,), digest=won.digest[::-1])) == [Presence.WRONG]
