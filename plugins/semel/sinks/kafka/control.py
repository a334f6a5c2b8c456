"""The control topic: one note for each batch, which says how much of it has landed, and where.

It is compacted: of each key, a pipeline and a batch, the last note stays. A note is in the same
transaction as the messages that it speaks of, so whoever reads it, reading committed messages
alone, finds all of them.
"""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from semel.clients.kafka.cluster import ANSWER_SECONDS, Cluster
from semel.errors import CorruptionError, UnavailableError
from semel.model.plain import parsed
from semel.sinks import CommittedBatch
from semel.sinks.kafka.ends import TopicEnds, Spans, topic_ends

FORMAT = 1

_AT_ONCE = 10_000
_LAST = 200
"""Offsets of a partition that hold its last notes: a batch has two, its note and the mark of its
transaction, and two more for each cut."""
_POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class ControlNote:
    """What has landed of a batch.

    `rows` of its `total` rows have, in the order of its files; `refused` are the numbers of those
    among them that the topic did not take, which was accepted. Other messages may lie in `spans`.
    `ledger`: as of `semel.sinks.BatchNote`.
    """

    pipeline: str
    batch_id: int
    commit_seq: int
    fence: int
    digest: str
    total: int
    ledger: str
    rows: int = 0
    refused: tuple[int, ...] = ()
    spans: Spans = field(default_factory=dict)

    @classmethod
    def of(cls, won: CommittedBatch) -> Self:
        """That of a batch of which nothing has landed."""
        return cls(
            pipeline=won.pipeline,
            batch_id=won.batch_id,
            commit_seq=won.commit_seq,
            fence=won.fence,
            digest=won.digest,
            total=sum(file.records for file in won.files),
            ledger=won.ledger,
        )

    @property
    def landed(self) -> bool:
        """Whether all of it has."""
        return self.rows == self.total

    @property
    def key(self) -> bytes:
        return key_of(self.pipeline, self.batch_id)

    def with_cut(self, rows: int, spans: Spans, refused: tuple[int, ...]) -> Self:
        """With one cut more: up to row number `rows`, within `spans`."""
        first = {part: start for part, (start, _) in self.spans.items()}
        grown = {part: (first.get(part, start), end) for part, (start, end) in spans.items()}
        return replace(self, rows=rows, spans=grown, refused=(*self.refused, *refused))

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """ValueError: it is none, or of a format that is unknown here."""
        plain = parsed(data)
        if plain.pop("format", None) != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        spans = {int(part): (int(a), int(b)) for part, (a, b) in plain.pop("spans").items()}
        return cls(**{**plain, "refused": tuple(plain["refused"])}, spans=spans)


Notes = dict[tuple[str, int], ControlNote | CorruptionError]
"""The notes by pipeline and batch; where one is damaged, what is said of it."""


def key_of(pipeline: str, batch_id: int) -> bytes:
    """What a batch's notes are kept under."""
    return json.dumps([pipeline, batch_id], separators=(",", ":")).encode()


def find_note(
    cluster: Cluster,
    topic: str,
    pipeline: str,
    batch_id: int,
    seconds: float,
    since: TopicEnds | None = None,
) -> ControlNote | None:
    """The note of one batch, written after `since` was asked. Raises as `_committed` does."""
    wanted, found = key_of(pipeline, batch_id), None
    for message in _committed(cluster, topic, seconds, since):
        if message.key() == wanted:
            found = message
    return None if found is None else _note(topic, found)


def batch_note(
    cluster: Cluster, topic: str, won: CommittedBatch, seconds: float
) -> ControlNote | None:
    """The same of a committed batch, of whose topic stage has kept where it ended."""
    since = TopicEnds.load(Path(won.files[0].staged_path).parent) if won.files else None
    return find_note(cluster, topic, won.pipeline, won.batch_id, seconds, since)


def all_notes(cluster: Cluster, topic: str, seconds: float) -> Notes:
    """The notes of all batches, of whichever pipeline. Raises as `_committed` does."""
    return _notes(topic, _committed(cluster, topic, seconds))


# Keeps H2.
def newest_notes(
    cluster: Cluster,
    topic: str,
    seconds: float,
    since: TopicEnds | None,
    has: tuple[str, int] | None,
) -> tuple[Notes, bool]:
    """The last notes, and those that were written after `since`, but for what an open transaction
    hides; and all of them, where the one of the batch `has` is not among these, or either is not
    known. Then whether these are all.
    """
    hidden = False

    def seen(since: TopicEnds | None) -> Iterator[Message]:
        nonlocal hidden
        try:
            yield from _committed(cluster, topic, seconds, since, _LAST)
        except BlockedError:
            hidden = True

    if since and has and has in (notes := _notes(topic, seen(since))):
        return notes, False
    return _notes(topic, seen(None)), not hidden


