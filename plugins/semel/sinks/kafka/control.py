"""The control topic: one note for each batch, with the number and offsets of its landed rows.

It is compacted: Kafka keeps the last note of each key (pipeline and batch). semel writes a note in
the transaction of its batch's messages. So a `read_committed` consumer that sees the note also sees
every message.
"""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Self

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from semel.clients.kafka.cluster import ANSWER_SECONDS, Cluster
from semel.errors import CorruptionError, UnavailableError
from semel.model.plain import parse_json
from semel.sinks import CommittedBatch
from semel.sinks.kafka.ends import Spans, TopicEnds, topic_ends
from semel.storage import at

FORMAT = 1

_AT_ONCE = 10_000
_LAST = 200
"""How many offsets at the end of a partition to read for the last notes. Each cut of a batch takes
two: a note and a transaction marker."""
_POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class ControlNote:
    """How much of a batch has landed.

    The first `rows` of its `total` rows have landed, in the order of its files, except for the row
    numbers in `refused`, whose loss a user accepted. The messages lie in `spans`, perhaps among
    others. `ledger`: as in `semel.sinks.BatchNote`.
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
    def of(cls, batch: CommittedBatch) -> Self:
        """The note of a batch before any of its rows land."""
        return cls(
            pipeline=batch.pipeline,
            batch_id=batch.batch_id,
            commit_seq=batch.commit_seq,
            fence=batch.fence,
            digest=batch.digest,
            total=sum(file.records for file in batch.files),
            ledger=batch.ledger,
        )

    @property
    def landed(self) -> bool:
        """Whether all rows have landed."""
        return self.rows == self.total

    @property
    def key(self) -> bytes:
        return key_of(self.pipeline, self.batch_id)

    def with_cut(self, rows: int, spans: Spans, refused: tuple[int, ...]) -> Self:
        """The note after one more cut, which ends at row number `rows` and lies in `spans`."""
        first = {part: start for part, (start, _) in self.spans.items()}
        grown = {part: (first.get(part, start), end) for part, (start, end) in spans.items()}
        return replace(self, rows=rows, spans=grown, refused=(*self.refused, *refused))

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises ValueError if it is not a note, or its format is unknown."""
        plain = parse_json(data)
        if plain.pop("format", None) != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        spans = {int(part): (int(a), int(b)) for part, (a, b) in plain.pop("spans").items()}
        return cls(**{**plain, "refused": tuple(plain["refused"])}, spans=spans)


Notes = dict[tuple[str, int], ControlNote | CorruptionError]
"""The notes by pipeline and batch number. A damaged note is its error."""


def key_of(pipeline: str, batch_id: int) -> bytes:
    """The key of a batch's notes."""
    return json.dumps([pipeline, batch_id], separators=(",", ":")).encode()


def find_note(
    cluster: Cluster,
    topic: str,
    pipeline: str,
    batch_id: int,
    seconds: float,
    since: TopicEnds | None = None,
) -> ControlNote | None:
    """The note of one batch, written after `since`. Raises the errors of `_committed`."""
    key, last = key_of(pipeline, batch_id), None
    for message in _committed(cluster, topic, seconds, since):
        if message.key() == key:
            last = message
    return None if last is None else _note(topic, last)


def batch_note(
    cluster: Cluster, topic: str, batch: CommittedBatch, seconds: float
) -> ControlNote | None:
    """The note of a committed batch. It reads from the topic ends that stage saved."""
    since = TopicEnds.load(at(batch.files[0].staged_path).parent) if batch.files else None
    return find_note(cluster, topic, batch.pipeline, batch.batch_id, seconds, since)


def all_notes(cluster: Cluster, topic: str, seconds: float) -> Notes:
    """The notes of all batches of all pipelines. Raises the errors of `_committed`."""
    return _notes(topic, _committed(cluster, topic, seconds))


