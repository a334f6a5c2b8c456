"""Publishes a batch: its messages and its note in one transaction, or in several successive ones.

1. `init_transactions` with the batch's own transactional.id fences any earlier producer with that
   id, and aborts its open transaction.
2. Only then semel reads the note of the batch, up to the current end of the control topic.
3. It writes and commits the rows that have not landed, each cut together with its note.
A later publish fences this one in the same way: its next call fails, even a commit.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from semel import failpoints, limits
from semel.clients.kafka.cluster import ANSWER_SECONDS
from semel.errors import (
    AGAIN,
    OutcomeUnknownError,
    RetryableError,
    TerminalError,
    UnavailableError,
)
from semel.formats.pieces import PIECE_BYTES_MAX
from semel.sinks import CommittedBatch
from semel.sinks.kafka import control
from semel.sinks.kafka.control import ControlNote
from semel.sinks.kafka.encode import EncodedMessages, encode_messages
from semel.sinks.kafka.ends import Spans, topic_ends
from semel.sinks.kafka.facts import TopicFacts
from semel.sinks.kafka.target import KafkaTarget
from semel.sinks.staged import check_count, staged

KAFKA_QUEUED_BYTES = 128 << 20
"""The size of a producer's send buffer."""

_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_REFUSED = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD)
_BATCH_BYTES = 1_000_000
_BLOCKS = 8
_COMMIT_SECONDS = 30
_LOOK_SECONDS = 0.2
_POLL_SECONDS = 0.1
_MESSAGE_BYTES_MIN = 1_000

_Block = tuple[int, EncodedMessages]
"""The number of the row after the last one, and the messages."""


@dataclass(frozen=True, kw_only=True)
class Refusals:
    """The numbers of the rows of a batch that do not become messages."""

    numbers: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def within(self, start: int, stop: int) -> np.ndarray:
        """The refused rows in [start, stop), as offsets from `start`."""
        low, high = np.searchsorted(self.numbers, (start, stop))
        return self.numbers[low:high] - start


def land(target: KafkaTarget, batch: CommittedBatch, facts: TopicFacts, refusals: Refusals) -> None:
    """Write the rest of a batch. If a later call fences this one, wait for that one instead.

    Raises UnavailableError if the cluster does not answer, OutcomeUnknownError if the reply to a
    commit was lost, and TerminalError if the topic refuses a message.
    """
    try:
        with producer_of(target, batch.pipeline, str(batch.batch_id), facts) as producer:
            # Keeps KP2.
            failpoints.point("sink.after_fence")
            earlier = _batch_note(target, batch)
            if earlier is not None and (earlier.digest != batch.digest or earlier.landed):
                return
            with target.cluster.admin() as admin:
                note = earlier or ControlNote.of(batch)
                _Landing(target, batch, producer, admin, note, refusals).run()
    except _FencedError:
        _wait_for_rival(target, batch)


@contextmanager
def producer_of(
    target: KafkaTarget, pipeline: str, name: str, facts: TopicFacts
) -> Iterator[Producer]:
    """A producer that has fenced all earlier ones with its transactional.id."""
    settings = {
        "transactional_id": target.transactional_id(pipeline, name),
        "transaction_timeout_ms": limits.KAFKA_TRANSACTION_SECONDS * 1000,
        "partitioner": "murmur2_random",  # The default of Java's producers for a key.
        "compression_type": "lz4",
        "linger_ms": 20,
        "batch_size": min(_BATCH_BYTES, facts.bytes_max),
        "message_max_bytes": max(_MESSAGE_BYTES_MIN, facts.bytes_max),
        "queue_buffering_max_kbytes": max(KAFKA_QUEUED_BYTES, 2 * facts.bytes_max) >> 10,
        "queue_buffering_max_messages": 0,
        "delivery_report_only_error": True,
    }
    with target.cluster.producer(**settings) as producer:
        # Without an open connection, finding the coordinator takes half a second.
        if facts.exists:  # A request for a missing topic may create it.
            producer.list_topics(target.topic, timeout=ANSWER_SECONDS)
        with _detect_fencing():
            producer.init_transactions(ANSWER_SECONDS)
        yield producer


class _FencedError(RetryableError):
    """A later producer has the same transactional.id."""


@contextmanager
def _detect_fencing() -> Iterator[None]:
    """Raise _FencedError instead of the KafkaException of a fenced producer."""
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() in _FENCED:
            raise _FencedError(
                f"another process uses this transactional.id ({error.args[0].name()}). Wait for it, "
                "then run this again"
            ) from error
        raise


