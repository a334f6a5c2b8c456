"""Receivers of real services that are killed lose nothing that they acknowledged."""

import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.queue.segments import column_of, values_of
from fixtures.queue.sqs import CONNECTION
from fixtures.wait import wait_for
from semel.failpoints import EXIT_CODE
from semel.sources.queue.spool import Spool

TESTS = Path(__file__).resolve().parents[1]
DEADLINES = {"sqs": 3, "pubsub": 10}
"""Seconds; the shortest that the service takes, or that a receiver can hold."""

OF_GROUPS = ("before_append", "before_ack", "before_sync", "torn_append", "after_ack", "after_sync")
POINTS = (
    "before_append", "before_ack", "before_sync", "torn_append", "before_cut", "after_ack",
    "after_cut", "after_sync", "before_seal", "after_create", "after_rename", "before_create",
)  # fmt: skip
"""Every second receiver dies at one of these, in its second group or at once. Kills alone fall
where most of the time is spent, in pulls, and would miss an acknowledgement that is too early."""

RETRIED = 20
"""A publisher repeats each message of so many: under another message id."""


class Receivers:
    """Receivers of one queue into one spool, one after the other."""

    def __init__(self, kind: str, queue: str, folder: Path) -> None:
        self.folder, self.spool = folder, Spool(folder / "spool")
        self._words = [kind, queue, str(self.spool.path), str(DEADLINES[kind] + 3)]

    def start(self, fault: str = "") -> subprocess.Popen:
        program = [sys.executable, "-m", "fixtures.queue.receiver", *self._words]
        variables = {"AIRFLOW_CONN_AWS_TESTS": json.dumps(CONNECTION), "SEMEL_FAULTS": fault}
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                program, cwd=TESTS, env=os.environ | variables, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip

    def written(self) -> int:
        """Bytes of all segments, sealed and open."""
        files = [*self.spool.path.rglob("*.part"), *self.spool.path.rglob("*.seg")]
        found = 0
        for file in files:
            try:
                found += file.stat().st_size
            except FileNotFoundError:  # It was sealed just now.
                continue
        return found

    def kill_when_written(self, size: int) -> None:
        """Start one, and kill it as soon as it has written so many bytes."""
        before, started = self.written(), self.start()
        try:
            wait_for(
                lambda: self.written() - before >= size or started.poll() is not None,
                "a receiver that writes", 120, 0.005,
            )  # fmt: skip
        finally:
            started.kill()
            started.wait(30)

    def die_at(self, point: str) -> None:
        """Start one that dies there."""
        started = self.start(f"receive.{point}:exit:{2 if point in OF_GROUPS else 1}")
        assert started.wait(120) == EXIT_CODE, (self.folder / "log").read_text()[-3000:]

    def finish(self) -> None:
        """Let one end by itself: nothing came for longer than the deadline of what was held."""
        started = self.start()
        assert started.wait(600) == 0, (self.folder / "log").read_text()[-3000:]

    def messages(self) -> Iterator[tuple[str, bytes]]:
        """Message ids and values of all that is sealed; nothing else is left."""
        assert not list(self.spool.path.rglob("*.part"))
        for path in sorted(self.spool.path.rglob("*.seg")):
            yield from zip(column_of(path, "message_id"), values_of(path), strict=True)


@pytest.mark.parametrize(
    ("kind", "total", "kills"),
    [
        pytest.param("sqs", 1_500, 3, marks=pytest.mark.proof),
        pytest.param("pubsub", 20_000, 3, marks=pytest.mark.proof),
        pytest.param("sqs", 20_000, 15, marks=[pytest.mark.proof, pytest.mark.timeout(900)]),
        pytest.param("pubsub", 200_000, 25, marks=[pytest.mark.proof, pytest.mark.timeout(900)]),
    ],
)
def test_killed_receivers_lose_nothing(
    kind: str, total: int, kills: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Whatever the service was told is in the spool, though receivers were killed while they wrote:
    each published event is there, each message id has one value, and nothing is there that nobody
    published. What is there twice has the id of a message that was not acknowledged. It waits for
    deadlines of real services: only they deliver again what a dead receiver held."""
    server: Any = request.getfixturevalue(kind)
    queue = server.queue(DEADLINES[kind])
    events = [json.dumps({"event": n, "pad": "x" * 200}).encode() for n in range(total)]
    published = events + events[::RETRIED]
    server.send(queue, published)
    receivers = Receivers(kind, queue, tmp_path)
    began = time.monotonic()
    points = itertools.cycle(POINTS)
    for number in range(kills):
        if number % 2:
            receivers.kill_when_written(len(published) * 30 // kills)
        else:
            receivers.die_at(next(points))
    receivers.finish()
    found = list(receivers.messages())
    values = dict(found)
    assert set(values.values()) == set(events)
    assert set(found) == set(values.items()), "a message id has two values"
    assert Counter(values.values()) == Counter(published), "a message is lost, or made up"
    print(
        f"{kind}: {len(published)} messages, {kills} kills, {len(found) - len(values)} delivered "
        f"again into the spool, {time.monotonic() - began:.1f} s"
    )
