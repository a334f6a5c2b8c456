"""Queues with the properties that their users give them: each message is taken once, and in time."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from fix_receive import Heard, PubsubLine, Spooled, SqsLine
from fixtures.batches.account import ids, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.queue.segments import column_of, values_of
from fixtures.queue.sqs import CONNECTION
from semel.clients.queue import PulledMessages
from semel.ledger import Ledger

MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "sqs": ("sqs", {}),
    "sqs fifo": ("sqs", {"fifo": True}),
    "sqs dead letters": ("sqs", {"deliveries": 3}),
    "sqs fifo dead letters": ("sqs", {"fifo": True, "deliveries": 3}),
    "pubsub": ("pubsub", {}),
    "pubsub ordered": ("pubsub", {"ordered": True}),
    "pubsub dead letters": ("pubsub", {"deliveries": 5}),
}
GROUPS = 3

TOTAL = 600

PER_SECOND_MIN = 20
"""A receiver that waits before it acknowledges gets 6 to 9 a second, on whichever machine."""


@pytest.fixture
def line(
    made: str, bench: Workbench, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Spooled:
    kind, properties = MADE[made]
    server = request.getfixturevalue(kind)
    if kind == "pubsub":
        return PubsubLine(bench, server, 60, **properties)
    monkeypatch.setenv("AIRFLOW_CONN_AWS_TESTS", json.dumps(CONNECTION))
    return SqsLine(bench, server, 60, **properties)


def publish(line: Spooled, group: int, start: int, stop: int) -> None:
    values = [json.dumps(e).encode() for e in events(start, stop)]
    if isinstance(line, PubsubLine):
        line.pubsub.send(line.subscription, values, key=f"g{group}")
    else:
        line.sqs.send(line.queue, values, group=f"g{group}")


class Patient(Heard):
    """Notes the pulls that may wait while messages are not acknowledged."""

    def __init__(self, line: Spooled) -> None:
        super().__init__(line.spec.source.open_queue())
        self.waits = 0

    def pull(self, messages: int, size: int, seconds: float) -> PulledMessages:
        self.waits += len(self.held) > len(self.acknowledged)
        return super().pull(messages, size, seconds)


PROOF = [pytest.param(made, marks=pytest.mark.proof) for made in MADE if made != "sqs fifo"]


# Attacks Q1, Q8, Q10.
@pytest.mark.parametrize("made", ["sqs fifo", *PROOF])
def test_each_message_is_taken_once(line: Spooled, made: str, ledger: Ledger) -> None:
    """A queue that may hold messages back is never waited for while some are not acknowledged; in
    a group they come in their order. No message is given up, and the table of what was met says how
    many a second came.
    """
    for group in range(GROUPS):
        publish(line, group, group * TOTAL // GROUPS, (group + 1) * TOTAL // GROUPS)
    asked = Patient(line)
    ordered = asked.describe().ordered
    began = time.monotonic()
    done = line.receive(asked, messages=TOTAL)
    took = time.monotonic() - began
    assert (done.messages, done.unacknowledged) == (TOTAL, 0)
    assert not (ordered and asked.waits)
    assert TOTAL / took > PER_SECOND_MIN
    if ordered:
        came = [json.loads(v)["n"] for path, _ in line.feet() for v in values_of(path)]
        for group in range(GROUPS):
            own = [n for n in came if n * GROUPS // TOTAL == group]
            assert own == sorted(own)
    assert line.empty()
    run(ledger, line.spec, "r1")
    assert settled(line.spec).ids == ids(0, TOTAL)
    print(f"{made}: {TOTAL / took:,.0f} messages a second")


# Attacks Q4.
@pytest.mark.proof
@pytest.mark.parametrize("made", ["pubsub"])
def test_a_topic_that_was_made_again(
    line: PubsubLine, made: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic and its subscription are deleted and made again by their names, and the new one gives
    its messages the ids of the old ones: they are other messages. What is delivered again is a
    repeat.
    """
    line.spec = line.spec.model_copy(update={"record_id": ("mid",)})
    starts_again(line)
    line.publish(0, 5)
    first = line.spec.source.open_queue()
    monkeypatch.setattr(first, "acknowledge", lambda h: first.hand_back(h) or len(h))
    assert line.receive(first, messages=5).unacknowledged == 5
    ids_before = {message for path, _ in line.feet() for message in ids_of(path)}
    assert line.receive(messages=5, idle=30).messages == 5
    assert {message for path, _ in line.feet() for message in ids_of(path)} == ids_before
    run(ledger, line.spec, "r1")
    assert settled(line.spec).ids == ids(0, 5)
    line.pubsub.delete(line.subscription)
    line.pubsub.delete_topic(line.subscription)
    starts_again(line)
    line.publish(5, 10)
    assert line.receive(messages=5).messages == 5
    plain = [message.partition("-")[0] for path, _ in line.feet() for message in ids_of(path)]
    assert len(set(plain)) == 5, "the server gave other ids, so this proves nothing"
    run(ledger, line.spec, "r2")
    assert settled(line.spec).ids == ids(0, 10)


def starts_again(line: PubsubLine) -> None:
    """The server forgets its topics and counts from the beginning, whoever has used it before."""
    line.pubsub.kill()
    line.pubsub.start()
    line.pubsub.again(line.subscription)


def ids_of(path: Path) -> list[str]:
    return column_of(path, "message_id")
