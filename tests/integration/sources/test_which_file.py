"""What logrotate, rsync, editors, cron jobs and archivers do to a folder: each record once.

Each test is a day in the life of a folder. By position unless it says otherwise, so that a record
that is read twice shows.
"""

import gzip
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fixtures.batches.account import advised, ids, lines, quiet, refusals, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.files.rotation import append, output, position, rsynced
from fixtures.files.users import ordinary_user
from fixtures.spark.local import LocalEngine
from semel.errors import LimitError, SourceError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.repair.accept import accept_columns, accept_file
from semel.sources import Refusal
from semel.stage import stage

DAY = datetime(2026, 1, 1, tzinfo=UTC)
HEADER = b"id,n,at\n"
IDENTITIES = ("position", "id")


def spec_of(bench: Workbench, identity: str, path: str = "in/*") -> Spec:
    return position(bench, path) if identity == "position" else bench.spec(source={"path": path})


def day(number: int, length: int = 1) -> tuple[datetime, datetime]:
    """An interval that begins so many days after the first one."""
    return DAY + timedelta(days=number), DAY + timedelta(days=number + length)


def row(number: int) -> bytes:
    return b"e%06d,%d,2026-01-01T00:00:00Z\n" % (number, number)


@pytest.mark.parametrize("gone", ["archived", "deleted", "out of the window"])
def test_a_header_is_no_evidence(bench: Workbench, ledger: Ledger, gone: str) -> None:
    """A CSV of which only the header was read makes no other CSV of that header a copy."""
    window = gone == "out of the window"
    select = {"select": "interval", "interval_from": "d%Y-%m-%d.csv"} if window else {}
    spec = position(bench, "in/*.csv", source={"format": "csv", **select})
    first = bench.data / "in" / "d2026-01-01.csv"
    first.write_bytes(HEADER)

    def go(number: int) -> tuple:
        return run(ledger, spec, f"r{number}", day(number) if window else None).plan.refusals

    assert go(0) == ()
    if gone == "archived":
        (bench.data / "archive").mkdir()
        first.rename(bench.data / "archive" / first.name)
    elif gone == "deleted":
        first.unlink()
    (bench.data / "in" / "d2026-01-02.csv").write_bytes(HEADER + row(0) + row(1))
    assert go(1) == ()
    assert output(spec) == ids(0, 2)


def test_a_constant_first_record_is_no_evidence_with_an_id(
    bench: Workbench, ledger: Ledger
) -> None:
    """JSON Lines that begin alike are read: with an id, what is repeated is dropped."""
    spec = bench.spec()
    first = bench.write("in/a.jsonl", events(0, 1))
    run(ledger, spec, "r1")
    first.unlink()
    for number in (1, 2, 3):
        bench.write(f"in/b{number}.jsonl", [*events(0, 1), *events(number * 10, number * 10 + 2)])
        assert run(ledger, spec, f"r{number + 1}").plan.refusals == ()
    assert output(spec) == [*ids(0, 1), *ids(10, 12), *ids(20, 22), *ids(30, 32)]


def test_a_constant_first_record_waits_once_by_position(bench: Workbench, ledger: Ledger) -> None:
    """By position it could be a copy: one word settles it, also for all that come after."""
    spec = position(bench, "in/*.jsonl")
    first = bench.write("in/a.jsonl", events(0, 1))
    run(ledger, spec, "r1")
    first.unlink()
    bench.write("in/b.jsonl", [*events(0, 1), *events(10, 12)])
    (refusal,) = run(ledger, spec, "r2").plan.refusals
    assert (refusal.reason, Path(refusal.name).name) == ("copy", "b.jsonl")
    accept_file(ledger, spec, "b.jsonl", same=False)
    run(ledger, spec, "r3")
    bench.write("in/c.jsonl", [*events(0, 1), *events(20, 22)])
    assert run(ledger, spec, "r4").plan.refusals == ()
    assert output(spec) == sorted([*ids(0, 1) * 3, *ids(10, 12), *ids(20, 22)])


