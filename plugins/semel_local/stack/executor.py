"""Airflow's LocalExecutor, changed so that a killed worker loses only its own task.

Airflow 3.3's workers share the queues of multiprocessing, which a lock protects. A worker that
waits for work holds the lock, and SIGKILL leaves it locked: no task ever starts again, while the
scheduler stays healthy. And only a missing heartbeat shows that a killed worker had a task.
"""

import importlib
import os
import pickle
import select
import socket
import time
from typing import Any

from airflow.executors.local_executor import LocalExecutor

PACKET_BYTES_MAX = 128 << 10
"""Largest message. The description of a task has some 3 KB; the kernel accepts 208 KiB."""

PRELOADED = (
    "semel.airflow.factory", "semel.airflow.spark", "semel.plan", "semel.stage", "semel.commit",
    "semel.finalize", "semel.collect", "semel.runs.replay", "semel.reports.summary",
    "semel.reports.completeness",
    "semel.spark.session", "semel.sources.files.source", "semel.sinks.files.sink",
    "pyspark.sql.connect.session",
)  # fmt: skip
"""Modules that a task imports, at its start or later. The executor imports them before it forks, so
that no task spends its first seconds on them."""

UNSAID_SECONDS = 5.0
"""Time for a worker to acknowledge a task before the executor counts it as lost."""


class Packets:
    """A queue between processes without a lock: the kernel gives each whole packet to one reader.

    Has the methods of multiprocessing's queues that LocalExecutor uses.
    """

    def __init__(self) -> None:
        self._out, self._in = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def put(self, message: Any) -> None:
        """Send one message. Blocks while the queue is full."""
        packet = pickle.dumps(message)
        if len(packet) > PACKET_BYTES_MAX:
            raise ValueError(f"a message of {len(packet)} bytes; {PACKET_BYTES_MAX} are allowed")
        self._in.send(packet)

    def get(self) -> Any:
        """Receive the next message. Blocks until there is one."""
        if not (packet := self._out.recv(PACKET_BYTES_MAX)):
            raise EOFError("the other end is closed")
        return pickle.loads(packet)

    def empty(self) -> bool:
        """Whether the queue is empty."""
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Close both ends."""
        self._out.close()
        self._in.close()


class _Work(Packets):
    """Tasks for the workers; `get` acknowledges each one to the executor."""

    def __init__(self, results: "_Results") -> None:
        super().__init__()
        self._results = results

    def get(self) -> Any:
        workload = super().get()
        if workload is not None:
            self._results.took(workload.key)
        return workload


class _Results(Packets):
    """Acknowledgements and results of tasks, with the pids of their workers."""

    def took(self, key: Any) -> None:
        super().put((os.getpid(), key, None))

    def put(self, message: Any) -> None:
        key, state, _error = message  # The worker has logged the error.
        super().put((os.getpid(), key, state))


class _Uncounted:
    """Replaces the count of unread messages, which a lock protects too."""

    value = 0

    def __enter__(self) -> None:
        """Nothing is locked."""

    def __exit__(self, *_error: object) -> None:
        """Nothing was locked."""


class SturdyLocalExecutor(LocalExecutor):
    """LocalExecutor whose workers may be killed.

    Each worker acknowledges its task. If a worker dies without a result, its task has failed: the
    scheduler retries it, and a new worker replaces the dead one. Known limitation: the task's own
    process survives its worker until it tries to report. Fences stop it from doing harm, as with
    any zombie.
    """

    def start(self) -> None:
        """Start the workers."""
        for name in PRELOADED:
            importlib.import_module(name)
        self.result_queue = _Results()
        self.activity_queue = _Work(self.result_queue)
        self.workers = {}
        self.sent: dict[Any, float] = {}
        self.taken: dict[int, Any] = {}
        self.died_at = 0.0
        self._unread_messages = _Uncounted()
        self._spawn_workers_with_gc_freeze(self.parallelism)

    def _process_workloads(self, workload_list: Any) -> None:
        self.sent |= {workload.key: time.monotonic() for workload in workload_list}
        super()._process_workloads(workload_list)

    def _check_workers(self) -> None:
        dead = [pid for pid, process in self.workers.items() if not process.is_alive()]
        if dead:
            self._read_results()  # All messages that they sent before they died.
            self.died_at = time.monotonic()
            for pid in dead:
                self.workers.pop(pid).close()
                if pid in self.taken:
                    self._lose(self.taken.pop(pid))
            self._spawn_workers_with_gc_freeze(len(dead))
        # A worker that is killed as it receives a task loses it without an acknowledgement.
        silent = self.activity_queue.empty() and time.monotonic() - self.died_at > UNSAID_SECONDS
        for key in [key for key, at in self.sent.items() if silent and at <= self.died_at]:
            del self.sent[key]
            self._lose(key)

    def _lose(self, key: Any) -> None:
        self.log.warning("a worker was killed: its task %s has failed", key)
        self.fail(key)

    def _read_results(self) -> None:
        while not self.result_queue.empty():
            pid, key, state = self.result_queue.get()
            if state is None:
                self.sent.pop(key, None)
                self.taken[pid] = key
                continue
            if state != "running":  # Callbacks and connection tests report this as progress.
                self.taken.pop(pid, None)
            self.change_state(key, state)
