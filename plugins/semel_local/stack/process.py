"""Whole sessions and trees of processes, and a pid told from its reuse."""

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
"""How often a wait looks again."""

KILL_WAIT_SECONDS = 5.0
"""How long a process may take to vanish after SIGKILL before it is reported as still there."""


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """One process, also after its pid was given to another: pid, start in ticks, boot."""

    pid: int
    started_ticks: int
    boot: str


@cache
def boot() -> str:
    """The running kernel's boot id: pids and start ticks mean nothing across a reboot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of a living process, or None. A zombie has ended, so it counts as none."""
    try:
        found = psutil.Process(pid)
        if found.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        # psutil says the time of day, which is another one once the clock is set; ticks stay.
        seconds = found.create_time() - psutil.boot_time()
    except psutil.NoSuchProcess:
        return None
    return ProcessIdentity(pid=pid, started_ticks=round(seconds * TICKS_PER_SECOND), boot=boot())


def alive(identity: ProcessIdentity) -> bool:
    """Whether exactly this process lives, not another one with its pid."""
    return identify(identity.pid) == identity


def session_members(leader: ProcessIdentity) -> list[int]:
    """Pids of the session that `leader` opened, also when it has ended itself.

    The kernel does not give a pid away while a session has its number, so members without a
    leader are the leader's own; a leader that started at another time is a stranger.
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
    """Send a signal to each, skipping those that ended meanwhile."""
    for pid in pids:
        try:
            os.kill(pid, signal)
        except ProcessLookupError:
            continue


def wait_until(gone: Callable[[], bool], seconds: float) -> bool:
    """Wait for `gone`, `seconds` at most. Returns whether it came true."""
    deadline = time.monotonic() + seconds
    while not gone():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def kill(pids: Callable[[], list[int]]) -> list[int]:
    """SIGKILL what `pids` returns until it returns none, bounded. Returns what is still there."""

    def gone() -> bool:
        left = pids()
        send(left, SIGKILL)
        return not left

    wait_until(gone, KILL_WAIT_SECONDS)
    return pids()


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None
