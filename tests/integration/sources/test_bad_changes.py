"""Files that are not what they were: refused and named until a person decides, then taken once."""

import gzip
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fixtures.batches.account import advised, first_batch, ids, lines, quiet, refusals, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.files.rotation import append, position
from fixtures.spark.local import LocalEngine
from semel.audit import audit
from semel.errors import SourceError, StateError, TerminalError
from semel.ledger import Ledger
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.repair.accept import accept_file
from semel.reports.gaps import gaps
from semel.stage import stage

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def replaced(path: Path) -> None:
    new = path.with_name("new")
    new.write_bytes(lines(5, 20))
    new.replace(path)


def shrunk(path: Path) -> None:
    os.truncate(path, len(lines(0, 3)))


def rewritten(path: Path) -> None:
    path.write_bytes(lines(5, 30))


def edited(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"n": 9', b'"n": 7'))


CHANGES = {
    shrunk: ids(0, 10),
    rewritten: ids(0, 30),
    edited: ids(0, 10),
}
"""What befalls a file that was read (e0 to e9), and all ids once that is accepted."""


# Attacks P8, A3.
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changed_waits_for_accept(bench: Workbench, ledger: Ledger, change) -> None:
    """Never guessed: refused with what is known and seen, until `accept` reads it as a new one.

    Others are read meanwhile. Of the new generation, ids that were read before are repeats.
    """
    spec = first_batch(bench, ledger, events(0, 10))
    path = bench.data / "in" / "a.jsonl"
    assert settled(spec).ids == ids(0, 10)
    path.with_name("kept").write_bytes(path.read_bytes())  # The audit needs what was read.
    change(path)
    bench.write("in/b.jsonl", events(50, 52))
    planned = run(ledger, spec, "r2").plan
    assert refusals(ledger) == {"a.jsonl": "changed"}
    assert "now inode" in planned.refusals[0].detail
    assert settled(spec).ids == ids(0, 10) + ids(50, 52)
    accept_file(ledger, spec, "a.jsonl", same=False)
    assert run(ledger, spec, "r3").plan.refusals == ()
    assert refusals(ledger) == {}
    assert settled(spec).ids == sorted(CHANGES[change] + ids(50, 52))


def test_a_replaced_file_is_read_with_an_id(bench: Workbench, ledger: Ledger) -> None:
    """Another file under the name of one that is gone is a new one: what it repeats is dropped."""
    spec = first_batch(bench, ledger, events(0, 10))
    path = bench.data / "in" / "a.jsonl"
    path.with_name("kept").write_bytes(path.read_bytes())
    replaced(path)
    assert run(ledger, spec, "r2").plan.refusals == ()
    assert settled(spec).ids == ids(0, 20)


# Attacks P16.
@pytest.mark.parametrize("edit", ["head", "middle", "trimmed"])
def test_an_edited_copy_waits_for_accept_by_position(
    bench: Workbench, ledger: Ledger, edit: str
) -> None:
    """sed -i, or `tail log > new; mv new log`: refused, and the advice reads what is new, once."""
    spec = first_batch(bench, ledger, events(0, 10), record_id=None)
    path = bench.data / "in" / "a.jsonl"
    path.with_name("kept").write_bytes(path.read_bytes())
    data = {
        "head": lines(0, 14).replace(b'"n": 0', b'"n": 7'),
        "middle": lines(0, 14).replace(b'"n": 5', b'"n": 7'),
        "trimmed": lines(6, 14),
    }[edit]
    new = path.with_name("new")
    new.write_bytes(data)
    new.replace(path)
    (refusal,) = run(ledger, spec, "r2").plan.refusals
    assert (refusal.name, refusal.reason) == (str(path), "replaced")
    advised(ledger, refusal.detail, "--from")
    assert run(ledger, spec, "r3").plan.refusals == ()
    assert settled(spec).ids == ids(0, 14)


@pytest.mark.parametrize("edit", ["before its only attempt", "after it was read"])
def test_an_edit_in_the_middle_is_not_seen_by_plan_and_stage(
    bench: Workbench, ledger: Ledger, edit: str
) -> None:
    """Plan and stage compare neither what they never read nor what they have read. The batch has
    the bytes that stage read, and the audit names an edit after that.
    """
    spec, text = bench.spec(), lines(0, 1_000)
    path = bench.data / "in" / "a.jsonl"
    path.write_bytes(text)
    other = text.replace(b'"n": 500', b'"n": 501')
    batch = plan(ledger, spec, "r1").batch
    if edit == "before its only attempt":
        path.write_bytes(other)
    run(ledger, spec, "r1")
    path.write_bytes(other)
    bench.write("in/a.jsonl", events(1_000, 1_002), mode="ab")
    planned = run(ledger, spec, "r2").plan
    assert planned.refusals == () and planned.batch.batch_id == batch.batch_id + 1
    account = settled(spec, audited=False)
    assert account.ids == ids(0, 1_002)
    values = [row["n"] for row in account.rows if row["id"] == "e000500"]
    assert values == [500 if edit == "after it was read" else 501]
    failed = [check.name for check in audit(spec).checks if not check.ok]
    assert failed == (["content"] if edit == "after it was read" else [])


def test_a_renamed_file_that_was_edited_waits_alone(bench: Workbench, ledger: Ledger) -> None:
    """Rotated and edited: the rotated file is refused; the new one under its name is read."""
    spec = first_batch(bench, ledger, events(0, 10), source={"path": "in/*.jsonl*"}, record_id=None)
    path = bench.data / "in" / "a.jsonl"
    path.with_name("kept").write_bytes(path.read_bytes())
    rotated = path.rename(path.with_name("a.jsonl.1"))
    edited(rotated)
    bench.write("in/a.jsonl", events(10, 20))
    run(ledger, spec, "r2")
    assert refusals(ledger) == {"a.jsonl.1": "changed"}
    rotated.write_bytes(lines(0, 10))
    assert run(ledger, spec, "r3").plan.refusals == ()
    assert settled(spec).ids == ids(0, 20)


# Attacks A4.
def test_same_is_refused_for_other_bytes(bench: Workbench, ledger: Ledger) -> None:
    """`--same` on a file that does not begin with what was read would lose or double: refused."""
    spec = first_batch(bench, ledger, events(0, 10))
    path = bench.data / "in" / "a.jsonl"
    rewritten(path)
    run(ledger, spec, "r2")
    with pytest.raises(SourceError, match="--same does not apply.* Accept it as a new generation"):
        accept_file(ledger, spec, "a.jsonl", same=True)
    assert refusals(ledger) == {"a.jsonl": "changed"}


# Attacks A4.
def test_same_takes_no_partition_from_a_healthy_file(bench: Workbench, ledger: Ledger) -> None:
    """`--same` on a copy, while the file itself is there, under its own name or renamed: refused.

    Otherwise the file's own next bytes would be taken for a new file's, and read twice.
    """
    spec = first_batch(bench, ledger, events(0, 10), source={"path": "in/*"}, record_id=None)
    path = bench.data / "in" / "a.jsonl"
    copy = path.with_name("b.jsonl")
    copy.write_bytes(lines(0, 12))
    with pytest.raises(SourceError, match="Accept it as a new generation instead"):
        accept_file(ledger, spec, "b.jsonl", same=True)
    path.rename(path.with_name("a.jsonl.1"))
    copy.rename(path)
    with pytest.raises(SourceError, match="Accept it as a new generation instead"):
        accept_file(ledger, spec, "a.jsonl", same=True)
    path.unlink()
    bench.write("in/a.jsonl.1", events(10, 15), mode="ab")
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 15)


