"""Copies of a file beside it: by position none of them is read, whatever becomes of the file."""

import gzip
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from fix_account import advised, ids, lines, refusals, run, settled
from fix_pipelines import Workbench, events
from fix_rotation import append, output, position, rsynced
from semel.ledger import Ledger
from semel.sources import Refusal

DAY = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("identity", ["position", "id"])
def test_a_copy_beside_its_file(bench: Workbench, ledger: Ledger, identity: str) -> None:
    """`cp app.log app.log.bak`: by position it is refused; by id all of it repeats."""
    path = "in/app*"
    spec = position(bench, path) if identity == "position" else bench.spec(source={"path": path})
    log = bench.data / "in" / "app.log"
    append(log, 0, 100)
    run(ledger, spec, "r1")
    log.with_name("app.log.bak").write_bytes(log.read_bytes())
    append(log, 100, 110)
    reasons = [r.reason for r in run(ledger, spec, "r2").plan.refusals]
    assert reasons == (["copy"] if identity == "position" else [])
    assert settled(spec).ids == ids(0, 110)


# Attacks P9.
def test_packed_and_its_inode_comes_back_under_two_names(
    bench: Workbench, ledger: Ledger
) -> None:
    """A log is packed, and a new file that is linked twice has its inode: the packed one goes on.

    The new one is refused until it has one name; nothing is read twice.
    """
    spec = position(bench, "in/*")
    for turn in range(30):
        log = bench.write(f"in/a{turn}.jsonl", events(turn, turn + 1))
        inode = log.stat().st_ino
        run(ledger, spec, f"r{turn}")
        log.with_name(f"{log.name}.gz").write_bytes(gzip.compress(log.read_bytes(), mtime=0))
        log.unlink()
        new = bench.write(f"in/new{turn}.jsonl", events(100, 103))
        if new.stat().st_ino == inode:
            break
        new.rename(bench.data / f"not-it-{turn}")
    else:
        pytest.skip("this file system does not give an inode's number again")
    second = new.with_name("second")
    second.hardlink_to(new)
    run(ledger, spec, "new")
    assert refusals(ledger) == {new.name: "hard link", second.name: "hard link"}
    second.unlink()
    assert run(ledger, spec, "last").plan.refusals == ()
    assert output(spec) == [*ids(0, turn + 1), *ids(100, 103)]


# Attacks P17.
@pytest.mark.parametrize("how", ["cp -p", "gzip --keep", "a window of another day"])
def test_a_small_copy_stays_refused_when_its_file_goes_on(
    bench: Workbench, ledger: Ledger, how: str
) -> None:
    """By position: what was told to be a copy is not read as new once its file has grown."""
    window = how == "a window of another day"
    select = {"select": "interval", "interval_from": "a%Y-%m-%d.jsonl", "on_refused": "warn"}
    spec = position(bench, "in/*", source=select if window else {})
    log = bench.write("in/a2026-01-01.jsonl" if window else "in/a.jsonl", events(0, 3))
    runs = iter(range(9))
    told: list[Refusal] = []

    def go(day: int = 0) -> dict[str, str]:
        when = (DAY + timedelta(days=day), DAY + timedelta(days=day + 1)) if window else None
        told[:] = run(ledger, spec, f"r{next(runs)}", when).plan.refusals
        return refusals(ledger)

    assert go() == {}
    copy = log.with_name("a2026-01-02.jsonl" if window else "copy")
    if how == "gzip --keep":
        copy = log.with_name(f"{log.name}.gz")
        copy.write_bytes(gzip.compress(log.read_bytes(), mtime=0))
    else:
        shutil.copy2(log, copy)
    assert go(1) == {copy.name: "copy"}
    append(log, 3, 5)
    assert go() == {copy.name: "copy"}
    assert go(1) == {copy.name: "copy"}
    moved = copy.rename(copy.with_name(f"a2026-01-03{copy.suffix}"))
    assert go() == {moved.name: "copy"}
    log.unlink()
    assert go(2) == {moved.name: "copy"}
    assert output(spec) == ids(0, 5)
    advised(ledger, told[0].detail)
    assert go(2) == {}
    assert output(spec) == sorted(ids(0, 5) + ids(0, 3))


# Attacks P17.
def test_a_copy_does_not_go_on_in_a_shorter_file(bench: Workbench, ledger: Ledger) -> None:
    """A file's beginning was read of another one that is gone; of a copy of it nobody says that it
    goes on where that one ended, also when the file has grown.
    """
    spec = position(bench, "in/*")
    log = bench.write("in/a.jsonl", events(0, 3))
    run(ledger, spec, "r1")
    copy = log.with_name("copy")
    shutil.copy2(log, copy)
    rsynced(log, 0, 8)
    found = run(ledger, spec, "r3").plan.refusals  # The copy has the place of the first file.
    advised(ledger, found[0].detail, "--from")
    run(ledger, spec, "r4")
    copy.unlink()
    second = log.with_name("second")
    shutil.copy2(log, second)
    for turn in range(3):
        found = run(ledger, spec, f"copied{turn}").plan.refusals
        assert [(r.name, r.reason) for r in found] == [(str(second), "copy")]
        assert "--same" not in found[0].detail and "--from" not in found[0].detail
        append(log, 8 + turn, 9 + turn)
    run(ledger, spec, "last")
    assert output(spec) == ids(0, 11)


# Attacks P17.
def test_a_refused_copy_takes_no_place(bench: Workbench, ledger: Ledger) -> None:
    """A copy was refused; then its file is gone: it is no other name of that file, but one that
    begins alike, so a person decides. What rsync brought under another name is not read twice.
    """
    spec = position(bench, "in/*")
    log = bench.write("in/a.jsonl", events(0, 3))
    run(ledger, spec, "r1")
    copy = log.with_name("copy")
    shutil.copy2(log, copy)
    run(ledger, spec, "r2")
    new = log.with_name("b.jsonl")
    new.write_bytes(lines(0, 5))
    log.unlink()
    found = {r.name: r for r in run(ledger, spec, "r3").plan.refusals}
    assert refusals(ledger) == {"copy": "copy", "b.jsonl": "copy"}
    advised(ledger, found[str(new)].detail, "--same")
    run(ledger, spec, "r4")
    assert refusals(ledger) == {"copy": "copy"}
    assert output(spec) == ids(0, 5)
