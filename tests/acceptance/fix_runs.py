"""Runs that several tests look at: triggered together, and awaited together."""

import os
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from fix_pipelines import events
from fix_stack import Stack

POLL_SECONDS = 0.2
"""How often all command lines are read while a run is on: a task lives for a second and more."""


class CommandLines:
    """All command lines of the machine while a block runs."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "CommandLines":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    self.seen.add(Path("/proc", pid, "cmdline").read_bytes())
                except (FileNotFoundError, ProcessLookupError):
                    continue


@dataclass(frozen=True, kw_only=True)
class Begun:
    """`shop`: a run that has succeeded, of 3,000 records, 100 repeats, and a broken one. `orphan`:
    one that has failed at stage, of 500 records and a broken one. `lines`: all command lines of the
    machine meanwhile.
    """

    shop: str
    orphan: str
    lines: set[bytes]


@pytest.fixture(scope="session")
def begun(_running_stack: Stack) -> Begun:
    """The stack's first two runs."""
    airflow = _running_stack.airflow
    _running_stack.write("shop/a.jsonl", [*events(0, 3000), *events(0, 100), b"{broken"])
    _running_stack.write("orphan/a.jsonl", [*events(0, 500), b"{broken"])
    with CommandLines() as lines:
        shop, orphan = airflow.trigger("shop"), airflow.trigger("orphan")
        airflow.succeeded("shop", shop)
        assert airflow.ended("orphan", orphan) == "failed"
    return Begun(shop=shop, orphan=orphan, lines=lines.seen)
