"""Receivers that die, and acknowledgements that fail: nothing lost, repeats only."""

from itertools import product

import pytest

from fix_receive import Line, StoredLine
from fixtures.batches.account import ids, run, settled
from fixtures.batches.faults import Children
from fixtures.batches.workbench import Workbench
from fixtures.objects.s3 import CONNECTION, S3
from fixtures.queue.nats import Nats, Wire
from semel import failpoints
from semel.errors import UnavailableError
from semel.ledger import Ledger
from semel.sources.queue import segment

RECEIVER = (
    "before_create", "after_create", "before_append:2", "torn_append:2", "before_sync:2",
    "after_sync:2", "before_ack:2", "after_ack:2", "before_seal", "after_rename",
)  # fmt: skip
"""Where a receiver dies; in its second group, so that it has acknowledged the first."""

RECOVERER = ("before_cut", "after_cut", "before_seal", "after_rename")
LEFT = ("after_create", "torn_append:2", "after_ack:2")
"""What it finds: no group, a torn one, and whole ones without a foot."""

PASSED_BY_NOBODY = {("after_create", "before_seal"), ("after_create", "after_rename")}
"""A part without a group is removed."""

CASES = [
    *((death,) for death in RECEIVER),
    *(pair for pair in product(LEFT, RECOVERER) if pair not in PASSED_BY_NOBODY),
]

LONG = [case for case in CASES if len(case) > 1 and case[0] != LEFT[1]]


STORED = ("before_put:2", "after_put:2", "before_ack:2", "after_ack:2", "before_put")
"""Where a receiver with a spool in a store dies."""


def test_each_point_has_a_case() -> None:
    """No point of receive is left out."""
    tried = {death.partition(":")[0] for case in (*CASES, STORED) for death in case}
    points = {name.removeprefix("receive.") for name in failpoints.points() if "receive." in name}
    assert tried == points


# Attacks Q1, Q2.
@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param(case, id="-".join(case), marks=pytest.mark.proof if case in LONG else ())
        for case in CASES
    ],
)
def test_a_receiver_that_dies_loses_nothing(
    line: Line, ledger: Ledger, children: Children, deaths: tuple[str, ...]
) -> None:
    """A receiver dies, and the one that would seal what it left dies too. A batch in between and
    another receive: each message is there once. It waits until the server delivers again what the
    dead held, which no cheaper test shows."""
    line.publish(0, 250)
    for death in deaths:
        point, _, nth = death.partition(":")
        child = children.start("receiving", f"receive.{point}:exit:{nth or 1}")
        assert child.ended() == (failpoints.EXIT_CODE, None)
    run(ledger, line.spec, "r1")
    assert not line.spool.parts()
    line.drain()
    run(ledger, line.spec, "r2")
    assert settled(line.spec).ids == ids(0, 250)


# Attacks Q1, AR1.
@pytest.mark.parametrize("death", STORED)
def test_a_receiver_of_a_stored_spool_dies(
    bench: Workbench, nats: Nats, s3: S3, ledger: Ledger, children: Children,
    monkeypatch: pytest.MonkeyPatch, death: str,
) -> None:  # fmt: skip
    """It leaves whole segments alone, and nothing to recover: each message is there once, nothing
    of it on this machine's disk, and the audit reads the segments again."""
    monkeypatch.setenv("SEMEL_ARCHIVES_CONNECTION", CONNECTION)
    line = StoredLine(bench, nats, s3)
    line.publish(0, 250)
    point, _, nth = death.partition(":")
    child = children.start("receiving", f"receive.{point}:exit:{nth or 1}")
    assert child.ended() == (failpoints.EXIT_CODE, None)
    run(ledger, line.spec, "r1")
    line.drain()
    run(ledger, line.spec, "r2")
    assert settled(line.spec).ids == ids(0, 250) and not (bench.data / "spool").exists()


