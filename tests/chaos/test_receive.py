"""Receivers that die, disks that fail or lose power, and acknowledgements that are lost: what was
acknowledged is durable, and each message is once in the output.
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fix_disk import Disk
from fixtures.batches.account import ids, quiet, run, settled
from fixtures.batches.faults import Children
from fixtures.batches.workbench import Workbench, events
from fixtures.queue.nats import Nats
from fixtures.queue.segments import Spool, values_of
from semel import failpoints
from semel.errors import UnavailableError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.sources.queue import receive as receiving
from semel.sources.queue import segment, spool
from semel.sources.queue.spec import Until

POINTS = [point for point in failpoints.points() if point.startswith("receive.")]
OF_RECOVERY = ("receive.before_cut", "receive.after_cut")
OF_GROUPS = ("receive.torn_append", "_append", "_sync", "after_sync", "_ack")
UNTIL = Until(idle=timedelta(seconds=1.5))
"""Longer than the deadline of a message, so that what came to nobody comes again."""


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group is ten messages."""
    monkeypatch.setattr(receiving, "GROUP_MESSAGES", 10)


class Pipeline:
    """A stream of `events`, and the pipeline that reads it: exactly once by the publisher's id."""

    def __init__(self, bench: Workbench, nats: Nats) -> None:
        self.nats, self.stream, self.sent = nats, nats.stream(ack_wait=1), 0
        self.place = Spool(bench)
        self.spool = spool.Spool(self.place.spool / "events")
        source = {"servers": nats.servers, "stream": self.stream}
        self.spec: Spec = self.place.spec(
            guarantee="exactly_once", record_id=["id"], source=source
        )

    def publish(self, count: int) -> None:
        """The next events; each tenth one twice, as a publisher does that saw no answer."""
        values = [json.dumps(e).encode() for e in events(self.sent, self.sent + count)]
        self.sent += count
        self.nats.publish(self.stream, [*values, *values[::10]])

    def received(self) -> list[bytes]:
        """The values of all segments."""
        return [value for path in self.spool.sealed.glob("*.seg") for value in values_of(path)]

    def finish(self, ledger: Ledger) -> None:
        """Receive the rest, and run: each event is in the output once, nothing waits, and what was
        received adds up.
        """
        self.spec.source.receive("events", UNTIL, quiet)
        assert self.nats.unacknowledged(self.stream) == (0, 0)
        batch = run(ledger, self.spec, "last").plan.batch
        found = settled(self.spec)
        assert found.ids == ids(0, self.sent)
        assert batch is not None and not list(self.spool.open.iterdir())
        assert len(found.ids) + len(found.decisions) == len(self.received())


def receives(ledger: Ledger, spec: Spec) -> None:  # noqa: ARG001 - a script of `Children`
    receiving.GROUP_MESSAGES = 10
    spec.source.receive(spec.name, UNTIL, quiet)


# Attacks Q1, Q2.
@pytest.mark.sample(3)
@pytest.mark.parametrize("point", POINTS)
def test_receivers_that_die(
    bench: Workbench, nats: Nats, ledger: Ledger, children: Children, point: str
) -> None:
    """At each point of receiving and of recovery: nothing that was acknowledged is missing, and
    nothing is twice. Two deadlines of a real server pass, which alone deliver again.
    """
    pipeline = Pipeline(bench, nats)
    pipeline.publish(50)
    if point in OF_RECOVERY:
        assert children.start(receives, "receive.before_ack:exit:2").ended()[0] == 137
    nth = 2 if point.endswith(OF_GROUPS) else 1
    assert children.start(receives, f"{point}:exit:{nth}").ended()[0] == 137
    pipeline.publish(20)
    pipeline.finish(ledger)


def watched(
    monkeypatch: pytest.MonkeyPatch, instead: Callable[[Callable, Sequence[Any]], int]
) -> None:
    """Let `instead` be called in place of each acknowledgement, with it and what it acknowledges.
    """
    from semel.clients.queue.nats import _Nats

    real = _Nats.acknowledge
    monkeypatch.setattr(
        _Nats, "acknowledge", lambda self, handles: instead(lambda h: real(self, h), handles)
    )


