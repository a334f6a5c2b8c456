"""What is no plain file of the source: hostile names, links, pipes. Refused and named, or read."""

import os
from pathlib import Path

import pytest

from fixtures.batches.account import ids, lines, refusals, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.contract.sources import parquet_of
from semel.ledger import Ledger
from semel.plan import plan

HOSTILE_NAMES = [
    "with space", "quote's", 'double"quote', "new\nline", "tab\t", "Zoë-日本-\U0001f600", "a..b",
    "dots..",
    "-rf", "$(id)", "back\\slash", "{brace}", "%41", ";--", "#hash", "?", "[a]", "n" * 200,
]  # fmt: skip


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


# Attacks P26.
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_names_of_writers_notes_are_not_the_sources(
    bench: Workbench, ledger: Ledger, kind: str
) -> None:
    """Neither files nor links in _temporary, unless the pattern says so; one that was read stays
    known, and is read on.
    """
    source = {"format": kind}
    folder = bench.data / "in"

    def write(name: str, start: int, stop: int) -> None:
        path = folder / f"{name}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lines(start, stop) if kind == "jsonl" else parquet_of(start, stop))

    write("_x/a", 0, 5)
    run(ledger, bench.spec(source=source | {"path": f"in/_*/*.{kind}"}), "r1")
    write("b", 5, 10)
    write("sub/_temporary/0/b", 5, 10)
    write("_c", 90, 95)
    (folder / "_x" / f"link.{kind}").symlink_to(folder / "absent")
    spec = bench.spec(source=source | {"path": f"in/**/*.{kind}"})
    said: list[str] = []
    plan(ledger, spec, "r2", log=said.append)
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 10) and refusals(ledger) == {}
    assert any("4 names have a part that begins with _" in line for line in said)
    write("_x/a", 0, 15 if kind == "jsonl" else 5)
    run(ledger, spec, "r3")
    assert settled(spec).ids == ids(0, 15 if kind == "jsonl" else 10)
    assert refusals(ledger) == {}


def test_a_name_that_is_not_utf8_is_refused(bench: Workbench, ledger: Ledger) -> None:
    """The ledger cannot hold such a name: it is shown escaped, and read once it is renamed."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 5))
    bad = os.fsencode(bench.data / "in") + b"/b\xff.jsonl"
    Path(os.fsdecode(bad)).write_bytes(lines(5, 10))
    run(ledger, spec, "r1")
    assert refusals(ledger) == {"b\\xff.jsonl": "name"}
    assert settled(spec).ids == ids(0, 5)
    os.rename(bad, bench.data / "in" / "b.jsonl")
    run(ledger, spec, "r2")
    assert refusals(ledger) == {}
    assert settled(spec).ids == ids(0, 10)


# Attacks P13.
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


# Attacks P9.
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
    """A FIFO without a writer does not hang the plan; a folder is no file.

    A refused file that was removed waits for nobody any more.
    """
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 5))
    pipe = bench.data / "in" / "pipe.jsonl"
    os.mkfifo(pipe)
    (bench.data / "in" / "folder.jsonl").mkdir()
    run(ledger, spec, "r1")
    assert refusals(ledger) == {"pipe.jsonl": "kind"}
    assert settled(spec).ids == ids(0, 5)
    pipe.unlink()
    run(ledger, spec, "r2")
    assert refusals(ledger) == {}