# Keeps H2.
def newest_notes(
    cluster: Cluster,
    topic: str,
    seconds: float,
    since: TopicEnds | None,
    has: tuple[str, int] | None,
) -> tuple[Notes, bool]:
    """The last notes and those written after `since`, and whether these are all notes.

    It returns all notes if the note of the batch `has` is not among the last ones, or `since` or
    `has` is None. It leaves out notes that an open transaction hides.
    """
    hidden = False

    def visible(since: TopicEnds | None) -> Iterator[Message]:
        nonlocal hidden
        try:
            yield from _committed(cluster, topic, seconds, since, _LAST)
        except BlockedError:
            hidden = True

    if since and has and has in (notes := _notes(topic, visible(since))):
        return notes, False
    return _notes(topic, visible(None)), not hidden


# Keeps KP13.
def _notes(topic: str, messages: Iterable[Message]) -> Notes:
    """The last note of each batch in these messages of the topic."""
    last_messages: dict[tuple[str, int], Message] = {}
    for message in messages:
        if batch := _batch_of(message.key() or b""):
            last_messages[batch] = message
    notes: Notes = {}
    for batch, message in last_messages.items():
        try:
            note = _note(topic, message)
        except CorruptionError as error:
            notes[batch] = error
        else:
            if note is not None:
                notes[batch] = note
    return notes


def _batch_of(key: bytes) -> tuple[str, int] | None:
    """The pipeline and batch number of a key. Returns None if it is not the key of a note."""
    try:
        pipeline, number = parse_json(key)
        return (pipeline, number) if key_of(pipeline, number) == key else None
    except (ValueError, TypeError):
        return None


class BlockedError(UnavailableError):
    """An open transaction hides whether later ones have committed."""


def _note(topic: str, message: Message) -> ControlNote | None:
    """A message's note. Returns None for a tombstone, with which a user has deleted the note."""
    if message.value() is None:
        return None
    try:
        note = ControlNote.from_bytes(message.value())
        if note.key != message.key():
            raise ValueError(f"it is the note of batch {note.batch_id}")
        return note
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptionError(
            f"{topic}, partition {message.partition()}, offset {message.offset()} is not a valid "
            f"note, but has the key of one, {message.key().decode()} ({error}). Another program or "
            "a later version of semel has written it. Revoke that program's right to write, and "
            "write the note again with that key and its original value"
        ) from error


# Keeps KP3.
def _committed(
    cluster: Cluster, topic: str, seconds: float, since: TopicEnds | None = None, last: int = 0
) -> Iterator[Message]:
    """All committed messages that a topic has at the time of the call.

    It may skip messages from before `since`, except for the `last` offsets of each partition.
    Raises BlockedError if a transaction that hides the last ones stays open longer than `seconds`,
    and UnavailableError if the cluster does not answer.
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
    """The committed messages in `spans`, in order within each partition.

    `seconds` and the errors: as for `_committed`.
    """
    remaining = {part: end for part, (start, end) in spans.items() if start < end}
    if not remaining:
        return
    settings = {
        "isolation_level": "read_committed",
        "enable_partition_eof": True,
        "auto_offset_reset": "error",
        "fetch_wait_max_ms": 20,
    }
    with cluster.consumer(**settings) as consumer:
        # Numeric offsets, because a symbolic one (OFFSET_BEGINNING) takes half a second.
        consumer.assign([TopicPartition(topic, part, spans[part][0]) for part in remaining])
        at_end: set[int] = set()
        moved = time.monotonic()
        while remaining:
            # `consume` waits until it has as many messages, so take only those that have arrived.
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
                    at_end.add(part)
                elif message.error().code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    continue  # The client looks up its group unasked; semel joins none.
                else:
                    raise KafkaException(message.error())
                if part in remaining and at >= remaining[part]:
                    del remaining[part]
            waited = time.monotonic() - moved
            if waited > seconds:  # The client reports no end to a reader that starts beyond it.
                for part in remaining.keys() - at_end:
                    partition = TopicPartition(topic, part)
                    _, stable = consumer.get_watermark_offsets(partition, ANSWER_SECONDS)
                    if stable < spans[part][0]:
                        at_end.add(part)
            if remaining.keys() <= at_end and remaining and waited > seconds:
                raise BlockedError(
                    f"{topic}: an open transaction hides later messages. Its producer ends it, or "
                    "the broker aborts it within transaction.timeout.ms. Then run this again"
                )
            if remaining and waited > max(seconds, ANSWER_SECONDS):
                raise UnavailableError(f"{cluster} does not answer. Start it")