# Attacks Q1.
def test_a_power_cut_loses_nothing_that_was_acknowledged(
    bench: Workbench, nats: Nats, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever the moment: bytes, names and folders are durable before an acknowledgement goes out,
    and after the end. Two receivers, of which the second seals what the first one left.
    """
    pipeline = Pipeline(bench, nats)
    pipeline.publish(60)
    disk = Disk(bench.data, monkeypatch)
    acknowledged, cuts = 0, 0

    def left() -> int:
        """The messages that would be there, had the power been cut now."""
        copy = spool.Spool(tmp_path / f"cut{cuts}")
        copy.make()
        for path in pipeline.spool.parts():
            assert disk.keeps(path)
            shutil.copy(path, copy.open)
        copy.recover(quiet)
        for path in pipeline.spool.sealed.iterdir():
            assert disk.keeps(path)
            shutil.copy(path, copy.sealed)
        return sum(len(values_of(path)) for path in copy.sealed.iterdir())

    def checked(real: Callable, handles: Sequence[Any]) -> int:
        nonlocal acknowledged, cuts
        acknowledged, cuts = acknowledged + len(handles), cuts + 1
        assert left() >= acknowledged
        return real(handles)

    watched(monkeypatch, checked)

    def dies() -> None:
        raise failpoints.FaultError("died here")

    with failpoints.armed("receive.after_ack", dies, 3), pytest.raises(failpoints.FaultError):
        pipeline.spec.source.receive("events", UNTIL, quiet)
    assert len(pipeline.spool.parts()) == 1 and cuts == 3
    pipeline.spec.source.receive("events", UNTIL, quiet)
    cuts += 1
    assert left() == acknowledged >= 66 and not pipeline.spool.parts()


# Attacks Q1.
@pytest.mark.parametrize("what", ["write", "sync", "folder"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails(
    bench: Workbench,
    nats: Nats,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    code: int,
) -> None:
    """Nothing of that group is acknowledged, the error says what to do, and when the disk is well
    each message comes again. A sync that failed once is not believed when it succeeds later.
    """
    pipeline = Pipeline(bench, nats)
    pipeline.publish(50)
    acknowledged = []
    watched(monkeypatch, lambda real, handles: acknowledged.append(len(handles)) or real(handles))
    calls = 0

    def fails(real: Callable, nth: int) -> Callable:
        def call(*values: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth:
                raise OSError(code, os.strerror(code))
            return real(*values)

        return call

    with monkeypatch.context() as patch:
        if what == "write":
            patch.setattr(segment.Part, "_write", fails(segment.Part._write, 4))
        elif what == "sync":
            patch.setattr(os, "fdatasync", fails(os.fdatasync, 2))
        else:
            patch.setattr(segment, "sync_folder", fails(segment.sync_folder, 1))
        with pytest.raises(UnavailableError) as failed:
            pipeline.spec.source.receive("events", UNTIL, quiet)
    assert re.search(rf"{os.strerror(code)}.*Make room, or mend the disk", str(failed.value))
    assert acknowledged == ([] if what == "folder" else [10])
    pipeline.finish(ledger)


# Attacks Q1.
@pytest.mark.parametrize("how", ["failed", "lost", "late", "by halves"])
def test_acknowledgements_that_do_not_arrive(
    bench: Workbench, nats: Nats, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """They fail, are lost, or come when the message was delivered again: repeats, and no more."""
    pipeline = Pipeline(bench, nats)
    pipeline.publish(50)
    kept: list[Any] = []
    left = 6 if how == "late" else 3  # All of the first delivery, or half of it.

    def instead(real: Callable, handles: Sequence[Any]) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            late, kept[:] = list(kept), []
            return real([*late, *handles]) * 0
        if how == "failed":
            return len(handles)
        if how == "late":
            kept.extend(handles)
            return 0
        return real(handles[::2]) if how == "by halves" else 0

    watched(monkeypatch, instead)
    pipeline.spec.source.receive("events", UNTIL, quiet)
    assert len(pipeline.received()) > 55
    pipeline.publish(10)
    pipeline.finish(ledger)
