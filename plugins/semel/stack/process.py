"""Processes as /proc shows them: whole sessions and trees, and a pid told from its reuse."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from signal import SIGKILL

POLL_SECONDS = 0.1
"""How often a wait looks again."""

KILL_WAIT_SECONDS = 5.0
"""How long a process may take to vanish after SIGKILL before it is reported as still there."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """One process, also after its pid was given to another: pid, start in ticks, boot."""

    pid: int
    started_ticks: int
    boot: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One living process of /proc."""

    pid: int
    parent: int
    session: int
    started_ticks: int


@cache
def boot() -> str:
    """The running kernel's boot id: pids and start ticks mean nothing across a reboot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def look(pid: int) -> Entry | None:
    """The process `pid`, or None when there is none. A zombie has ended, so it counts as none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything, also blanks and further parentheses.
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    return Entry(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        started_ticks=int(fields[19]),
    )


def identify(pid: int) -> Identity | None:
    """The identity of a living process, or None."""
    entry = look(pid)
    return entry and Identity(pid=pid, started_ticks=entry.started_ticks, boot=boot())


def alive(identity: Identity) -> bool:
    """Whether exactly this process lives, not another one with its pid."""
    return identify(identity.pid) == identity


def everything() -> list[Entry]:
    """All living processes."""
    found = (look(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [entry for entry in found if entry]


def session_members(leader: Identity) -> list[int]:
    """Pids of the session that `leader` opened, also when it has ended itself.

    The kernel does not give a pid away while a session has its number, so members without a
    leader are the leader's own; a leader that started at another time is a stranger.
    """
    now = identify(leader.pid)
    if leader.boot != boot() or (now and now != leader):
        return []
    return [entry.pid for entry in everything() if entry.session == leader.pid]


def descendants(pid: int) -> list[int]:
    """Pids of the children of `pid`, their children, and so on."""
    entries, found = everything(), [pid]
    for parent in found:
        found += [entry.pid for entry in entries if entry.parent == parent]
    return found[1:]


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
