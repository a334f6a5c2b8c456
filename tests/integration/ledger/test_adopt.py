"""A lost ledger is no lost pipeline: adopt makes it again from markers and files alone."""

import json
import os
import shutil
from contextlib import suppress

import numpy as np
import pytest

from fixtures.batches.account import first_batch, ids, quiet, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.contract.sources import Files, Parquet
from fixtures.postgres.server import lose
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.archive import layout
from semel.archive.marker import markers
from semel.audit import audit
from semel.commit import commit
from semel.errors import CorruptionError, RetryableError, TerminalError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.repair.accept import accept_file
from semel.repair.adopt import adopt
from semel.stage import stage


def sql(ledger: Ledger, text: str) -> list[tuple]:
    with ledger.engine.begin() as connection:
        done = connection.exec_driver_sql(text)
        return [tuple(row) for row in done] if done.returns_rows else []


def left(ledger: Ledger, bench: Workbench, spec: Spec, key: str, *, verb: str) -> int:
    """A batch that got as far as `verb`, and no farther."""
    batch_id = plan(ledger, spec, key).batch.batch_id
    if verb in ("stage", "commit"):
        stage(ledger, spec, batch_id, LocalEngine(), quiet)
    if verb == "commit":
        commit(ledger, spec, batch_id, lambda: None, quiet)
    return batch_id


DECLARED = {
    "plain": {},
    "jsonl in buckets": {
        "sink": {"format": "jsonl", "partition_by": ["n"]},
        "record_time": "at", "dedup": {"scope": "bucket", "horizon": "3650 days"},
    },
    "kept": {"dedup": {"keep_ids": True}},
    "position": {"record_id": None},
}  # fmt: skip


