"""Spark's Python daemon for many short tasks. Spark starts it (`spark.python.daemon.module`).

It imports the modules of stage's tasks before it forks workers, so that workers need not spend
their first seconds on imports. It freezes these modules: a worker collects garbage after each task,
which would take 0.1 s with them. Spark sends a task's command and its first batch as two small
packets, and waits for the first acknowledgement (Nagle's algorithm). TCP_QUICKACK avoids Linux's
delay of 40 ms. Spark 4.0 lets each task invalidate the caches of all importers, and those of Spark's
archive then read its directory again, in 0.1 s. So they are forgotten: a worker that imports
another module makes those that it needs.
"""

import gc
import socket
import sys
from zipimport import zipimporter

from pyspark import daemon

import semel.stage.read
import semel.stage.shard
import semel.stage.write  # noqa: F401

_worker = daemon.worker


def _prompt_worker(sock: socket.socket, authenticated: bool) -> int:
    if sock.family != socket.AF_UNIX and hasattr(socket, "TCP_QUICKACK"):  # Linux only.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return _worker(sock, authenticated)


def _forget_archives() -> None:
    for path, importer in [*sys.path_importer_cache.items()]:
        if isinstance(importer, zipimporter):
            del sys.path_importer_cache[path]


if __name__ == "__main__":
    _forget_archives()
    gc.freeze()
    daemon.worker = _prompt_worker
    daemon.manager()
