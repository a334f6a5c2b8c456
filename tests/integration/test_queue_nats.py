"""NATS JetStream as its users make it: consumers with the service's defaults, at their limits."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from fixtures.batches.account import quiet
from fixtures.batches.workbench import Workbench
from fixtures.queue.nats import Nats
from semel.clients.queue import Queue
from semel.clients.queue import nats as client
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.sources.queue.receive import Bounds, receive

SIZE = 64 << 20


def opened(nats: Nats, stream: str) -> Queue:
    return client.opened(
        connection=None, servers=nats.servers, stream=stream, consumer="semel"
    )


@pytest.fixture
def queues(nats: Nats) -> Iterator[Any]:
    """Opens clients of a stream, as receivers have them; closed at the end."""
    with ExitStack() as stack:

        def one(stream: str) -> Queue:
            queue = stack.enter_context(opened(nats, stream))
            queue.about()
            return queue

        yield one


def by_default(nats: Nats, stream: str, **config: Any) -> None:
    """Make the stream's consumer anew, with the service's own settings but for these."""
    wanted = ConsumerConfig(
        **{"durable_name": "semel", "ack_policy": AckPolicy.EXPLICIT, **config}
    )

    async def make(js: Any) -> None:
        await js.delete_consumer(stream, "semel")
        await js.add_consumer(stream, wanted)

    nats.do(make)


def spec_of(bench: Workbench, nats: Nats, stream: str, **source: Any) -> Spec:
    """A pipeline of a stream, by the ids of its messages."""
    return bench.spec(
        record_id=["mid"],
        source={
            "type": "nats", "servers": nats.servers, "stream": stream, "consumer": "semel",
            "spool": "spool", "value": "json", "message_id": "mid",
            "schema": {"id": "string", "n": "bigint", "at": "timestamp", "mid": "string"},
            **source,
        },
    )  # fmt: skip


def test_a_pull_at_max_ack_pending_is_answered(nats: Nats, queues: Any) -> None:
    """Where others hold all that the consumer hands out, a pull returns nothing within its time, as
    of an empty queue; once they acknowledge, the rest comes. The server would never answer a pull
    that does not wait: it counts what is not acknowledged yet as pending."""
    stream = nats.stream(pending=10)
    nats.publish(stream, [b"%d" % n for n in range(25)])
    one, other = queues(stream), queues(stream)
    held = one.pull(5_000, SIZE, 0.5)
    assert len(held) == 10
    for queue in (one, other):
        began = time.monotonic()
        assert len(queue.pull(5_000, SIZE, 0.5)) == 0
        assert time.monotonic() - began < 5
    one.acknowledge(held.handles)
    found = list(held.values)
    while len(found) < 25:
        more = other.pull(5_000, SIZE, 0.5)
        assert len(more)
        other.acknowledge(more.handles)
        found += more.values
    assert sorted(found) == sorted(b"%d" % n for n in range(25))


# Attacks Q1.
def test_what_a_client_holds_of_a_stream_that_was_made_anew(nats: Nats, queues: Any) -> None:
    """Messages of the old stream that a client has and did not give out yet are dropped: their
    numbers would acknowledge messages of the new one, which nobody has."""
    stream = nats.stream()
    nats.publish(stream, [b"old"] * 6)
    queue, other = queues(stream), queues(stream)
    queue.acknowledge(queue.pull(1, SIZE, 0.5).handles)
    queue._run(queue._request(3, 0, SIZE))  # An answer that comes behind its pull.
    nats.delete(stream)
    nats.stream(stream)
    nats.publish(stream, [b"new"] * 3)
    held = other.pull(3, SIZE, 0.5) if other.about() else None
    assert held.values == [b"new"] * 3
    queue.about()
    found = queue.pull(5_000, SIZE, 0.1)
    queue.acknowledge(found.handles)
    assert found.values == [] and nats.unacknowledged(stream) == (3, 0)


def test_a_default_consumer_is_received_from(nats: Nats, bench: Workbench) -> None:
    """More than a consumer hands out at once comes in one receive, and not at the pace of its
    limit: 5,000 messages took 14 minutes."""
    stream = nats.stream()
    by_default(nats, stream)
    nats.publish(stream, [b"%d" % n for n in range(5_000)])
    with opened(nats, stream) as queue:
        bounds = Bounds(idle=1, seconds=60)
        done = receive(queue, bench.data / "spool" / "events", "events", bounds, quiet)
    assert done.messages == 5_000 and done.unacknowledged == done.redelivered == 0
    assert nats.unacknowledged(stream) == (0, 0)


@pytest.mark.parametrize(("receivers", "told"), [(1, False), (4, True)])
def test_check_reports_a_low_max_ack_pending(
    nats: Nats, bench: Workbench, receivers: int, told: bool
) -> None:
    """Receivers that wait for each other's acknowledgements are slow, and no more: check says so,
    with the command that changes it."""
    stream = nats.stream(pending=10_000, max_age=86_400)
    spec = spec_of(bench, nats, stream, receivers=receivers)
    said = open_source(spec).service(spec.dedup.horizon)
    wanted = f"nats consumer edit {stream} semel --max-pending 40000 --force"
    assert (wanted in said) is told
