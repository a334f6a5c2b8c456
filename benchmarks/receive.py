"""B14: semel receive beside a bare client that does as little as is safe.

    python benchmarks/receive.py                                  # 30,000 messages of 1 kB each
    python benchmarks/receive.py --services pubsub --runs 5

The servers are those of the tests, on this machine's own cores: NATS JetStream, ElasticMQ for SQS
and pstest for Pub/Sub, both of which keep messages in memory; one that is not at hand is left out.
`fifo` is a FIFO queue of SQS with one message group, and a tenth of the messages.
A bare client pulls by the same calls, in groups of the same bounds as semel: it appends the values
of a group to a file, syncs it, and acknowledges. `official`: the same by the class that Google's
client is made for. Each run has a queue of its own, filled before the clock begins. pstest goes
through all messages that wait for each answer, so that more of them say less of its clients.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import harness
import nats
import pytest
from harness import Clock, check, in_turn, medians, quiet, ratio, table, tell

from fixtures.kafka.broker import skipping
from fixtures.queue import nats as nats_server
from fixtures.queue import pubsub as pubsub_server
from fixtures.queue import sqs as sqs_server
from fixtures.queue.server import KEPT
from semel.clients.queue import Queue
from semel.clients.queue import nats as nats_client
from semel.sources.queue.receive import GROUP_BYTES, GROUP_MESSAGES, Bounds, receive
from semel_local.stack import maven

_VALUE_BYTES = 1_000
_DEADLINE_SECONDS = 300
_NAMES = {
    "bare": "a bare client",
    "semel": "semel receive",
    "official": "the same by SubscriberClient.pull",
}


Taken = list[tuple[bytes, Any]]
"""Values, and what each is acknowledged by."""


def _bare(
    path: Path,
    total: int,
    pull: Callable[[int], Taken],
    acknowledge: Callable[[list[Any]], None],
    group_max: int = GROUP_MESSAGES,
) -> None:
    """Groups one after the other: pulled, appended, synced, acknowledged."""
    with open(path, "wb", buffering=0) as file:
        while total:
            most, group, size = min(group_max, total), [], 0
            while len(group) < most and size < GROUP_BYTES:
                more = pull(most - len(group))
                group += more
                size += sum(len(value) for value, _ in more)
            file.write(b"".join(value for value, _ in group))
            os.fdatasync(file.fileno())
            acknowledge([handle for _, handle in group])
            total -= len(group)


def _cut(some: list[Any], size: int) -> list[list[Any]]:
    return [some[at : at + size] for at in range(0, len(some), size)]


class _Service:
    """A server of the tests. `share`: it gets one of so many messages, as it is slower."""

    share = 1

    def __init__(self, server: Any) -> None:
        self.server = server

    def filled(self, values: list[bytes]) -> str:
        name = self.server.queue(_DEADLINE_SECONDS)
        self.server.send(name, values)
        return name

    def opened(self, queue: str) -> Queue:
        return self.server.opened(queue)

    def drop(self, queue: str) -> None:
        self.server.delete(queue)


class _Nats(_Service):
    """A stream of NATS. `pending`: how many messages its consumer lets be held; None: all."""

    def __init__(self, server: Any, pending: int | None) -> None:
        super().__init__(server)
        self.pending = pending

    def filled(self, values: list[bytes]) -> str:
        pending = self.pending or 2 * len(values)
        name = self.server.stream(ack_wait=_DEADLINE_SECONDS, pending=pending)
        self.server.publish(name, values)
        return name

    def opened(self, queue: str) -> Queue:
        servers = self.server.servers
        return nats_client.open_queue(
            connection=None, servers=servers, stream=queue, consumer="semel"
        )

    def bare(self, queue: str, total: int, path: Path, clock: Clock) -> None:
        loop = asyncio.new_event_loop()
        client = loop.run_until_complete(nats.connect(self.server.servers))
        bound = client.jetstream().pull_subscribe_bind("semel", queue)
        found = loop.run_until_complete(bound)

        def pull(most: int) -> Taken:
            messages = loop.run_until_complete(found.fetch(most))
            return [(message.data, message) for message in messages]

        async def acknowledge(messages: list[Any]) -> None:
            for message in messages:
                await message.ack()
            await client.flush()

        with clock:
            _bare(
                path, total, pull, lambda some: loop.run_until_complete(acknowledge(some)),
                min(GROUP_MESSAGES, self.pending or GROUP_MESSAGES),
            )  # fmt: skip
        loop.run_until_complete(client.close())
        loop.close()


class _Sqs(_Service):
    """Calls of ten messages, by as many threads as semel has."""

    def bare(self, queue: str, total: int, path: Path, clock: Clock) -> None:
        from semel.clients.queue.sqs import THREADS

        client = self.server.client

        def receive(_: int) -> Taken:
            found = client.receive_message(
                QueueUrl=queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            )  # fmt: skip
            some = found.get("Messages", [])
            return [(one["Body"].encode(), one["ReceiptHandle"]) for one in some]

        def delete(handles: list[str]) -> None:
            entries = [{"Id": str(n), "ReceiptHandle": one} for n, one in enumerate(handles)]
            client.delete_message_batch(QueueUrl=queue, Entries=entries)

        with ThreadPoolExecutor(THREADS) as threads, clock:
            _bare(
                path, total,
                lambda _: sum(threads.map(receive, range(THREADS)), []),
                lambda handles: list(threads.map(delete, _cut(handles, 10))),
            )  # fmt: skip


class _Fifo(_Sqs):
    """A FIFO queue whose messages are of one group: it gives the next ten once ten are deleted."""

    share = 10

    def filled(self, values: list[bytes]) -> str:
        name = self.server.queue(_DEADLINE_SECONDS, fifo=True)
        self.server.send(name, values, group="one")
        return name

    def bare(self, queue: str, total: int, path: Path, clock: Clock) -> None:
        client = self.server.client
        with clock, open(path, "wb", buffering=0) as file:
            while total:
                some = client.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]
                file.write("".join(one["Body"] for one in some).encode())
                os.fdatasync(file.fileno())
                entries = [
                    {"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]}
                    for n, one in enumerate(some)
                ]
                client.delete_message_batch(QueueUrl=queue, Entries=entries)
                total -= len(some)


class _Pubsub(_Service):
    """A subscription of Pub/Sub."""

    def bare(self, queue: str, total: int, path: Path, clock: Clock) -> None:
        """By plain protobuf, as semel does it."""
        from semel.clients.queue.pubsub import MESSAGES_MAX

        with self.server.opened(queue) as client:

            def pull(most: int) -> Taken:
                asked = client._call("Pull", 30, max_messages=min(most, MESSAGES_MAX))
                return [(one.message.data, one.ack_id) for one in asked.result().received_messages]

            def acknowledge(handles: list[str]) -> None:
                calls = [
                    client._call("Acknowledge", 30, ack_ids=some)
                    for some in _cut(handles, MESSAGES_MAX)
                ]
                for call in calls:
                    call.result()

            with clock:
                _bare(path, total, pull, acknowledge)

    def official(self, queue: str, total: int, path: Path, clock: Clock) -> None:
        """By the classes that the client puts around its messages."""
        from google.cloud import pubsub_v1

        with pubsub_v1.SubscriberClient() as client:

            def pull(most: int) -> Taken:
                found = client.pull(subscription=queue, max_messages=min(most, 1_000))
                return [(one.message.data, one.ack_id) for one in found.received_messages]

            def acknowledge(handles: list[str]) -> None:
                for some in _cut(handles, 1_000):
                    client.acknowledge(subscription=queue, ack_ids=some)

            with clock:
                _bare(path, total, pull, acknowledge)


@contextmanager
def _nats(folder: Path) -> Iterator[_Nats]:
    with _nats_of(folder, None) as service:
        yield service


@contextmanager
def _nats_default(folder: Path) -> Iterator[_Nats]:
    """With the service's own max_ack_pending."""
    with _nats_of(folder, 1_000) as service:
        yield service


