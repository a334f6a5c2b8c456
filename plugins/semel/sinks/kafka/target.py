"""Which topic rows go to, and how they become messages: values, made without any connection."""

from dataclasses import dataclass
from urllib.parse import quote

from semel.clients.kafka.cluster import Cluster
from semel.sinks.kafka.spec import CONTROL, KAFKA_TRANSACTION_BYTES


@dataclass(frozen=True, kw_only=True)
class KafkaTarget:
    """A topic of a cluster, and what of a row is a message's key and its headers.

    `key`: a column, whose text is the key; columns, of which a JSON object is made; None: no key.
    `headers`: pairs of a name and the column whose text it has. `transaction_bytes`: bytes of
    messages after which a transaction ends.
    """

    cluster: Cluster
    topic: str
    key: str | tuple[str, ...] | None = None
    headers: tuple[tuple[str, str], ...] = ()
    create: bool = False
    transaction_bytes: int = KAFKA_TRANSACTION_BYTES

    @property
    def control(self) -> str:
        """The compacted topic that says which batches have landed in this one."""
        return f"{CONTROL}{self.topic}"

    @property
    def address(self) -> str:
        """Canonical, without secrets: kafka://host:port,host:port/topic."""
        return f"{self.cluster.address}/{quote(self.topic, safe='')}"

    def transactional_id(self, pipeline: str, name: str) -> str:
        """Of the producer of one batch, or of a check: who takes it over fences who had it."""
        return f"semel.{self.topic}.{pipeline}.{name}"