# Keeps KP13.
def _notes(topic: str, messages: Iterable[Message]) -> Notes:
    """The last note of each batch among some messages of the topic."""
    found: dict[tuple[str, int], Message] = {}
    for message in messages:
        if batch := _batch_of(message.key() or b""):
            found[batch] = message
    notes: Notes = {}
    for batch, message in found.items():
        try:
            note = _note(topic, message)
        except CorruptionError as error:
            notes[batch] = error
        else:
            if note is not None:
                notes[batch] = note
    return notes


def _batch_of(key: bytes) -> tuple[str, int] | None:
    """The pipeline and the number of the batch whose notes are kept under a key; None: it is none.
    """
    try:
        pipeline, number = parsed(key)
        return (pipeline, number) if key_of(pipeline, number) == key else None
    except (ValueError, TypeError):
        return None


class BlockedError(UnavailableError):
    """A transaction that is open hides whether a later one has committed."""


def _note(topic: str, message: Message) -> ControlNote | None:
    """A message's note. None: somebody has removed it, by a message without a value."""
    if message.value() is None:
        return None
    try:
        note = ControlNote.from_bytes(message.value())
        if note.key != message.key():
            raise ValueError(f"it is that of batch {note.batch_id}")
        return note
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptionError(
            f"{topic}, partition {message.partition()}, offset {message.offset()} is no note of a "
            f"batch, and stands under the key {message.key().decode()} of one ({error}); somebody "
            "else writes there, or a later semel did. Take its right to write away, and restore "
            "the note: under that key, with the value that it had"
        ) from error


# Keeps KP3.
def _committed(
    cluster: Cluster, topic: str, seconds: float, since: TopicEnds | None = None, last: int = 0
) -> Iterator[Message]:
    """All committed messages of a topic that were there when this was called.

    Those from before `since` may be left out, but for what `last` offsets of each partition hold.
    `seconds` is how long a transaction may stay open that hides the last of them. BlockedError: it
    stays open for longer. UnavailableError: the cluster is away.
    """
    with cluster.admin() as admin:
        ends = topic_ends(admin, topic)
    spans = {
        part: (max(ends.spans[part][0], min(start, end - last)), end)
        for part, (start, end) in ends.written_since(since).items()
    }
    yield from committed_messages(cluster, topic, spans, seconds)


def committed_messages(
    cluster: Cluster,
    topic: str,
    spans: Spans,
    seconds: float,
) -> Iterator[Message]:
    """The committed messages of partitions from an offset to another, those of one in order.

    `seconds`: as of `_committed`, and so the errors.
    """
    left = {part: end for part, (start, end) in spans.items() if start < end}
    if not left:
        return
    settings = {
        "isolation_level": "read_committed",
        "enable_partition_eof": True,
        "auto_offset_reset": "error",
        "fetch_wait_max_ms": 20,
    }
    with cluster.consumer(**settings) as consumer:
        # Each from a number: a name such as OFFSET_BEGINNING takes half a second.
        consumer.assign([TopicPartition(topic, part, spans[part][0]) for part in left])
        seen: set[int] = set()
        moved = time.monotonic()
        while left:
            # To ask for many at once waits for as many; so only what has come is asked for.
            first = consumer.poll(_POLL_SECONDS)
            for message in [first, *consumer.consume(_AT_ONCE, 0)] if first else ():
                part = message.partition()
                if message.error() is None:
                    moved = time.monotonic()
                    if message.offset() < spans[part][1]:
                        yield message
                    at = message.offset() + 1
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    at = message.offset()
                    seen.add(part)
                elif message.error().code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    continue  # The client asks for its group by itself; nothing here needs one.
                else:
                    raise KafkaException(message.error())
                if part in left and at >= left[part]:
                    del left[part]
            waited = time.monotonic() - moved
            if waited > seconds:  # To who begins behind what is certain, no end of it is told.
                for part in left.keys() - seen:
                    place = TopicPartition(topic, part)
                    _, certain = consumer.get_watermark_offsets(place, ANSWER_SECONDS)
                    if certain < spans[part][0]:
                        seen.add(part)
            if left.keys() <= seen and left and waited > seconds:
                raise BlockedError(
                    f"{topic}: a transaction is open, so what comes behind it is not yet certain; "
                    "its producer goes on, or its broker aborts it within "
                    "transaction.timeout.ms. Run this again then"
                )
            if left and waited > max(seconds, ANSWER_SECONDS):
                raise UnavailableError(f"{cluster} does not answer; start it")
