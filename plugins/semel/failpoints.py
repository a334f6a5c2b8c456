"""Failpoints: named places where a test can kill, pause or break the protocol. Off by default.

The verbs call `point` before and after each effect (a COMMIT, a file, a name, a deletion). In a
transaction, `<verb>.before_x` is the last line before the COMMIT. tests/chaos arms every one of
`points`, and fails if a run never passes one.
A test arms a point by `armed` in this process, or by SEMEL_FAULTS="point:kind[:nth],..." at the
start of a process. The kinds are `raise`, `exit` (at once, like SIGKILL) and `pause` (it creates a
file in SEMEL_FAULTS_DIR and waits until the test removes it).
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

EXIT_CODE = 137
"""The exit code of a process that died at a point, as after SIGKILL."""

PAUSE_SECONDS_MAX = 60
"""A pause ends by itself after this long, because the test that should end it may be dead."""


class FaultError(Exception):
    """The error of kind `raise`. Not a SemelError, because it stands for an unforeseen defect."""


class _Fault:
    """An action that runs once, at the nth pass of its point."""

    def __init__(self, action: Callable[[], object], nth: int) -> None:
        self._action = action
        self._passes_left = nth
        self._lock = threading.Lock()
        self.hit = False

    def __call__(self) -> None:
        with self._lock:
            self._passes_left -= 1
            due = self._passes_left == 0
        if due:
            self.hit = True
            self._action()


_CALL = re.compile(r'failpoints\.point\("([a-z._]+)"\)')

_armed: dict[str, list[_Fault]] = {}


def point(name: str) -> None:
    """A place that a test may arm. Costs one look into an empty dict otherwise."""
    if _armed:
        for fault in _armed.get(name, ())[:]:
            fault()


@cache
def points() -> tuple[str, ...]:
    """The names of all points: the calls of `point` in the package's code."""
    texts = (path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("*.py"))
    return tuple(sorted({name for text in texts for name in _CALL.findall(text)}))


def arm(name: str, action: Callable[[], object], nth: int = 1) -> _Fault:
    """Arm a point until this process ends. Raises ValueError if no point has this name."""
    if name not in points() or nth < 1:
        raise ValueError(f"no fault point {name!r} (pass {nth}). See semel.failpoints.points")
    fault = _Fault(action, nth)
    _armed.setdefault(name, []).append(fault)
    return fault


@contextmanager
def armed(name: str, action: Callable[[], object], nth: int = 1) -> Iterator[_Fault]:
    """Arm a point for the block. The fault's `hit` is True once the point was passed."""
    fault = arm(name, action, nth)
    try:
        yield fault
    finally:
        _armed[name].remove(fault)
        if not _armed[name]:
            del _armed[name]


def arm_all(text: str, folder: Path | None = None) -> None:
    """Arm the points of SEMEL_FAULTS. Raises ValueError, which names the wrong part."""
    for part in filter(None, text.split(",")):
        name, kind, *nth = part.split(":")
        if kind == "exit":
            action = _exit
        elif kind == "raise":
            action = lambda name=name: _raise(name)  # noqa: E731
        elif kind == "pause" and folder is not None:
            action = lambda path=folder / name: pause(path)  # noqa: E731
        else:
            raise ValueError(f"SEMEL_FAULTS: {part!r} is not point:kind[:nth] with a known kind")
        arm(name, action, int(nth[0]) if nth else 1)


def pause(path: Path) -> None:
    """Create a file and wait until a test removes it. Raises TimeoutError if it stays too long."""
    path.touch()
    end = time.monotonic() + PAUSE_SECONDS_MAX
    while path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"no process removed {path} within {PAUSE_SECONDS_MAX} s")
        time.sleep(0.01)


def _raise(name: str) -> None:
    raise FaultError(f"fault at {name}")


def _exit() -> None:
    os._exit(EXIT_CODE)


if os.environ.get("SEMEL_FAULTS"):
    _folder = os.environ.get("SEMEL_FAULTS_DIR")
    arm_all(os.environ["SEMEL_FAULTS"], Path(_folder) if _folder else None)
