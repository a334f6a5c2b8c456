"""The target topic of rows, and how they become messages. Needs no connection."""

from dataclasses import dataclass
from urllib.parse import quote

from semel.clients.kafka.cluster import Cluster
from semel.sinks.kafka.spec import CONTROL, KAFKA_TRANSACTION_BYTES


@dataclass(frozen=True, kw_only=True)
class KafkaTarget:
    """A topic of a cluster, and the columns for a message's key and headers.

    `key`: a column, whose text is the key; columns, for a JSON object; or None for no key.
    `headers`: pairs of a header's name and its column. `transaction_bytes`: bytes of messages after
    which a transaction ends.
    """

    cluster: Cluster
    topic: str
    key: str | tuple[str, ...] | None = None
    headers: tuple[tuple[str, str], ...] = ()
    create: bool = False
    transaction_bytes: int = KAFKA_TRANSACTION_BYTES

    @property
    def control(self) -> str:
        """The compacted topic that lists the batches that have landed in this one."""
        return f"{CONTROL}{self.topic}"

    @property
    def address(self) -> str:
        """The canonical address, without secrets: kafka://host:port,host:port/topic."""
        return f"{self.cluster.address}/{quote(self.topic, safe='')}"

    def transactional_id(self, pipeline: str, name: str) -> str:
        """The id of a producer for one batch or a check. A new producer fences the previous one."""
        return f"semel.{self.topic}.{pipeline}.{name}"
