"""Sessions and trees of processes, and identities that a reused pid does not share."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from signal import SIGKILL

import psutil

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

POLL_SECONDS = 0.1
"""Interval of a wait."""

KILL_WAIT_SECONDS = 5.0
"""Time for a process to end after SIGKILL, before `kill` reports it."""


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """One process, even if its pid is reused: pid, start in ticks, boot."""

    pid: int
    started_ticks: int
    boot: str


@cache
def boot() -> str:
    """The running kernel's boot id. Pids and start ticks mean nothing after a reboot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of a living process. Returns None if it has ended, also if it is a zombie."""
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        # psutil returns the time of day, which changes if the clock is set; ticks do not.
        seconds = process.create_time() - psutil.boot_time()
    except psutil.NoSuchProcess:
        return None
    return ProcessIdentity(pid=pid, started_ticks=round(seconds * TICKS_PER_SECOND), boot=boot())


def alive(identity: ProcessIdentity) -> bool:
    """Whether exactly this process lives, not another one with its pid."""
    return identify(identity.pid) == identity


def session_members(leader: ProcessIdentity) -> list[int]:
    """Pids of the session that `leader` opened, even if the leader has ended.

    The kernel does not reuse a pid that is the number of a session. So members without a leader
    belong to ours; a leader with another start is a stranger.
    """
    now = identify(leader.pid)
    if leader.boot != boot() or (now and now != leader):
        return []
    return [pid for pid in psutil.pids() if _session(pid) == leader.pid and identify(pid)]


def descendants(pid: int) -> list[int]:
    """Pids of the children of `pid`, their children, and so on."""
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [each.pid for each in below if identify(each.pid)]


def send(pids: Iterable[int], signal: int) -> None:
    """Send a signal to each process that still lives."""
    for pid in pids:
        try:
            os.kill(pid, signal)
        except ProcessLookupError:
            continue


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for `condition`, `seconds` at most. Returns whether it came true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def kill(pids: Callable[[], list[int]]) -> list[int]:
    """Send SIGKILL to the pids that `pids` returns, until none lives or the wait ends. Returns the
    pids that still live."""

    def all_ended() -> bool:
        living = pids()
        send(living, SIGKILL)
        return not living

    wait_until(all_ended, KILL_WAIT_SECONDS)
    return pids()


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
