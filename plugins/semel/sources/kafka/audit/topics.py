"""Reads the messages at claimed offsets again, with the audit's own reader."""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semel import limits
from semel.clients.kafka.cluster import (
    ANSWER_SECONDS,
    Cluster,
    kafka_package,
    query_offsets,
    translate_error,
)
from semel.clients.kafka.registry import Registry
from semel.errors import CorruptionError, SourceError, UnavailableError
from semel.model.batch import Claim
from semel.sources.kafka.audit.schemas import Schemas, ValueTexts
from semel.sources.kafka.spec import KafkaSourceSpec
from semel.sources.messages import ALL
from semel.sources.reread import (
    Auditor,
    ClaimedMessages,
    ClaimedRecords,
    RecordsLostError,
    build_columns,
    csv_faults,
    text_columns,
)

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from confluent_kafka.admin import AdminClient

_AT_ONCE = 10_000
"""The largest number of messages in one request."""

_WAIT_SECONDS = 0.05
"""How long one request waits for that many."""

_SILENT_SECONDS = 30
"""After this time without an expected message, a cluster counts as unavailable."""


@dataclass(frozen=True, kw_only=True)
class _TopicOffsets:
    """An existing topic: its id as in claims, and the readable offsets of each partition.

    A span is the first offset, and the one after the last.
    """

    topic_id: str
    spans: dict[int, tuple[int, int]]


@contextmanager
def opened(source: KafkaSourceSpec, claims: Iterable[Claim]) -> "Iterator[TopicAuditor]":  # noqa: ARG001
    """The auditor of the topics that claims name."""
    cluster = Cluster(connection=source.connection, servers=source.bootstrap_servers)
    reading = cluster.consumer(
        isolation_level="read_committed", auto_offset_reset="error", enable_partition_eof=True,
        check_crcs=True, fetch_wait_max_ms=50,
    )  # fmt: skip
    with reading as consumer, cluster.admin() as admin, ExitStack() as registries:
        yield TopicAuditor(cluster, consumer, admin, registries, source)


