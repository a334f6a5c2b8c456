"""Whether topics can be read here: for `semel check`, in the driver and in tasks."""

import time
from collections.abc import Collection

from semel.clients.kafka.cluster import ANSWER_SECONDS, Cluster, client, of
from semel.clients.kafka.registry import Registry
from semel.declare.context import Context
from semel.declare.wording import count
from semel.errors import SourceError
from semel.sources import ExecutorCheck
from semel.sources.kafka.avro import schema_id
from semel.sources.kafka.topics import discover, topic_ids, is_missing

_STEP_SECONDS = 0.1

_REMEDY = (
    "give that executor what the driver has: `pip install 'semel[kafka]'` (with Avro 'semel[avro]' "
    "too), the variables of the connections (AIRFLOW_CONN_...), the files that they name, and a "
    "way to each broker"
)


def probe(context: Context, cluster: Cluster) -> tuple[str, ExecutorCheck]:
    """As `Source.probe`. Executors are to read a message of each topic too."""
    shown = discover(cluster, context.declared)
    if shown.missing:
        raise SourceError(
            f"{cluster} has no topic {', '.join(shown.missing)}, or its user may not see it"
        )
    names = tuple(sorted({one.topic for one in shown.items}))
    declared = context.declared.registry
    values = cluster.connection, cluster.servers, names, declared
    look(*values)
    topics = count(len(names), "topic")
    told = (
        f"{count(len(shown.items), 'partition')} of {topics} of {context.name} in {cluster}: a "
        "message of each topic was read, or it has none"
    ) + (f"; {Registry.of(declared)} answers" if declared else "")
    return told, ExecutorCheck("topics", __name__, values, f"{topics} read", _REMEDY)


def look(
    connection: str | None, servers: str | None, topics: Collection[str], declared: str | None
) -> None:
    """Fetch a message of each topic of a cluster, or find that its first partition has none; of the
    declared registry the schemas that they name.

    SourceError: a topic is not there, or a schema. Others: see cluster.meaning and Registry.find.
    """
    cluster = Cluster(connection=connection, servers=servers)
    registry = Registry.of(declared)
    found = _first_values(cluster, topics)
    if registry is None:
        return
    named = {topic: schema_id(value) for topic, value in found.items() if value is not None}
    with registry.client() as asked:
        for topic, number in named.items():
            if number is not None and registry.find(asked, number) is None:
                raise SourceError(
                    f"{registry} has no schema {number}, which a message of {topic!r} names; "
                    "correct source.registry"
                )
        if not any(named.values()):
            # Whether it has one is all the same: it answers.
            registry.find(asked, 1)


def _first_values(cluster: Cluster, topics: Collection[str]) -> dict[str, bytes | None]:
    """A value of each topic that has a message in its first partition."""
    kafka = client()
    codes = kafka.KafkaError
    # A reader of a topic that its user may not see waits for it in silence.
    with cluster.admin() as admin:
        _, missing = topic_ids(admin, topics)
    if missing:
        raise SourceError(f"{cluster} has no topic {', '.join(map(repr, missing))}")
    found: dict[str, bytes | None] = {}
    left, deadline = set(topics), time.monotonic() + ANSWER_SECONDS
    with cluster.consumer(
        isolation_level="read_uncommitted", enable_partition_eof=True, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([kafka.TopicPartition(t, 0, kafka.OFFSET_BEGINNING) for t in topics])
        while left:
            for message in consumer.consume(len(left), timeout=_STEP_SECONDS):
                error = message.error()
                if error is None:
                    found.setdefault(message.topic(), message.value())
                if error is None or error.code() == codes._PARTITION_EOF:
                    left.discard(message.topic())
                elif is_missing(error):
                    raise SourceError(f"{cluster} has no topic {message.topic()!r} any more")
                elif error.code() != codes.GROUP_AUTHORIZATION_FAILED:  # None is joined.
                    raise kafka.KafkaException(of(f"reading topic {message.topic()!r}", error))
            if time.monotonic() > deadline:
                named = ", ".join(map(repr, sorted(left)))
                late = codes(codes._TIMED_OUT, f"no message of the topics {named} came")
                raise kafka.KafkaException(late)
    return found
