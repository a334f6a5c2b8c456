"""Spark's Python daemon for many short tasks. Spark starts it (`spark.python.daemon.module`).

It imports the modules of stage's tasks before it forks workers, so that workers need not spend
their first seconds on imports. It freezes these modules: a worker collects garbage after each task,
which would take 0.1 s with them. Spark sends a task's command and its first batch as two small
packets, and waits for the first acknowledgement (Nagle's algorithm). TCP_QUICKACK avoids Linux's
delay of 40 ms.
"""

import gc
import socket

from pyspark import daemon

import semel.stage.read
import semel.stage.shard
import semel.stage.write  # noqa: F401

_worker = daemon.worker


def _prompt_worker(sock: socket.socket, authenticated: bool) -> int:
    if sock.family != socket.AF_UNIX and hasattr(socket, "TCP_QUICKACK"):  # Linux only.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return _worker(sock, authenticated)


if __name__ == "__main__":
    gc.freeze()
    daemon.worker = _prompt_worker
    daemon.manager()
