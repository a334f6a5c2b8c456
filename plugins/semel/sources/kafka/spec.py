"""The declaration of topics as a source."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from semel.clients.kafka.connection import cluster_names
from semel.declare.parts import RESERVED_PREFIX, OnRefused, Text, twice
from semel.declare.place import TOPIC, Location, service
from semel.sources.messages import CONNECTION, TEXT, MessagesSpec

_MARK, _NO_DOT = "[A-Za-z0-9._-]", "[A-Za-z0-9_-]"
TOPIC_NAME = rf"^({_NO_DOT}{_MARK}?|\.{_NO_DOT}|{_MARK}{{3,249}})$"
"""The topic names that Kafka accepts: these characters, except for `.` and `..`."""


REGISTRY = r"^([A-Za-z_][A-Za-z0-9_]*|https?://[^\s/?#@,]+(/[^\s?#@,]*)?)$"
"""The name of a connection, or a URL without a login (which belongs in a connection)."""


class KafkaSourceSpec(MessagesSpec):
    """The messages of topics of a Kafka cluster."""

    unit: ClassVar[str] = "offsets"
    page: ClassVar[str] = "kafka"
    part: ClassVar[str] = "partition"
    expires: ClassVar[str] = (
        "the topic's retention or compaction has deleted records that were read"
    )
    complete: ClassVar[str] = "record that can be read"
    awaited: ClassVar[str] = "open transactions"
    streams: ClassVar[bool] = True
    plan_keys: ClassVar[tuple[str, ...]] = (
        *MessagesSpec.plan_keys, "connection", "bootstrap_servers", "registry", "consumer_group"
    )  # fmt: skip
    way: ClassVar[tuple[str, ...]] = ("connection", "bootstrap_servers")
    json_values: ClassVar[tuple[str, ...]] = ("json", "avro")

    type: Literal["kafka"]
    """The kind of source."""
    connection: str | None = Field(default=None, pattern=CONNECTION)
    """The Airflow connection (of type kafka); on the command line and for Spark's executors the
    variable AIRFLOW_CONN_<CONNECTION>. This or bootstrap_servers."""
    bootstrap_servers: str | None = Field(default=None, pattern=r"^[^\s,]+:\d+(,[^\s,]+:\d+)*$")
    """The cluster's addresses, as host:port,host:port, if it needs neither login nor TLS."""
    topics: tuple[Annotated[str, Field(pattern=TOPIC_NAME)], ...] = ()
    """The topics, by name. This or pattern."""
    pattern: Text | None = None
    """All topics whose whole name matches this regular expression, new ones too."""
    value: Literal["json", "avro", "csv", "bytes"]
    """The format of a message's value. json: one object. avro: a schema id and a record, whose
    schema is in the registry. csv: the fields of one record, in the schema's order. bytes: one
    binary column."""
    registry: str | None = Field(default=None, pattern=REGISTRY)
    """Only for value: avro. The Schema Registry: an Airflow connection (of type http), or a URL if
    it needs neither login nor a private certificate."""
    key: str | None = None
    """The column (string or binary) for the message's key."""
    timestamp: str | None = None
    """The column (timestamp) for the message's timestamp."""
    headers: dict[str, Text] = {}
    """Columns (string or binary), each with the name of its header; the last header of that name
    wins. "*" means all headers, for a column array<struct<key:string,value:binary>>."""
    tombstones: Literal["count", "keep"] = "count"
    """Messages without a value. count: semel skips them and reports their number. keep: each is a
    record with NULL in the columns of its value."""
    consumer_group: Text | None = None
    """The group to which semel commits finalized offsets, for tools that show lag. semel never
    reads them."""

    @field_validator("registry", mode="before")
    @classmethod
    def _registry(cls, value: object) -> object:
        # An error of its own, because pydantic's would print a login in the URL.
        if isinstance(value, str) and not re.fullmatch(REGISTRY, value):
            raise ValueError(
                "is neither the name of an Airflow connection nor a URL such as "
                "http://schemas:8081. For a login or several URLs, use a connection"
            )
        return value

    def describe(self) -> str:
        """The topics, their cluster, and the format of values."""
        if self.pattern:
            # In Markdown a bar ends a table's cell, even within code.
            text = "the topics that match `" + self.pattern.replace("|", "\\|") + "`"
        else:
            names = ", ".join(f"`{name}`" for name in self.topics)
            text = f"the topic{'s' * (len(self.topics) > 1)} {names}"
        return f"{text} of {service(self.connection, self.bootstrap_servers)}, {self.value}"

    def selection_rule(self) -> str:
        """The times by which windows select messages."""
        return "the messages' timestamps"

    def datasets(self, claimed: Callable[[], Iterable[str]]) -> list[tuple[str, str]]:
        """The topics. With a pattern, those that were read."""
        from semel.clients.kafka.cluster import Cluster

        topics = self.topics or sorted({name.rpartition("/")[0] for name in claimed()})
        cluster = Cluster(connection=self.connection, servers=self.bootstrap_servers)
        return [(cluster.address.partition(",")[0], topic) for topic in topics]

    def reads_from(self, place: Location) -> bool:
        """Whether it reads a sink's topic, or that topic's control topic."""
        sink_topics = (place.name, f"{RESERVED_PREFIX}_{place.name}")
        topics = {*self.topics, *(t for t in sink_topics if re.fullmatch(self.pattern or "", t))}
        servers = cluster_names(self.connection, self.bootstrap_servers)
        return not topics.isdisjoint(sink_topics) and place.kind == TOPIC and not (
            servers.isdisjoint(place.servers)
        )

    @property
    def acknowledged(self) -> bool:
        """Whether finalized offsets are committed to a group."""
        return self.consumer_group is not None

    @property
    def on_refused_or_default(self) -> OnRefused:
        """The declared value. By default a run fails if records are gone."""
        return self.on_refused or OnRefused.FAIL

    @property
    def connections(self) -> tuple[str, ...]:
        """The Airflow connections of the cluster and the registry."""
        registry = None if "://" in (self.registry or "") else self.registry
        return tuple(name for name in (self.connection, registry) if name)

    @property
    def unparsed_columns(self) -> dict[str, str]:
        """The columns of key, timestamp and headers, with their descriptions."""
        filled = {self.key: "key", self.timestamp: "timestamp"}
        filled |= {name: f"header {header}" for name, header in self.headers.items()}
        return {name: what for name, what in filled.items() if name}

    @property
    def has_typed_values(self) -> bool:
        """Whether values have types of their own, by schemas of a registry."""
        return self.registry is not None

    def _problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        yield from super()._problems()
        if (self.connection is None) == (self.bootstrap_servers is None):
            yield ("connection",), "declare either connection or bootstrap_servers"
        if bool(self.topics) == (self.pattern is not None):
            yield ("topics",), "declare either topics or pattern"
        if name := twice(self.topics):
            yield ("topics",), f"names {name!r} twice"
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            yield ("pattern",), f"is not a regular expression ({error})"
        wanted = {("key",): (self.key, TEXT), ("timestamp",): (self.timestamp, ("timestamp",))}
        wanted |= self._metadata_types("headers", self.headers)
        yield from self._unparsed_problems("key, timestamp and headers", wanted)
        yield from self._value_problems()
        if self.value == "avro" and self.registry is None:
            yield ("registry",), "is missing. value: avro needs a connection or the URL of one"
        if self.value != "avro" and self.registry is not None:
            yield ("registry",), f"does not apply to value: {self.value}. Remove it"


DECLARED = (KafkaSourceSpec,)
