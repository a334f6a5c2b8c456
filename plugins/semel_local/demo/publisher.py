"""The demo's own publisher and a careless consumer: nats-py as anybody uses it, nothing of semel's.

The publisher sends at least once, as the demo's files are written: it repeats flights, and some
values are broken. All messages of a flight have the same header Event-Id, but for one that is to
have none. It sends the lines of the days in their order and nothing else, so the message with the
sequence number n is the nth line of the year.

The careless consumer takes messages and forgets them: their deadline lapses, and the server
delivers them again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import nats
from nats.errors import Error
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from semel_local.demo import flights
from semel.errors import UnavailableError

STREAM = "flights"
CONSUMER = "semel"

ACK_WAIT_SECONDS = 3
"""How long a message may be held before it is delivered again: short, so that nobody waits long."""

KEPT_SECONDS = 7 * 24 * 3600
"""How long the stream keeps a message."""

ANSWER_SECONDS = 30

IN_FLIGHT_MAX = 1000
"""Messages that are not acknowledged by the server yet."""

T = TypeVar("T")


class DemoStream:
    """The demo's stream on one server, by its HOST:PORT. UnavailableError: it does not answer."""

    def __init__(self, server: str) -> None:
        self._server = f"nats://{server}"

    def make(self) -> None:
        """Make the stream and its durable consumer, where there are none."""

        async def made(js: Any) -> None:
            await js.add_stream(
                StreamConfig(name=STREAM, subjects=[STREAM], max_age=KEPT_SECONDS)
            )
            consumer = ConsumerConfig(
                durable_name=CONSUMER, ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT_SECONDS,
                max_ack_pending=20_000,
            )  # fmt: skip
            await js.add_consumer(STREAM, consumer)

        self._do(made)

    def published(self) -> int:
        """How many messages were ever published: a demo that died may have sent a part."""
        return self._do(lambda js: js.stream_info(STREAM)).state.last_seq

    def publish(self, lines: Sequence[flights.FlightLine], after: int) -> None:
        """Send lines; the server takes each only as the one behind the message numbered `after`,
        and so on, so that none is left out or doubled.
        """

        def one(js: Any, at: int, line: flights.FlightLine) -> Awaitable[Any]:
            headers = {"Nats-Expected-Last-Sequence": str(at)}
            if line.broken != "id_missing":
                headers["Event-Id"] = event_id(line.flight)
            return js.publish(STREAM, line.raw, timeout=ANSWER_SECONDS, headers=headers)

        async def sent(js: Any) -> None:
            # The first request waits for the client's inbox; those behind it go out in order.
            await js.stream_info(STREAM)
            for first in range(0, len(lines), IN_FLIGHT_MAX):
                together = enumerate(lines[first : first + IN_FLIGHT_MAX], after + first)
                await asyncio.gather(*(one(js, at, line) for at, line in together))

        self._do(sent)

    def forget(self, messages: int) -> int:
        """Take so many messages, and never acknowledge them. Returns how many came."""

        async def taken(js: Any) -> int:
            pulling = await js.pull_subscribe_bind(CONSUMER, STREAM)
            count = 0
            try:
                while count < messages:
                    count += len(await pulling.fetch(messages - count, ACK_WAIT_SECONDS / 2))
            except TimeoutError:
                pass  # There are no more of them.
            return count

        return self._do(taken)

    def left(self) -> int:
        """How many messages wait to be delivered, or to be acknowledged."""
        found = self._do(lambda js: js.consumer_info(STREAM, CONSUMER))
        return found.num_pending + found.num_ack_pending

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
        except (Error, OSError) as error:  # A lapsed wait is an OSError, too.
            raise UnavailableError(
                f"the demo's NATS server: {str(error) or type(error).__name__}", next="semel status"
            ) from error


def event_id(flight: flights.Flight) -> str:
    """What the publisher calls a flight, each time that it sends it."""
    at = "{year}-{month:02}-{day:02}".format_map(flight)
    return f"{at}/{flight['carrier']}{flight['flight']}/{flight['origin']}"
