"""Files that are not what they were, or never were files: refused and named, then taken once."""

import gzip
import json
import os
from pathlib import Path

import pytest
from fix_account import refusals, settled
from fix_engine import LocalEngine
from fix_pipelines import Workbench, events
from test_bad_records import age, run

from semel.abandon import abandon
from semel.accept import accept_file
from semel.errors import SourceError, StateError, TerminalError
from semel.ledger import Ledger
from semel.plan import plan
from semel.stage import stage

HOSTILE_NAMES = [
    "with space", "quote's", 'double"quote', "new\nline", "tab\t", "Zoë-日本-\U0001f600", "a..b",
    "dots..", "-rf", "$(id)", "back\\slash", "{brace}", "%41", ";--", "#hash", "?", "[a]", "n" * 200,
]  # fmt: skip


def ids(start: int, stop: int) -> list[str]:
    return [e["id"] for e in events(start, stop)]


def lines(start: int, stop: int) -> bytes:
    return b"".join(json.dumps(e).encode() + b"\n" for e in events(start, stop))


def quiet(_: str) -> None:
    """Takes what a verb says."""


def test_hostile_names_are_names(bench: Workbench, ledger: Ledger) -> None:
    """Whatever a file is called, it is read once, and what it grows by is read once."""
    spec = bench.spec(sink={"position_columns": True})
    for number, name in enumerate(HOSTILE_NAMES):
        bench.write(f"in/{name}.jsonl", [*events(10 * number, 10 * number + 5), b"{bad"])
    run(ledger, spec, "r1")
    for number, name in enumerate(HOSTILE_NAMES):
        bench.write(f"in/{name}.jsonl", events(10 * number + 5, 10 * number + 10), mode="ab")
    run(ledger, spec, "r2")
    found = settled(spec)
    assert found.ids == ids(0, 10 * len(HOSTILE_NAMES))
    assert {name for name, *_ in found.letters} == {f"{name}.jsonl" for name in HOSTILE_NAMES}
    assert refusals(ledger) == {}


def test_hidden_files_are_not_the_sources(bench: Workbench, ledger: Ledger) -> None:
    """A name that begins with a dot is a producer's own, as for the shell: until it is renamed."""
    spec = bench.spec(source={"path": "in/**/*.jsonl"})
    bench.write("in/a.jsonl", events(0, 5))
    bench.write("in/.a.jsonl", events(5, 10))
    bench.write("in/.tmp/b.jsonl", events(10, 15))
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 5)
    (bench.data / "in" / ".a.jsonl").rename(bench.data / "in" / "c.jsonl")
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 10)


def test_a_name_that_is_not_utf8_is_refused(bench: Workbench, ledger: Ledger) -> None:
    """The ledger cannot hold such a name: it is shown escaped, and read once it is renamed."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 5))
    bad = os.fsencode(bench.data / "in") + b"/b\xff.jsonl"
    Path(os.fsdecode(bad)).write_bytes(lines(5, 10))
    run(ledger, spec, "r1")
    assert refusals(ledger) == {"b\\udcff.jsonl": "name"}
    assert settled(spec).ids == ids(0, 5)
    os.rename(bad, bench.data / "in" / "b.jsonl")
    run(ledger, spec, "r2")
    assert refusals(ledger) == {}
    assert settled(spec).ids == ids(0, 10)


def test_links_out_of_the_folder_are_refused(bench: Workbench, ledger: Ledger) -> None:
    """A symlink out of the source's folder, to nowhere or to itself is never followed."""
    spec = bench.spec(source={"path": "in/**/*.jsonl"})
    folder = bench.data / "in"
    outside = bench.write("secret/s.jsonl", events(90, 95))
    bench.write("in/a.jsonl", events(0, 5))
    (folder / "out.jsonl").symlink_to(outside)
    (folder / "relative.jsonl").symlink_to("../secret/s.jsonl")
    (folder / "folder").symlink_to(outside.parent)
    (folder / "nowhere.jsonl").symlink_to(folder / "absent")
    (folder / "loop.jsonl").symlink_to(folder / "loop.jsonl")
    run(ledger, spec, "r1")
    found = refusals(ledger)
    assert found.pop("loop.jsonl") in ("symlink", "unreadable")
    assert found == dict.fromkeys(
        ["out.jsonl", "relative.jsonl", "s.jsonl", "nowhere.jsonl"], "symlink"
    )
    assert settled(spec).ids == ids(0, 5)


def test_a_link_within_the_folder_is_its_file(bench: Workbench, ledger: Ledger) -> None:
    """A symlink to a file that no other listed name has is read, as that file, once."""
    spec = bench.spec()
    bench.write("in/store/a", events(0, 5))
    (bench.data / "in" / "a.jsonl").symlink_to("store/a")
    run(ledger, spec, "r1")
    bench.write("in/store/a", events(5, 8), mode="ab")
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 8)
    assert refusals(ledger) == {}


