"""The messages at claimed offsets, read again by the audit's own reader."""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from semel import limits
from semel.clients.kafka.cluster import ANSWER_SECONDS, Cluster, client, meaning, offsets_of
from semel.clients.kafka.registry import Registry
from semel.errors import CorruptionError, SourceError, UnavailableError
from semel.model.batch import Claim
from semel.sources.kafka.audit.schemas import Schemas, ValueTexts
from semel.sources.kafka.spec import KafkaSourceSpec
from semel.sources.messages import ALL
from semel.sources.reread import (
    Auditor,
    RecordsLostError,
    ClaimedRecords,
    ClaimedMessages,
    csv_faults,
    build_columns,
    text_columns,
)

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from confluent_kafka.admin import AdminClient

_AT_ONCE = 10_000
"""Messages that are asked for at once, at most."""

_WAIT_SECONDS = 0.05
"""How long one call waits for that many."""

_SILENT_SECONDS = 30
"""A cluster that gives nothing for so long, though there is something, is away."""


@dataclass(frozen=True, kw_only=True)
class _Known:
    """A topic that is there: its id, as claims name it, and of each partition its first offset and
    the one behind the last that can be read.
    """

    topic_id: str
    spans: dict[int, tuple[int, int]]


@contextmanager
def opened(source: KafkaSourceSpec, claims: Iterable[Claim]) -> "Iterator[TopicAuditor]":  # noqa: ARG001
    """The topics that claims name."""
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
        self._known, self._compacts = cache(self._found), cache(self._is_compacted)
        self._schemas = cache(lambda at: Schemas(Registry(declared=at), registries))

    def read(
        self,
        claim: Claim,
        batch: int,
        source: KafkaSourceSpec,
        record_id: Collection[str],  # noqa: ARG002
    ) -> tuple[tuple[str, ...], Iterator[ClaimedRecords]]:
        found, schemas = self._messages(claim, self.place_of(claim)), None
        if source.value == "avro":  # Where the registry is declared to be now.
            schemas = self._schemas(self._source.registry or source.registry)
        return text_columns(source), (_lines(batch, claim, source, some, schemas) for some in found)

    def place_of(self, claim: Claim) -> tuple[str, int]:
        """Topic and partition of a claim whose offsets are there. Errors as of `read`."""
        topic, _, number = claim.name.rpartition("/")
        if not number.isdecimal():
            raise CorruptionError(f"{claim.name!r} is no partition of a topic; restore its marker")
        known = self._known(topic)
        if known is None:
            raise SourceError(f"the cluster has no topic {topic!r} that its user may see")
        if claim.identity != f"{known.topic_id}/{number}":
            raise SourceError(f"the topic {topic!r} was deleted, and made anew, since it was read")
        low, end = known.spans.get(int(number), (0, 0))
        if low > claim.start:
            raise _deleted(claim)
        if end < claim.end:
            raise SourceError(f"it ends at offset {end}, before what was read: records were lost")
        return topic, int(number)

    def is_compacted(self, claim: Claim) -> bool:
        """Whether its topic is compacted. False also where the connection's user may not read the
        topic's configuration.
        """
        return self._compacts(claim.name.rpartition("/")[0])

    def _messages(
        self, claim: Claim, place: tuple[str, int]
    ) -> Iterator[Sequence["Message"]]:
        """The messages that a committed reader sees, in order; the offsets between have none."""
        codes = client().KafkaError
        self._consumer.assign([client().TopicPartition(*place, claim.start)])
        following, largest, deadline = claim.start, 1, time.monotonic() + _SILENT_SECONDS
        while following < claim.end:
            room = max(1, min(_AT_ONCE, limits.AUDIT_CHUNK_BYTES // largest))
            found = []
            for message in self._consumer.consume(room, _WAIT_SECONDS):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == codes.GROUP_AUTHORIZATION_FAILED:
                    continue  # The client asks for its group by itself; nothing here needs one.
                elif error.code() != codes._PARTITION_EOF:
                    raise self._meaning(error, claim)
                # Messages are behind all that a reader would see before them, and so is the end.
                following = message.offset() + (error is None)
            inside = [message for message in found if message.offset() < claim.end]
            if inside:
                _check_written(claim, inside[-1])
                largest = max(largest, *map(len, inside))
                yield inside
            if found:
                deadline = time.monotonic() + _SILENT_SECONDS
            elif time.monotonic() > deadline:
                raise UnavailableError(
                    f"{self._cluster} gave nothing of {claim.name!r} from offset {following} on "
                    f"for {_SILENT_SECONDS} s; check that its brokers run"
                )

    def _found(self, topic: str) -> "_Known | None":
        """A topic as it is now; None: there is none of this name."""
        kafka = client()
        from confluent_kafka.admin import OffsetSpec

        asked = kafka.TopicCollection([topic])
        answer = self._admin.describe_topics(asked, request_timeout=ANSWER_SECONDS)[topic]
        try:
            described = answer.result()
        except kafka.KafkaException as error:
            if error.args[0].code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise
        parts = [kafka.TopicPartition(topic, part.id) for part in described.partitions]
        first, last = (
            offsets_of(self._admin, dict.fromkeys(parts, which), committed=True)
            for which in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
        return _Known(
            topic_id=str(described.topic_id).translate(str.maketrans("+/", "-_")),
            spans={part.partition: (first[part].offset, last[part].offset) for part in parts},
        )

    def _is_compacted(self, topic: str) -> bool:
        from confluent_kafka.admin import ConfigResource, ResourceType

        kafka, asked = client(), ConfigResource(ResourceType.TOPIC, topic)
        [answer] = self._admin.describe_configs([asked], request_timeout=ANSWER_SECONDS).values()
        try:
            return "compact" in answer.result()["cleanup.policy"].value
        except kafka.KafkaException as error:
            if error.args[0].code() == kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                return False
            raise

    def _meaning(self, error: Any, claim: Claim) -> Exception:
        codes = client().KafkaError
        if error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            return _deleted(claim)
        return meaning(self._cluster, error, [])


# Keeps KS9.
def _check_written(claim: Claim, last: "Message") -> None:
    """SourceError: a message was written by a later leader than that of when it was planned."""
    then, now = claim.evidence.get("leader_epoch"), last.leader_epoch()
    if then is not None and now is not None and now > then:
        raise SourceError(
            f"another record is at offset {last.offset()} than the one that was read: the cluster "
            "lost records, and gave their offsets to others"
        )


def _deleted(claim: Claim) -> RecordsLostError:
    return RecordsLostError(f"{claim.name!r}: offsets from {claim.start} on were deleted since")


def _lines(
    batch: int,
    claim: Claim,
    source: KafkaSourceSpec,
    found: Sequence["Message"],
    schemas: Schemas | None,
) -> ClaimedMessages:
    """Messages as records: one is no record where it has no value, unless that is declared."""
    values = [message.value() for message in found]
    nothing = np.array([value is None for value in values], bool)
    read = schemas.read(values) if schemas else _plain(source, values)
    beside, bad = _beside(source, found)
    offsets = [message.offset() for message in found]
    lengths = [len(text) for text in read.texts]
    return ClaimedMessages(
        batch=batch,
        claim=claim,
        data=b"".join(read.texts),
        bounds=np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
        positions=np.array(offsets, np.int64),
        is_record=np.ones(len(found), bool) if source.tombstones == "keep" else ~nothing,
        faults=read.bad | bad,
        doubts=read.doubts,
        unreadable={
            at: f"the Schema Registry has no schema {number} any more, by which offset "
            f"{offsets[at]} was read; register it again under this id (mode IMPORT)"
            for at, number in read.unknown.items()
        },
        is_null=nothing,
        unparsed_columns=beside,
        values=values if schemas else None,
    )


def _plain(source: KafkaSourceSpec, values: Sequence[bytes | None]) -> ValueTexts:
    """Values that are texts, or bytes, as they are."""
    found = ValueTexts(texts=[value or b"" for value in values])
    if source.value == "csv":
        there = {at: value for at, value in enumerate(values) if value is not None}
        found.bad.update(csv_faults(there, source.csv.delimiter))
    return found


def _beside(
    source: KafkaSourceSpec, found: Sequence["Message"]
) -> tuple[pa.StructArray | None, dict[int, str]]:
    """The columns that are not of the value; and the messages with one that does not fit."""
    raw: dict[str, list[bytes | None]] = {}
    times = {}
    if source.key:
        raw[source.key] = [message.key() for message in found]
    for name, header in source.headers.items():
        if header != ALL:  # Nested, and so not compared.
            raw[name] = [_last(message.headers(), header) for message in found]
    if source.timestamp:
        stamps = (message.timestamp() for message in found)
        times[source.timestamp] = [stamp if kind else None for kind, stamp in stamps]
    return build_columns(source.columns, raw, times, per_second=1_000)


def _last(headers: list[tuple[str, bytes | None]] | None, name: str) -> bytes | None:
    """The value of the last header of a name."""
    return next((value for key, value in reversed(headers or []) if key == name), None)
