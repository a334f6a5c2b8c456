"""The leader of a part: supervisor starts it, and it controls all processes of the part.

Supervisor alone does not suffice: if SIGKILL ends a part's main process, its children live on next
to the restarted one, and Airflow's tasks leave its process group.

How it works: `python -m semel_local.stack.leader PART.json`
1. ends the processes of a former leader of this part (its record names the session),
2. becomes the reaper of all orphans below it, and starts the part in a new session,
3. writes the record, passes stop signals to the main process only, so that it can drain, and waits,
4. ends all remaining processes of the part, and exits with the main process's code.

Known limitation: a process that opened its own session (`setsid`) survives if SIGKILL ends both its
part's leader and main process. No process of Airflow, Spark or semel does so.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from semel_local.stack import process
from semel_local.stack.process import ProcessIdentity

PR_SET_CHILD_SUBREAPER = 36

ORPHAN_GRACE_SECONDS = 5.0
"""Time for orphans of the main process to end after SIGTERM, before SIGKILL."""

START_GRACE_SECONDS = 10.0
"""Time at a restart for a former main process to end, if its leader was killed."""


@dataclass(frozen=True, kw_only=True)
class ChildProcess:
    """A part that a leader starts. Its file has mode 0600, because `env` has passwords."""

    name: str
    command: list[str]
    env: dict[str, str]
    directory: str
    log: str
    record: str
    user: str | None
    stop_signal: int
    stop_seconds: float

    @classmethod
    def read(cls, path: Path) -> "ChildProcess":
        """The part in a file."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def to_json(self) -> str:
        """The file's content."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class Record:
    """The leader of a part, and its main process, which opened its session."""

    leader: ProcessIdentity
    main: ProcessIdentity
    stop_signal: int

    @classmethod
    def read(cls, path: Path) -> "Record | None":
        """The record. Returns None without a file: the part has ended."""
        try:
            row: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return cls(
            leader=ProcessIdentity(**row["leader"]),
            main=ProcessIdentity(**row["main"]),
            stop_signal=row["stop_signal"],
        )

    def write(self, path: Path) -> None:
        """Write it atomically."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        new.replace(path)

    def living_pids(self) -> list[int]:
        """Living pids of this part: its session, and all below its leader."""
        pids = set(process.session_members(self.main))
        if process.alive(self.leader):
            pids |= {self.leader.pid, *process.descendants(self.leader.pid)}
        return sorted(pids)


def end_recorded(path: Path, seconds: float) -> int:
    """End the processes of the record at `path`: signal them, and kill them after `seconds`.

    Returns how many processes lived. Raises RuntimeError if one still lives at the end.
    """
    record = Record.read(path)
    if record is None:
        return 0
    pids = record.living_pids()
    if pids:
        if process.alive(record.leader):
            process.send([record.leader.pid], signal.SIGTERM)
        elif process.alive(record.main):
            process.send([record.main.pid], record.stop_signal)
        else:
            process.send(pids, signal.SIGTERM)
        if not process.wait_until(lambda: not record.living_pids(), seconds):
            stubborn = process.kill(record.living_pids)
            if stubborn:
                raise RuntimeError(f"processes {stubborn} of {path} do not end; end them by hand")
    path.unlink(missing_ok=True)
    return len(pids)


def lead(part: ChildProcess) -> int:
    """Run one part until it ends. Returns its exit code."""
    record = Path(part.record)
    # 1. If a former leader was killed, its part still has our port and does our work.
    end_recorded(record, START_GRACE_SECONDS)
    # 2. Become the parent of orphans below us, instead of init, so that we see all.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    stopping = _StopHandler(part)
    # A stop must not come between the part's start and its record.
    signal.pthread_sigmask(signal.SIG_BLOCK, _StopHandler.SIGNALS)
    stopping.main = _start(part)
    main, leader = process.identify(stopping.main), process.identify(os.getpid())
    try:
        # 3. From here on, the next leader can find the part by its record.
        if main and leader:
            Record(leader=leader, main=main, stop_signal=part.stop_signal).write(record)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _StopHandler.SIGNALS)
        code = _wait_for(stopping.main)
    finally:
        # 4. No process of this part may outlive the main process, or run without the record.
        _end_orphans()
    record.unlink(missing_ok=True)
    return code


class _StopHandler:
    """Passes the first stop to the main process, and kills all processes if it takes too long."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)

    def __init__(self, part: ChildProcess) -> None:
        self.part = part
        self.main: int | None = None
        for number in self.SIGNALS:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.main is None:
            sys.exit(0)
        if number == signal.SIGALRM:
            process.send(process.descendants(os.getpid()), signal.SIGKILL)
            signal.setitimer(signal.ITIMER_REAL, 1.0)
            return
        process.send([self.main], self.part.stop_signal)
        signal.setitimer(signal.ITIMER_REAL, self.part.stop_seconds)


def _start(part: ChildProcess) -> int:
    # Without `extra_groups`, another user would inherit root's supplementary groups.
    other = {"user": part.user, "group": part.user, "extra_groups": []} if part.user else {}
    started = subprocess.Popen(
        part.command,
        env=os.environ | part.env,
        cwd=part.directory,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        # The child would inherit our blocked signals, and no stop would ever reach it.
        preexec_fn=partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, _StopHandler.SIGNALS),
        **other,
    )
    # We reap all children; Popen must not warn about this one.
    started.returncode = 0
    return started.pid


def _wait_for(main: int) -> int:
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == main:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _end_orphans() -> None:
    def living_pids() -> list[int]:
        while True:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return []
            # A child that ends meanwhile hides its children, until they become ours.
            if below := process.descendants(os.getpid()):
                return below

    if living_pids():
        process.send(living_pids(), signal.SIGTERM)
        if not process.wait_until(lambda: not living_pids(), ORPHAN_GRACE_SECONDS):
            process.kill(living_pids)


if __name__ == "__main__":
    sys.exit(lead(ChildProcess.read(Path(sys.argv[1]))))