# Attacks P18.
def test_mtime_intervals_and_rotation(bench: Workbench, ledger: Ledger) -> None:
    """Rotated out of the interval's window is not gone: the new file is read, the old one once."""
    spec = position(bench, source={"select": "interval", "interval_from": "mtime"})
    log = bench.data / "in" / "app.log"
    for number in range(3):
        append(log, 10 * number, 10 * number + 10)
        when = (DAY + timedelta(days=number, hours=1)).timestamp()
        os.utime(log, (when, when))
        assert run(ledger, spec, f"r{number}", day(number)).plan.refusals == ()
        log.rename(log.with_name(f"app.log.{number}"))
    assert settled(spec).ids == ids(0, 30)


@pytest.mark.parametrize("identity", IDENTITIES)
def test_an_inode_that_comes_back_is_another_file(
    bench: Workbench, ledger: Ledger, identity: str
) -> None:
    """A new file gets the inode of a deleted one, and begins with its line: nothing is lost."""
    spec = spec_of(bench, identity, "in/*.jsonl")
    for turn in range(30):  # Others in this file system may be faster: then once more.
        old, new = events(turn, turn + 1), events(100, 103)
        first = bench.write(f"in/job{turn}.jsonl", old)
        inode = first.stat().st_ino
        run(ledger, spec, f"r{turn}")
        first.unlink()
        second = bench.write(f"in/next{turn}.jsonl", [*old, *new])
        if second.stat().st_ino == inode:
            break
        second.rename(bench.data / f"not-it-{turn}")
    else:
        pytest.skip("this file system does not give an inode's number again")
    before = ids(0, turn + 1)
    done = run(ledger, spec, "new")
    if identity == "position":
        assert [r.reason for r in done.plan.refusals] == ["copy"]
        accept_file(ledger, spec, second.name, same=False)
        assert run(ledger, spec, "accepted").plan.refusals == ()
        assert output(spec) == sorted([*before, *ids(turn, turn + 1), *ids(100, 103)])
    else:
        assert done.plan.refusals == ()
        assert output(spec) == [*before, *ids(100, 103)]


def test_renamed_while_stage_runs(bench: Workbench, ledger: Ledger) -> None:
    """The same in the middle of an attempt."""
    spec = bench.spec(source={"path": "in/app.log*"})
    log = bench.data / "in" / "app.log"
    append(log, 0, 10)
    batch = plan(ledger, spec, "r1").batch
    engine = LocalEngine(before_write=lambda _: log.rename(log.with_name("app.log.1")))
    stage(ledger, spec, batch.batch_id, engine, log=quiet)
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 10)


# Attacks P14.
def test_a_csv_of_a_later_schema_is_refused_alone(bench: Workbench, ledger: Ledger) -> None:
    """An old CSV with unread bytes, beside new ones of one more column: only the old one waits."""
    old = position(bench, "in/*.csv", source={"format": "csv"})
    path = bench.data / "in" / "old.csv"
    path.write_bytes(HEADER + row(0))
    run(ledger, old, "r1")
    with path.open("ab") as file:
        file.write(row(1))
    new = position(bench, "in/*.csv", source={"format": "csv", "schema": {
        "id": "string", "n": "bigint", "at": "timestamp", "more": "string",
    }})  # fmt: skip
    later = HEADER.replace(b"\n", b",more\n") + row(2).replace(b"\n", b",x\n")
    (bench.data / "in" / "new.csv").write_bytes(later)
    accept_columns(ledger, new)
    planned = plan(ledger, new, "r2")
    assert {Path(r.name).name: r.reason for r in planned.refusals} == {"old.csv": "header"}
    assert stage(ledger, new, planned.batch.batch_id, LocalEngine(), quiet).counts.survivors == 1


