"""Airflow's LocalExecutor, fixed so that a worker that is killed takes only its own task along.

Airflow 3.3's workers share multiprocessing's queues, which take turns by a lock. A worker that
waits for work holds that lock, and SIGKILL leaves it locked: no task ever starts again, while the
scheduler stays healthy. And the task of a killed worker is found by its missing heartbeat only.
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
"""Largest message: a task's description has some 3 KB, and the kernel takes 208 KiB."""

PRELOADED = (
    "semel.airflow.factory", "semel.airflow.spark", "semel.plan", "semel.stage", "semel.commit",
    "semel.finalize", "semel.collect", "semel.runs.replay", "semel.reports.summary",
    "semel.reports.completeness",
    "semel.spark.session",
    "airflow.providers.apache.spark.hooks.spark_connect", "pyspark.sql.connect.session",
)  # fmt: skip
"""What a task imports, at once or when it needs it. The workers have it from their parent, and a
task from its worker, so that none spends its first seconds on it."""

UNSAID_SECONDS = 5.0
"""How long a worker may take from a task's receipt to saying so, before it counts as lost."""


class Packets:
    """A queue between processes without a lock: the kernel hands a packet to one reader, whole.

    It has what LocalExecutor uses of multiprocessing's queues.
    """

    def __init__(self) -> None:
        self._out, self._in = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def put(self, message: Any) -> None:
        """Send one message. It waits while the queue is full."""
        packet = pickle.dumps(message)
        if len(packet) > PACKET_BYTES_MAX:
            raise ValueError(f"a message of {len(packet)} bytes; {PACKET_BYTES_MAX} are allowed")
        self._in.send(packet)

    def get(self) -> Any:
        """The next message; it waits for one."""
        if not (packet := self._out.recv(PACKET_BYTES_MAX)):
            raise EOFError("the other end is closed")
        return pickle.loads(packet)

    def empty(self) -> bool:
        """Whether nothing waits to be read."""
        poll = select.poll()
        poll.register(self._out, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        """Give up both ends."""
        self._out.close()
        self._in.close()


class _Work(Packets):
    """Tasks for the workers, each of which says which one it took."""

    def __init__(self, results: "_Results") -> None:
        super().__init__()
        self._results = results

    def get(self) -> Any:
        workload = super().get()
        if workload is not None:
            self._results.took(workload.key)
        return workload


class _Results(Packets):
    """What became of the tasks, with the pid of the worker that says so."""

    def took(self, key: Any) -> None:
        super().put((os.getpid(), key, None))

    def put(self, message: Any) -> None:
        key, state, _error = message  # The worker has logged the error, and nobody reads it here.
        super().put((os.getpid(), key, state))


class _Uncounted:
    """In place of the count of unread messages, which stands behind a lock too."""

    value = 0

    def __enter__(self) -> None:
        """Nothing is locked."""

    def __exit__(self, *_error: object) -> None:
        """Nothing was locked."""


class SturdyLocalExecutor(LocalExecutor):
    """LocalExecutor whose workers may be killed.

    How it works: a worker says which task it took. When it is gone and has not told how that
    ended, the task has failed, and the scheduler retries it; a new worker takes its place.
    Known limitation: the process of the task itself lives on without its worker until it wants to
    report. It is a zombie like any other: fences keep it from doing harm.
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
            self._read_results()  # What they said before they died is all there by now.
            self.died_at = time.monotonic()
            for pid in dead:
                self.workers.pop(pid).close()
                if pid in self.taken:
                    self._lose(self.taken.pop(pid))
            self._spawn_workers_with_gc_freeze(len(dead))
        # One that is killed as it receives a task takes it along without a word.
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
            if state != "running":  # Callbacks and tests of connections say this in between.
                self.taken.pop(pid, None)
            self.change_state(key, state)