# Attacks Q1.
def test_a_store_that_fails_acknowledges_nothing(
    bench: Workbench, nats: Nats, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error counts what the queue delivers again; the next receive has all of it. A store that
    fails once, and for less than a minute, is nothing."""
    monkeypatch.setenv("SEMEL_ARCHIVES_CONNECTION", CONNECTION)
    line = StoredLine(bench, nats, s3)
    line.publish(0, 50)

    def away(*_: object) -> None:
        raise UnavailableError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(segment, "write_new", away)
        patch.setattr(segment, "PUT_SECONDS", 0)
        with pytest.raises(UnavailableError, match="does not answer.*50 messages not acknowledged"):
            line.receive()
    line.drain()
    assert set(line.spooled().values()) == {1} and len(line.spooled()) == 50
    real, tries = segment.write_new, []

    def away_once(*put: object) -> None:
        tries.append(put)
        if len(tries) == 1:
            away()
        real(*put)

    line.publish(50, 60)
    monkeypatch.setattr(segment, "write_new", away_once)
    assert line.receive().messages == 10 and len(tries) == 2 and len(line.spooled()) == 60


# Attacks Q2.
@pytest.mark.rest
def test_many_recover_at_once(line: Line, ledger: Ledger, children: Children) -> None:
    """Those who find a dead receiver's part at the same time, one of them held up in it: one of
    them seals it, and a receiver that lives is let alone."""
    line.publish(0, 250)
    assert children.start("receiving", "receive.torn_append:exit:2").ended()[0]
    (torn,) = line.spool.parts()
    first = children.start("receiving", "receive.after_cut:pause")
    held = first.paused("receive.after_cut")
    line.receive()
    assert line.spool.parts() == [torn]
    held.unlink()
    assert first.ended() == (0, None)
    living = children.start("receiving", "receive.after_ack:pause")
    line.publish(250, 300)
    held = living.paused("receive.after_ack")
    (part,) = line.spool.parts()
    run(ledger, line.spec, "r1")
    assert line.spool.parts() == [part]
    held.unlink()
    assert living.ended() == (0, None)
    line.drain()
    run(ledger, line.spec, "r2")
    assert settled(line.spec).ids == ids(0, 300)


@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_lost_acknowledgement_is_a_repeat(
    line: Line, ledger: Ledger, bench: Workbench, what: str
) -> None:
    """The wire is cut as an acknowledgement is sent, or before its reply comes: the same receive
    goes on, says how many it does not know of, and each message is there once."""
    line.publish(0, 250)
    with Wire(line.nats.servers) as wire:
        line.spec = line.through(bench, wire.dsn)
        wire.cut(what)
        done = line.receive()
        assert wire.cuts == 1
        assert done.unacknowledged == 250
        assert line.nats.unacknowledged(line.stream) == (0, 0)
    again = 250 if what == "request" else 0
    assert (done.messages, done.redelivered) == (250 + again, again)
    run(ledger, line.spec, "r1")
    assert settled(line.spec).ids == ids(0, 250)
    assert settled(line.spec).counts.duplicates_batch == again


@pytest.mark.rest
def test_a_late_acknowledgement_is_a_repeat(
    line: Line, ledger: Ledger, children: Children
) -> None:
    """A receiver sleeps before it acknowledges, until another one has received the same: both have
    them, and each is there once. The server must deliver again, so this takes seconds."""
    line.publish(0, 250)
    late = children.start("receiving", "receive.before_ack:pause", None, 250)
    held = late.paused("receive.before_ack")
    assert line.receive(idle=30, messages=250).redelivered == 250
    held.unlink()
    assert late.ended() == (0, None)
    assert set(line.spooled().values()) == {2}
    run(ledger, line.spec, "r1")
    assert settled(line.spec).ids == ids(0, 250)


@pytest.mark.rest
def test_a_server_that_dies_before_an_acknowledgement(line: Line, ledger: Ledger) -> None:
    """What is spooled is sealed, the error counts it, and each message is there once when the
    server is back."""
    line.publish(0, 250)
    with failpoints.armed("receive.before_ack", line.nats.kill) as died:
        with pytest.raises(UnavailableError, match=r"Before that: 250 messages.*1 segment"):
            line.receive()
    assert died.hit
    assert line.spooled().total() == 250
    line.nats.start()
    line.drain()
    run(ledger, line.spec, "r1")
    assert settled(line.spec).ids == ids(0, 250)
