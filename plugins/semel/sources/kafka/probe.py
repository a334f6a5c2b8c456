"""For `semel check`: check that the driver and each executor can read the topics."""

import time
from collections.abc import Collection

from semel.clients.kafka.cluster import ANSWER_SECONDS, Cluster, kafka_package, prefix_error
from semel.clients.kafka.registry import Registry
from semel.declare.context import Context
from semel.declare.wording import count
from semel.errors import SourceError
from semel.sources import ExecutorCheck
from semel.sources.kafka.avro import schema_id
from semel.sources.kafka.topics import discover, is_missing, topic_ids

_STEP_SECONDS = 0.1

_REMEDY = (
    "that executor needs the same as the driver: `pip install 'semel[kafka]'` (for Avro also "
    "'semel[avro]'), the connections' variables (AIRFLOW_CONN_...), the files that they name, and "
    "access to each broker"
)


def probe(context: Context, cluster: Cluster) -> tuple[str, ExecutorCheck]:
    """As `Source.probe`. The driver and each executor read a message of each topic."""
    listing = discover(cluster, context.declared)
    if listing.missing:
        raise SourceError(
            f"{cluster} has no topic {', '.join(listing.missing)}, or the connection's user may "
            "not describe it. Create it, or correct source.topics"
        )
    names = tuple(sorted({item.topic for item in listing.items}))
    registry = context.declared.registry
    arguments = cluster.connection, cluster.servers, names, registry
    check_access(*arguments)
    topics = count(len(names), "topic")
    report = (
        f"{count(len(listing.items), 'partition')} of {topics} of {context.name} in {cluster}: "
        "semel can read each topic"
    ) + (f"; {Registry.of(registry)} answers" if registry else "")
    return report, ExecutorCheck("topics", __name__, arguments, f"{topics} read", _REMEDY)


def check_access(
    connection: str | None, servers: str | None, topics: Collection[str], declared: str | None
) -> None:
    """Fetch a message from partition 0 of each topic, and the schemas that these messages name.

    `declared`: the registry. Raises SourceError if a topic or schema does not exist. For other
    errors see `cluster.translate_error` and `Registry.find`.
    """
    cluster = Cluster(connection=connection, servers=servers)
    registry = Registry.of(declared)
    values = _first_values(cluster, topics)
    if registry is None:
        return
    schema_ids = {topic: schema_id(value) for topic, value in values.items() if value is not None}
    with registry.client() as connected:
        for topic, number in schema_ids.items():
            if number is not None and registry.find(connected, number) is None:
                raise SourceError(
                    f"{registry} has no schema {number}, which a message of {topic!r} names. "
                    "Correct source.registry"
                )
        if not any(schema_ids.values()):
            # No message names a schema. Any answer proves that the registry can be reached.
            registry.find(connected, 1)


def _first_values(cluster: Cluster, topics: Collection[str]) -> dict[str, bytes | None]:
    """The first value in partition 0 of each topic. Topics without a message there are left out."""
    kafka = kafka_package()
    codes = kafka.KafkaError
    # A consumer would wait silently for a topic that its user may not describe.
    with cluster.admin() as admin:
        _, missing = topic_ids(admin, topics)
    if missing:
        raise SourceError(
            f"{cluster} has no topic {', '.join(map(repr, missing))}, or the connection's user may "
            "not describe it"
        )
    values: dict[str, bytes | None] = {}
    pending, deadline = set(topics), time.monotonic() + ANSWER_SECONDS
    with cluster.consumer(
        isolation_level="read_uncommitted", enable_partition_eof=True, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([kafka.TopicPartition(t, 0, kafka.OFFSET_BEGINNING) for t in topics])
        while pending:
            for message in consumer.consume(len(pending), timeout=_STEP_SECONDS):
                error = message.error()
                if error is None:
                    values.setdefault(message.topic(), message.value())
                if error is None or error.code() == codes._PARTITION_EOF:
                    pending.discard(message.topic())
                elif is_missing(error):
                    raise SourceError(f"{cluster} no longer has a topic {message.topic()!r}")
                elif error.code() != codes.GROUP_AUTHORIZATION_FAILED:  # semel joins no group.
                    prefixed = prefix_error(f"reading topic {message.topic()!r}", error)
                    raise kafka.KafkaException(prefixed)
            if time.monotonic() > deadline:
                topics_text = ", ".join(map(repr, sorted(pending)))
                timeout = codes(codes._TIMED_OUT, f"no message of topics {topics_text} arrived")
                raise kafka.KafkaException(timeout)
    return values
