"""The topics under fire: what the stack's broker has, and the pipelines of them."""

from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from semel_local import stack
from semel_local.stack import kafka_server

FETCHED = Path(__file__).resolve().parents[2] / ".semel" / "kafka"
"""Maven fetches the broker once, for these and for the tests."""

ARRIVED, RELAYED = "messages", "relayed"
"""The pipelines: from a topic into files, and into the topic of that name; both drop what is there
again."""

SOURCE = "messages"
PARTITIONS = 3
ANSWER_SECONDS = 30


def fetch(state: Path) -> None:
    """Let the stack whose state is there find the broker. SemelError: none is to be had here."""
    jars = kafka_server.jars(FETCHED)
    folder = state / "kafka"
    folder.mkdir(mode=0o700, parents=True)
    (folder / jars.name).symlink_to(jars)


def make() -> None:
    """Make the topics on the stack's broker."""
    made = [
        NewTopic(SOURCE, PARTITIONS, 1),
        NewTopic(RELAYED, PARTITIONS, 1),
        NewTopic(f"_semel_{RELAYED}", 1, 1, config={"cleanup.policy": "compact"}),
    ]
    admin = _admin()
    for future in admin.create_topics(made).values():
        future.result(ANSWER_SECONDS)


def produced() -> int:
    """How many offsets the source has, those without a message counted."""
    wanted = {TopicPartition(SOURCE, n): OffsetSpec.latest() for n in range(PARTITIONS)}
    admin = _admin()
    found = admin.list_offsets(wanted).values()
    return sum(future.result(ANSWER_SECONDS).offset for future in found)


def pipelines() -> list[dict[str, Any]]:
    """Both of them, as they are declared."""
    cluster = {"type": "kafka", "connection": kafka_server.NAME}
    common = {
        "schedule": "* * * * *",
        "source": {**cluster, "topics": [SOURCE], "value": "json"},
        "record_id": ["id"],
        "dedup": {"scope": "horizon", "horizon": "30 days", "shards": 2},
        "max_active_runs": 2,
    }
    # A larger batch is written in cuts, and killed between them too.
    sink = {**cluster, "topic": RELAYED, "key": "id", "transaction_bytes": "128 KiB"}
    return [{**common, "name": ARRIVED}, {**common, "name": RELAYED, "sink": sink}]


def _admin() -> AdminClient:
    # That a killed broker is away is known.
    return AdminClient({"bootstrap.servers": stack.server_address("kafka"), "log_level": 0})
