"""Many messages, each of them delivered again and again, to receivers that are killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fix_receive import Line, PubsubLine, Spooled, SqsLine
from fixtures.batches.account import ids, run, settled
from fixtures.batches.faults import Children
from fixtures.batches.workbench import Workbench, events
from fixtures.queue.nats import Nats
from fixtures.queue.segments import column_of
from fixtures.queue.sqs import CONNECTION
from fixtures.wait import wait_for
from semel.ledger import Ledger

TESTS = Path(__file__).parents[1]

RETRIED = 20
"""A publisher sends one of so many events again: another message with the same id in its value."""

DELIVERIES = 5
"""The last of them is a receiver's: a thief takes the others, and acknowledges none."""

AT_ONCE = 2
"""Receivers, which are killed together."""

PULL = 2_000

KILLED_SECONDS = 2
"""How long two receivers live, unless they have written their share earlier."""

LONG_SECONDS = 600
"""For the thief: the most that Pub/Sub takes."""

WAITING = 10_000_000

HOLD_SECONDS = {"nats": 1, "sqs": 3, "pubsub": 10}
"""The shortest deadlines that a receiver can keep; pstest takes none below Pub/Sub's own."""


def steal(line: Spooled, total: int, hold_seconds: int) -> None:
    """Take each message four times, and let them all go again at the end. What comes to it again,
    by a pull that waits, goes again when the queue's deadline is over, from then on this one.
    """
    taken: Counter[str] = Counter()
    with line.spec.source.open_queue() as queue:
        queue.describe()
        held: list[str] = []
        while len(held) < total:
            found = queue.pull(PULL, 8 << 20, 5)
            assert len(found), f"{len(held)} of {total} were taken {DELIVERIES - 1} times"
            line.keep(queue, found.handles)
            taken.update(found.ids)
            last = [taken[name] >= DELIVERIES - 1 for name in found.ids]
            held += [handle for handle, done in zip(found.handles, last, strict=True) if done]
            queue.hand_back([h for h, done in zip(found.handles, last, strict=True) if not done])
        line.hold_for(hold_seconds)
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
        return Line(bench, server, ack_wait=LONG_SECONDS, pending=2 * total)
    if kind == "pubsub":
        return PubsubLine(bench, server, HOLD_SECONDS[kind])
    monkeypatch.setenv("AIRFLOW_CONN_AWS_TESTS", json.dumps(CONNECTION))
    return SqsLine(bench, server, LONG_SECONDS)


PROOF = [pytest.mark.proof, pytest.mark.timeout(3600)]


# Attacks Q1, Q2, Q4.
@pytest.mark.parametrize(
    ("kind", "total", "portions", "kills"),
    [
        ("nats", 2_000, 1, 1),
        pytest.param("sqs", 6_000, 1, 3, marks=PROOF),
        pytest.param("nats", 200_000, 1, 10, marks=PROOF),
        # ElasticMQ goes through all that waits for each answer: 200,000 take it most of an hour.
        pytest.param("sqs", 20_000, 20, 1, marks=PROOF),
        # So does pstest.
        pytest.param("pubsub", 200_000, 10, 1, marks=PROOF),
    ],
)
def test_each_is_taken_once(
    kind: str, line: Spooled, ledger: Ledger, children: Children, total: int, portions: int,
    kills: int,
) -> None:  # fmt: skip
    """Messages of 1 kB, some published twice, each delivered four times to somebody who does not
    acknowledge; two receivers at a time, killed while they write. Each event is there once, and
    what was delivered again, repeated and new adds up. The server must deliver again what the dead
    held, which no cheaper test shows."""
    sent = [{**event, "pad": "x" * 940} for event in events(0, total)]
    values = [json.dumps(event).encode() for event in sent]
    published, codes, began = 0, [], time.monotonic()
    for at in range(0, total, total // portions):
        some = values[at : at + total // portions]
        some += some[::RETRIED]
        line.hold_for(LONG_SECONDS)
        line.send(some)
        steal(line, len(some), HOLD_SECONDS[kind])
        for _ in range(kills):
            codes += killed(line, children, max(100, total // 100), len(some) * 40 // kills)
        line.drain()
        published += len(some)
    assert set(codes) <= {0, -signal.SIGKILL}
    assert codes.count(-signal.SIGKILL) >= portions * kills
    received = time.monotonic()
    feet = [foot for _, foot in line.feet()]
    spooled = sum(foot.messages for foot in feet)
    attempts = [column_of(path, "attempt") for path, _ in line.feet()]
    told_again = sum(attempt > 1 for segment in attempts for attempt in segment)
    # Pub/Sub counts no deliveries, unless it has a topic for dead letters.
    assert told_again == (0 if kind == "pubsub" else spooled)
    assert spooled >= published
    assert set(line.spooled()) == set(values)
    run(ledger, line.spec, "r1")
    found = settled(line.spec)
    assert found.ids == ids(0, total)
    counts = found.counts
    assert (counts.records_read, counts.survivors) == (spooled, total)
    assert counts.duplicates_batch + counts.duplicates_catalog == spooled - total
    print(
        f"{kind}: {published} messages, stolen and received in {received - began:.1f} s by "
        f"{codes.count(-signal.SIGKILL)} that were killed and more: "
        f"{spooled} in {len(feet)} segments, of which {told_again} were told as redelivered, "
        f"{spooled - total} are repeats and {total} new; "
        f"the batch took {time.monotonic() - received:.1f} s"
    )


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_memory_does_not_grow_with_what_waits(nats: Nats, tmp_path: Path) -> None:
    """Ten million messages behind it, and a receiver takes them all in less than 250 MB: no backlog
    that a test makes in seconds shows a list that grows by a few bytes for each of them."""
    stream = nats.stream(ack_wait=60)
    nats.flood(stream, WAITING)
    words = ["nats", stream, str(tmp_path / "spool"), "5"]
    with open(tmp_path / "told", "wb") as told:
        taking = psutil.Popen(
            [sys.executable, "-m", "fixtures.queue.receiver", *words], cwd=TESTS, stdout=told,
            env=os.environ | {"NATS_SERVERS": nats.servers}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    peak = 0
    while taking.poll() is None:
        with suppress(psutil.NoSuchProcess):
            peak = max(peak, taking.memory_info().rss)
        time.sleep(0.05)
    said = (tmp_path / "told").read_text()
    print(f"{said.strip()}; at most {peak >> 20} MiB")
    assert f"{WAITING:,} messages" in said
    assert nats.unacknowledged(stream) == (0, 0)
    assert peak < 250e6
    nats.delete(stream)


def killed(line: Spooled, children: Children, group: int, share: int) -> list[int]:
    """Start two receivers, and kill them while they write. Returns their exit codes."""
    before, ends = written(line.spool.path), time.monotonic() + KILLED_SECONDS
    pair = [children.start("receiving", "", None, group) for _ in range(AT_ONCE)]

    def is_time() -> bool:
        now = written(line.spool.path)
        late = now > before and time.monotonic() > ends
        return late or now >= before + share or not any(c.process.is_alive() for c in pair)

    wait_for(is_time, "receivers that write", 120, 0.005)
    for child in pair:
        child.process.kill()
        child.process.join(30)
    return [child.process.exitcode for child in pair]