@pytest.mark.parametrize("link", ["hard", "symbolic"])
def test_one_file_under_two_names_is_read_once(
    bench: Workbench, ledger: Ledger, link: str
) -> None:
    """Which name is meant is not guessed; a name that is known already stays the file's."""
    spec = bench.spec()
    second = bench.data / "in" / "b.jsonl"
    make = second.hardlink_to if link == "hard" else second.symlink_to
    first = bench.write("in/a.jsonl", events(0, 5))
    make(first)
    run(ledger, spec, "r1")
    assert refusals(ledger) == {"a.jsonl": "hard link", "b.jsonl": "hard link"}
    second.unlink()
    run(ledger, spec, "r2")
    make(first)
    bench.write("in/a.jsonl", events(5, 8), mode="ab")
    run(ledger, spec, "r3")
    assert refusals(ledger) == {"b.jsonl": "hard link"}
    assert settled(spec).ids == ids(0, 8)


def test_what_is_no_file_is_refused(bench: Workbench, ledger: Ledger) -> None:
    """A FIFO without a writer does not hang the plan; a folder is no file."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 5))
    os.mkfifo(bench.data / "in" / "pipe.jsonl")
    (bench.data / "in" / "folder.jsonl").mkdir()
    run(ledger, spec, "r1")
    assert refusals(ledger) == {"pipe.jsonl": "kind"}
    assert settled(spec).ids == ids(0, 5)


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
    replaced: ("replaced", ids(0, 20)),
    shrunk: ("changed", ids(0, 10)),
    rewritten: ("changed", ids(0, 30)),
    edited: ("changed", ids(0, 10)),
}
"""What befalls a file that was read (e0 to e9): why it is refused, and all ids once accepted."""


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changed_waits_for_a_word(bench: Workbench, ledger: Ledger, change) -> None:
    """Never guessed: refused with both fingerprints, until `accept` reads it as a new generation.

    Others are read meanwhile. Of the new generation, ids that were read before are repeats.
    """
    spec = bench.spec()
    path = bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 10)
    path.rename(path.with_name("kept"))  # A copy for the audit, which needs what was read.
    path.write_bytes(lines(0, 10))
    os.link(path, path.with_name("x"))  # Keeps the inode from being given to the next file.
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql(
            f"UPDATE semel.source_partition SET inode = {path.stat().st_ino}"
        )
    change(path)
    bench.write("in/b.jsonl", events(50, 52))
    planned = run(ledger, spec, "r2").plan
    reason, accepted = CHANGES[change]
    assert refusals(ledger) == {"a.jsonl": reason}
    assert "now inode" in planned.refusals[0].detail or change is replaced
    assert settled(spec).ids == ids(0, 10) + ids(50, 52)
    accept_file(ledger, spec, "a.jsonl", same=False)
    assert run(ledger, spec, "r3").plan.refusals == ()
    assert refusals(ledger) == {}
    assert settled(spec).ids == sorted(accepted + ids(50, 52))


def test_a_rewritten_copy_goes_on_in_the_old_partition(bench: Workbench, ledger: Ledger) -> None:
    """An editor's or rsync's new inode with the same beginning: `--same` reads only what is new.

    By position, so that a record read twice would show.
    """
    spec = bench.spec(record_id=None)
    path = bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    new = path.with_name("new")
    new.write_bytes(lines(0, 15))
    new.replace(path)
    run(ledger, spec, "r2")
    assert refusals(ledger) == {"a.jsonl": "replaced"}
    accept_file(ledger, spec, "a.jsonl", same=True)
    run(ledger, spec, "r3")
    assert settled(spec).ids == ids(0, 15)


def test_same_is_refused_for_other_bytes(bench: Workbench, ledger: Ledger) -> None:
    """`--same` on a file that does not begin with what was read would lose or double: refused."""
    spec = bench.spec()
    path = bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    replaced(path)
    run(ledger, spec, "r2")
    with pytest.raises(SourceError, match="cannot go on where .* accept it as a new generation"):
        accept_file(ledger, spec, "a.jsonl", same=True)
    assert refusals(ledger) == {"a.jsonl": "replaced"}


def test_same_takes_no_partition_from_a_healthy_file(bench: Workbench, ledger: Ledger) -> None:
    """`--same` on a copy, while the file itself is there, under its own name or renamed: refused.

    Otherwise the file's own next bytes would be taken for a new file's, and read twice.
    """
    spec = bench.spec(source={"path": "in/*"}, record_id=None)
    path = bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    copy = path.with_name("b.jsonl")
    copy.write_bytes(lines(0, 12))
    with pytest.raises(SourceError, match="accept it as a new generation instead"):
        accept_file(ledger, spec, "b.jsonl", same=True)
    path.rename(path.with_name("a.jsonl.1"))
    copy.rename(path)
    with pytest.raises(SourceError, match="accept it as a new generation instead"):
        accept_file(ledger, spec, "a.jsonl", same=True)
    path.unlink()
    bench.write("in/a.jsonl.1", events(10, 15), mode="ab")
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 15)


def test_rotation_by_rename_is_followed(bench: Workbench, ledger: Ledger) -> None:
    """The renamed file goes on where it stood, and the new one begins: no word is needed."""
    spec = bench.spec(source={"path": "in/*"}, record_id=None)
    path = bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    bench.write("in/a.jsonl", events(10, 12), mode="ab")
    path.rename(path.with_name("a.jsonl.1"))
    bench.write("in/a.jsonl", events(12, 20))
    assert run(ledger, spec, "r2").plan.refusals == ()
    assert settled(spec).ids == ids(0, 20)


def test_rotation_by_copytruncate_waits_for_a_word(bench: Workbench, ledger: Ledger) -> None:
    """Copy and cut file are refused; `--same` for the copy, a new generation for the rest: exact."""
    spec = bench.spec(source={"path": "in/*"}, record_id=None)
    path = bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    bench.write("in/a.jsonl", events(10, 12), mode="ab")
    path.with_name("a.jsonl.1").write_bytes(path.read_bytes())
    path.write_bytes(lines(12, 14))
    run(ledger, spec, "r2")
    assert refusals(ledger) == {"a.jsonl": "changed", "a.jsonl.1": "copy"}
    accept_file(ledger, spec, "a.jsonl.1", same=True)
    accept_file(ledger, spec, "a.jsonl", same=False)
    assert run(ledger, spec, "r3").plan.refusals == ()
    assert settled(spec).ids == ids(0, 14)


def test_an_accepted_file_must_be_there(bench: Workbench, ledger: Ledger) -> None:
    """There is nothing to accept in a file that is not there or cannot be read: the reason is said."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 1))
    with pytest.raises(StateError, match="never planned a batch"):
        accept_file(ledger, spec, "a.jsonl", same=False)
    run(ledger, spec, "r1")
    with pytest.raises(SourceError, match=r"'.*gone\.jsonl' cannot be read.*it is not there"):
        accept_file(ledger, spec, "gone.jsonl", same=False)
    os.mkfifo(bench.data / "in" / "pipe.jsonl")
    with pytest.raises(SourceError, match="not a regular file"):
        accept_file(ledger, spec, "pipe.jsonl", same=False)