@contextmanager
def _nats_of(folder: Path, pending: int | None) -> Iterator[_Nats]:
    server = nats_server.Nats(folder)
    try:
        server.start()
        yield _Nats(server, pending)
    finally:
        server.kill()


@contextmanager
def _sqs(folder: Path, of: type[_Sqs] = _Sqs) -> Iterator[_Sqs]:
    with skipping():
        jars = maven.fetch(sqs_server.POM, KEPT, "ElasticMQ")
    server = sqs_server.ElasticMq(folder, jars, durable=False)
    try:
        server.start()
        yield of(server)
    finally:
        server.stop()


@contextmanager
def _pubsub(folder: Path) -> Iterator[_Pubsub]:
    server = pubsub_server.PsTest(folder, pubsub_server.built())
    try:
        server.start()
        os.environ["PUBSUB_EMULATOR_HOST"] = server.address
        yield _Pubsub(server)
    finally:
        server.stop()


_SERVICES = {
    "nats": _nats, "nats_default": _nats_default, "sqs": _sqs, "fifo": partial(_sqs, of=_Fifo),
    "pubsub": _pubsub,
}  # fmt: skip


def main() -> None:
    parser = harness.options_of(__doc__, runs=5, default=30_000, help="default 30,000")
    parser.add_argument("--services", nargs="*", choices=_SERVICES, default=list(_SERVICES))
    options = harness.parsed(parser, records=2_000)
    headline: dict[str, float] = {}
    tables = []
    for name in options.services:
        folder = Path(tempfile.mkdtemp(prefix="semel-bench-"))
        try:
            with _SERVICES[name](folder) as service:
                records = max(1, options.records // service.share)
                found = _measured(name, service, folder, records, options.runs)
        except pytest.skip.Exception as skipped:
            tell(f"{name} is left out: {skipped}")
            continue
        finally:
            shutil.rmtree(folder)
        headline[f"ratio_receive_{name}"] = ratio(found, "semel")
        headline[f"receive_{name}_per_s"] = round(records / medians(found)["semel"])
        title = f"{name}: {records:,} messages of {_VALUE_BYTES:,} bytes"
        tables.append(table(title, found, _NAMES))
    report = {"title": "B14: receiving from a queue", "headline": headline, "tables": tables}
    harness.save("receive", options, report)


def _measured(
    name: str, service: Any, folder: Path, records: int, runs: int
) -> dict[str, list[float]]:
    values = [b"%0*d" % (_VALUE_BYTES, number) for number in range(records)]
    places = map(str, count())

    def side(take: Callable[[str, Path, Clock], int]) -> harness.Side:
        def run(_: int, clock: Clock) -> None:
            queue, place = service.filled(values), folder / next(places)
            place.mkdir()
            os.sync()
            check(name, take(queue, place, clock), len(values))
            shutil.rmtree(place)
            service.drop(queue)

        return run

    def bare(by: Callable[..., None]) -> harness.Side:
        def take(queue: str, place: Path, clock: Clock) -> int:
            by(queue, len(values), place / "values", clock)
            return os.path.getsize(place / "values") // _VALUE_BYTES

        return side(take)

    def semel(queue: str, place: Path, clock: Clock) -> int:
        bounds = Bounds(messages=len(values), seconds=600)
        with service.opened(queue) as opened, clock:
            done = receive(opened, place, "bench", bounds, quiet)
        check(f"{name}, the bound that ended it", done.ended_by, "until.messages")
        check("acknowledged", done.unacknowledged, 0)
        return done.messages

    sides = {"bare": bare(service.bare), "semel": side(semel)}
    if hasattr(service, "official"):
        sides["official"] = bare(service.official)
    tell(name)
    return in_turn(sides, runs, both_ways=True)


if __name__ == "__main__":
    main()