# Attacks P17.
def test_a_copy_of_a_file_that_was_cut_waits_for_accept(bench: Workbench, ledger: Ledger) -> None:
    """A few bytes, and a name that no rotation gives: both are refused. The advice is exact."""
    spec = first_batch(bench, ledger, events(0, 10), source={"path": "in/*"}, record_id=None)
    path = bench.data / "in" / "a.jsonl"
    bench.write("in/a.jsonl", events(10, 12), mode="ab")
    path.with_name("saved").write_bytes(path.read_bytes())
    path.write_bytes(lines(12, 14))
    found = {Path(r.name).name: r for r in run(ledger, spec, "r2").plan.refusals}
    assert {name: r.reason for name, r in found.items()} == {"a.jsonl": "changed", "saved": "copy"}
    advised(ledger, found["saved"].detail, "--same")
    assert run(ledger, spec, "r3").plan.refusals == ()
    assert settled(spec).ids == ids(0, 14)


def test_an_accepted_file_must_be_there(bench: Workbench, ledger: Ledger) -> None:
    """There is nothing to accept in a file that is not there or cannot be read, and why is said."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 1))
    with pytest.raises(StateError, match="never planned a batch"):
        accept_file(ledger, spec, "a.jsonl", same=False)
    run(ledger, spec, "r1")
    with pytest.raises(SourceError, match=r"'.*gone\.jsonl': events cannot read this file.*it does not exist"):
        accept_file(ledger, spec, "gone.jsonl", same=False)
    os.mkfifo(bench.data / "in" / "pipe.jsonl")
    with pytest.raises(SourceError, match="not a regular file"):
        accept_file(ledger, spec, "pipe.jsonl", same=False)


def deleted(path: Path) -> None:
    path.rename(path.parent.parent / "kept")


def folder_gone(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


BETWEEN = {
    deleted: "cannot be read",
    folder_gone: "cannot be read",
    replaced: "another file took its place",
    shrunk: "it shrank to",
    edited: "its first .* bytes changed",
}


# Attacks S6.
@pytest.mark.parametrize("when", ["before stage", "during stage"])
@pytest.mark.parametrize("change", BETWEEN)
def test_a_planned_file_that_changes_stops_its_batch(
    bench: Workbench, ledger: Ledger, change, when: str
) -> None:
    """Stage names the file, what happened and the claimed bytes; nothing is committed.

    Put back, the same batch goes on and is exact.
    """
    spec = bench.spec()
    path = bench.write("in/a.jsonl", events(0, 10))
    bench.write("in/b.jsonl", events(10, 20))
    batch = plan(ledger, spec, "r1").batch
    aside = bench.data / "aside"
    os.link(path, aside)
    data = path.read_bytes()
    hook = None
    if when == "before stage":
        change(path)
    else:
        hook = lambda _: change(path)  # noqa: E731
    with pytest.raises(SourceError, match=rf"a\.jsonl.*{BETWEEN[change]}.*semel abandon"):
        stage(ledger, spec, batch.batch_id, LocalEngine(before_write=hook), log=quiet)
    assert settled(spec).ids == []
    moved = path.parent.with_name("moved")
    if moved.exists():
        moved.rename(path.parent)
    aside.replace(path) if not path.exists() or not path.samefile(aside) else aside.unlink()
    path.write_bytes(data)
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 20)


def test_growth_between_plan_and_stage_is_the_next_batchs(
    bench: Workbench, ledger: Ledger
) -> None:
    """A batch reads exactly the planned bytes, also of gzip; what is appended meanwhile waits."""
    spec = bench.spec(source={"path": "in/*"})
    bench.write("in/a.jsonl", events(0, 10))
    packed = bench.data / "in" / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(lines(10, 20)))
    batch = plan(ledger, spec, "r1").batch
    bench.write("in/a.jsonl", events(20, 22), mode="ab")
    with packed.open("ab") as file:
        file.write(gzip.compress(lines(22, 24)))
    assert stage(ledger, spec, batch.batch_id, LocalEngine(), log=quiet).counts.survivors == 20
    run(ledger, spec, "r1")
    run(ledger, spec, "r2")
    assert refusals(ledger) == {}
    found = settled(spec)
    assert (found.ids, found.counts.duplicates_catalog) == (ids(0, 24), 0)


# Attacks S13.
def test_an_edit_in_the_middle_is_seen_between_attempts(bench: Workbench, ledger: Ledger) -> None:
    """Head and tail do not show it; a second attempt of the batch that read other bytes is refused.

    What no attempt compares is not seen: files are appended to, not edited.
    """
    spec = bench.spec()
    path = bench.write("in/a.jsonl", events(0, 1000))
    batch = plan(ledger, spec, "r1").batch
    stage(ledger, spec, batch.batch_id, LocalEngine(), log=quiet)
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE semel.attempt SET status = 'lost'")
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"n": 500', b'"n": 501'))
    with pytest.raises(TerminalError, match=r"read other bytes") as refused:
        stage(ledger, spec, batch.batch_id, LocalEngine(), log=quiet)
    assert refused.value.next == f"semel abandon {batch.batch_id}"
    path.write_bytes(data)
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 1000)


def test_a_file_deleted_for_good_is_given_up_by_a_person(bench: Workbench, ledger: Ledger) -> None:
    """`abandon` frees the batch's other records for the next plan."""
    spec = bench.spec()
    path = bench.write("in/a.jsonl", events(0, 10))
    bench.write("in/b.jsonl", events(10, 20))
    batch = plan(ledger, spec, "r1").batch
    path.unlink()
    with pytest.raises(SourceError, match="cannot be read"):
        run(ledger, spec, "r1")
    assert abandon(ledger, batch.batch_id, "a.jsonl is gone") == 2
    (refusal,) = run(ledger, spec, "r1").plan.refusals
    assert refusal.reason == "gone"
    assert settled(spec).ids == ids(10, 20)
    advised(ledger, refusal.detail, "--lost")
    assert run(ledger, spec, "r2").plan.refusals == ()


