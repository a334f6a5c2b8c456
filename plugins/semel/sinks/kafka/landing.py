"""How a batch lands: its messages and its note in one transaction, or in several behind each other.

1. `init_transactions` with the batch's own transactional.id: whoever had it before is fenced, and
   what that one left open is aborted.
2. Only then the note of the batch is read, to the end that the control topic has by now.
3. What has not landed is written and committed, each cut with its note.
A later publish fences this one in the same way: its next call, a commit as well, fails.
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
"""Bytes of messages that a producer holds until they are sent."""

_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_REFUSED = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD)
_BATCH_BYTES = 1_000_000
_BLOCKS = 8
_COMMIT_SECONDS = 30
_LOOK_SECONDS = 0.2
_POLL_SECONDS = 0.1
_MESSAGE_BYTES_MIN = 1_000

_Block = tuple[int, EncodedMessages]
"""Messages, and the row that they end before."""


@dataclass(frozen=True, kw_only=True)
class Refusals:
    """Rows of a batch, by their numbers in it, that do not become messages."""

    numbers: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def within(self, start: int, stop: int) -> np.ndarray:
        """Those from a row to another, as numbers from the first on."""
        low, high = np.searchsorted(self.numbers, (start, stop))
        return self.numbers[low:high] - start


def land(target: KafkaTarget, won: CommittedBatch, facts: TopicFacts, refusals: Refusals) -> None:
    """Let a batch land, unless it has, or a later call of this fences this one.

    UnavailableError: the cluster is away. OutcomeUnknownError: the reply to a commit was lost.
    TerminalError: the topic refuses a message.
    """
    try:
        with producer_of(target, won.pipeline, str(won.batch_id), facts) as producer:
            # Keeps KP2.
            failpoints.point("sink.after_fence")
            found = _find(target, won)
            if found is not None and (found.digest != won.digest or found.landed):
                return
            with target.cluster.admin() as admin:
                note = found or ControlNote.of(won)
                _Landing(target, won, producer, admin, note, refusals).run()
    except _FencedError:
        _wait(target, won)


@contextmanager
def producer_of(
    target: KafkaTarget, pipeline: str, name: str, facts: TopicFacts
) -> Iterator[Producer]:
    """A producer whose transactional.id nobody else has from now on."""
    settings = {
        "transactional_id": target.transactional_id(pipeline, name),
        "transaction_timeout_ms": limits.KAFKA_TRANSACTION_SECONDS * 1000,
        "partitioner": "murmur2_random",  # As Java's producers choose partitions for a key.
        "compression_type": "lz4",
        "linger_ms": 20,
        "batch_size": min(_BATCH_BYTES, facts.bytes_max),
        "message_max_bytes": max(_MESSAGE_BYTES_MIN, facts.bytes_max),
        "queue_buffering_max_kbytes": max(KAFKA_QUEUED_BYTES, 2 * facts.bytes_max) >> 10,
        "queue_buffering_max_messages": 0,
        "delivery_report_only_error": True,
    }
    with target.cluster.producer(**settings) as producer:
        # The coordinator is found at once only where a connection is there: else in half a second.
        if facts.exists:  # Asking for one that is not there may make it.
            producer.list_topics(target.topic, timeout=ANSWER_SECONDS)
        with _known():
            producer.init_transactions(ANSWER_SECONDS)
        yield producer


class _FencedError(RetryableError):
    """A later producer of the same transactional.id is at work."""


@contextmanager
def _known() -> Iterator[None]:
    """Tells that this producer was fenced from all else that its calls raise."""
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() in _FENCED:
            raise _FencedError(
                f"another process is at work with this transactional.id ({error.args[0].name()}); "
                "wait for it, then run this again"
            ) from error
        raise


class _Landing:
    """One publish of a batch: all cuts that have not landed."""

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
        """Write what is missing. A transaction ends when it has `transaction_bytes`."""
        done = self._note.rows
        with closing(_ahead(self._blocks())) as blocks:
            block = next(blocks, None)
            while True:
                with _known(), self._transaction():
                    starts = self._ends()
                    size = 0
                    while block is not None and size < self._target.transaction_bytes:
                        done, some = block
                        self._produce(some)
                        size += some.size
                        block = next(blocks, None)
                    if block is None:
                        check_count(self._won, done)
                    self._write_note(done, starts)
                    failpoints.point("sink.before_cut")
                failpoints.point("sink.after_cut")
                if block is None:
                    return

    def _blocks(self) -> Iterator[_Block]:
        """Messages of the rows that have not landed, each with the row that it ends before."""
        # Transactions end between blocks; so these are small beside one.
        at_once = min(PIECE_BYTES_MAX, self._target.transaction_bytes // _BLOCKS)
        end = 0
        for rows in staged(self._won, bytes_max=at_once):
            start, end = end, end + rows.num_rows
            if end <= self._note.rows:
                continue
            skipped = max(0, self._note.rows - start)
            kept = np.ones(rows.num_rows, dtype=bool)
            kept[:skipped] = False
            kept[self._refusals.within(start, end)] = False
            some = rows if kept.all() else rows.filter(pa.array(kept))
            yield end, encode_messages(self._target, self._won, some)

    def _produce(self, some: EncodedMessages) -> None:
        """Hand messages to the producer, one after the other.

        `produce_batch` takes a dictionary for each, and a third more processor time; no headers.
        """
        produce, topic = self._producer.produce, self._target.topic
        if not some.headers:
            for value, key in zip(some.values, some.keys, strict=True):
                while True:
                    try:
                        produce(topic, value, key)
                        break
                    except BufferError:
                        self._producer.poll(_POLL_SECONDS)
            return
        names = [name for name, _ in self._target.headers]
        for value, key, *own in zip(some.values, some.keys, *some.headers, strict=True):
            # Pairs that are made here are freed at once. Kept, they would cost as much again, for
            # the garbage collector walks over all of them, again and again.
            headers = list(zip(names, own, strict=True))
            while True:
                try:
                    produce(topic, value, key, headers=headers)
                    break
                except BufferError:
                    self._producer.poll(_POLL_SECONDS)

    # Keeps KP1.
    def _write_note(self, rows: int, starts: Spans) -> None:
        """Write how far the batch has landed with this cut, behind all of its messages."""
        if self._producer.flush(limits.KAFKA_TRANSACTION_SECONDS):
            raise UnavailableError(
                f"{self._target.cluster} did not take the messages of batch {self._won.batch_id} "
                f"within {limits.KAFKA_TRANSACTION_SECONDS} s; none of this transaction is visible"
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
        """A transaction, committed at the end of the block; after an error it is aborted."""
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
                    f"messages ({error.args[0].name()}); it has committed and stays so. Raise the "
                    "topic's max.message.bytes and run finalize again, or `semel accept "
                    f"{self._won.pipeline} --refused {self._won.batch_id}` lands the other rows "
                    "and keeps these in the archive",
                    next=AGAIN,
                ) from error
            raise

    def _commit(self) -> None:
        """KafkaException: it has failed. OutcomeUnknownError: nobody knows."""
        deadline = time.monotonic() + _COMMIT_SECONDS
        while True:
            try:
                self._producer.commit_transaction(ANSWER_SECONDS)
                return
            except KafkaException as error:
                said: KafkaError = error.args[0]
                if said.retriable() and time.monotonic() < deadline:
                    continue
                if said.txn_requires_abort() or said.code() in _FENCED:
                    raise
                raise OutcomeUnknownError(
                    f"{self._target.address}: the reply to a commit was lost "
                    f"({said.name()}); run finalize again, which finds out what landed"
                ) from error


def _ahead(blocks: Iterator[_Block]) -> Iterator[_Block]:
    """The same; each is made while the one before is handed to the producer."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, blocks, None)
        while (block := coming.result()) is not None:
            coming = thread.submit(next, blocks, None)
            yield block


def _find(target: KafkaTarget, won: CommittedBatch) -> ControlNote | None:
    seconds = limits.KAFKA_TRANSACTION_SECONDS
    return control.batch_note(target.cluster, target.control, won, seconds)


# Keeps KP4.
def _wait(target: KafkaTarget, won: CommittedBatch) -> None:
    """Wait for the one that fenced this publish: fencing that one in turn would go on for ever.

    Returns when it is done, or has got no further for as long as a transaction may be open.
    """
    rows, moved = -1, time.monotonic()
    while time.monotonic() - moved < limits.KAFKA_TRANSACTION_SECONDS:
        found = _find(target, won)
        if found is not None and found.landed:
            return
        if found is not None and found.rows > rows:
            rows, moved = found.rows, time.monotonic()
        time.sleep(_LOOK_SECONDS)
