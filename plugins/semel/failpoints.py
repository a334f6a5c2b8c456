"""faults: named places where a test may kill, hold up or break the protocol. Off unless armed.

The verbs call `point` before and after each effect (a COMMIT, a file, a name, a deletion). A point
`<verb>.before_x` in a transaction is its last line: all is done, nothing is committed. tests/chaos
arms every one of `points`, and fails when one is never passed.
Armed by `armed` in this process, or by SEMEL_FAULTS="point:kind[:nth],..." when the process starts,
with kind `raise`, `exit` (at once, as SIGKILL would) or `pause` (until a file in SEMEL_FAULTS_DIR,
which is made to say so, is removed).
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
"""What a process that died at a point leaves, as one that was killed does."""

PAUSE_SECONDS_MAX = 60
"""A pause ends by itself after this long: whoever should end it may be dead."""


class FaultError(Exception):
    """What kind `raise` raises. Not a SemelError: it stands for a defect that nobody foresaw."""


class _Fault:
    """An action that happens at the nth pass of its point, once."""

    def __init__(self, action: Callable[[], object], nth: int) -> None:
        self._action = action
        self._left = nth
        self._lock = threading.Lock()
        self.hit = False

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            due = self._left == 0
        if due:
            self.hit = True
            self._action()


_CALL = re.compile(r'failpoints\.point\("([a-z._]+)"\)')

_armed: dict[str, list[_Fault]] = {}


def point(name: str) -> None:
    """A place that may be armed. Costs one look at an empty dict when nothing is."""
    if _armed:
        for fault in _armed.get(name, ())[:]:
            fault()


@cache
def points() -> tuple[str, ...]:
    """Every point that there is, by name: the calls of `point` in the package's code."""
    texts = (path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("*.py"))
    return tuple(sorted({name for text in texts for name in _CALL.findall(text)}))


def arm(name: str, action: Callable[[], object], nth: int = 1) -> _Fault:
    """Arm a point until this process ends. ValueError when there is no such point."""
    if name not in points() or nth < 1:
        raise ValueError(f"no fault point {name!r} (pass {nth}); see semel.failpoints.points")
    fault = _Fault(action, nth)
    _armed.setdefault(name, []).append(fault)
    return fault


@contextmanager
def armed(name: str, action: Callable[[], object], nth: int = 1) -> Iterator[_Fault]:
    """Arm a point for the block. The value's `hit` says whether it was passed."""
    fault = arm(name, action, nth)
    try:
        yield fault
    finally:
        _armed[name].remove(fault)
        if not _armed[name]:
            del _armed[name]


def arm_all(text: str, folder: Path | None = None) -> None:
    """Arm what SEMEL_FAULTS says. ValueError names the part that is wrong."""
    for part in filter(None, text.split(",")):
        name, kind, *rest = part.split(":")
        if kind == "exit":
            action = _exit
        elif kind == "raise":
            action = lambda name=name: _raise(name)  # noqa: E731
        elif kind == "pause" and folder is not None:
            action = lambda path=folder / name: pause(path)  # noqa: E731
        else:
            raise ValueError(f"SEMEL_FAULTS: {part!r} is not point:kind[:nth] with a known kind")
        arm(name, action, int(rest[0]) if rest else 1)


def pause(path: Path) -> None:
    """Make a file, and wait until somebody removes it. TimeoutError after PAUSE_SECONDS_MAX."""
    path.touch()
    end = time.monotonic() + PAUSE_SECONDS_MAX
    while path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"nobody removed {path} within {PAUSE_SECONDS_MAX} s")
        time.sleep(0.01)


def _raise(name: str) -> None:
    raise FaultError(f"fault at {name}")


def _exit() -> None:
    os._exit(EXIT_CODE)


if os.environ.get("SEMEL_FAULTS"):
    _folder = os.environ.get("SEMEL_FAULTS_DIR")
    arm_all(os.environ["SEMEL_FAULTS"], Path(_folder) if _folder else None)
