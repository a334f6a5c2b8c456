"""A cache of long queries for pages: one at a time for each key, and no page waits long."""

import math
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from threading import Lock
from typing import Generic, TypeVar

PAGE_QUERIES = 64
"""Queries of one server that run, wait or have a cached result, at most."""

T = TypeVar("T")

_LIFETIME_FACTOR = 5.0
"""Cache lifetime, as a multiple of the query's own duration, so that a page reload does not start
it again."""


class _CachedQuery(Generic[T]):
    """A query. `until`: monotonic time in seconds until which its result or its error is valid."""

    def __init__(self, pool: Executor, query: Callable[[], T], wait_seconds: float) -> None:
        self.until = math.inf
        self._query, self._wait_seconds, self._begun = query, wait_seconds, time.monotonic()
        self.future = pool.submit(self._run)

    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    def _run(self) -> T:
        try:
            return self._query()
        finally:
            ended = time.monotonic()
            took = ended - self._begun
            self.until = ended + (_LIFETIME_FACTOR * took if took > self._wait_seconds else 0)


class QueryCache(Generic[T]):
    """Purpose: a query may take minutes, and reloading a page must not start another one.

    How it works: a query runs in a thread of a pool, and a page waits `wait_seconds` for it. The
    result of a slower query serves pages for a while, an error one page. At PAGE_LOOKS queries a
    further one does not start.
    """

    def __init__(self, wait_seconds: float, threads: int = 2) -> None:
        self.wait_seconds = wait_seconds
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="semel-look")
        self._lock = Lock()
        self._queries: dict[str, _CachedQuery[T]] = {}

    def get(self, key: str, query: Callable[[], T]) -> T | None:
        """The result of a query. Returns None while it runs. Raises the error of the query."""
        with self._lock:
            cached = self._queries.get(key)
            if cached is None or cached.is_over():
                self._queries = {k: q for k, q in self._queries.items() if not q.is_over()}
                if len(self._queries) >= PAGE_QUERIES:
                    return None
                cached = self._queries[key] = _CachedQuery(self._pool, query, self.wait_seconds)
        if not wait([cached.future], self.wait_seconds).done:
            return None
        if cached.future.exception() is not None:
            with self._lock:  # One page shows the error; the next one starts the query again.
                self._queries.pop(key, None)
        return cached.future.result()
