"""Many messages, each of them delivered again and again, to receivers that are killed."""

import json
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from fix_receive import Line, PubsubLine, Spooled, SqsLine
from fixtures.batches.account import ids, run, settled
from fixtures.batches.faults import Child, Children
from fixtures.batches.workbench import Workbench, events
from fixtures.queue.sqs import CONNECTION
from fixtures.wait import wait_for
from semel.ledger import Ledger

RETRIED = 20
"""A publisher sends one of so many events again: another message with the same id in its value."""

DELIVERIES = 5
"""The last of them is a receiver's: a thief takes the others, and acknowledges none."""

AT_ONCE = 2
"""Receivers, which are killed together."""

PULL = 2_000

KILLED_SECONDS = 2
"""How long two receivers live, unless they have written their share earlier."""

HOLD_SECONDS = {"nats": 1, "sqs": 3, "pubsub": 10}
"""The shortest deadlines that a receiver can keep; pstest takes none below Pub/Sub's own."""


def steal(line: Spooled, total: int) -> None:
    """Take each message four times, and let them all go again at the end."""
    taken: Counter[str] = Counter()
    with line.spec.source.opened_queue() as queue:
        queue.about()
        held: list[str] = []
        while len(held) < total:
            found = queue.pull(PULL, 8 << 20, 5)
            assert len(found), f"{len(held)} of {total} were taken {DELIVERIES - 1} times"
            taken.update(found.ids)
            last = [taken[name] >= DELIVERIES - 1 for name in found.ids]
            held += [handle for handle, done in zip(found.handles, last, strict=True) if done]
            queue.hand_back([h for h, done in zip(found.handles, last, strict=True) if not done])
        queue.hand_back(held)
    assert set(taken.values()) == {DELIVERIES - 1}


def written(folder: Path) -> int:
    """Bytes of all segments, sealed and open."""
    found = 0
    for path in folder.rglob("*.*"):
        try:
            found += path.stat().st_size
        except FileNotFoundError:  # It was sealed just now.
            continue
    return found


@pytest.fixture
def line(
    kind: str, total: int, bench: Workbench, request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Spooled:  # fmt: skip
    """A queue of this kind, which lets go of nothing for as long as the thief needs."""
    server = request.getfixturevalue("sqs_in_memory" if kind == "sqs" else kind)
    if kind == "nats":
        return Line(bench, server, ack_wait=600, pending=2 * total)
    if kind == "pubsub":
        return PubsubLine(bench, server, 600)
    monkeypatch.setenv("AIRFLOW_CONN_AWS_TESTS", json.dumps(CONNECTION))
    return SqsLine(bench, server, 3600)


PROOF = [pytest.mark.proof, pytest.mark.timeout(3600)]


# Attacks Q1, Q2, Q4.
@pytest.mark.parametrize(
    ("kind", "total", "kills"),
    [
        ("nats", 2_000, 1),
        *(pytest.param(kind, 200_000, 10, marks=PROOF) for kind in ("nats", "sqs", "pubsub")),
        pytest.param("sqs", 6_000, 3, marks=PROOF),
    ],
)
def test_each_is_taken_once(
    kind: str, line: Spooled, ledger: Ledger, children: Children, total: int, kills: int
) -> None:
    """Messages of 1 kB, some published twice, each delivered four times to somebody who does not
    acknowledge; two receivers at a time, killed while they write. Each event is there once, and
    what was delivered again, repeated and new adds up. The server must deliver again what the dead
    held, which no cheaper test shows."""
    sent = [{**event, "pad": "x" * 940} for event in events(0, total)]
    values = [json.dumps(event).encode() for event in sent]
    published = values + values[::RETRIED]
    line.send(published)
    began = time.monotonic()
    steal(line, len(published))
    line.hold_for(HOLD_SECONDS[kind])
    stolen = time.monotonic()
    codes = []
    for _ in range(kills):
        wanted = written(line.spool.path) + len(published) * 40 // kills
        ends = time.monotonic() + KILLED_SECONDS

        def started() -> Child:
            return children.start("receiving", "", None, max(100, total // 100))

        pair = [started() for _ in range(AT_ONCE)]
        before = written(line.spool.path)

        def is_time(
            wanted: int = wanted, ends: float = ends, pair: list = pair, before: int = before
        ) -> bool:
            now = written(line.spool.path)
            late = now > before and time.monotonic() > ends
            return late or now >= wanted or not any(c.process.is_alive() for c in pair)

        wait_for(is_time, "receivers that write", 120, 0.005)
        for child in pair:
            child.process.kill()
            child.process.join(30)
            codes.append(child.process.exitcode)
    assert set(codes) <= {0, -signal.SIGKILL} and codes.count(-signal.SIGKILL) >= kills
    line.drain()
    received = time.monotonic()
    feet = [foot for _, foot in line.feet()]
    spooled = sum(foot.messages for foot in feet)
    told_again = sum(foot.redelivered for foot in feet)
    if kind == "pubsub":  # It counts no deliveries, unless it has a topic for dead letters.
        assert told_again == 0
    else:
        assert told_again == spooled
    assert spooled >= len(published)
    assert set(line.spooled()) == set(values)
    run(ledger, line.spec, "r1")
    found = settled(line.spec)
    assert found.ids == ids(0, total)
    counts = found.counts
    assert (counts.records_read, counts.survivors) == (spooled, total)
    assert counts.duplicates_batch + counts.duplicates_catalog == spooled - total
    print(
        f"{kind}: {len(published)} messages, stolen in {stolen - began:.1f} s, received in "
        f"{received - stolen:.1f} s by {codes.count(-signal.SIGKILL)} that were killed and more: "
        f"{spooled} in {len(feet)} segments, of which {told_again} were told as redelivered, "
        f"{spooled - total} are repeats and {total} new; "
        f"the batch took {time.monotonic() - received:.1f} s"
    )