# Attacks A6.
@pytest.mark.parametrize("how", ["grown", "new", "replaced"])
def test_a_file_that_was_corrected_is_planned_anew(
    bench: Workbench, ledger: Ledger, how: str
) -> None:
    """A batch failed for its records; abandoned, it leaves no trace of what the file held then.

    Of a file that grew, and of one of which nothing was ever committed, corrected in its place or
    by another file.
    """
    spec = position(bench, "in/*.jsonl", limits={"quarantine_ratio_max": 0.1})
    path = bench.data / "in" / "a.jsonl"
    if how == "grown":
        append(path, 0, 5)
        run(ledger, spec, "r1")
    with path.open("ab") as file:
        file.write(b"{bad}\n" * 5)
    with pytest.raises(LimitError):
        run(ledger, spec, "r2")
    batch = plan(ledger, spec, "r2").batch
    if how == "replaced":
        rsynced(path, 0, 8)
    else:
        path.write_bytes(lines(0, 8))
    abandon(ledger, batch.batch_id, "its records are corrected")
    assert run(ledger, spec, "r3").plan.refusals == ()
    assert settled(spec).ids == ids(0, 8)


# Attacks P19.
def test_a_file_that_grows_while_plans_race(bench: Workbench, ledger: Ledger, monkeypatch) -> None:
    """A plan listed it, another run read beyond that: it did not shrink."""
    from semel.sources.files import source as files

    spec = position(bench, "in/*.jsonl")
    path = bench.write("in/a.jsonl", events(0, 5))
    run(ledger, spec, "r1")
    listed = files.list_files

    def slowly(*args: object) -> object:
        monkeypatch.setattr(files, "list_files", listed)
        done = listed(*args)
        append(path, 5, 10)
        run(ledger, spec, "r2")
        return done

    append(path, 10, 11)
    monkeypatch.setattr(files, "list_files", slowly)
    assert run(ledger, spec, "r3").plan.refusals == ()
    assert sorted(set(output(spec))) == output(spec)


