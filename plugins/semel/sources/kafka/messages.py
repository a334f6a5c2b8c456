"""Reads the messages of a range of offsets in order, as a `read_committed` consumer sees them."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from semel import limits
from semel.clients.kafka.cluster import Cluster, kafka_package, prefix_error
from semel.errors import SourceError, UnavailableError
from semel.sources.kafka.topics import Place, is_missing, topic_ids

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

CHUNK = 20_000
"""The largest number of messages in a chunk."""

FIRST = 500
"""The size of the first chunk, from which semel estimates the size of a message."""

WAIT_SECONDS = 0.1
"""How long one call waits for a chunk to become full."""

SILENT_SECONDS = 60
"""After this time without an expected message, a cluster counts as unavailable. A task also waits
this long for a partition's new leader."""

CHECK_SECONDS = 5
"""After each such span without a message a task checks the topic, because the client keeps waiting
for a deleted one."""

PLAN_CHECK_SECONDS = 1
"""The same for a plan. It fails within ten seconds if the cluster is unavailable, and keeps waiting
while it reads only aborted messages."""

SHORT_SECONDS = 10
"""A partition that ends too early for this long has lost records. A new leader may need a while to
learn how far its records are committed."""

READER_CONFIG = {
    "isolation_level": "read_committed",
    "auto_offset_reset": "error",
    "enable_partition_eof": True,
    "check_crcs": True,
    "fetch_wait_max_ms": 100,
    # The read-ahead buffer, and the pause before refilling it (1 s by default).
    "queued_max_messages_kbytes": 32 << 10,
    "fetch_queue_backoff_ms": 10,
}


# Keeps KS1.
def messages(
    cluster: Cluster,
    topic: str,
    partition: int,
    start: int,
    end: int,
    check_topic: Callable[[], None],
    *,
    patient: bool = True,
) -> Iterator[Sequence["Message"]]:
    """The messages at offsets [start, end), in chunks. Transaction markers and aborted or compacted
    messages leave gaps.

    It calls `check_topic` when no message arrives, which raises SourceError if the topic is gone.
    If the caller is not `patient`, `check_topic` raises UnavailableError too. Raises SourceError if
    messages were deleted, UnavailableError if the cluster does not answer.
    """
    kafka = kafka_package()
    name = f"{topic}/{partition}"
    # The client looks up its group unasked. semel neither joins one nor needs a right to it.
    of_group = kafka.KafkaError.GROUP_AUTHORIZATION_FAILED
    with cluster.consumer(**READER_CONFIG) as consumer:
        consumer.assign([kafka.TopicPartition(topic, partition, start)])
        reached, end_now = start, None
        progress, wanted, checks = time.monotonic(), FIRST, 0
        while reached < end:
            received = consumer.consume(min(wanted, end - reached), timeout=WAIT_SECONDS)
            good = [message for message in received if message.error() is None]
            if good:
                reached = good[-1].offset() + 1
                if reached > end:
                    good = [message for message in good if message.offset() < end]
                yield good
                # The time that the task took for the chunk does not count as silence.
                progress, checks, end_now = time.monotonic(), 0, None
                size = sum(map(len, good)) // max(len(good), 1) + 1
                wanted = min(CHUNK, max(FIRST, 2 * limits.BLOCK_BYTES // size))
            for message in received:
                error = message.error()
                if error is not None and error.code() != of_group:
                    end_now = _partition_end(name, message, error, end)
                    reached = max(reached, end_now)
            seconds = time.monotonic() - progress
            if seconds > (CHECK_SECONDS if patient else PLAN_CHECK_SECONDS) * (checks + 1):
                checks += 1
                # A patient caller waits for an unavailable cluster.
                with suppress(UnavailableError) if patient else nullcontext():
                    check_topic()
            if end_now is not None and end_now < end and seconds > SHORT_SECONDS:
                raise SourceError(
                    f"{name!r} ends at offset {end_now}, but the plan has offsets up to {end}: the "
                    "cluster has lost records"
                )
            if seconds > SILENT_SECONDS:
                raise silence_error(cluster, name, reached)


def silence_error(cluster: Cluster, name: str, reached: int) -> UnavailableError:
    """The error for a partition that returns no messages."""
    return UnavailableError(
        f"{cluster} has returned no message of {name!r} from offset {reached} on for "
        f"{SILENT_SECONDS} s. Check that its brokers run"
    )


def _partition_end(name: str, message: "Message", error: "KafkaError", end: int) -> int:
    """The end of a partition, if the event reports that. Raises any other event as an error."""
    if error.code() == kafka_package().KafkaError._PARTITION_EOF:
        return message.offset()
    if is_missing(error):
        raise SourceError(f"{name!r} no longer exists: its topic was deleted")
    if is_deleted(error):
        raise SourceError(
            f"{name!r}: planned offsets below {end} no longer exist. The topic's retention, or a "
            "user, has deleted them"
        )
    raise kafka_package().KafkaException(prefix_error(f"reading {name!r}", error))


def is_deleted(error: "KafkaError") -> bool:
    """Whether an error reports that an offset or its partition no longer exists."""
    codes = kafka_package().KafkaError
    deleted = error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE)
    return deleted or is_missing(error)


def first_sizes(cluster: Cluster, topic: str, partition: int, start: int, end: int) -> list[int]:
    """The sizes in bytes of the first values of a range of offsets. For plans."""
    return [len(message) for message in _first(cluster, topic, partition, start, end)]


def first_time(cluster: Cluster, topic: str, partition: int, start: int, end: int) -> float | None:
    """The earliest timestamp of the first messages of a range, in seconds since 1970.

    Returns None without timestamps.
    """
    stamps = (m.timestamp() for m in _first(cluster, topic, partition, start, end))
    return min((ms / 1_000 for kind, ms in stamps if kind and ms >= 0), default=None)


def _first(
    cluster: Cluster, topic: str, partition: int, start: int, end: int
) -> Sequence["Message"]:
    chunks = messages(
        cluster, topic, partition, start, end, lambda: check_topics(cluster, [topic]), patient=False
    )
    try:
        return next(chunks, ())
    finally:
        chunks.close()


def check_silence(cluster: Cluster, positions: Mapping[Place, int], seconds: float) -> None:
    """`check_topics` for a plan that has not received a message from `positions` for some seconds.

    Raises UnavailableError if the silence lasts too long.
    """
    check_topics(cluster, {topic for topic, _ in positions})
    if seconds > SILENT_SECONDS:
        (topic, partition), at = next(iter(positions.items()))
        raise silence_error(cluster, f"{topic}/{partition}", at)


def check_topics(cluster: Cluster, names: Iterable[str]) -> None:
    """Raises FileNotFoundError, for which a plan discovers again, if a topic does not exist."""
    with cluster.admin() as admin:
        _, missing = topic_ids(admin, names)
    if missing:
        raise FileNotFoundError(missing[0])
