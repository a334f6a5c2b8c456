"""The demo's own publisher and a careless consumer. They use nats-py directly, without semel.

The publisher sends at least once, like the demo's files: it repeats flights, and some values are
broken. All messages of a flight have the same header Event-Id, except messages that must lack an
id. The stream has only the lines of the days, in their order. So the message with the sequence
number n is the nth line of the year.

The careless consumer pulls messages and forgets them. Their deadline lapses, and the server
delivers them again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import nats
from nats.errors import Error
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from semel.errors import UnavailableError
from semel_local.demo import flights

STREAM = "flights"
CONSUMER = "semel"

ACK_WAIT_SECONDS = 3
"""The server delivers a message again after this time without an acknowledgement. It is short, so
that the demo is."""

KEPT_SECONDS = 7 * 24 * 3600
"""Retention of the stream."""

ANSWER_SECONDS = 30

IN_FLIGHT_MAX = 1000
"""Messages to send before the server has acknowledged the first."""

T = TypeVar("T")


class DemoStream:
    """The demo's stream on one server (HOST:PORT). Raises UnavailableError if it does not answer.
    """

    def __init__(self, server: str) -> None:
        self._server = f"nats://{server}"

    def make(self) -> None:
        """Create the stream and its durable consumer, unless they exist."""

        async def create(js: Any) -> None:
            await js.add_stream(
                StreamConfig(name=STREAM, subjects=[STREAM], max_age=KEPT_SECONDS)
            )
            consumer = ConsumerConfig(
                durable_name=CONSUMER, ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT_SECONDS,
                max_ack_pending=20_000,
            )  # fmt: skip
            await js.add_consumer(STREAM, consumer)

        self._do(create)

    def published(self) -> int:
        """The number of messages ever published. A killed demo may have published a part."""
        return self._do(lambda js: js.stream_info(STREAM)).state.last_seq

    def publish(self, lines: Sequence[flights.FlightLine], last: int) -> None:
        """Publish lines after the message numbered `last`. The server refuses a message out of
        order, so the stream neither lacks nor repeats one.
        """

        def publish_line(js: Any, at: int, line: flights.FlightLine) -> Awaitable[Any]:
            headers = {"Nats-Expected-Last-Sequence": str(at)}
            if line.broken != "id_missing":
                headers["Event-Id"] = event_id(line.flight)
            return js.publish(STREAM, line.raw, timeout=ANSWER_SECONDS, headers=headers)

        async def publish_all(js: Any) -> None:
            # The first request waits for the client's inbox. Later ones go out in order.
            await js.stream_info(STREAM)
            for first in range(0, len(lines), IN_FLIGHT_MAX):
                chunk = enumerate(lines[first : first + IN_FLIGHT_MAX], last + first)
                await asyncio.gather(*(publish_line(js, at, line) for at, line in chunk))

        self._do(publish_all)

    def forget(self, messages: int) -> int:
        """Pull this many messages, and never acknowledge them. Returns the number received."""

        async def pull(js: Any) -> int:
            subscription = await js.pull_subscribe_bind(CONSUMER, STREAM)
            count = 0
            try:
                while count < messages:
                    count += len(await subscription.fetch(messages - count, ACK_WAIT_SECONDS / 2))
            except TimeoutError:
                pass  # The stream ran out of messages.
            return count

        return self._do(pull)

    def count_pending(self) -> int:
        """The number of messages that wait for delivery or acknowledgement."""
        info = self._do(lambda js: js.consumer_info(STREAM, CONSUMER))
        return info.num_pending + info.num_ack_pending

    def _do(self, work: Callable[[Any], Awaitable[T]]) -> T:
        async def connected() -> T:
            client = await nats.connect(
                self._server, allow_reconnect=False, max_reconnect_attempts=1
            )
            try:
                return await work(client.jetstream())
            finally:
                await client.close()

        try:
            return asyncio.run(connected())
        except (Error, OSError) as error:  # TimeoutError is an OSError.
            raise UnavailableError(
                f"the demo's NATS server: {str(error) or type(error).__name__}", next="semel status"
            ) from error


def event_id(flight: flights.Flight) -> str:
    """The publisher's id of a flight, the same each time that it sends the flight."""
    at = "{year}-{month:02}-{day:02}".format_map(flight)
    return f"{at}/{flight['carrier']}{flight['flight']}/{flight['origin']}"
