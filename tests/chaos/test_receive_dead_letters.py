"""Queues that count deliveries, and give up a message after too many: what a receive that fails
costs, and what it says of it.
"""

import json
import os
from types import SimpleNamespace

import pytest

from fix_receive import Heard, PubsubLine, Spooled, SqsLine
from fixtures.batches.account import ids, run, settled
from fixtures.batches.workbench import Workbench
from fixtures.files.full_disk import file_size_max
from fixtures.queue.sqs import CONNECTION
from semel.errors import SourceError, UnavailableError
from semel.ledger import Ledger
from semel.pipeline.opening import open_source
from semel.sources.queue import receive

DELIVERIES = {"sqs": 3, "pubsub": 5}
TRIES = 4
"""Of a task, by the DAGs that semel makes."""


@pytest.fixture(params=["sqs", pytest.param("pubsub", marks=pytest.mark.proof)])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def line(
    kind: str, bench: Workbench, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Spooled:
    """A queue with dead letters, as few deliveries as its users give it."""
    server = request.getfixturevalue(kind)
    if kind == "pubsub":
        return PubsubLine(bench, server, 60, deliveries=DELIVERIES[kind])
    monkeypatch.setenv("AIRFLOW_CONN_AWS_TESTS", json.dumps(CONNECTION))
    return SqsLine(bench, server, 60, deliveries=DELIVERIES[kind])


def dead(line: Spooled) -> int:
    if isinstance(line, PubsubLine):
        return line.pubsub.dead(line.subscription)
    return line.sqs.dead(line.queue)


def heard(line: Spooled) -> Heard:
    return Heard(line.spec.source.open_queue())


# Attacks Q8.
@pytest.mark.parametrize(
    "fault",
    ["no room", *(pytest.param(f, marks=pytest.mark.proof) for f in ("no file", "no byte"))],
)
def test_a_full_disk_gives_up_no_message(
    kind: str, fault: str, line: Spooled, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many receives as the queue allows deliveries, and more, meet a disk that has no room, or
    on which no file can be made, or no group written. With room again all messages are there, but
    two at most that were tried.
    """
    line.publish(0, 60)
    line.spool.create_folders()
    for _ in range(DELIVERIES[kind] + 1):
        asked = heard(line)
        with monkeypatch.context() as patch:
            if fault == "no room":
                left = SimpleNamespace(f_bavail=100, f_frsize=4096)
                patch.setattr(os, "statvfs", lambda _: left)  # noqa: B023
            with (
                file_size_max({"no file": 0, "no byte": 200}.get(fault, 1 << 30)),
                pytest.raises(UnavailableError, match="Free some space, or repair the disk"),
            ):
                line.receive(asked)
        assert len(asked.held) == len(asked.handed_back) <= 2 * (fault == "no byte")
        assert not asked.acknowledged
    line.receive()
    lost = dead(line)
    assert lost <= 2 * (fault == "no byte")
    run(ledger, line.spec, "r1")
    assert len(settled(line.spec).ids) == 60 - lost


# Attacks Q8.
def test_a_group_costs_no_more_than_was_stored(
    kind: str, line: Spooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails in the middle: let go are at most some times as many as are stored by then,
    and what was appended before is acknowledged."""
    line.publish(0, 300)
    asked = heard(line)
    with file_size_max(6_000), pytest.raises(UnavailableError):
        line.receive(asked)
    assert 0 < len(asked.acknowledged)
    assert len(asked.handed_back) <= 4 * len(asked.acknowledged) + 4


# Attacks Q8.
def test_a_service_that_fails_lets_go_of_nothing(
    line: Spooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was pulled before the service failed is stored and acknowledged."""
    monkeypatch.setattr(receive, "GROUP_SECONDS", 60)
    line.publish(0, 30)
    asked = heard(line)
    pull = asked.pull

    def failing(messages: int, size: int, seconds: float) -> object:
        if asked.held:
            raise UnavailableError("away")
        return pull(messages, size, seconds)

    asked.pull = failing
    with pytest.raises(UnavailableError, match="away"):
        line.receive(asked)
    assert asked.held and not asked.handed_back
    assert sorted(asked.acknowledged) == sorted(asked.held.values())


# Attacks Q8.
def test_what_is_given_up_is_named(
    kind: str, line: Spooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that was let go after its last delivery is counted, with where it goes and the
    command that brings it back; `semel check` is red as long as it is there."""
    line.publish(0, 20)
    said = []
    for _ in range(DELIVERIES[kind]):
        with monkeypatch.context() as patch:
            patch.setattr(receive._Receiver, "_group_limit", lambda _: 5_000)  # As without the guard.
            with file_size_max(200), pytest.raises(UnavailableError) as refused:
                line.receive(heard(line))
        said.append(str(refused.value))
    assert all("so the queue delivers them again. Before" in text for text in said[:-1])
    letters = line.spec.source.open_queue().describe().dead_letters
    wanted = f"20 messages had the last of {DELIVERIES[kind]} deliveries: the service moves them to"
    assert f"{wanted} {letters.address}" in said[-1] and letters.restore_command in said[-1]
    if kind == "pubsub":
        return  # It does not say how many there are.
    line.receive()  # The service moves them when somebody asks for them.
    with pytest.raises(SourceError, match=f"{letters.address} has 20 messages") as red:
        open_source(line.spec).check_service(line.spec.dedup.horizon)
    assert red.value.next == letters.restore_command == (
        f"aws sqs start-message-move-task --source-arn {letters.address}"
    )


# Attacks Q8.
def test_check_tells_of_dead_letters(line: Spooled, kind: str) -> None:
    """Where they go, and after how many deliveries; too few are refused."""
    source, horizon = open_source(line.spec), line.spec.dedup.horizon
    if kind == "pubsub":
        assert "delivers a message at most 5 times, then moves it" in source.check_service(horizon)
        return
    with pytest.raises(SourceError, match="at most 3 times.*Allow 5 or more"):
        source.check_service(horizon)
