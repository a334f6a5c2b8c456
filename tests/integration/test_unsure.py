"""Files of which nobody can tell where they are: what depends on them waits, nothing is read twice.

By position unless it says otherwise, so that a record that is read twice shows.
"""

import gzip
import shutil

import pytest

from fix_account import advised, ids, refusals, run, settled
from fix_pipelines import Workbench, events
from fix_rotation import append, position, rsynced
from semel.accept import accept_file
from semel.errors import SourceError
from semel.ledger import Ledger
from semel.spec.pipeline import Spec
from test_bad_disks import ordinary_user, shared  # noqa: F401

IDENTITIES = ("position", "id")


def spec_of(bench: Workbench, identity: str, path: str = "in/*") -> Spec:
    return position(bench, path) if identity == "position" else bench.spec(source={"path": path})


# Attacks P9, P18.
@pytest.mark.parametrize("identity", IDENTITIES)
def test_what_has_the_path_of_an_unreadable_file_waits(
    shared: Workbench, ledger: Ledger, identity: str
) -> None:
    """Logs move up, and the oldest can be read no more: the others wait, and nobody's word is
    taken. Once it can be read, each record is there once.
    """
    spec = spec_of(shared, identity, "in/app.log*")
    log = shared.data / "in" / "app.log"
    with ordinary_user():
        append(log, 0, 3)
        run(ledger, spec, "r1")
        log.rename(log.with_name("app.log.1"))
        append(log, 3, 6)
        run(ledger, spec, "r2")
        append(log, 6, 8)
        closed = log.with_name("app.log.1").rename(log.with_name("app.log.2"))
        log.rename(log.with_name("app.log.1"))
        append(log, 8, 12)
        closed.chmod(0)
        run(ledger, spec, "r3")
        waiting = {"app.log": "unsure", "app.log.1": "unsure", "app.log.2": "unreadable"}
        assert refusals(ledger) == waiting
        with pytest.raises(SourceError, match=r"has to wait: .*app\.log.*settle that"):
            accept_file(ledger, spec, "app.log", same=False)
        closed.chmod(0o600)
        run(ledger, spec, "r4")
    assert refusals(ledger) == {}
    assert settled(spec).ids == ids(0, 12)


# Attacks P17, P18.
@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_copy_of_an_unreadable_file_waits(
    shared: Workbench, ledger: Ledger, identity: str
) -> None:
    """A file is renamed and can be read no more; copies of it, one with less than 4 KiB under a
    name that says nothing, are not read by position.
    """
    spec = spec_of(shared, identity)
    log = shared.data / "in" / "a.jsonl"
    with ordinary_user():
        append(log, 0, 10)
        run(ledger, spec, "r1")
        packed, other = log.with_name("a.jsonl.gz"), log.with_name("other")
        packed.write_bytes(gzip.compress(log.read_bytes(), mtime=0))
        other.write_bytes(log.read_bytes())
        moved = log.rename(log.with_name("b.jsonl"))
        moved.chmod(0)
        run(ledger, spec, "r2")
        copies = {packed.name: "copy", other.name: "copy"} if identity == "position" else {}
        assert refusals(ledger) == {**copies, moved.name: "unreadable"}
        moved.chmod(0o600)
        append(moved, 10, 12)
        run(ledger, spec, "r3")
        assert refusals(ledger) == copies
    assert settled(spec).ids == ids(0, 12)


# Attacks P17.
def test_a_copy_waits_while_its_files_path_is_in_doubt(bench: Workbench, ledger: Ledger) -> None:
    """`cp -p`, then rsync writes the file anew, which is linked, so that it is refused unseen: the
    copy does not take its place, and what rsync brought is read alone.
    """
    spec = position(bench, "in/*")
    log = bench.write("in/a.jsonl", events(0, 3))
    run(ledger, spec, "r1")
    copy = log.with_name("copy")
    shutil.copy2(log, copy)
    run(ledger, spec, "r2")
    rsynced(log, 0, 5)
    second = log.with_name("second")
    second.hardlink_to(log)
    run(ledger, spec, "r3")
    assert refusals(ledger) == {"copy": "copy", "a.jsonl": "hard link", "second": "hard link"}
    second.unlink()
    found = {r.name: r for r in run(ledger, spec, "r4").plan.refusals}
    assert refusals(ledger) == {"copy": "copy", "a.jsonl": "replaced"}
    advised(ledger, found[str(log)].detail, "--same")
    run(ledger, spec, "r5")
    assert refusals(ledger) == {"copy": "copy"}
    copy.unlink()
    assert settled(spec).ids == ids(0, 5)


# Attacks P9.
@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_rotated_log_with_two_names_goes_on_under_one(
    bench: Workbench, ledger: Ledger, identity: str
) -> None:
    """Logs move up, and one of them was linked: the second name is refused, all else is read."""
    spec = spec_of(bench, identity)
    log = bench.write("in/app.log", events(0, 3))
    run(ledger, spec, "r1")
    log.rename(log.with_name("app.log.1"))
    append(log, 3, 6)
    run(ledger, spec, "r2")
    append(log, 6, 8)
    second = log.with_name("backup")
    second.hardlink_to(log.with_name("app.log.1"))
    log.with_name("app.log.1").rename(log.with_name("app.log.2"))
    log.rename(log.with_name("app.log.1"))
    append(log, 8, 12)
    append(log.with_name("app.log.2"), 12, 13)
    run(ledger, spec, "r3")
    assert refusals(ledger) == {"backup": "hard link"}
    assert settled(spec).ids == ids(0, 13)
    log.with_name("app.log.2").unlink()
    append(second, 13, 14)
    run(ledger, spec, "r4")
    assert refusals(ledger) == {}
    assert settled(spec).ids == ids(0, 14)