# Attacks P19.
def test_only_files_that_differ_are_opened(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a file is called: it is opened again when it is not what the ledger has of it."""
    from semel.sources.files import gather

    spec = position(bench, "in/**/*.jsonl")
    names = ["a", "NULL", "1,2", "{3}", 'q"', "'", "back\\", "new\nline", "sub/a", "sub\n/,"]
    paths = [
        bench.write(f"in/{name}.jsonl", events(number, number + 1))
        for number, name in enumerate(names)
    ]
    run(ledger, spec, "r1")
    looked = []

    def look(spec: object, file: gather.ListedFile) -> gather.OpenedFile:
        looked.append(file.path)
        return really(spec, file)

    really = gather.open_listed
    monkeypatch.setattr(gather, "open_listed", look)
    assert plan(ledger, spec, "r2").batch is None
    assert looked == []
    for first in (0, 1):
        for number, path in list(enumerate(paths))[first::2]:
            append(path, 100 + number, 101 + number)
        run(ledger, spec, f"r{3 + first}")
        assert sorted(looked) == sorted(map(str, paths[first::2]))
        looked.clear()
    assert settled(spec).ids == ids(0, len(names)) + ids(100, 100 + len(names))


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "not ended"])
def test_a_known_file_of_one_line(bench: Workbench, ledger: Ledger, ended: bool) -> None:
    """A line that was read without its end, because its file was closed, is the same with it."""
    spec = position(bench, "in/*.jsonl", source={"closed_after": "1 second"})
    path = bench.write("in/a.jsonl", events(0, 1))
    if not ended:
        path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    os.utime(path, (1, 1))
    run(ledger, spec, "r1")
    path.unlink()
    os.utime(bench.write("in/other.jsonl", events(0, 1)), (1, 1))
    assert [r.reason for r in run(ledger, spec, "r2").plan.refusals] == ["copy"]


# Attacks P17.
def test_rsync_of_a_file_that_grew(bench: Workbench, ledger: Ledger) -> None:
    """rsync writes a new file and renames it: with 4 KiB that agree it is the same, and goes on."""
    spec = position(bench, "in/*.jsonl")
    path = bench.write("in/a.jsonl", events(0, 100))
    run(ledger, spec, "r1")
    rsynced(path, 0, 150)
    done = run(ledger, spec, "r2")
    assert done.plan.refusals == ()
    assert settled(spec).ids == ids(0, 150)


@pytest.mark.parametrize("count", [5, 100])
def test_a_file_that_comes_back(bench: Workbench, ledger: Ledger, count: int) -> None:
    """Moved out of the folder and back, as by a mount that was away: it goes on where it ended."""
    spec = position(bench, "in/*.jsonl")
    path = bench.write("in/a.jsonl", events(0, count))
    bench.write("in/b.jsonl", events(count, count + 1))
    run(ledger, spec, "r1")
    aside = path.rename(bench.data / "aside")
    run(ledger, spec, "r2")
    aside.rename(path)
    append(path, 200, 205)
    assert run(ledger, spec, "r3").plan.refusals == ()
    assert settled(spec).ids == ids(0, count + 1) + ids(200, 205)


def test_a_file_that_was_emptied_waits(bench: Workbench, ledger: Ledger) -> None:
    """A producer that writes its file anew empties it first: nothing is decided until it is full.

    When it begins as before, it goes on; when it does not, it is refused.
    """
    spec = position(bench, "in/*.jsonl")
    path = bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    os.truncate(path, 0)
    done = run(ledger, spec, "r2").plan
    assert (done.batch, done.refusals) == (None, ())
    append(path, 0, 15)
    assert run(ledger, spec, "r3").plan.refusals == ()
    assert settled(spec).ids == ids(0, 15)
    os.truncate(path, 0)
    run(ledger, spec, "r4")
    append(path, 50, 53)
    assert [r.reason for r in run(ledger, spec, "r5").plan.refusals] == ["changed"]


@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_small_file_that_was_written_anew(
    bench: Workbench, ledger: Ledger, identity: str
) -> None:
    """A new inode under a known path, with the little that was read and more: the same or not?"""
    spec = spec_of(bench, identity, "in/*.jsonl")
    log = bench.write("in/a.jsonl", events(0, 3))
    run(ledger, spec, "r1")
    rsynced(log, 0, 5)
    found = run(ledger, spec, "r2").plan.refusals
    if identity == "position":
        assert [r.reason for r in found] == ["replaced"]
        advised(ledger, found[0].detail, "--same")
        run(ledger, spec, "r3")
    else:
        assert found == ()
    assert settled(spec).ids == ids(0, 5)


# Attacks P18.
def test_a_folder_that_is_away_makes_no_file_gone(bench: Workbench, ledger: Ledger) -> None:
    """Not mounted, as it were: the folder is refused, and nothing is concluded for its files."""
    spec = position(bench, "in/*.jsonl")
    path = bench.write("in/a.jsonl", events(0, 5))
    with path.open("ab") as file:
        file.write(lines(5, 6)[:-9])
    run(ledger, spec, "r1")
    away = path.parent.rename(bench.data / "away")
    done = run(ledger, spec, "r2").plan
    assert done.batch is None and [r.reason for r in done.refusals] == ["missing"]
    assert refusals(ledger) == {"in": "missing"}
    away.rename(path.parent)
    with path.open("ab") as file:
        file.write(lines(5, 6)[-9:])
    assert run(ledger, spec, "r3").plan.refusals == ()
    assert settled(spec).ids == ids(0, 6)


@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_copy_beside_its_file(bench: Workbench, ledger: Ledger, identity: str) -> None:
    """`cp app.log app.log.bak`: by position it is refused; by id all of it repeats."""
    spec = spec_of(bench, identity, "in/app*")
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

    def go(number: int = 0) -> dict[str, str]:
        when = day(number) if window else None
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
        with pytest.raises(SourceError, match=r"has to wait: .*app\.log.*Settle that"):
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