# Attacks D2, D4, D6.
@pytest.mark.parametrize("name", DECLARED)
def test_ten_batches_survive_their_ledger(bench: Workbench, ledger: Ledger, name: str) -> None:
    """Ten batches with deaths and lost attempts among them; then the ledger is gone.

    Adopted, the pipeline goes on: each record is there once, an id of the first batch that comes
    again is a duplicate, and what had only been planned, staged or committed is read again.
    """
    spec = bench.spec(**DECLARED[name])
    points = ("stage.after_job", "commit.before_win")
    points += ("finalize.after_publish", "finalize.after_mark")
    for number in range(10):
        start = 20 * number
        again = [] if spec.by_position else events(max(0, start - 5), start)
        bench.write(f"in/{number % 3}.jsonl", [*events(start, start + 20), *again, b"{bad"], "ab")
        if number % 2:
            point = points[number // 2 % len(points)]
            with failpoints.armed(point, _fails), suppress(failpoints.FaultError, RetryableError):
                run(ledger, spec, f"r{number}")
        run(ledger, spec, f"r{number}")
    bench.write("in/lost.jsonl", events(200, 220))
    lost = left(ledger, bench, spec, "lost", verb="commit")
    bench.write("in/0.jsonl", events(220, 230), "ab")
    run(ledger, spec, "r10")
    bench.write("in/1.jsonl", events(230, 240), "ab")
    staged = left(ledger, bench, spec, "staged", verb="stage")
    bench.write("in/2.jsonl", events(240, 250), "ab")
    left(ledger, bench, spec, "planned", verb="plan")

    lose(ledger)
    adopted = adopt(ledger, spec, log=quiet)
    assert (adopted.batches, adopted.commits_lost) == (11, ((11, 11),))
    assert adopted.ids == (0 if spec.by_position else 210)
    assert adopted.files_found == adopted.source_partitions == 3
    assert {f"b{n:08d}" for n in (lost, staged)} <= {n.split("/")[0] for n in adopted.staging}
    again = adopt(ledger, spec, log=quiet)
    assert again.found and again.batches == 11

    run(ledger, spec, "planned")
    account = settled(spec)
    assert account.ids == ids(0, 250)
    assert max(marker.batch_id for marker in markers(spec.sink_path())) > staged
    if not spec.by_position:
        bench.write("in/again.jsonl", events(0, 1))
        run(ledger, spec, "again")
        assert settled(spec).ids == ids(0, 250)
        dropped = [each for each in settled(spec).decisions if each[0] == "again.jsonl"]
        assert dropped == [("again.jsonl", 0, "duplicate_in_catalog")]


def _fails() -> None:
    raise failpoints.FaultError("died here")


# Attacks D5.
def test_numbers_pass_all_that_files_hold(bench: Workbench, ledger: Ledger) -> None:
    """Half-finalized files of a batch without a marker stand in nobody's way, nor does staging."""
    spec = bench.spec()
    sink = spec.sink_path()
    bench.write("in/a.jsonl", [*events(0, 20), *events(0, 2)])
    run(ledger, spec, "r1")
    bench.write("in/a.jsonl", [*events(20, 40), *events(0, 2)], "ab")
    with failpoints.armed("finalize.after_publish", _fails), suppress(failpoints.FaultError):
        run(ledger, spec, "r2")
    layout.attempt(layout.archive_folder(spec), 41, 3).mkdir(parents=True)
    lose(ledger)
    adopted = adopt(ledger, spec, log=quiet)
    kept = layout.batch_file(layout.archive_folder(spec), "decisions", 2, 1)
    assert adopted.strays == (str(kept), str(sink / "events-b00000002-00000.parquet"))
    assert adopted.staging == ("b00000002/f0001", "b00000041/f0003")
    bench.write("in/b.jsonl", events(40, 50))
    run(ledger, spec, "r2")
    assert [marker.batch_id for marker in markers(sink)] == [1, 42]
    for name in adopted.strays:
        (sink / name).unlink()
    account = settled(spec)
    assert account.ids == ids(0, 50)
    partitions = {c.source_partition_id: c.name for m in markers(sink) for c in m.claims}
    assert len(partitions) == len(set(partitions.values())) == 2


# Attacks D5.
@pytest.mark.parametrize("point", ["finalize.after_publish", "storage.before_publish"])
def test_no_batch_came_to_a_marker(bench: Workbench, ledger: Ledger, point: str) -> None:
    """The pipeline is registered, and its first batch gets a number that no file has."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 20))
    with failpoints.armed(point, _fails), suppress(failpoints.FaultError):
        run(ledger, spec, "r1")
    lose(ledger)
    adopted = adopt(ledger, spec, log=quiet)
    output = spec.sink_path() / "events-b00000001-00000.parquet"
    assert (adopted.batches, adopted.strays) == (0, (str(output),))
    run(ledger, spec, "r1")
    (spec.sink_path() / adopted.strays[0]).unlink()
    assert [marker.batch_id for marker in markers(spec.sink_path())] == [2]
    assert settled(spec).ids == ids(0, 20)


# Attacks D4.
def test_a_disk_that_is_full_is_told(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written then, and the same call goes on once there is room."""
    spec = first_batch(bench, ledger, events(0, 20))
    lose(ledger)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        with pytest.raises(RetryableError, match="adopt failed .*No space .*run this again"):
            adopt(ledger, spec, log=quiet)
    assert not sql(ledger, "SELECT FROM semel.pipeline")
    assert adopt(ledger, spec, log=quiet).ids == 20


# Attacks D5.
def test_pipelines_of_one_ledger_are_adopted_one_by_one(bench: Workbench, ledger: Ledger) -> None:
    """The first leaves the others' numbers free, also when it runs before they are adopted."""
    one, other = bench.spec(), bench.spec("visits")
    for number in range(2):
        bench.write(f"in/{number}.jsonl", events(10 * number, 10 * number + 10))
        run(ledger, one, f"r{number}")
        run(ledger, other, f"r{number}")
    lose(ledger)
    adopt(ledger, one, [other], log=quiet)
    bench.write("in/more.jsonl", events(20, 30))
    run(ledger, one, "more")
    assert adopt(ledger, other, [one], log=quiet).batches == 2
    run(ledger, other, "more")
    for spec in (one, other):
        assert settled(spec).ids == ids(0, 30)


# Attacks D5.
def test_numbers_that_others_have_are_refused(bench: Workbench, ledger: Ledger) -> None:
    """Nothing is written then; the other pipeline stays as it is."""
    one, other = bench.spec(), bench.spec("visits")
    bench.write("in/a.jsonl", events(0, 10))
    run(ledger, one, "r1")
    lose(ledger)
    run(ledger, other, "r1")  # Nobody said that the other pipeline is to be adopted.
    why = "gave 2 of the pipeline's numbers .*batch 1 to 'visits'.*an empty database"
    with pytest.raises(TerminalError, match=why):
        adopt(ledger, one, log=quiet)
    assert sql(ledger, "SELECT name FROM semel.pipeline") == [("visits",)]


# Attacks D3.
def test_a_ledger_that_was_restored_is_refused(bench: Workbench, ledger: Ledger) -> None:
    """It has the pipeline without its newest batches: it says so, and a new one takes them over."""
    spec = first_batch(bench, ledger, events(0, 10))
    assert adopt(ledger, spec, log=quiet).found
    lose(ledger)
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO semel.pipeline (name, sink_address, archive_path, identity, shards, "
            "bucket_seconds) VALUES ('events', %s, %s, '{}', 4, 60)",
            (str(spec.sink_path()), str(layout.archive_folder(spec))),
        )
    why = "markers of batch 1 that this ledger does not have.*migrate it, and adopt"
    with pytest.raises(TerminalError, match=why):
        adopt(ledger, spec, log=quiet)
    with pytest.raises(TerminalError, match="belongs to pipeline 'events'"):
        adopt(ledger, bench.spec("visits", sink={"path": "out/events"}), log=quiet)
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).batches == 1


