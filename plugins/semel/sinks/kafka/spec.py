"""The declaration of a topic as a sink."""

from typing import ClassVar, Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field, field_validator, model_validator

from semel.clients.kafka.connection import cluster_names
from semel.declare.parts import Size, Text, twice
from semel.declare.place import TOPIC, Location, service
from semel.declare.yaml import Key, Problem, Problems
from semel.sinks.spec import ServiceSinkSpec

KAFKA_TRANSACTION_BYTES = 512 << 20
"""Default of sink.transaction_bytes: the amount that a slow link (5 MB/s) sends in
limits.KAFKA_TRANSACTION_SECONDS."""

CONTROL = "_semel_"
"""The prefix of a control topic's name; the topic's name follows."""


class KafkaSinkSpec(ServiceSinkSpec):
    """A topic of a Kafka cluster: each row is a message, and a batch is one transaction."""

    no_aggregate_reason: ClassVar[str] = (
        "consumers of a topic cannot merge partial rows. Write to files or a table"
    )
    type: Literal["kafka"]
    """The kind of sink."""
    connection: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The Airflow connection; on the command line the variable AIRFLOW_CONN_<CONNECTION>."""
    bootstrap_servers: str | None = Field(default=None, pattern=r"^[^\s,]+:\d+(,[^\s,]+:\d+)*$")
    """The cluster's addresses, as host:port,host:port, if it needs neither login nor TLS."""
    topic: str = Field(pattern=r"^[A-Za-z0-9._-]{1,242}$")
    """The topic. Only one pipeline may write to it."""
    key: Text | tuple[Text, ...] | None = None
    """The message's key. A column: its text. A list of columns: a JSON object. null: no key."""
    value: Literal["json"] = "json"
    """The message's value: a JSON object of all columns."""
    headers: dict[Text, Text] = Field(default_factory=dict)
    """Names of headers, each with the column whose text it contains."""
    create: bool = Field(default=False, strict=True)
    """Create the topic if it is missing, with the cluster's default settings."""
    transaction_bytes: Size = KAFKA_TRANSACTION_BYTES
    """Bytes of messages in one transaction. A larger batch becomes visible in several parts."""
    archive: Text | None = None
    """The folder of markers and more, or the URL of a store; null: `<pipeline>/` below
    SEMEL_ARCHIVES, or else `_semel/<pipeline>/` below the first data root."""
    position_columns: bool = Field(default=False, strict=True)
    """Add the record's source partition and position as columns _semel_source and _semel_offset."""

    place: ClassVar[tuple[str, ...]] = (
        "connection", "bootstrap_servers", "topic", "transaction_bytes"
    )  # fmt: skip
    way: ClassVar[tuple[str, ...]] = ("connection", "bootstrap_servers", "transaction_bytes")
    located_by: ClassVar[str] = "topic"
    aside: ClassVar[tuple[str, ...]] = (*ServiceSinkSpec.aside, "transaction_bytes")

    def describe(self) -> str:
        """The topic and its cluster."""
        cluster = service(self.connection, self.bootstrap_servers)
        return f"topic `{self.topic}` of {cluster}, as JSON"

    def dataset(self, address: str) -> tuple[str, str]:
        """The first address of the cluster, and the topic."""
        split = urlsplit(address)
        return f"kafka://{split.netloc}".partition(",")[0], unquote(split.path.strip("/"))

    def whereabouts(self) -> Location:
        """The topic."""
        servers = cluster_names(self.connection, self.bootstrap_servers)
        return Location(kind=TOPIC, name=self.topic, servers=servers)

    def named_columns(self) -> tuple[tuple[Key, str], ...]:
        """The columns of key and headers."""
        keys = [self.key] if isinstance(self.key, str) else self.key or ()
        places = [("key",)] if isinstance(self.key, str) else [("key", n) for n in range(len(keys))]
        headers = [(("headers", name), column) for name, column in self.headers.items()]
        return (*zip(places, keys, strict=True), *headers)

    @field_validator("key", mode="before")
    @classmethod
    def _key(cls, key: object) -> object:
        listed = isinstance(key, list | tuple) and all(isinstance(name, str) for name in key)
        if not (key is None or isinstance(key, str) or listed):
            raise ValueError(f"must be a column, or a list of columns, not {key!r}")
        return key

    @field_validator("topic")
    @classmethod
    def _topic(cls, name: str) -> str:
        if name in (".", "..") or name.startswith(CONTROL):
            raise ValueError(f"{name!r} is a name that Kafka or semel reserves")
        return name

    @model_validator(mode="after")
    def _check(self) -> "KafkaSinkSpec":
        if (self.connection is None) == (self.bootstrap_servers is None):
            why = "declare either connection or bootstrap_servers"
            raise Problems([Problem(("connection",), why)])
        if isinstance(self.key, tuple) and (not self.key or twice(self.key)):
            why = f"names {twice(self.key)!r} twice" if self.key else "is empty. Remove it"
            raise Problems([Problem(("key",), why)])
        return self


DECLARED = KafkaSinkSpec
