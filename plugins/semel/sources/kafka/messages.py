"""The messages of a range of offsets, in their order, as a committed reader sees them."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from semel import limits
from semel.clients.kafka.cluster import Cluster, client, of
from semel.errors import SourceError, UnavailableError
from semel.sources.kafka.topics import Place, topic_ids, is_missing

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

CHUNK = 20_000
"""Messages that are handed on at once, at most."""

FIRST = 500
"""The first time: they show how large messages are."""

WAIT_SECONDS = 0.1
"""How long one call waits for a chunk to become full."""

SILENT_SECONDS = 60
"""A cluster that gives nothing for so long, though there is something, is away: what a task waits
for another leader of a partition."""

CHECK_SECONDS = 5
"""After each such span without a message a task asks what became of the topic: the client goes on
to wait for one that was deleted."""

PLAN_CHECK_SECONDS = 1
"""A plan asks as soon as this whether the cluster is there: it fails within ten seconds when not,
and waits where all that is read was aborted."""

SHORT_SECONDS = 10
"""A partition that ends too early for so long has lost records: a new leader may take a while to
know how far its records are committed."""

READER_CONFIG = {
    "isolation_level": "read_committed",
    "auto_offset_reset": "error",
    "enable_partition_eof": True,
    "check_crcs": True,
    "fetch_wait_max_ms": 100,
    # What is read ahead, and how soon there is more once it is full: a second by default.
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
    still: Callable[[], None],
    *,
    patient: bool = True,
) -> Iterator[Sequence["Message"]]:
    """The messages at offsets [start, end), in chunks. Not each offset has one: markers of
    transactions, aborted and compacted messages leave gaps.

    `still` is called when no message comes: SourceError when the topic is not there any more.
    SourceError: some were deleted. UnavailableError: the cluster does not answer; unless the caller
    is patient, `still` has told that.
    """
    kafka = client()
    name = f"{topic}/{partition}"
    # The client asks for its group by itself. None is joined here, and no right to one is needed.
    of_group = kafka.KafkaError.GROUP_AUTHORIZATION_FAILED
    with cluster.consumer(**READER_CONFIG) as consumer:
        consumer.assign([kafka.TopicPartition(topic, partition, start)])
        reached, ended = start, None
        progress, wanted, asked = time.monotonic(), FIRST, 0
        while reached < end:
            got = consumer.consume(min(wanted, end - reached), timeout=WAIT_SECONDS)
            good = [message for message in got if message.error() is None]
            if good:
                reached = good[-1].offset() + 1
                if reached > end:
                    good = [message for message in good if message.offset() < end]
                yield good
                # From here on: how long a task took for them is not the cluster's silence.
                progress, asked, ended = time.monotonic(), 0, None
                size = sum(map(len, good)) // max(len(good), 1) + 1
                wanted = min(CHUNK, max(FIRST, 2 * limits.BLOCK_BYTES // size))
            for message in got:
                error = message.error()
                if error is not None and error.code() != of_group:
                    ended = _partition_end(name, message, error, end)
                    reached = max(reached, ended)
            seconds = time.monotonic() - progress
            if seconds > (CHECK_SECONDS if patient else PLAN_CHECK_SECONDS) * (asked + 1):
                asked += 1
                # A cluster that is away is waited for.
                with suppress(UnavailableError) if patient else nullcontext():
                    still()
            if ended is not None and ended < end and seconds > SHORT_SECONDS:
                raise SourceError(
                    f"{name!r} ends at offset {ended}, the plan names offsets up to {end}: the "
                    "cluster lost records"
                )
            if seconds > SILENT_SECONDS:
                raise silence_error(cluster, name, reached)


def silence_error(cluster: Cluster, name: str, reached: int) -> UnavailableError:
    """What is said of a partition that gives nothing."""
    return UnavailableError(
        f"{cluster} gave nothing of {name!r} from offset {reached} on for {SILENT_SECONDS} s; "
        "check that its brokers run"
    )


def _partition_end(name: str, message: "Message", error: "KafkaError", end: int) -> int:
    """The offset before which a reader has seen all there is. Raises what is an error."""
    if error.code() == client().KafkaError._PARTITION_EOF:
        return message.offset()
    if is_missing(error):
        raise SourceError(f"{name!r} is not there any more: its topic was deleted")
    if is_deleted(error):
        raise SourceError(
            f"{name!r}: offsets before {end} that were planned are not there any more; retention, "
            "or somebody, has deleted them"
        )
    raise client().KafkaException(of(f"reading {name!r}", error))


def is_deleted(error: "KafkaError") -> bool:
    """Whether an error says that an offset, or its partition, is not there any more."""
    codes = client().KafkaError
    passed = error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE)
    return passed or is_missing(error)


def first_sizes(cluster: Cluster, topic: str, partition: int, start: int, end: int) -> list[int]:
    """The sizes, in bytes, of some of the first values of a range of offsets; in a plan."""
    return [len(message) for message in _first(cluster, topic, partition, start, end)]


def first_time(cluster: Cluster, topic: str, partition: int, start: int, end: int) -> float | None:
    """The earliest timestamp of the same messages, in seconds since 1970; None: they have none."""
    stamps = (m.timestamp() for m in _first(cluster, topic, partition, start, end))
    return min((ms / 1_000 for kind, ms in stamps if kind and ms >= 0), default=None)


def _first(
    cluster: Cluster, topic: str, partition: int, start: int, end: int
) -> Sequence["Message"]:
    found = messages(
        cluster, topic, partition, start, end, lambda: check_topics(cluster, [topic]), patient=False
    )
    try:
        return next(found, ())
    finally:
        found.close()


def check_silence(cluster: Cluster, left: Mapping[Place, int], seconds: float) -> None:
    """While a plan reads partitions, each from an offset on, and gets nothing for some seconds: as
    `check_topics`. UnavailableError: it has got nothing for too long.
    """
    check_topics(cluster, {topic for topic, _ in left})
    if seconds > SILENT_SECONDS:
        (topic, partition), at = next(iter(left.items()))
        raise silence_error(cluster, f"{topic}/{partition}", at)


def check_topics(cluster: Cluster, names: Iterable[str]) -> None:
    """Ask whether topics are there, as a plan does. FileNotFoundError: look again."""
    with cluster.admin() as admin:
        _, missing = topic_ids(admin, names)
    if missing:
        raise FileNotFoundError(missing[0])