def change(spec: Spec, number: int, **values: object) -> None:
    """Let a marker say something else."""
    path = layout.marker(layout.archive_folder(spec), number)
    content = json.loads(path.read_text())
    for key, value in values.items():
        if key == "claims":
            content[key][0] |= value
        else:
            content[key] = value
    path.write_text(json.dumps(content))


APART = [
    ({"pipeline": "visits"}, "has markers of pipeline 'visits' .batch 2., and 'events' cannot adopt"),
    ({"commit_seq": 1}, "b00000001.json and .*b00000002.json: these markers come from different ledgers"),
    ({"bucket_seconds": 61}, "come from different ledgers.*and 61 seconds"),
    ({"claims": {"start": 3}}, "claim the same bytes of source partition 1"),
    ({"counts": None}, "b00000002.json: semel cannot read this marker.*Or move that marker out of"),
]
"""What the second marker says, and what is said of it."""


# Attacks D2.
def test_markers_that_do_not_go_together(bench: Workbench, ledger: Ledger) -> None:
    """Nothing of them is taken over; moved aside, the rest is, and its records are read again."""
    spec = bench.spec()
    for number in range(2):
        bench.write("in/a.jsonl", events(10 * number, 10 * number + 10), "ab")
        run(ledger, spec, f"r{number}")
    lose(ledger)
    path = layout.marker(layout.archive_folder(spec), 2)
    kept = path.read_text()
    for values, message in APART:
        change(spec, 2, **values)
        with pytest.raises((TerminalError, CorruptionError), match=message):
            adopt(ledger, spec, log=quiet)
        assert not sql(ledger, "SELECT FROM semel.pipeline"), values
        path.write_text(kept)
    path.unlink()
    adopted = adopt(ledger, spec, log=quiet)
    output = spec.sink_path() / "events-b00000002-00000.parquet"
    assert (adopted.batches, adopted.strays) == (1, (str(output),))
    (spec.sink_path() / adopted.strays[0]).unlink()
    run(ledger, spec, "again")
    assert settled(spec).ids == ids(0, 20)


# Attacks D2.
def test_another_identity_is_refused(bench: Workbench, ledger: Ledger) -> None:
    """The ids of the old batches were made of something else than the declaration says now."""
    bench.write("in/a.jsonl", events(0, 10))
    run(ledger, bench.spec(), "r1")
    lose(ledger)
    with pytest.raises(TerminalError, match='record_id cannot change from \\["id"\\] to \\["n"\\]'):
        adopt(ledger, bench.spec(record_id=["n"]), log=quiet)


# Attacks D4.
def test_adopt_twice_at_once(bench: Workbench, ledger: Ledger) -> None:
    """One of them writes; the other one finds it, or is told to look again."""
    spec = first_batch(bench, ledger, events(0, 10))
    lose(ledger)
    with (
        failpoints.armed("adopt.after_numbers", lambda: adopt(ledger, spec, log=quiet)),
        pytest.raises(RetryableError, match="another process registered .*Run this again"),
    ):
        adopt(ledger, spec, log=quiet)
    assert adopt(ledger, spec, log=quiet).found
    bench.write("in/a.jsonl", events(5, 20), "ab")
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 20)


# Attacks D6.
def test_a_marker_that_was_removed_is_still_missed(bench: Workbench, ledger: Ledger) -> None:
    """The audit forgives the commits that were lost with the ledger, and no others."""
    spec = bench.spec()
    for number in range(4):
        bench.write(f"in/{number}.jsonl", events(10 * number, 10 * number + 10))
        if number == 1:
            left(ledger, bench, spec, "lost", verb="commit")
        else:
            run(ledger, spec, f"r{number}")
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).commits_lost == ((2, 2),)
    run(ledger, spec, "again")
    assert settled(spec).ids == ids(0, 40)
    layout.marker(layout.archive_folder(spec), 3).unlink()
    found = {check.name: check for check in audit(spec).checks if not check.ok}
    assert "commit 3 has no marker, and batch " in found["markers"].offenders[0].what