class TopicAuditor(Auditor):
    """Reads from one cluster, with one consumer."""

    def __init__(
        self,
        cluster: Cluster,
        consumer: "Consumer",
        admin: "AdminClient",
        registries: ExitStack,
        source: KafkaSourceSpec,
    ) -> None:
        self._cluster, self._consumer, self._admin = cluster, consumer, admin
        self._source = source
        self._topic_offsets, self._compacts = cache(self._describe_topic), cache(self._is_compacted)
        self._schemas = cache(lambda at: Schemas(Registry(declared=at), registries))

    def read(
        self,
        claim: Claim,
        batch: int,
        source: KafkaSourceSpec,
        record_id: Collection[str],  # noqa: ARG002
    ) -> tuple[tuple[str, ...], Iterator[ClaimedRecords]]:
        chunks, schemas = self._messages(claim, self.place_of(claim)), None
        if source.value == "avro":  # The registry that is declared now.
            schemas = self._schemas(self._source.registry or source.registry)
        return text_columns(source), (_lines(batch, claim, source, chunk, schemas) for chunk in chunks)

    def place_of(self, claim: Claim) -> tuple[str, int]:
        """The topic and partition of a claim whose offsets exist. Raises the errors of `read`."""
        topic, _, number = claim.name.rpartition("/")
        if not number.isdecimal():
            why = f"{claim.name!r} is not a partition of a topic. Restore its marker"
            raise CorruptionError(why)
        topic_now = self._topic_offsets(topic)
        if topic_now is None:
            why = f"the cluster has no topic {topic!r}, or its user may not describe it"
            raise SourceError(why)
        if claim.identity != f"{topic_now.topic_id}/{number}":
            raise SourceError(f"the topic {topic!r} was deleted and recreated since it was read")
        low, end = topic_now.spans.get(int(number), (0, 0))
        if low > claim.start:
            raise _deleted(claim)
        if end < claim.end:
            why = f"it ends at offset {end}, below the last read one: the cluster has lost records"
            raise SourceError(why)
        return topic, int(number)

    def is_compacted(self, claim: Claim) -> bool:
        """Whether its topic is compacted. Also False if the connection's user may not read the
        topic's configuration.
        """
        return self._compacts(claim.name.rpartition("/")[0])

    def _messages(
        self, claim: Claim, place: tuple[str, int]
    ) -> Iterator[Sequence["Message"]]:
        """The messages that a `read_committed` consumer sees, in order; other offsets lack one."""
        codes = kafka_package().KafkaError
        self._consumer.assign([kafka_package().TopicPartition(*place, claim.start)])
        following, largest, deadline = claim.start, 1, time.monotonic() + _SILENT_SECONDS
        while following < claim.end:
            size = max(1, min(_AT_ONCE, limits.AUDIT_CHUNK_BYTES // largest))
            messages = []
            for message in self._consumer.consume(size, _WAIT_SECONDS):
                error = message.error()
                if error is None:
                    messages.append(message)
                elif error.code() == codes.GROUP_AUTHORIZATION_FAILED:
                    continue  # The client looks up its group unasked; the audit joins none.
                elif error.code() != codes._PARTITION_EOF:
                    raise self._meaning(error, claim)
                # A message, or the end, proves that no earlier one is still to come.
                following = message.offset() + (error is None)
            inside = [message for message in messages if message.offset() < claim.end]
            if inside:
                _check_written(claim, inside[-1])
                largest = max(largest, *map(len, inside))
                yield inside
            if messages:
                deadline = time.monotonic() + _SILENT_SECONDS
            elif time.monotonic() > deadline:
                raise UnavailableError(
                    f"{self._cluster} has returned no message of {claim.name!r} from offset "
                    f"{following} on for {_SILENT_SECONDS} s. Check that its brokers run"
                )

    def _describe_topic(self, topic: str) -> "_TopicOffsets | None":
        """The topic as it is now. Returns None if it does not exist."""
        kafka = kafka_package()
        from confluent_kafka.admin import OffsetSpec

        topics = kafka.TopicCollection([topic])
        answer = self._admin.describe_topics(topics, request_timeout=ANSWER_SECONDS)[topic]
        try:
            described = answer.result()
        except kafka.KafkaException as error:
            if error.args[0].code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise
        parts = [kafka.TopicPartition(topic, part.id) for part in described.partitions]
        first, last = (
            query_offsets(self._admin, dict.fromkeys(parts, which), committed=True)
            for which in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
        return _TopicOffsets(
            topic_id=str(described.topic_id).translate(str.maketrans("+/", "-_")),
            spans={part.partition: (first[part].offset, last[part].offset) for part in parts},
        )

    def _is_compacted(self, topic: str) -> bool:
        from confluent_kafka.admin import ConfigResource, ResourceType

        kafka, resource = kafka_package(), ConfigResource(ResourceType.TOPIC, topic)
        [answer] = self._admin.describe_configs([resource], request_timeout=ANSWER_SECONDS).values()
        try:
            return "compact" in answer.result()["cleanup.policy"].value
        except kafka.KafkaException as error:
            if error.args[0].code() == kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return False
            raise

    def _meaning(self, error: Any, claim: Claim) -> Exception:
        codes = kafka_package().KafkaError
        if error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            return _deleted(claim)
        return translate_error(self._cluster, error, [])


# Keeps KS9.
def _check_written(claim: Claim, last: "Message") -> None:
    """Raises SourceError if a later leader than the planned one has written the message."""
    then, now = claim.evidence.get("leader_epoch"), last.leader_epoch()
    if then is not None and now is not None and now > then:
        raise SourceError(
            f"offset {last.offset()} now has another record than the one that was read: the "
            "cluster has lost records, and reuses their offsets"
        )


def _deleted(claim: Claim) -> RecordsLostError:
    return RecordsLostError(f"{claim.name!r}: offsets from {claim.start} on have been deleted")


def _lines(
    batch: int,
    claim: Claim,
    source: KafkaSourceSpec,
    messages: Sequence["Message"],
    schemas: Schemas | None,
) -> ClaimedMessages:
    """The records of messages. Without a value it is a record only with `tombstones: keep`."""
    values = [message.value() for message in messages]
    is_null = np.array([value is None for value in values], bool)
    texts = schemas.read(values) if schemas else _plain(source, values)
    beside, bad = _beside(source, messages)
    offsets = [message.offset() for message in messages]
    lengths = [len(text) for text in texts.texts]
    return ClaimedMessages(
        batch=batch,
        claim=claim,
        data=b"".join(texts.texts),
        bounds=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
        positions=np.array(offsets, np.int64),
        is_record=np.ones(len(messages), bool) if source.tombstones == "keep" else ~is_null,
        faults=texts.bad | bad,
        doubts=texts.doubts,
        unreadable={
            at: f"the Schema Registry no longer has schema {number}, with which offset "
            f"{offsets[at]} was read. Register it again under this id (mode IMPORT)"
            for at, number in texts.unknown.items()
        },
        is_null=is_null,
        unparsed_columns=beside,
        values=values if schemas else None,
    )


def _plain(source: KafkaSourceSpec, values: Sequence[bytes | None]) -> ValueTexts:
    """Values of JSON, CSV or bytes, unchanged."""
    texts = ValueTexts(texts=[value or b"" for value in values])
    if source.value == "csv":
        present = {at: value for at, value in enumerate(values) if value is not None}
        texts.bad.update(csv_faults(present, source.csv.delimiter))
    return texts


def _beside(
    source: KafkaSourceSpec, messages: Sequence["Message"]
) -> tuple[pa.StructArray | None, dict[int, str]]:
    """The columns of key, headers and timestamp, and the messages where one does not fit."""
    raw: dict[str, list[bytes | None]] = {}
    times = {}
    if source.key:
        raw[source.key] = [message.key() for message in messages]
    for name, header in source.headers.items():
        if header != ALL:  # Nested, so the audit does not compare it.
            raw[name] = [_last(message.headers(), header) for message in messages]
    if source.timestamp:
        stamps = (message.timestamp() for message in messages)
        times[source.timestamp] = [stamp if kind else None for kind, stamp in stamps]
    return build_columns(source.columns, raw, times, per_second=1_000)


def _last(headers: list[tuple[str, bytes | None]] | None, name: str) -> bytes | None:
    """The value of the last header of a name."""
    return next((value for key, value in reversed(headers or []) if key == name), None)
