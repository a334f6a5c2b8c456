"""The process that supervisor starts for each part of the stack, and that answers for all of it.

Why supervisor alone does not suffice: when a part's main process is killed with SIGKILL, its
children live on beside the restarted one, and Airflow's tasks leave its process group.

How it works: `python -m semel_local.stack.leader PART.json`
1. ends what a former leader of this part left behind (its record names the session),
2. becomes the reaper of all orphans below it and starts the part in a session of its own,
3. writes the record down, hands a stop signal to the part's main process alone, so that it can
   drain, and waits for it,
4. ends whatever the main process left, and exits with its code.

Known limitation: a process that opened a session of its own (`setsid`) survives when its part's
leader and main process are both killed with SIGKILL. Nothing of Airflow, Spark or semel does so.
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
"""Time for what the main process left behind to end by SIGTERM before it is killed."""

START_GRACE_SECONDS = 10.0
"""Time for a former main process to end at a restart: one whose leader was killed."""


@dataclass(frozen=True, kw_only=True)
class ChildProcess:
    """What a leader starts. It is written to a file of mode 0600, for `env` holds passwords."""

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
        """The part that a file describes."""
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def to_json(self) -> str:
        """The file's content."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class Record:
    """Who leads a part and which process, the opener of its session, is the part's main one."""

    leader: ProcessIdentity
    main: ProcessIdentity
    stop_signal: int

    @classmethod
    def read(cls, path: Path) -> "Record | None":
        """The record, or None when there is none (nothing was left behind)."""
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
        """Write it whole or not at all."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        new.replace(path)

    def left(self) -> list[int]:
        """Pids of this part that live: its session, and all below its leader."""
        pids = set(process.session_members(self.main))
        if process.alive(self.leader):
            pids |= {self.leader.pid, *process.descendants(self.leader.pid)}
        return sorted(pids)


def end_recorded(path: Path, seconds: float) -> int:
    """End what the record at `path` names: asked first, killed after `seconds`.

    Returns how many processes there were. RuntimeError when one is still there at the end.
    """
    record = Record.read(path)
    if record is None:
        return 0
    found = record.left()
    if found:
        if process.alive(record.leader):
            process.send([record.leader.pid], signal.SIGTERM)
        elif process.alive(record.main):
            process.send([record.main.pid], record.stop_signal)
        else:
            process.send(found, signal.SIGTERM)
        if not process.wait_until(lambda: not record.left(), seconds):
            stubborn = process.kill(record.left)
            if stubborn:
                raise RuntimeError(f"processes {stubborn} of {path} do not end; end them by hand")
    path.unlink(missing_ok=True)
    return len(found)


def lead(part: ChildProcess) -> int:
    """Run one part until it ends. Returns its exit code."""
    record = Path(part.record)
    # 1. A former leader was killed: its part would hold our port and do our work beside us.
    end_recorded(record, START_GRACE_SECONDS)
    # 2. Orphans below us come to us instead of to init, so that none gets out of sight.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    stopping = _Stopping(part)
    # No stop may come between the part's start and its record.
    signal.pthread_sigmask(signal.SIG_BLOCK, _Stopping.SIGNALS)
    stopping.main = _start(part)
    main, leader = process.identify(stopping.main), process.identify(os.getpid())
    try:
        # 3. From here on a killed leader's part is found again by its record.
        if main and leader:
            Record(leader=leader, main=main, stop_signal=part.stop_signal).write(record)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _Stopping.SIGNALS)
        code = _wait_for(stopping.main)
    finally:
        # 4. Nothing of this part may outlive its main process, or go on without its record.
        _end_orphans()
    record.unlink(missing_ok=True)
    return code


class _Stopping:
    """Hands the first stop on to the main process, and kills all when that takes too long."""

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
    # Another user's supplementary groups would be root's: none, so that nothing is inherited.
    other = {"user": part.user, "group": part.user, "extra_groups": []} if part.user else {}
    started = subprocess.Popen(
        part.command,
        env=os.environ | part.env,
        cwd=part.directory,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        # The child would keep our blocked signals, and no stop would ever reach it.
        preexec_fn=partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, _Stopping.SIGNALS),
        **other,
    )
    # We reap all children ourselves; Popen must not warn that nobody waited for this one.
    started.returncode = 0
    return started.pid


def _wait_for(main: int) -> int:
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == main:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _end_orphans() -> None:
    def left() -> list[int]:
        while True:
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return []
            # A child that ends as we look hides those below it, until they come to us.
            if below := process.descendants(os.getpid()):
                return below

    if left():
        process.send(left(), signal.SIGTERM)
        if not process.wait_until(lambda: not left(), ORPHAN_GRACE_SECONDS):
            process.kill(left)


if __name__ == "__main__":
    sys.exit(lead(ChildProcess.read(Path(sys.argv[1]))))
