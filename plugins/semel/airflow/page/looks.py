"""Long looks for pages: one at a time for each key, and no page waits long for one."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Lock
from typing import Generic, TypeVar

from semel import limits

T = TypeVar("T")

_KEPT_TIMES = 5.0
"""How long a look is used again, in times of what it took: who reloads starts no second one."""


class Looks(Generic[T]):
    """Purpose: a look may take minutes, and reloading a page must not start another one.

    How it works: a look runs in a thread of its own and is waited for `wait_seconds`. What it came
    to, when that took longer, serves the pages that ask for it soon after it. There are PAGE_LOOKS
    at most: who asks for more has to wait.
    """

    def __init__(self, wait_seconds: float, threads: int = 2) -> None:
        self.wait_seconds = wait_seconds
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="semel-look")
        self._lock = Lock()
        self._begun: dict[str, Future[tuple[T, float]]] = {}

    def at(self, key: str, look: Callable[[], T]) -> T | None:
        """What the look came to; None while it is not done. Raises what the look raised."""
        with self._lock:
            future = self._begun.get(key)
            if future is None or _is_over(future):
                self._begun = {k: f for k, f in self._begun.items() if not _is_over(f)}
                if len(self._begun) >= limits.PAGE_LOOKS:
                    return None
                future = self._begun[key] = self._pool.submit(self._timed, look)
        if not wait([future], self.wait_seconds).done:
            return None
        if future.exception() is not None:
            with self._lock:  # It is told once; the next page looks again.
                self._begun.pop(key, None)
        return future.result()[0]

    def _timed(self, look: Callable[[], T]) -> tuple[T, float]:
        """What it came to, and until when (monotonic seconds) it may be shown."""
        begun = time.monotonic()
        found = look()
        ended = time.monotonic()
        took = ended - begun
        return found, ended + (_KEPT_TIMES * took if took > self.wait_seconds else 0)


def _is_over(future: Future) -> bool:
    """Whether what it came to is not to be shown any more. What failed was not told yet."""
    if not future.done() or future.exception() is not None:
        return False
    return time.monotonic() >= future.result()[1]
