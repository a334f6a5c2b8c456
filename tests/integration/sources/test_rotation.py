"""Rotations of logs, as logrotate and its like do them: nobody's word is needed, for ever.

By position, so that a record that is read twice shows.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.batches.account import ids, lines, quiet, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.files.rotation import Rotated, append, copy_and_cut, output, pack, position
from fixtures.spark.local import LocalEngine
from semel.errors import RetryableError
from semel.ledger import Ledger
from semel.plan import plan
from semel.sources.files import gather
from semel.sources.files.evidence import is_part
from semel.stage import stage


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("how", ["rename", "copytruncate"])
@pytest.mark.parametrize("count", [3, 120])
def test_logrotate_for_ever(
    bench: Workbench, ledger: Ledger, how: str, suffix: str, count: int
) -> None:
    """Two old files are kept, the oldest is deleted, again and again: nobody is ever asked."""
    spec = position(bench)
    log = Rotated(bench.data / "in", keep=2, how=how, suffix=suffix)
    for turn in range(5):
        log.write(count)
        assert run(ledger, spec, f"a{turn}").plan.refusals == ()
        log.write(count)  # Read in part, when it is rotated.
        log.rotate()
        log.write(count)
        assert run(ledger, spec, f"b{turn}").plan.refusals == ()
        assert output(spec) == ids(0, log.written)


def test_delaycompress(bench: Workbench, ledger: Ledger) -> None:
    """The newest old file stays plain, the one before it is packed: all is read once."""
    spec = position(bench)
    folder = bench.data / "in"
    log, first, second = (folder / f"app.log{n}" for n in ("", ".1", ".2"))
    for turn in range(4):
        append(log, 20 * turn, 20 * turn + 10)
        run(ledger, spec, f"a{turn}")
        append(log, 20 * turn + 10, 20 * turn + 20)
        second.with_name("app.log.2.gz").unlink(missing_ok=True)
        if first.exists():
            first.rename(second)
            pack(second)
        log.rename(first)
        assert run(ledger, spec, f"b{turn}").plan.refusals == ()
    assert output(spec) == ids(0, 80)


@pytest.mark.rest
@pytest.mark.parametrize("packed", [False, True])
def test_dateext(bench: Workbench, ledger: Ledger, packed: bool) -> None:
    """Old files have dates in their names, packed or not."""
    spec = position(bench)
    log = bench.data / "in" / "app.log"
    for turn in range(4):
        append(log, 20 * turn, 20 * turn + 10)
        run(ledger, spec, f"a{turn}")
        append(log, 20 * turn + 10, 20 * turn + 20)
        old = log.rename(log.with_name(f"app.log-2026010{turn + 1}"))
        if packed:
            pack(old)
        assert run(ledger, spec, f"b{turn}").plan.refusals == ()
    assert settled(spec).ids == ids(0, 80)


def test_copytruncate_under_a_writer_that_keeps_its_place(
    bench: Workbench, ledger: Ledger
) -> None:
    """A writer without O_APPEND goes on at its old place: the hole of NULs is no record."""
    spec = position(bench)
    path = bench.data / "in" / "app.log"
    with path.open("wb", buffering=0) as writer:
        writer.write(lines(0, 10))
        run(ledger, spec, "r1")
        writer.write(lines(10, 20))
        shutil.copyfile(path, path.with_name("app.log.1"))
        os.truncate(path, 0)
        writer.write(lines(20, 30))
        assert path.read_bytes().startswith(b"\0" * len(lines(0, 20)))
        assert run(ledger, spec, "r2").plan.refusals == ()
        writer.write(lines(30, 40))
        run(ledger, spec, "r3")
    account = settled(spec)
    assert (account.ids, account.letters) == (ids(0, 40), [])


def test_delete_one_and_rename_another_to_it(bench: Workbench, ledger: Ledger) -> None:
    """The file that was renamed goes on, the other one is gone: no error of the database."""
    spec = position(bench, "in/*.jsonl")
    a, b = bench.write("in/a.jsonl", events(0, 5)), bench.write("in/b.jsonl", events(5, 10))
    run(ledger, spec, "r1")
    append(a, 10, 15)
    a.replace(b)
    assert run(ledger, spec, "r2").plan.refusals == ()
    assert output(spec) == ids(0, 15)


# Attacks P17.
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.99])
def test_half_a_copy(bench: Workbench, ledger: Ledger, share: float) -> None:
    """A plan that sees copytruncate's copy while it is made reads nothing of it."""
    spec = position(bench)
    log = bench.data / "in" / "app.log"
    append(log, 0, 1000)
    run(ledger, spec, "r1")
    whole, copy = log.read_bytes(), log.with_name("app.log.1")
    copy.write_bytes(whole[: int(len(whole) * share)])
    reasons = [r.reason for r in run(ledger, spec, "r2").plan.refusals]
    assert reasons == (["copy"] if share else [])
    copy.write_bytes(whole)
    os.truncate(log, 0)
    append(log, 1000, 1005)
    assert run(ledger, spec, "r3").plan.refusals == ()
    assert output(spec) == ids(0, 1005)


