"""The demo's publisher and its careless consumer on a real NATS server."""

import asyncio
import secrets
from datetime import date
from typing import Any

import pytest
from nats.js.client import JetStreamContext

from fixtures.queue.nats import Nats
from fixtures.wait import wait_for
from semel.errors import UnavailableError
from semel_local.demo import flights, publisher
from semel_local.demo.publisher import DemoStream, event_id

LINES = flights.lines_of(date(2013, 1, 1))[0]


@pytest.fixture
def made(nats: Nats, monkeypatch: pytest.MonkeyPatch) -> DemoStream:
    """With a stream of this test's own, whose deadlines are short."""
    monkeypatch.setattr(publisher, "STREAM", f"flights-{secrets.token_hex(6)}")
    monkeypatch.setattr(publisher, "ACK_WAIT_SECONDS", 0.5)
    found = DemoStream(f"127.0.0.1:{nats.port}")
    found.make()
    return found


def messages(nats: Nats) -> list[tuple[bytes, dict[str, str]]]:
    """What the stream has: values and headers."""

    async def read(js: Any) -> list[tuple[bytes, dict[str, str]]]:
        last = (await js.stream_info(publisher.STREAM)).state.last_seq
        found = [await js.get_msg(publisher.STREAM, n) for n in range(1, last + 1)]
        return [(one.data, one.headers) for one in found]

    return nats.do(read)


def test_the_nth_message_is_the_nth_line(made: DemoStream, nats: Nats) -> None:
    """A publisher that goes on sends the rest. Each flight has one id in all of its messages, and
    what is to have none has none. One that is wrong about what is there sends nothing.
    """
    made.make()  # It is there already.
    made.publish(LINES[:300], 0)
    with pytest.raises(UnavailableError, match="wrong last sequence"):
        made.publish(LINES[:10], 0)
    assert made.published() == 300
    made.publish(LINES[300:], 300)
    assert made.published() == made.count_pending() == len(LINES)
    found = messages(nats)
    assert [value for value, _ in found] == [line.raw for line in LINES]
    for line, (_, headers) in zip(LINES, found, strict=True):
        wanted = None if line.broken == "id_missing" else event_id(line.flight)
        assert headers.get("Event-Id") == wanted
    ids = {event_id(line.flight) for line in LINES}
    known = {tuple(line.flight[name] for name in flights._ID) for line in LINES}
    assert len(ids) == len(known) < len(LINES)


def test_what_is_forgotten_comes_again(made: DemoStream, nats: Nats) -> None:
    """The first messages, with their numbers, as their second delivery; none is lost."""
    made.publish(LINES[:20], 0)
    assert made.forget(5) == 5

    async def again(js: Any) -> list[tuple[int, int]]:
        pulling = await js.pull_subscribe_bind(publisher.CONSUMER, publisher.STREAM)
        found = []
        while len(found) < 20:
            found += await pulling.fetch(20 - len(found), 10)
        known = [(one.metadata.sequence.stream, one.metadata.num_delivered) for one in found]
        await asyncio.gather(*(one.ack_sync() for one in found))
        return sorted(known)

    assert nats.do(again) == [(n, 2 if n <= 5 else 1) for n in range(1, 21)]
    wait_for(lambda: made.count_pending() == 0, "acknowledgements", 10, 0.02)
    assert made.forget(5) == 0


def test_a_wait_that_lapses_in_the_client(
    made: DemoStream, nats: Nats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just as the server says that nothing is there. nats-py has asyncio's error for that, and its
    own where the server says nothing; for both, nothing has come.
    """

    async def lapsed(*_: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(JetStreamContext.PullSubscription, "fetch", lapsed)
    assert made.forget(5) == 0


def test_a_server_that_is_away_is_told(nats: Nats) -> None:
    """In a sentence, with where to look."""
    away = DemoStream("127.0.0.1:1")
    with pytest.raises(UnavailableError, match="the demo's NATS server: ") as raised:
        away.published()
    assert raised.value.next == "semel status"