@pytest.mark.parametrize("name", ["absolute", "data", "working", "gaps"])
def test_accept_takes_the_path_as_it_is_written(
    bench: Workbench, ledger: Ledger, name: str, monkeypatch
) -> None:
    """Absolute, below the data folder, below the working folder, or as `gaps` printed it."""
    spec = first_batch(bench, ledger, events(0, 5))
    path = bench.data / "in" / "a.jsonl"
    path.write_bytes(lines(10, 20))
    (refusal,) = gaps(ledger, spec).refusals
    monkeypatch.chdir(path.parent.parent.parent)
    given = {
        "absolute": str(path), "data": "in/a.jsonl", "working": "data/in/a.jsonl",
        "gaps": refusal.name,
    }  # fmt: skip
    accept_file(ledger, spec, given[name], same=False)
    run(ledger, spec, "r2")
    assert refusals(ledger) == {}


# Attacks P10.
def test_refused_files_make_an_interval_fail(bench: Workbench, ledger: Ledger) -> None:
    """An interval without a file that was refused would be green and not complete: it fails (P10).

    A refused file of another interval does not count.
    """
    spec = position(
        bench, "in/*.jsonl", source={"select": "interval", "interval_from": "%Y-%m-%d.jsonl"}
    )
    path = bench.write("in/2026-01-01.jsonl", events(0, 10))
    bench.write("in/2026-01-02.jsonl", events(10, 20))

    def go(day: int, request: str) -> object:
        interval = (DAY + timedelta(days=day), DAY + timedelta(days=day + 1))
        return run(ledger, spec, request, interval)

    go(0, "r0")
    path.write_bytes(lines(0, 3))
    go(1, "r1")
    with pytest.raises(SourceError, match=r"2026-01-01\.jsonl.*changed.*semel accept events "):
        go(0, "r0")
    assert refusals(ledger) == {"2026-01-01.jsonl": "changed"}


def test_what_was_released_is_taken_also_after_a_plan_that_failed(
    bench: Workbench, ledger: Ledger
) -> None:
    """A batch was abandoned behind which another one had read on: its records are not forgotten."""
    spec = position(bench, "in/*.jsonl", source={"on_refused": "fail"})
    path = bench.write("in/a.jsonl", events(0, 5))
    first = plan(ledger, spec, "r1").batch
    append(path, 5, 10)
    run(ledger, spec, "r2")
    abandon(ledger, first.batch_id, "given up by the test")
    pipe = bench.data / "in" / "pipe.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(SourceError, match="would not be complete"):
        run(ledger, spec, "r3")
    pipe.unlink()
    run(ledger, spec, "r4")
    assert settled(spec).ids == ids(0, 10)
