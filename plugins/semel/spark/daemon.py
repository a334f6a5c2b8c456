"""Spark's Python daemon, made for many short tasks. Spark starts it (`spark.python.daemon.module`).

Its workers are forked when all that stage's tasks import is there, so none spends its first seconds
on imports. After each task a worker collects garbage, which takes 0.1 s when it looks at all that
was imported: so that is frozen. And Spark sends a task's command and its first batch in two small
packets, the second only when the first is acknowledged (Nagle's algorithm): the kernel is told not
to wait 40 ms with that.
"""

import gc
import socket

from pyspark import daemon

import semel.stage.read
import semel.stage.shard
import semel.stage.write  # noqa: F401

_worker = daemon.worker


def _prompt_worker(sock: socket.socket, authenticated: bool) -> int:
    if sock.family != socket.AF_UNIX and hasattr(socket, "TCP_QUICKACK"):  # Linux has it.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return _worker(sock, authenticated)


if __name__ == "__main__":
    gc.freeze()
    daemon.worker = _prompt_worker
    daemon.manager()