def test_half_a_copy_whose_log_is_cut_while_a_plan_looks(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody can tell any more is left to the next plan."""
    spec = position(bench)
    log = bench.data / "in" / "app.log"
    append(log, 0, 1000)
    run(ledger, spec, "r1")
    whole, copy = log.read_bytes(), log.with_name("app.log.1")
    copy.write_bytes(whole[:8192])

    def cut_first(*given: object) -> bool:
        copy.write_bytes(whole)
        os.truncate(log, 0)
        return is_part(*given)

    with monkeypatch.context() as patch:
        patch.setattr(gather, "is_part", cut_first)
        assert run(ledger, spec, "r2").plan.batch is None
    assert run(ledger, spec, "r3").plan.refusals == ()
    append(log, 1000, 1005)
    run(ledger, spec, "r4")
    assert output(spec) == ids(0, 1005)


def test_a_log_that_begins_as_the_old_one_did_is_new(bench: Workbench, ledger: Ledger) -> None:
    """More than 4 KiB are the same each time, then other records come: that is no part of it."""
    spec = position(bench)
    log = bench.data / "in" / "app.log"
    append(log, 0, 100)
    append(log, 100, 1000)
    run(ledger, spec, "r1")
    log.rename(log.with_name("app.log.1"))
    append(log, 0, 100)
    append(log, 1000, 1100)
    assert run(ledger, spec, "r2").plan.refusals == ()
    assert output(spec) == sorted([*ids(0, 100) * 2, *ids(100, 1100)])


# Attacks S6.
@pytest.mark.parametrize("how", ["rename", "compress", "rename and compress", "copytruncate"])
def test_packed_between_plan_and_stage(bench: Workbench, ledger: Ledger, how: str) -> None:
    """A batch that was planned on a log goes on in it under another name, or in what gzip, or a
    copy, made of it, by itself.
    """
    spec = position(bench)
    log = bench.data / "in" / "app.log"
    append(log, 0, 10)
    run(ledger, spec, "r1")
    append(log, 10, 20)
    plan(ledger, spec, "r2")
    if how == "compress":
        pack(log.rename(log.with_name("app.log.1")))
    elif how == "copytruncate":
        copy_and_cut(log)
        append(log, 20, 25)
    elif how == "rename":
        log.rename(log.with_name("app.log.1"))
        append(log, 20, 25)
    else:
        pack(log.rename(log.with_name("app.log-20260101")))
        append(log, 20, 25)
    run(ledger, spec, "r2")
    run(ledger, spec, "r3")
    assert settled(spec).ids == ids(0, 20 if how == "compress" else 25)


@pytest.mark.parametrize("moved", [pack, copy_and_cut])
def test_packed_while_stage_runs(
    bench: Workbench, ledger: Ledger, moved: Callable[[Path], object]
) -> None:
    """The attempt is lost, and the next one reads what gzip, or a copy, made of the log."""
    spec = bench.spec(source={"path": "in/app.log*"})
    log = bench.data / "in" / "app.log"
    append(log, 0, 10)
    batch = plan(ledger, spec, "r1").batch
    engine = LocalEngine(before_write=lambda _: moved(log))
    with pytest.raises(RetryableError, match="moved or compressed .* Run stage again"):
        stage(ledger, spec, batch.batch_id, engine, log=quiet)
    append(log, 10, 12)
    run(ledger, spec, "r1")
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 12)