def deleted(path: Path) -> None:
    path.rename(path.with_name("kept"))


def folder_gone(path: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


BETWEEN = {
    deleted: "cannot be read",
    folder_gone: "cannot be read",
    replaced: "another file took its place",
    shrunk: "it shrank to",
    edited: "its first .* bytes changed",
}


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
        stage(ledger, spec, batch.batch_id, LocalEngine(before_write=hook), say=quiet)
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
    spec = bench.spec(source={"path": "in/*", "closed_after": "10 minutes"})
    bench.write("in/a.jsonl", events(0, 10))
    packed = bench.data / "in" / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(lines(10, 20)))
    age(packed)
    batch = plan(ledger, spec, "r1").batch
    bench.write("in/a.jsonl", events(20, 22), mode="ab")
    with packed.open("ab") as file:
        file.write(gzip.compress(lines(22, 24)))
    assert stage(ledger, spec, batch.batch_id, LocalEngine(), say=quiet).counts.survivors == 20
    run(ledger, spec, "r1")
    run(ledger, spec, "r2")
    assert refusals(ledger) == {"b.jsonl.gz": "changed"}
    with pytest.raises(SourceError, match="accept it as a new generation instead"):
        accept_file(ledger, spec, "b.jsonl.gz", same=True)
    accept_file(ledger, spec, "b.jsonl.gz", same=False)
    age(packed)
    run(ledger, spec, "r3")
    assert refusals(ledger) == {}
    found = settled(spec, audited=False)
    assert (found.ids, found.counts.duplicates_catalog) == (ids(0, 24), 10)


def test_an_edit_in_the_middle_is_seen_between_attempts(bench: Workbench, ledger: Ledger) -> None:
    """Head and tail do not show it; a second attempt of the batch that read other bytes is refused.

    What no attempt compares is not seen: files are appended to, not edited.
    """
    spec = bench.spec()
    path = bench.write("in/a.jsonl", events(0, 1000))
    batch = plan(ledger, spec, "r1").batch
    stage(ledger, spec, batch.batch_id, LocalEngine(), say=quiet)
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE semel.attempt SET status = 'lost'")
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"n": 500', b'"n": 501'))
    with pytest.raises(TerminalError, match=r"read other bytes.*semel abandon"):
        stage(ledger, spec, batch.batch_id, LocalEngine(), say=quiet)
    path.write_bytes(data)
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 1000)


def test_a_file_deleted_for_good_is_given_up_by_a_person(bench: Workbench, ledger: Ledger) -> None:
    """`abandon` frees the batch's other records for the next plan; the gone ones are not invented."""
    spec = bench.spec()
    path = bench.write("in/a.jsonl", events(0, 10))
    bench.write("in/b.jsonl", events(10, 20))
    batch = plan(ledger, spec, "r1").batch
    path.unlink()
    with pytest.raises(SourceError, match="cannot be read"):
        run(ledger, spec, "r1")
    assert abandon(ledger, batch.batch_id, "a.jsonl is gone") == 2
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(10, 20)
