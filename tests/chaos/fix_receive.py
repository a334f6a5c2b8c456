"""A stream, receivers, and a pipeline that reads what they spool."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fixtures.batches.account import quiet
from fixtures.batches.workbench import Workbench, events
from fixtures.objects.s3 import S3
from fixtures.queue.nats import Nats
from fixtures.queue.pubsub import PsTest
from fixtures.queue.segments import values_of
from fixtures.queue.sqs import ElasticMq
from semel import storage
from semel.clients.queue import Queue
from semel.pipeline.spec import Spec
from semel.sources import ReceiveResult
from semel.sources.queue.receive import Bounds, receive
from semel.sources.queue.segment import Foot, read_foot
from semel.sources.queue.spool import Spool

RECEIVES_MAX = 10
"""A queue that is not empty after so many receives hands out the same messages for ever."""


class Spooled:
    """A pipeline that takes the events of a queue by their ids, and its spool: what is delivered
    again is a repeat. `source`: where the queue is.
    """

    IDLE_SECONDS = 1.0
    """Longer than a dead receiver holds a message."""

    def __init__(self, bench: Workbench, **source: str) -> None:
        self.spec = self.reading(bench, **source)
        self.spool = Spool(self.spec.source.spool_of("events"))

    def reading(self, bench: Workbench, **source: str) -> Spec:
        """The pipeline of a queue."""
        return bench.spec(
            source={
                "spool": "spool", "value": "json", "message_id": "mid",
                "schema": {"id": "string", "n": "bigint", "at": "timestamp", "mid": "string"},
                "until": {"idle": f"{self.IDLE_SECONDS:.0f} seconds", "seconds": 600},
                **source,
            },
        )  # fmt: skip

    def send(self, values: list[bytes]) -> None:
        """Publish messages."""
        raise NotImplementedError

    def hold_for(self, seconds: int) -> None:
        """Let what is pulled from now on be delivered again after so long."""
        raise NotImplementedError

    def keep(self, queue: Queue, handles: Sequence[str]) -> None:
        """Hold messages that this queue has just delivered for as long as `hold_for` says."""

    def empty(self) -> bool:
        """Whether all messages are acknowledged."""
        raise NotImplementedError

    def publish(self, start: int, stop: int) -> None:
        self.send([json.dumps(e).encode() for e in events(start, stop)])

    def receive(self, queue: Queue | None = None, **bounds: float) -> ReceiveResult:
        """Until nothing more comes that a dead receiver held."""
        bounds = {"idle": self.IDLE_SECONDS, "seconds": 600, **bounds}
        with queue or self.spec.source.open_queue() as opened:
            return receive(opened, self.spool.path, "events", Bounds(**bounds), quiet)

    def drain(self) -> list[ReceiveResult]:
        """Receive until the queue has nothing that is not acknowledged."""
        done = []
        while not self.empty():
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


class Line(Spooled):
    """`stream` of NATS."""

    def __init__(self, bench: Workbench, nats: Nats, ack_wait: float = 0.6, **stream: int) -> None:
        self.nats, self._pending = nats, stream.get("pending", 20_000)
        self.stream = nats.stream(ack_wait=ack_wait, **stream)
        super().__init__(bench, **self._at(nats.servers))

    def _at(self, servers: str) -> dict[str, str]:
        return {"type": "nats", "servers": servers, "stream": self.stream, "consumer": "semel"}

    def through(self, bench: Workbench, servers: str) -> Spec:
        """The pipeline, which reaches the server by this address."""
        return self.reading(bench, **self._at(servers))

    def send(self, values: list[bytes]) -> None:
        self.nats.publish(self.stream, values)

    def hold_for(self, seconds: int) -> None:
        self.nats.consumer(self.stream, ack_wait=seconds, pending=self._pending)

    def empty(self) -> bool:
        return self.nats.unacknowledged(self.stream) == (0, 0)


class StoredLine(Line):
    """A stream whose spool is in a store."""

    def __init__(self, bench: Workbench, nats: Nats, s3: S3) -> None:
        self.url = f"s3://{s3.bucket()}/spool"
        super().__init__(bench, nats)

    def _at(self, servers: str) -> dict[str, str]:
        return {**super()._at(servers), "spool": self.url}

    def feet(self) -> Iterator[tuple[Path, Foot]]:
        for place in sorted(storage.files_below(self.spool.sealed)):
            etag = place.store.head(place.key)[0].etag
            with storage.local_file(place, etag) as path:
                yield path, read_foot(path)


class SqsLine(Spooled):
    """A queue of ElasticMQ."""

    IDLE_SECONDS = 5.0

    def __init__(self, bench: Workbench, sqs: ElasticMq, hold: int, **made: Any) -> None:
        self.sqs, self.queue = sqs, sqs.queue(hold, **made)
        super().__init__(bench, type="sqs", queue=self.queue, connection="aws_tests")

    def send(self, values: list[bytes]) -> None:
        self.sqs.send(self.queue, values)

    def hold_for(self, seconds: int) -> None:
        changed = {"VisibilityTimeout": str(seconds)}
        self.sqs.client.set_queue_attributes(QueueUrl=self.queue, Attributes=changed)

    def empty(self) -> bool:
        told = self.sqs.about(self.queue)
        names = "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"
        return not any(int(told[name]) for name in names)


class PubsubLine(Spooled):
    """A subscription of pstest, which does not say how many messages wait: it is empty when
    nothing came for longer than somebody holds one.
    """

    IDLE_SECONDS = 13.0

    def __init__(self, bench: Workbench, pubsub: PsTest, hold: int, **made: Any) -> None:
        self.pubsub, self.subscription = pubsub, pubsub.queue(hold, **made)
        self._drained = False
        super().__init__(bench, type="pubsub", subscription=self.subscription)

    def send(self, values: list[bytes]) -> None:
        self._drained = False
        self.pubsub.send(self.subscription, values)

    def hold_for(self, seconds: int) -> None:
        self.pubsub.hold(self.subscription, seconds)

    def keep(self, queue: Queue, handles: Sequence[str]) -> None:
        queue.extend(handles)

    def empty(self) -> bool:
        return self._drained

    def receive(self, queue: Queue | None = None, **bounds: float) -> ReceiveResult:
        done = super().receive(queue, **bounds)
        self._drained = True
        return done


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

    def describe(self):  # noqa: ANN201
        return self._queue.describe()

    def extend(self, handles: Sequence[str]) -> None:
        self._queue.extend(handles)

    def close(self) -> None:
        self._queue.close()


@pytest.fixture
def line(bench: Workbench, nats: Nats) -> Line:
    return Line(bench, nats)


@pytest.fixture
def heard(line: Line) -> Heard:
    return Heard(line.spec.source.open_queue())