def test_the_command(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """What a run without the old ledger tells to type works as it stands, and says what it did."""
    spec = bench.spec()
    bench.spec("visits")
    (bench.pipelines / "broken.yaml").write_text("name: broken\n")
    bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    layout.attempt(layout.archive_folder(spec), 7, 1).mkdir(parents=True)
    lose(ledger)
    with pytest.raises(TerminalError) as refused:
        run(ledger, spec, "r2")
    command = refused.value.next
    assert command == "semel adopt events"
    said = shell.runs(command)
    assert "adopted events: 1 batch, 1 source partition (1 found), 10 ids in 4 id runs" in said
    assert "left over: 1 staging folder ('b00000007/f0001')" in said
    assert shell.answers(command)["adopted"]["found"] is True
    assert "nothing to do: this ledger already has events and the 1 batch" in shell.runs(command)
    shell.runs("semel adopt visits", code=1)
    assert "there is nothing to adopt. Run visits" in shell.err


# Attacks D4.
@pytest.mark.parametrize("by_position", [True, False])
def test_source_files_are_found_again(
    bench: Workbench, ledger: Ledger, by_position: bool
) -> None:
    """Renamed, on another disk, rotated, replaced or gone: what was read is not read again.

    A file that took the place of one that was read is refused as it would be without the loss.
    """
    spec = bench.spec(record_id=None) if by_position else bench.spec()
    source = bench.data / "in"
    big = [{**event, "more": "x" * 300} for event in events(0, 40)]
    bench.write("in/app.jsonl", big)
    bench.write("in/other.jsonl", events(40, 45))
    bench.write("in/gone.jsonl", events(45, 50))
    run(ledger, spec, "r1")
    # Rotated: the old file has another name now, and a new one has its old name.
    (source / "app.jsonl").rename(source / "app-1.jsonl")
    bench.write("in/app.jsonl", events(50, 55))
    run(ledger, spec, "r2")
    lose(ledger)
    # On another disk, under a third name; and its short neighbour under its own.
    shutil.copy(source / "app-1.jsonl", bench.folder / "copy")
    (source / "app-1.jsonl").unlink()
    (bench.folder / "copy").rename(source / "app-2.jsonl")
    shutil.copy(source / "other.jsonl", bench.folder / "copy")
    os.replace(bench.folder / "copy", source / "other.jsonl")
    (source / "gone.jsonl").unlink()
    bench.write("in/app-2.jsonl", events(55, 60), "ab")
    bench.write("in/other.jsonl", events(60, 65), "ab")
    bench.write("in/new.jsonl", events(65, 70)[::-1])
    adopted = adopt(ledger, spec, log=quiet)
    assert (adopted.source_partitions, adopted.files_found) == (4, 3)
    run(ledger, spec, "r3")
    account = settled(spec, audited=False)
    assert account.ids == ids(0, 70)
    assert not account.decisions
    assert sql(ledger, "SELECT count(*) FROM semel.refusal") == [(0,)]


def test_a_generation_that_was_accepted_is_the_open_one(bench: Workbench, ledger: Ledger) -> None:
    """Of two partitions that one file may be, the newer one goes on; the older one is closed."""
    spec = first_batch(bench, ledger, events(0, 10))
    path = bench.data / "in" / "a.jsonl"
    path.write_bytes(b"".join(json.dumps(e).encode() + b"\n" for e in events(100, 130)))
    run(ledger, spec, "r2")
    accept_file(ledger, spec, "a.jsonl", same=False)
    run(ledger, spec, "r3")
    lose(ledger)
    adopt(ledger, spec, log=quiet)
    text = "SELECT generation, closed_at IS NULL FROM semel.source_partition ORDER BY 1"
    assert sql(ledger, text) == [(1, False), (2, True)]
    bench.write("in/a.jsonl", events(130, 140), "ab")
    run(ledger, spec, "r4")
    assert settled(spec, audited=False).ids == sorted([*ids(0, 10), *ids(100, 140)])


# Attacks D4.
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_what_accept_left_out_stays_left_out(
    bench: Workbench, ledger: Ledger, kind: str
) -> None:
    """Records before `accept --from` are never read, also when the ledger that knew it is lost."""
    place = Parquet(bench) if kind == "parquet" else Files(bench, kind)
    spec = place.spec()
    place.append(0, 10)
    run(ledger, spec, "r1")
    path = place.path
    if kind == "parquet":
        place.write(path, 0, 20)
        begins = 10
    else:
        begins = path.stat().st_size
        path.write_bytes(path.read_bytes().replace(b'"n": 0', b'"n": 7'))
        place.append(10, 20)
    run(ledger, spec, "r2")
    accept_file(ledger, spec, str(path), same=False, start=begins)
    run(ledger, spec, "r3")
    lose(ledger)
    adopt(ledger, spec, log=quiet)
    place.append(20, 30)
    run(ledger, spec, "r4")
    assert settled(spec, audited=False).ids == ids(0, 30)
    text = "SELECT lower(span), upper(span), reason FROM semel.loss"
    assert sql(ledger, text) == [(0, begins, "repeated")]
