"""receive: make a queue's messages durable in the spool, then acknowledge them.

The queue is asked by the caller's thread alone. A second thread appends a group to the segment and
syncs it, while the first one pulls the next; so at most two groups are held, and what is held is
extended also while a disk is slow.
"""

import errno
import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate, chain
from pathlib import Path

import pyarrow as pa

from semel import failpoints
from semel.clients.queue import About, Pulled, Queue
from semel.declare.wording import count
from semel.errors import SemelError, UnavailableError
from semel.model.batch import Log
from semel.sources import ReceiveResult
from semel.sources.queue.segment import SCHEMA, OpenSegment
from semel.sources.queue.spool import Spool

GROUP_BYTES = 4 << 20
GROUP_MESSAGES = 5_000
GROUP_SECONDS = 0.2
"""A group ends at the first of these. Each costs a sync of the disk and a round trip to the queue;
a service far away takes some 50 ms to answer, so a shorter wait would make each answer a group."""

HELD_MESSAGES = 2 * GROUP_MESSAGES
"""What a receiver holds at most."""

ROOM_BYTES = 4 * GROUP_BYTES
"""What two groups need on the disk, with what Arrow and attributes add."""

SEGMENT_BYTES = 256 << 20
"""A segment that is larger is sealed, and another one begun: tasks read them side by side."""

SEGMENT_SECONDS = 30
"""So is an older one, where receive goes on for ever: what is not sealed is not planned."""

PULL_SECONDS = 0.5
"""The longest wait for a message: then it is looked whether to stop."""

AWAY_SECONDS = 300
"""How long a receive that goes on for ever asks a queue that does not answer. A bounded one ends at
once: Airflow retries it."""

PROGRESS_SECONDS = 10
"""How often it is said how far it has come."""


