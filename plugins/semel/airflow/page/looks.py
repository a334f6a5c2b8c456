"""Looking at a source for a page: one look at a time for each pipeline, and no page waits long."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from threading import Lock

from semel.days import Sight

_KEPT_TIMES = 5.0
"""How long a look is used again, in times of what it took: who reloads starts no second one."""


class Looks:
    """Purpose: a look may take minutes, and reloading a page must not start another one.

    How it works: a look runs in a thread of its own and is waited for `wait_seconds`. What it came
    to, when that took longer, serves the pages that ask for it soon after it.
    """

    def __init__(self, wait_seconds: float, threads: int = 2) -> None:
        self.wait_seconds = wait_seconds
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="semel-look")
        self._lock = Lock()
        self._begun: dict[str, Future[tuple[Sight, float]]] = {}

    def at(self, key: str, look: Callable[[], Sight]) -> Sight | None:
        """What the look came to; None while it is not done. Raises what the look raised."""
        with self._lock:
            future = self._begun.get(key)
            if future is None or not _is_fresh(future):
                future = self._begun[key] = self._pool.submit(self._timed, look)
        try:
            return future.result(self.wait_seconds)[0]
        except NotDone:
            return None

    def _timed(self, look: Callable[[], Sight]) -> tuple[Sight, float]:
        """What it came to, and until when (monotonic seconds) it may be shown."""
        begun = time.monotonic()
        found = look()
        ended = time.monotonic()
        took = ended - begun
        return found, ended + (_KEPT_TIMES * took if took > self.wait_seconds else 0)


def _is_fresh(future: Future[tuple[Sight, float]]) -> bool:
    if not future.done():
        return True
    return future.exception() is None and time.monotonic() < future.result()[1]
