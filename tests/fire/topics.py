"""The topics under fire: a broker of this run's own, what it has, and the pipelines of them."""

from pathlib import Path
from typing import Any

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from semel.stack import kafka
from semel.stack.kafka import Broker

FETCHED = Path(__file__).resolve().parents[2] / ".semel" / "kafka"
"""Maven fetches the broker once, for these and for the tests."""

ARRIVED, RELAYED = "messages", "relayed"
"""The pipelines: from a topic into files, and into the topic of that name; both drop what is there
again."""

SOURCE = "messages"
PARTITIONS = 3
ANSWER_SECONDS = 30


class Topics:
    """A broker with a topic that messages come to, and one that a pipeline writes."""

    def __init__(self, folder: Path) -> None:
        """SemelError: there is no broker to be had here."""
        self.broker = Broker(folder, jars=kafka.jars(FETCHED))

    def start(self) -> None:
        """Start the broker, and make the topics. SemelError: it did not start."""
        self.broker.start()
        made = [
            NewTopic(SOURCE, PARTITIONS, 1),
            NewTopic(RELAYED, PARTITIONS, 1),
            NewTopic(f"_semel_{RELAYED}", 1, 1, config={"cleanup.policy": "compact"}),
        ]
        admin = self._admin()
        for future in admin.create_topics(made).values():
            future.result(ANSWER_SECONDS)

    def produced(self) -> int:
        """How many offsets the source has, those without a message counted."""
        wanted = {TopicPartition(SOURCE, n): OffsetSpec.latest() for n in range(PARTITIONS)}
        admin = self._admin()
        found = admin.list_offsets(wanted).values()
        return sum(future.result(ANSWER_SECONDS).offset for future in found)

    def pipelines(self) -> list[dict[str, Any]]:
        """Both of them, as they are declared."""
        servers = {"type": "kafka", "bootstrap_servers": self.broker.bootstrap}
        common = {
            "schedule": "* * * * *",
            "source": {**servers, "topics": [SOURCE], "value": "json"},
            "record_id": ["id"],
            "dedup": {"scope": "horizon", "horizon": "30 days", "shards": 2},
            "max_active_runs": 2,
        }
        # A larger batch is written in cuts, and killed between them too.
        sink = {**servers, "topic": RELAYED, "key": "id", "transaction_bytes": "128 KiB"}
        return [{**common, "name": ARRIVED}, {**common, "name": RELAYED, "sink": sink}]

    def _admin(self) -> AdminClient:
        # That a killed broker is away is known.
        return AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
