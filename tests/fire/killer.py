"""Chooses what to kill, kills it with SIGKILL, and measures until it has recovered.

Victims are found by walking down from the main processes that the stack has written down; a name
tells only what a process below them does.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from livestack import LiveStack, children, wait_for

PARTS = ("scheduler", "dag-processor", "triggerer", "api-server", "spark", "postgres", "kafka")

WEIGHTS = {
    "task": 32,
    "executor worker": 26,
    "python worker": 29,
    "postgres backend": 1.5,
    "scheduler": 2,
    "dag-processor": 1.5,
    "triggerer": 1.5,
    "api-server": 2,
    "spark": 2.25,
    "postgres": 2.25,
    "kafka": 8,
}
"""How often each kind comes. Kafka's restart takes some ten seconds, another part's some twenty."""

PAUSE_SECONDS = (1.0, 8.0)
"""Between two kills."""

PYTHONS_AT_WORK = 6
"""Of Spark's Python processes so many are drawn from."""

VICTIM_SECONDS = 10.0
"""How long a victim of a kind is waited for before another kind is drawn."""

RECOVERY_SECONDS_MAX = 300
"""How long a part may take to be healthy again. More is a defect, and ends the fire."""

AWAY = (OSError, AssertionError, ValueError)
"""What Airflow's client raises while the api-server is away or answers in halves."""


@dataclass(kw_only=True)
class Kill:
    """One SIGKILL, and how long it took until its damage was mended; None: it never was."""

    kind: str
    pid: int
    at: datetime
    run: tuple[str, str] | None = None
    """The DAG run whose task died with it."""
    markers: int = 0
    """How many batches were finalized when it came."""
    seconds: float | None = None


class Killer:
    """Kills `kills` processes. Which kinds, in which order and when is the seed's to say."""

    def __init__(self, stack: LiveStack, dice: random.Random, kinds: list[str]) -> None:
        self.stack = stack
        self.dice = dice
        self.kinds = kinds
        self.done: list[Kill] = []

    def kill_one(self) -> Kill:
        """Draw a kind until it has a victim, and kill that. TimeoutError when none ever has."""
        deadline = time.monotonic() + RECOVERY_SECONDS_MAX
        while time.monotonic() < deadline:
            [kind] = self.dice.choices(self.kinds, [WEIGHTS[kind] for kind in self.kinds])
            try:
                victim = wait_for(lambda k=kind: self._victim(k), kind, VICTIM_SECONDS, 0.2)
            except AssertionError:
                continue
            kill = Kill(kind=kind, pid=victim.pid, at=datetime.now(UTC), markers=self.markers())
            kill.run = self._run_of(victim)
            kill.at = datetime.now(UTC)
            try:
                victim.kill()
            except psutil.NoSuchProcess:
                continue
            self.done.append(kill)
            return kill
        raise TimeoutError(f"none of {self.kinds} has run for {RECOVERY_SECONDS_MAX} s")

    def settle(self, kill: Kill) -> None:
        """Wait after a kill: for a part's recovery, and then some time by chance."""
        part = "postgres" if kill.kind == "postgres backend" else kill.kind
        if part in PARTS:
            self._wait_healthy(part, kill)
        time.sleep(self.dice.uniform(*PAUSE_SECONDS))

    def measure(self) -> None:
        """See which runs have ended by now, and whether batches are finalized again."""
        waiting = self.waiting()
        if not waiting:
            return
        try:
            ended = {(r.dag, r.run): r.ended for r in self.stack.runs() if r.ended}
        except AWAY:
            return
        markers = self.markers()
        for kill in waiting:
            if kill.run is None and markers > kill.markers:
                kill.seconds = (datetime.now(UTC) - kill.at).total_seconds()
            elif kill.run in ended and ended[kill.run] > kill.at:
                kill.seconds = (ended[kill.run] - kill.at).total_seconds()

    def waiting(self) -> list[Kill]:
        """Kills whose damage is not mended yet."""
        return [kill for kill in self.done if kill.seconds is None]

    def markers(self) -> int:
        """How many batches are finalized."""
        kept = (Path(self.stack.data, *below) for below in (["_semel"], ["out", "_semel"]))
        return sum(1 for folder in kept for _ in folder.glob("*/markers/b*.json"))

    def _wait_healthy(self, part: str, kill: Kill) -> None:
        def healthy() -> bool:
            # The record still names the killed process until a new leader has started another.
            main = self.stack.main(part)
            return bool(main) and main.pid != kill.pid and not self.stack.troubles()

        wait_for(healthy, f"{part} to recover", RECOVERY_SECONDS_MAX)
        kill.seconds = (datetime.now(UTC) - kill.at).total_seconds()

    def _victim(self, kind: str) -> psutil.Process | None:
        finders: dict[str, Callable[[], list[psutil.Process]]] = {
            "task": self._tasks,
            "executor worker": self._workers,
            "python worker": self._pythons,
            "postgres backend": lambda: _named(self._below("postgres"), "postgres: semel "),
        }
        if kind in finders:
            found = finders[kind]()
            return self.dice.choice(found) if found else None
        return self.stack.main(kind)

    def _below(self, part: str) -> list[psutil.Process]:
        return list(children(self.stack.main(part)))

    def _workers(self) -> list[psutil.Process]:
        return _named(self._below("scheduler"), "airflow worker -- ")

    def _tasks(self) -> list[psutil.Process]:
        return [task for worker in self._workers() for task in children(worker)]

    def _pythons(self) -> list[psutil.Process]:
        # Idle ones stay for a minute; the newest ones are at work.
        daemons = _named(self._below("spark"), "semel.spark.daemon")
        found = daemons + [worker for daemon in daemons for worker in children(daemon)]
        return sorted(found, key=lambda python: python.pid)[-PYTHONS_AT_WORK:]

    def _run_of(self, victim: psutil.Process) -> tuple[str, str] | None:
        pids = {victim.pid, *(child.pid for child in children(victim))}
        try:
            found = [row for row in self.stack.running() if row["pid"] in pids]
        except AWAY:
            return None
        return (found[0]["dag_id"], found[0]["dag_run_id"]) if found else None


def _named(processes: list[psutil.Process], words: str) -> list[psutil.Process]:
    found = []
    for process in processes:
        try:
            if words in " ".join(process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found
