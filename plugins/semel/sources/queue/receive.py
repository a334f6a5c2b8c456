"""receive: make a queue's messages durable in the spool, then acknowledge them.

Only the caller's thread talks to the queue. A second thread appends a group to the segment and
syncs it, while the first thread pulls the next group. So the receiver holds at most two groups, and
can extend their deadlines even if the disk is slow.
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
from itertools import accumulate, chain

import pyarrow as pa

from semel import failpoints
from semel.clients.queue import PulledMessages, Queue, QueueInfo
from semel.declare.wording import count
from semel.errors import SemelError, UnavailableError
from semel.model.batch import Log
from semel.sources import ReceiveResult
from semel.sources.queue.segment import SCHEMA, SegmentWriter
from semel.sources.queue.spool import Spool
from semel.storage import ArchivePath, StorePath

GROUP_BYTES = 4 << 20
GROUP_MESSAGES = 5_000
GROUP_SECONDS = 0.2
"""The limits of a group. Each group costs a disk sync and a round trip to the queue. A distant
service answers in some 50 ms, so with a shorter wait every answer would become a group."""

STORED_GROUP_SECONDS = 2.0
"""The same in a store, where each group is an object."""

HOLD_MESSAGES_MAX = 2 * GROUP_MESSAGES
"""The largest number of unacknowledged messages of one receiver."""

FREE_BYTES_MIN = 4 * GROUP_BYTES
"""Disk space for two groups, including the overhead of Arrow and attributes."""

SEGMENT_BYTES = 256 << 20
"""Receive seals a larger segment and begins the next one: tasks read them in parallel."""

SEGMENT_SECONDS = 30
"""An endless receive also seals an older segment, because plan sees only sealed segments."""

PULL_SECONDS = 0.5
"""The longest wait for a message, after which receive checks whether to stop."""

AWAY_SECONDS = 300
"""How long an endless receive retries a queue that does not answer. A bounded receive fails at
once: Airflow retries it."""

PROGRESS_SECONDS = 10
"""Time between two lines about progress in the log."""


_MOMENT_MAX = (1 << 62) - 1
"""Microseconds that fit into a segment but lie in no year: such a message becomes a dead letter."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """A receive ends at the first bound that it reaches. None: no such bound.

    `idle`: seconds of pulling without a message. `size`: bytes of values.
    """

    idle: float | None = None
    seconds: float | None = None
    messages: int | None = None
    size: int | None = None


@dataclass(kw_only=True)
class _HeldMessages:
    """Unacknowledged messages. `began`: the time of the first pull; `since`: of that, or of the
    last extension. Both in seconds of the monotonic clock.
    """

    pulled: PulledMessages = field(default_factory=PulledMessages)
    size: int = 0
    began: float = 0.0
    since: float = 0.0

    def add(self, more: PulledMessages, now: float) -> int:
        """Add the messages of a pull that began at `now`. Returns the bytes of their values."""
        if not len(self.pulled):
            self.began = self.since = now
        for name, column in vars(self.pulled).items():
            column.extend(getattr(more, name))
        size = sum(map(len, more.values))
        self.size += size
        return size


def to_record_batch(pulled: PulledMessages) -> pa.RecordBatch:
    """Convert messages to the schema of segments."""
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
        "ordering_key": _text_column(pulled.ordering_keys),
        "attempt": pulled.attempts,
        "value": pulled.values,
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def _text_column(texts: list[str | None]) -> pa.Array:
    """A string column. A value that is not valid UTF-8 keeps its bytes; the reader detects it."""
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        raw = [text if text is None else text.encode("utf-8", "surrogateescape") for text in texts]
        return pa.array(raw, pa.binary()).view(pa.string())


def receive(queue: Queue, path: ArchivePath, pipeline: str, bounds: Bounds, log: Log) -> ReceiveResult:
    """Receive until a bound is reached, SIGTERM or SIGINT comes, or the queue or the disk fails.

    1. Seal the parts of dead receivers in the pipeline's spool, whose folder is `path`.
    2. Pull. 3. Append a group, durably. 4. Acknowledge it. 5. At the end, hand back messages that
    are not appended, and seal.

    Raises UnavailableError if the queue is away or the spool cannot be written; all acknowledged
    messages are then in the spool. Raises TerminalError as `Queue` does.
    """
    spool = Spool(path)
    spool.create_folders()
    spool.recover(log)
    with stop_on_signal() as stop, _Receiver(queue, spool, pipeline, bounds, log, stop) as receiver:
        return receiver.run()


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set within the block, if this is the main thread."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = [signal.signal(number, lambda *_: stop.set()) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


class _Receiver:
    def __init__(
        self, queue: Queue, spool: Spool, pipeline: str, bounds: Bounds, log: Log,
        stop: threading.Event,
    ) -> None:  # fmt: skip
        self.queue, self.spool, self.pipeline, self.bounds = queue, spool, pipeline, bounds
        self.log, self.stop = log, stop
        self.about: QueueInfo
        self.result = ReceiveResult()
        self.filling = _HeldMessages()
        self.appending: tuple[_HeldMessages, Future] | None = None
        self.part: SegmentWriter | None = None
        self.part_began = 0.0
        self.message_count = self.size = self.fails = 0
        self.exhausted = 0  # Messages that were not acknowledged at their last delivery.
        self.failing_since = self.idle = 0.0
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="append")

    def __enter__(self) -> "_Receiver":
        # Messages come by thousands: the collector would scan all imported modules each time.
        gc.freeze()
        return self

    def __exit__(self, *error: object) -> None:
        gc.unfreeze()
        self.pool.shutdown(wait=True)
        if self.part is not None:
            self.part.close()

    def run(self) -> ReceiveResult:
        """Receive until a bound is reached."""
        self.about = self.queue.describe()
        previous = self.spool.last_address()
        if previous not in (None, self.about.address):
            self.log(
                f"the queue is not the one of the last receive: it was {previous}, and is now "
                f"{self.about.address}. Messages that semel did not receive from the old queue are "
                "lost, unless the new queue has them"
            )
        if previous != self.about.address:
            self.spool.note_address(self.about.address)
        self.began = self.reported_at = time.monotonic()
        try:
            self._run()
        except OSError as error:
            raise self._disk_error(error) from error
        return self.result

    def _run(self) -> None:
        try:
            while (bound := self._bound_reached()) is None:
                self._pull()
            self._flush()
            self._acknowledge()
            self._seal()
            self._note_end(bound)
        except SemelError as error:
            # The pulled messages are valid, whatever happened to the queue.
            with suppress(SemelError):
                self._flush()
                self._acknowledge()
            self._seal()
            if not isinstance(error, UnavailableError):
                raise
            progress = f"Before that: {self.result.describe()}{self._dead_letter_note()}"
            raise UnavailableError(f"{error}. {progress}") from error
        if note := self._dead_letter_note():
            self.log(note.removeprefix(". But "))

    def _note_end(self, bound: str) -> None:
        """Note which bound ended this receive, and how many messages still wait in the queue."""
        self.result.ended_by = bound
        if bound.startswith("until") and bound != "until.idle":
            with suppress(SemelError):  # All is in the spool and acknowledged.
                self.result.waiting = self.queue.describe().waiting

    def _bound_reached(self) -> str | None:
        """The bound that is reached, or None. Reports progress."""
        bounds, now = self.bounds, time.monotonic()
        if self.reported_at + PROGRESS_SECONDS <= now:
            self.reported_at = now
            self.log(f"received {count(self.message_count, 'message')} so far")
        ends = {
            "a signal": self.stop.is_set(),
            "until.idle": bounds.idle is not None and self.idle >= bounds.idle and self.idle > 0,
            "until.seconds": bounds.seconds is not None and now - self.began >= bounds.seconds,
            "until.messages": bounds.messages is not None and self.message_count >= bounds.messages,
            "until.bytes": bounds.size is not None and self.size >= bounds.size,
        }
        return next((name for name, is_reached in ends.items() if is_reached), None)

    def _pull(self) -> None:
        """Pull once; then append, acknowledge, extend and seal what is due."""
        if self.fails and not self._reconnect():
            return
        limit = self._group_limit()
        now, filling = time.monotonic(), self.filling
        in_group = len(filling.pulled)
        bound = self.bounds.messages
        to_bound = bound - self.message_count if bound else GROUP_MESSAGES
        seconds = min(PULL_SECONDS, self.about.deadline_seconds / 4)
        if in_group:
            seconds = max(0.0, min(seconds, filling.began + self._group_seconds - now))
        try:
            pulled = self.queue.pull(
                min(limit - in_group, to_bound), max(GROUP_BYTES - filling.size, 1), seconds
            )
        except UnavailableError as error:
            self._handle_failure(error)
            return
        self.fails = 0
        # Time spent on a slow disk or acknowledgement is not idle: messages may wait meanwhile.
        self.idle += time.monotonic() - now
        if len(pulled):
            self.idle = 0.0
            self.message_count += len(pulled)
            self.size += filling.add(pulled, now)
        full = len(filling.pulled) >= limit or filling.size >= GROUP_BYTES
        # Keeps Q10. An ordered queue may send the next message only after an acknowledgement.
        last = self.about.ordered or not len(pulled)
        if full or last or time.monotonic() - filling.began >= self._group_seconds:
            self._flush()
        self._acknowledge(patient=last)
        self._extend()
        old = self.part and time.monotonic() - self.part_began >= SEGMENT_SECONDS
        if self.part and (self.part.end >= SEGMENT_BYTES or (old and self.bounds.seconds is None)):
            self._acknowledge()
            self._seal()

    @property
    def _group_seconds(self) -> float:
        return STORED_GROUP_SECONDS if isinstance(self.spool.path, StorePath) else GROUP_SECONDS

    # Keeps Q8.
    def _group_limit(self) -> int:
        """The most messages of a group. If the queue limits deliveries, a failing disk must show
        before a pull, or with few messages. Raises OSError if the disk is full.
        """
        if self.about.dead_letters is None:
            return GROUP_MESSAGES
        if not len(self.filling.pulled):
            self._ensure_part()
            free = self.spool.free_bytes()
            if free is not None and free < FREE_BYTES_MIN:
                self._acknowledge()
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return min(GROUP_MESSAGES, 1 + 2 * self.result.messages)

    def _handle_failure(self, error: UnavailableError) -> None:
        """Count a failed request, and raise it if the queue has been away for too long."""
        now = time.monotonic()
        if not self.fails:
            self.failing_since = now
        self.fails += 1
        forever = self.bounds.seconds is None
        if (self.fails > 1 and not forever) or now - self.failing_since > AWAY_SECONDS:
            raise error
        if self.fails > 1:
            self._acknowledge()
            self._seal()
            self.stop.wait(1)

    # Keeps Q4.
    def _reconnect(self) -> bool:
        """Whether the queue answers again. Begins another segment if it is a different queue."""
        try:
            about = self.queue.describe()
        except UnavailableError as error:
            self._handle_failure(error)
            return False
        if about.address != self.about.address:
            # A handle of the old queue could acknowledge a message that is in no spool.
            self.message_count -= len(self.filling.pulled)
            self.size -= self.filling.size
            self.filling = _HeldMessages()
            self._acknowledge(acknowledge=False)
            self._seal()
            self.log(f"the queue has been replaced: it is now {about.address}")
        self.about = about
        return True

    def _flush(self) -> None:
        """Append the pulled messages in the second thread, after the previous group."""
        self._acknowledge()
        if not len(self.filling.pulled):
            return
        self._ensure_part()
        group, self.filling = self.filling, _HeldMessages()
        self.appending = group, self.pool.submit(_append, self.part, group.pulled)

    def _ensure_part(self) -> None:
        """Begin a part unless there is one."""
        if self.part is None:
            self.part = self.spool.new_segment(self.pipeline, self.about.address)
            self.part_began = time.monotonic()

    # Keeps Q1.
    def _acknowledge(self, *, patient: bool = True, acknowledge: bool = True) -> None:
        """Acknowledge the appended group. `patient`: wait until it is appended.

        Raises OSError if appending failed; the group then stays unacknowledged.
        """
        if self.appending is None:
            return
        group, future = self.appending
        while not wait([future], self._seconds_to_extension() if patient else 0).done:
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
        self.result.unacknowledged += refused
        self.exhausted += min(refused, self._last_deliveries(pulled))

    def _count(self, group: _HeldMessages) -> None:
        result, pulled = self.result, group.pulled
        result.messages += len(pulled)
        result.size += group.size
        result.redelivered += sum(attempt > 1 for attempt in pulled.attempts)
        if times := [at for at in pulled.published if at is not None]:
            waited = time.time() - min(times) / 1e6
            result.oldest_seconds = max(result.oldest_seconds or 0.0, waited)

    def _groups(self) -> list[_HeldMessages]:
        groups = [self.filling, *(self.appending or ())[:1]]
        return [group for group in groups if len(group.pulled)]

    def _seconds_to_extension(self) -> float:
        half = self.about.deadline_seconds / 2
        ends = [group.since + half - time.monotonic() for group in self._groups()]
        return max(0.0, min(ends, default=half))

    def _extend(self) -> None:
        """Extend each group that has used up half of its deadline."""
        now = time.monotonic()
        for group in self._groups():
            if now - group.since >= self.about.deadline_seconds / 2:
                group.since = now
                with suppress(UnavailableError):
                    self.queue.extend(group.pulled.handles)

    def _last_deliveries(self, pulled: PulledMessages) -> int:
        """The number of messages that the queue does not deliver again."""
        letters = self.about.dead_letters
        return sum(n >= letters.deliveries for n in pulled.attempts) if letters else 0

    # Keeps Q8.
    def _dead_letter_note(self) -> str:
        """A sentence about messages that used up their deliveries, to append to another one."""
        if not self.exhausted:
            return ""
        letters = self.about.dead_letters
        return (
            f". But {count(self.exhausted, 'message')} had the last of {letters.deliveries} "
            f"deliveries: the service moves them to {letters.address}, which semel does not read. "
            f"Bring them back: `{letters.restore_command}`"
        )

    def _seal(self) -> None:
        if self.part is not None:
            part, self.part = self.part, None
            try:
                part.seal(self.spool.sealed)
                self.result.segments += part.segments
            finally:
                part.close()

    def _disk_error(self, error: OSError) -> UnavailableError:
        """Hand back all messages that are not synced, and return the error about the disk."""
        for group in self._groups():
            self.exhausted += self._last_deliveries(group.pulled)
            with suppress(UnavailableError):
                self.queue.hand_back(group.pulled.handles)
        self.appending = None
        unsynced = self.message_count - self.result.messages
        stored = isinstance(self.spool.path, StorePath)
        if self.part is not None:
            self.result.segments += self.part.segments  # 0 for a file that is not sealed.
        advice = (
            "The next receive or plan makes the stored messages readable. Free some space, or "
            "repair the disk"
        )
        return UnavailableError(
            f"the spool {self.spool.path} cannot be written ({error.strerror}): "
            f"{count(unsynced, 'message')} not acknowledged, so the queue delivers them again"
            f"{self._dead_letter_note()}. Before that: {self.result.describe()}. "
            f"{'Run this again' if stored else advice}"
        )


def _append(part: SegmentWriter, pulled: PulledMessages) -> None:
    part.append(to_record_batch(pulled))
