"""A stream, receivers, and a pipeline that reads what they spool."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fixtures.batches.account import quiet
from fixtures.batches.workbench import Workbench, events
from fixtures.queue.nats import Nats
from fixtures.queue.segments import values_of
from semel.clients.queue import Queue
from semel.pipeline.spec import Spec
from semel.sources import Received
from semel.sources.queue.receive import Bounds, receive
from semel.sources.queue.segment import Foot, read_foot
from semel.sources.queue.spool import Spool

RECEIVES_MAX = 10
"""A queue that is not empty after so many receives hands out the same messages for ever."""


class Line:
    """`stream`, whose events are taken by their ids: what is delivered again is a repeat."""

    def __init__(self, bench: Workbench, nats: Nats, ack_wait: float = 0.6, **stream: int) -> None:
        self.nats = nats
        self.stream = nats.stream(ack_wait=ack_wait, **stream)
        self.spec = self.through(bench, nats.servers)
        self.spool = Spool(self.spec.source.spool_of("events"))

    def through(self, bench: Workbench, servers: str) -> Spec:
        """The pipeline, which reaches the server by this address."""
        return bench.spec(
            source={
                "type": "nats", "servers": servers, "stream": self.stream, "consumer": "semel",
                "spool": "spool", "value": "json", "message_id": "mid",
                "schema": {"id": "string", "n": "bigint", "at": "timestamp", "mid": "string"},
                "until": {"idle": "1 second", "seconds": 60},
            },
        )  # fmt: skip

    def publish(self, start: int, stop: int) -> None:
        self.nats.publish(self.stream, [json.dumps(e).encode() for e in events(start, stop)])

    def receive(self, queue: Queue | None = None, **bounds: float) -> Received:
        """Until no message came for a second: longer than a dead receiver holds one."""
        bounds = {"idle": 1.0, "seconds": 60, **bounds}
        with queue or self.spec.source.opened_queue() as opened:
            return receive(opened, self.spool.path, "events", Bounds(**bounds), quiet)

    def drain(self) -> list[Received]:
        """Receive until the queue has nothing that is not acknowledged."""
        done = []
        while self.nats.unacknowledged(self.stream) != (0, 0):
            assert len(done) < RECEIVES_MAX, done
            done.append(self.receive())
        self.spool.recover(quiet)
        assert not self.spool.parts()
        return done

    def feet(self) -> Iterator[tuple[Path, Foot]]:
        """The sealed segments."""
        for path in sorted(self.spool.sealed.iterdir()):
            yield path, read_foot(path)

    def spooled(self) -> Counter[bytes]:
        """How often each value is in a sealed segment."""
        return Counter(value for path, _ in self.feet() for value in values_of(path))


class Heard(Queue):
    """A queue that notes what it is told to acknowledge."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.held: dict[str, bytes] = {}
        self.acknowledged: list[bytes] = []
        self.handed_back: list[bytes] = []

    def pull(self, messages, size, seconds):  # noqa: ANN001, ANN201
        found = self._queue.pull(messages, size, seconds)
        self.held |= dict(zip(found.handles, found.values, strict=True))
        return found

    def acknowledge(self, handles: Sequence[str]) -> int:
        self.acknowledged += [self.held[handle] for handle in handles]
        return self._queue.acknowledge(handles)

    def hand_back(self, handles: Sequence[str]) -> None:
        self.handed_back += [self.held[handle] for handle in handles]
        self._queue.hand_back(handles)

    def about(self):  # noqa: ANN201
        return self._queue.about()

    def extend(self, handles: Sequence[str]) -> None:
        self._queue.extend(handles)

    def close(self) -> None:
        self._queue.close()


@pytest.fixture
def line(bench: Workbench, nats: Nats) -> Line:
    return Line(bench, nats)


@pytest.fixture
def heard(line: Line) -> Heard:
    return Heard(line.spec.source.opened_queue())