_MOMENT_MAX = (1 << 62) - 1
"""Microseconds that a segment can hold, and that are in no year: stage sets such a message aside."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """When a receive ends, at the first of these. Of each None: never.

    `idle`: seconds of asking without a message. `size`: bytes of values.
    """

    idle: float | None = None
    seconds: float | None = None
    messages: int | None = None
    size: int | None = None


@dataclass(kw_only=True)
class _HeldMessages:
    """Messages that are held. `since`: when the first was pulled, or the last extension; seconds of
    the monotonic clock.
    """

    pulled: Pulled = field(default_factory=Pulled)
    size: int = 0
    began: float = 0.0
    since: float = 0.0

    def add(self, more: Pulled, now: float) -> int:
        """Take what was pulled, after `now`. Returns the bytes of its values."""
        if not len(self.pulled):
            self.began = self.since = now
        for name, column in vars(self.pulled).items():
            column.extend(getattr(more, name))
        size = sum(map(len, more.values))
        self.size += size
        return size


def batch_of(pulled: Pulled) -> pa.RecordBatch:
    """Messages as a segment has them."""
    pairs = list(chain.from_iterable(pulled.attributes))
    offsets = pa.array(accumulate(map(len, pulled.attributes), initial=0), pa.int32())
    of_list = SCHEMA.field("attributes").type
    structs = pa.StructArray.from_arrays(
        [
            pa.array((name for name, _ in pairs), pa.string()),
            pa.array((value for _, value in pairs), pa.binary()),
        ],
        fields=list(of_list.value_type),
    )
    columns = {
        "message_id": pulled.ids,
        "published": [at and max(-_MOMENT_MAX, min(at, _MOMENT_MAX)) for at in pulled.published],
        "attributes": pa.ListArray.from_arrays(offsets, structs, type=of_list),
        "ordering_key": _texts(pulled.ordering_keys),
        "attempt": pulled.attempts,
        "value": pulled.values,
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def _texts(texts: list[str | None]) -> pa.Array:
    """A column of texts. One that is none keeps its bytes, which its reader finds."""
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        raw = [text if text is None else text.encode("utf-8", "surrogateescape") for text in texts]
        return pa.array(raw, pa.binary()).view(pa.string())


def receive(queue: Queue, path: Path, pipeline: str, bounds: Bounds, log: Log) -> ReceiveResult:
    """Receive until a bound is reached, SIGTERM or SIGINT comes, or the queue or the disk fails.

    1. Seal what dead receivers left in the pipeline's spool, whose folder is `path`.
    2. Pull. 3. Append a group, durably. 4. Acknowledge it. 5. At the end: hand back what is not
    appended, and seal.

    UnavailableError: the queue is away, or the spool cannot be written; what was received by then
    is in the spool, and what was not is not acknowledged. TerminalError: as `Queue` says.
    """
    spool = Spool(path)
    spool.make()
    spool.recover(log)
    with stopping() as stop, _Receiver(queue, spool, pipeline, bounds, log, stop) as receiver:
        return receiver.run()


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set within the block, where this is the main thread."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class _Receiver:
    def __init__(
        self, queue: Queue, spool: Spool, pipeline: str, bounds: Bounds, log: Log,
        stop: threading.Event,
    ) -> None:  # fmt: skip
        self.queue, self.spool, self.pipeline, self.bounds = queue, spool, pipeline, bounds
        self.log, self.stop = log, stop
        self.about: About
        self.done = ReceiveResult()
        self.filling = _HeldMessages()
        self.appending: tuple[_HeldMessages, Future] | None = None
        self.part: OpenSegment | None = None
        self.part_began = 0.0
        self.taken = self.size = self.fails = 0
        self.spent = 0  # Messages that were let go after their last delivery.
        self.failing_since = self.idle = 0.0
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="append")

    def __enter__(self) -> "_Receiver":
        # Messages come by thousands: the collector would look at all that was imported each time.
        gc.freeze()
        return self

    def __exit__(self, *error: object) -> None:
        gc.unfreeze()
        self.pool.shutdown(wait=True)
        if self.part is not None:
            self.part.close()

    def run(self) -> ReceiveResult:
        """Receive, as the bounds say."""
        self.about = self.queue.about()
        before = self.spool.last_address()
        if before not in (None, self.about.address):
            self.log(
                f"the queue is another one than at the last receive: {before} then, "
                f"{self.about.address} now. Messages of the old one that were not received are "
                "lost, unless the new one has them"
            )
        self.began = self.told = time.monotonic()
        try:
            self._run()
        except OSError as error:
            raise self._given_up(error) from error
        return self.done

    def _run(self) -> None:
        try:
            while (bound := self._reached()) is None:
                self._take()
            self._flush()
            self._settle()
            self._seal()
            self._end(bound)
        except SemelError as error:
            # What was pulled is of use, whatever became of the queue.
            with suppress(SemelError):
                self._flush()
                self._settle()
            self._seal()
            if not isinstance(error, UnavailableError):
                raise
            done = f"{error}. Before that: {self.done.describe()}{self._moved()}"
            raise UnavailableError(done) from error
        if moved := self._moved():
            self.log(moved.removeprefix(". But "))

    def _end(self, bound: str) -> None:
        """Keep which bound ended this, and how many messages wait although it ended."""
        self.done.ended_by = bound
        if bound.startswith("until") and bound != "until.idle":
            with suppress(SemelError):  # All is in the spool and acknowledged.
                self.done.waiting = self.queue.about().waiting

    def _reached(self) -> str | None:
        """The bound that is reached."""
        bounds, now = self.bounds, time.monotonic()
        if self.told + PROGRESS_SECONDS <= now:
            self.told = now
            self.log(f"received {count(self.taken, 'message')} so far")
        ends = {
            "a signal": self.stop.is_set(),
            "until.idle": bounds.idle is not None and self.idle >= bounds.idle and self.idle > 0,
            "until.seconds": bounds.seconds is not None and now - self.began >= bounds.seconds,
            "until.messages": bounds.messages is not None and self.taken >= bounds.messages,
            "until.bytes": bounds.size is not None and self.size >= bounds.size,
        }
        return next((name for name, is_reached in ends.items() if is_reached), None)

    def _take(self) -> None:
        """One pull, and what is due then."""
        if self.fails and not self._ask_again():
            return
        most = self._most()
        now, filling = time.monotonic(), self.filling
        held = len(filling.pulled)
        left = (self.bounds.messages or self.taken + GROUP_MESSAGES) - self.taken
        seconds = min(PULL_SECONDS, self.about.deadline_seconds / 4)
        if held:
            seconds = max(0.0, min(seconds, filling.began + GROUP_SECONDS - now))
        try:
            found = self.queue.pull(
                min(most - held, left), max(GROUP_BYTES - filling.size, 1), seconds
            )
        except UnavailableError as error:
            self._failed(error)
            return
        self.fails = 0
        # A slow disk or acknowledgement is no idle time: messages may wait meanwhile.
        self.idle += time.monotonic() - now
        if len(found):
            self.idle = 0.0
            self.taken += len(found)
            self.size += filling.add(found, now)
        full = len(filling.pulled) >= most or filling.size >= GROUP_BYTES
        # Keeps Q10. No pull waits for what comes only after these are acknowledged.
        last = self.about.ordered or not len(found)
        if full or last or time.monotonic() - filling.began >= GROUP_SECONDS:
            self._flush()
        self._settle(patient=last)
        self._extend()
        old = self.part and time.monotonic() - self.part_began >= SEGMENT_SECONDS
        if self.part and (self.part.end >= SEGMENT_BYTES or (old and self.bounds.seconds is None)):
            self._settle()
            self._seal()

    # Keeps Q8.
    def _most(self) -> int:
        """How many messages a group may have: where deliveries count, a disk that fails is met
        before a pull, or by few messages. OSError: it is full."""
        if self.about.dead_letters is None:
            return GROUP_MESSAGES
        if not len(self.filling.pulled):
            self._begin()
            disk = os.statvfs(self.spool.open)
            if disk.f_bavail * disk.f_frsize < ROOM_BYTES:
                self._settle()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return min(GROUP_MESSAGES, 1 + 2 * self.done.messages)

    def _failed(self, error: UnavailableError) -> None:
        """A pull failed: whether this is still the same queue must be asked."""
        now = time.monotonic()
        if not self.fails:
            self.failing_since = now
        self.fails += 1
        forever = self.bounds.seconds is None
        if (self.fails > 1 and not forever) or now - self.failing_since > AWAY_SECONDS:
            raise error
        if self.fails > 1:
            self._settle()
            self._seal()
            self.stop.wait(1)

    # Keeps Q4.
    def _ask_again(self) -> bool:
        """Whether the queue answers. Another one than before goes into another segment."""
        try:
            about = self.queue.about()
        except UnavailableError as error:
            self._failed(error)
            return False
        if about.address != self.about.address:
            # An acknowledgement could be of a message of the other queue, which nobody has.
            self.taken -= len(self.filling.pulled)
            self.size -= self.filling.size
            self.filling = _HeldMessages()
            self._settle(acknowledge=False)
            self._seal()
            self.log(f"the queue is another one now: {about.address}")
        self.about = about
        return True

    def _flush(self) -> None:
        """Let the messages that were pulled be appended, behind the ones before."""
        self._settle()
        if not len(self.filling.pulled):
            return
        self._begin()
        group, self.filling = self.filling, _HeldMessages()
        self.appending = group, self.pool.submit(_append, self.part, group.pulled)

    def _begin(self) -> None:
        """Have a part to append to."""
        if self.part is None:
            now = datetime.now(UTC)
            self.part = OpenSegment.create(self.spool.open, self.pipeline, self.about.address, now)
            self.part_began = time.monotonic()

    # Keeps Q1.
    def _settle(self, *, patient: bool = True, acknowledge: bool = True) -> None:
        """Acknowledge what is appended. Patient: wait until it is.

        OSError: it could not be, and is held as it was.
        """
        if self.appending is None:
            return
        group, future = self.appending
        while not wait([future], self._until_extension() if patient else 0).done:
            if not patient:
                return
            self._extend()
        future.result()
        self.appending = None
        pulled = group.pulled
        self._count(group)
        refused = len(pulled)
        if acknowledge:
            failpoints.point("receive.before_ack")
            with suppress(UnavailableError):
                refused = self.queue.acknowledge(pulled.handles)
            failpoints.point("receive.after_ack")
        self.done.unacknowledged += refused
        self.spent += min(refused, self._last(pulled))

    def _count(self, group: _HeldMessages) -> None:
        done, pulled = self.done, group.pulled
        done.messages += len(pulled)
        done.size += group.size
        done.redelivered += sum(attempt > 1 for attempt in pulled.attempts)
        if times := [at for at in pulled.published if at is not None]:
            waited = time.time() - min(times) / 1e6
            done.oldest_seconds = max(done.oldest_seconds or 0.0, waited)

    def _held(self) -> list[_HeldMessages]:
        groups = [self.filling, *(self.appending or ())[:1]]
        return [group for group in groups if len(group.pulled)]

    def _until_extension(self) -> float:
        half = self.about.deadline_seconds / 2
        ends = [group.since + half - time.monotonic() for group in self._held()]
        return max(0.0, min(ends, default=half))

    def _extend(self) -> None:
        """Hold on to what is held for half of its time."""
        now = time.monotonic()
        for group in self._held():
            if now - group.since >= self.about.deadline_seconds / 2:
                group.since = now
                with suppress(UnavailableError):
                    self.queue.extend(group.pulled.handles)

    def _last(self, pulled: Pulled) -> int:
        """How many of these the queue delivers no more, unless they are acknowledged."""
        letters = self.about.dead_letters
        return sum(n >= letters.deliveries for n in pulled.attempts) if letters else 0

    # Keeps Q8.
    def _moved(self) -> str:
        """What becomes of messages that were let go too often, as a sentence behind another one."""
        if not self.spent:
            return ""
        letters = self.about.dead_letters
        return (
            f". But {count(self.spent, 'message')} had the last of {letters.deliveries} deliveries: the "
            f"service moves them to {letters.address}, which semel does not read. Bring them back: "
            f"`{letters.back}`"
        )

    def _seal(self) -> None:
        if self.part is not None:
            part, self.part = self.part, None
            try:
                if part.seal(self.spool.sealed):
                    self.done.segments += 1
            finally:
                part.close()

    def _given_up(self, error: OSError) -> UnavailableError:
        """What is to be said when the disk fails. Nothing that was not synced is acknowledged."""
        for group in self._held():
            self.spent += self._last(group.pulled)
            with suppress(UnavailableError):
                self.queue.hand_back(group.pulled.handles)
        self.appending = None
        left = self.taken - self.done.messages
        return UnavailableError(
            f"the spool {self.spool.path} cannot be written ({error.strerror}): "
            f"{count(left, 'message')} not acknowledged, so the queue delivers them again"
            f"{self._moved()}. Before that: {self.done.describe()}; a segment that is not sealed is "
            "sealed by the next receive or plan. Make room, or mend the disk"
        )


def _append(part: OpenSegment, pulled: Pulled) -> None:
    part.append(batch_of(pulled))