class _Landing:
    """One publish of a batch: all its remaining cuts."""

    def __init__(
        self,
        target: KafkaTarget,
        won: CommittedBatch,
        producer: Producer,
        admin: AdminClient,
        note: ControlNote,
        refusals: Refusals,
    ) -> None:
        self._target, self._won = target, won
        self._producer, self._admin = producer, admin
        self._note, self._refusals = note, refusals

    # Keeps KP11.
    def run(self) -> None:
        """Write the missing rows. A transaction ends once it has `transaction_bytes`."""
        landed = self._note.rows
        with closing(_prefetch(self._blocks())) as blocks:
            block = next(blocks, None)
            while True:
                with _detect_fencing(), self._transaction():
                    starts = self._ends()
                    size = 0
                    while block is not None and size < self._target.transaction_bytes:
                        landed, messages = block
                        self._produce(messages)
                        size += messages.size
                        block = next(blocks, None)
                    if block is None:
                        check_count(self._won, landed)
                    self._write_note(landed, starts)
                    failpoints.point("sink.before_cut")
                failpoints.point("sink.after_cut")
                if block is None:
                    return

    def _blocks(self) -> Iterator[_Block]:
        """Blocks of messages of the rows that have not landed."""
        # Transactions end between blocks, so a block must be small in comparison.
        at_once = min(PIECE_BYTES_MAX, self._target.transaction_bytes // _BLOCKS)
        end = 0
        for rows in staged(self._won, bytes_max=at_once):
            start, end = end, end + rows.num_rows
            if end <= self._note.rows:
                continue
            skipped = max(0, self._note.rows - start)
            selected = np.ones(rows.num_rows, dtype=bool)
            selected[:skipped] = False
            selected[self._refusals.within(start, end)] = False
            chosen = rows if selected.all() else rows.filter(pa.array(selected))
            yield end, encode_messages(self._target, self._won, chosen)

    def _produce(self, messages: EncodedMessages) -> None:
        """Pass messages to the producer one by one.

        `produce_batch` needs a dictionary for each and a third more CPU time, and lacks headers.
        """
        produce, topic = self._producer.produce, self._target.topic
        if not messages.headers:
            for value, key in zip(messages.values, messages.keys, strict=True):
                while True:
                    try:
                        produce(topic, value, key)
                        break
                    except BufferError:
                        self._producer.poll(_POLL_SECONDS)
            return
        names = [name for name, _ in self._target.headers]
        columns = messages.values, messages.keys, *messages.headers
        for value, key, *texts in zip(*columns, strict=True):
            # These pairs are freed at once. If all were built before the loop, the garbage
            # collector would traverse them repeatedly, which doubles the cost.
            headers = list(zip(names, texts, strict=True))
            while True:
                try:
                    produce(topic, value, key, headers=headers)
                    break
                except BufferError:
                    self._producer.poll(_POLL_SECONDS)

    # Keeps KP1.
    def _write_note(self, rows: int, starts: Spans) -> None:
        """Write the note of this cut, after all of its messages."""
        if self._producer.flush(limits.KAFKA_TRANSACTION_SECONDS):
            raise UnavailableError(
                f"{self._target.cluster} did not accept the messages of batch {self._won.batch_id} "
                f"within {limits.KAFKA_TRANSACTION_SECONDS} s. This transaction was not committed"
            )
        spans = {
            part: (starts[part][1] if part in starts else 0, end)
            for part, (_, end) in self._ends().items()
        }
        refused = self._refusals.within(self._note.rows, rows) + self._note.rows
        self._note = self._note.with_cut(rows, spans, tuple(refused.tolist()))
        self._producer.produce(self._target.control, self._note.to_bytes(), self._note.key)

    def _ends(self) -> Spans:
        return topic_ends(self._admin, self._target.topic).spans

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction, committed at the end of the block and aborted after an error."""
        self._producer.begin_transaction()
        try:
            yield
            self._commit()
        except OutcomeUnknownError:
            raise
        except BaseException as error:
            with suppress(KafkaException):
                self._producer.abort_transaction(ANSWER_SECONDS)
            if isinstance(error, KafkaException) and error.args[0].code() in _REFUSED:
                raise TerminalError(
                    f"batch {self._won.batch_id}: {self._target.address} refuses one of its "
                    f"messages ({error.args[0].name()}). The batch stays committed. Raise the "
                    "topic's max.message.bytes and run finalize again, or run `semel accept "
                    f"{self._won.pipeline} --refused {self._won.batch_id}` to publish the other "
                    "rows and keep the refused ones in the archive",
                    next=AGAIN,
                ) from error
            raise

    def _commit(self) -> None:
        """Raises KafkaException if it failed, OutcomeUnknownError if its reply was lost."""
        deadline = time.monotonic() + _COMMIT_SECONDS
        while True:
            try:
                self._producer.commit_transaction(ANSWER_SECONDS)
                return
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if reason.retriable() and time.monotonic() < deadline:
                    continue
                if reason.txn_requires_abort() or reason.code() in _FENCED:
                    raise
                raise OutcomeUnknownError(
                    f"{self._target.address}: the reply to a commit was lost "
                    f"({reason.name()}). Run finalize again; it checks which messages have landed"
                ) from error


def _prefetch(blocks: Iterator[_Block]) -> Iterator[_Block]:
    """The same blocks. A thread prepares each one while the caller sends the previous one."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, blocks, None)
        while (block := coming.result()) is not None:
            coming = thread.submit(next, blocks, None)
            yield block


def _batch_note(target: KafkaTarget, batch: CommittedBatch) -> ControlNote | None:
    seconds = limits.KAFKA_TRANSACTION_SECONDS
    return control.batch_note(target.cluster, target.control, batch, seconds)


# Keeps KP4.
def _wait_for_rival(target: KafkaTarget, batch: CommittedBatch) -> None:
    """Wait for the publish that fenced this one. Fencing it in turn could go on for ever.

    Returns when it has finished, or has made no progress for the time of a transaction.
    """
    rows, moved = -1, time.monotonic()
    while time.monotonic() - moved < limits.KAFKA_TRANSACTION_SECONDS:
        note = _batch_note(target, batch)
        if note is not None and note.landed:
            return
        if note is not None and note.rows > rows:
            rows, moved = note.rows, time.monotonic()
        time.sleep(_LOOK_SECONDS)
