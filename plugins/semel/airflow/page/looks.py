"""Long looks for pages: one at a time for each key, and no page waits long for one."""

import math
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from threading import Lock
from typing import Generic, TypeVar

PAGE_LOOKS = 64
"""Looks that wait, or whose answers are kept, in one server at most."""

T = TypeVar("T")

_KEPT_TIMES = 5.0
"""How long a look is used again, in times of what it took: who reloads starts no second one."""


class _CachedQuery(Generic[T]):
    """One look, and until when (monotonic seconds) what it came to, or why it failed, is told."""

    def __init__(self, pool: Executor, look: Callable[[], T], wait_seconds: float) -> None:
        self.until = math.inf
        self._look, self._wait_seconds, self._begun = look, wait_seconds, time.monotonic()
        self.future = pool.submit(self._run)

    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    def _run(self) -> T:
        try:
            return self._look()
        finally:
            ended = time.monotonic()
            took = ended - self._begun
            self.until = ended + (_KEPT_TIMES * took if took > self._wait_seconds else 0)


class QueryCache(Generic[T]):
    """Purpose: a look may take minutes, and reloading a page must not start another one.

    How it works: a look runs in a thread of its own and is waited for `wait_seconds`. What it came
    to, when that took longer, serves the pages that ask for it soon after it, a failure one page.
    There are PAGE_LOOKS at most: who asks for more has to wait.
    """

    def __init__(self, wait_seconds: float, threads: int = 2) -> None:
        self.wait_seconds = wait_seconds
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="semel-look")
        self._lock = Lock()
        self._begun: dict[str, _CachedQuery[T]] = {}

    def at(self, key: str, look: Callable[[], T]) -> T | None:
        """What the look came to; None while it is not done. Raises what the look raised."""
        with self._lock:
            one = self._begun.get(key)
            if one is None or one.is_over():
                self._begun = {k: o for k, o in self._begun.items() if not o.is_over()}
                if len(self._begun) >= PAGE_LOOKS:
                    return None
                one = self._begun[key] = _CachedQuery(self._pool, look, self.wait_seconds)
        if not wait([one.future], self.wait_seconds).done:
            return None
        if one.future.exception() is not None:
            with self._lock:  # It is told once; the next page looks again.
                self._begun.pop(key, None)
        return one.future.result()
