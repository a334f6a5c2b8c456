"""Many messages, each of them delivered again and again, to receivers that are killed."""

import json
import signal
import time
from pathlib import Path

import pytest

from fix_receive import Line
from fixtures.batches.account import ids, run, settled
from fixtures.batches.faults import Child, Children
from fixtures.batches.workbench import Workbench, events
from fixtures.queue.nats import Nats
from fixtures.wait import wait_for
from semel.ledger import Ledger

RETRIED = 20
"""A publisher sends one of so many events again: another message with the same id in its value."""

DELIVERIES = 5
"""The last of them is a receiver's: a thief takes the others, and acknowledges none."""

AT_ONCE = 2
"""Receivers, which are killed together."""

PULL = 2_000


def steal(line: Line, total: int) -> None:
    """Take each message four times, and let them all go again at the end."""
    with line.spec.source.opened_queue() as queue:
        queue.about()
        held: list[str] = []
        while len(held) < total:
            found = queue.pull(PULL, 8 << 20, 5)
            assert len(found), f"{len(held)} of {total} were taken {DELIVERIES - 1} times"
            last = [attempt >= DELIVERIES - 1 for attempt in found.attempts]
            held += [handle for handle, done in zip(found.handles, last, strict=True) if done]
            queue.hand_back([h for h, done in zip(found.handles, last, strict=True) if not done])
        queue.hand_back(held)


def written(folder: Path) -> int:
    """Bytes of all segments, sealed and open."""
    found = 0
    for path in folder.rglob("*.*"):
        try:
            found += path.stat().st_size
        except FileNotFoundError:  # It was sealed just now.
            continue
    return found


# Attacks Q1, Q2, Q4.
@pytest.mark.parametrize(
    ("total", "kills"),
    [
        (2_000, 1),
        pytest.param(200_000, 10, marks=[pytest.mark.proof, pytest.mark.timeout(1200)]),
    ],
)
def test_each_is_taken_once(
    bench: Workbench, nats: Nats, ledger: Ledger, children: Children, total: int, kills: int
) -> None:
    """Messages of 1 kB, some published twice, each delivered four times to somebody who does not
    acknowledge; two receivers at a time, killed while they write. Each event is there once, and
    what was delivered again, repeated and new adds up. The server must deliver again what the dead
    held, which no cheaper test shows."""
    line = Line(bench, nats, ack_wait=300, pending=2 * total)
    sent = [{**event, "pad": "x" * 940} for event in events(0, total)]
    values = [json.dumps(event).encode() for event in sent]
    published = values + values[::RETRIED]
    began = time.monotonic()
    nats.publish(line.stream, published)
    steal(line, len(published))
    nats.consumer(line.stream, ack_wait=1, pending=2 * total)
    stolen = time.monotonic()
    codes = []
    for _ in range(kills):
        wanted = written(line.spool.path) + len(published) * 40 // kills

        def started() -> Child:
            return children.start("receiving", "", None, max(100, total // 100))

        pair = [started() for _ in range(AT_ONCE)]
        wait_for(
            lambda wanted=wanted, pair=pair: written(line.spool.path) >= wanted
            or not any(child.process.is_alive() for child in pair),
            "receivers that write", 120, 0.005,
        )  # fmt: skip
        for child in pair:
            child.process.kill()
            child.process.join(30)
            codes.append(child.process.exitcode)
    assert set(codes) <= {0, -signal.SIGKILL} and codes.count(-signal.SIGKILL) >= kills
    line.drain()
    received = time.monotonic()
    feet = [foot for _, foot in line.feet()]
    spooled = sum(foot.messages for foot in feet)
    assert sum(foot.redelivered for foot in feet) == spooled >= len(published)
    assert set(line.spooled()) == set(values)
    run(ledger, line.spec, "r1")
    found = settled(line.spec)
    assert found.ids == ids(0, total)
    counts = found.counts
    assert (counts.records_read, counts.survivors) == (spooled, total)
    assert counts.duplicates_batch + counts.duplicates_catalog == spooled - total
    print(
        f"{len(published)} messages, stolen in {stolen - began:.1f} s, received in "
        f"{received - stolen:.1f} s by {codes.count(-signal.SIGKILL)} that were killed and more, "
        f"{spooled} in {len(feet)} segments; the batch took {time.monotonic() - received:.1f} s"
    )
