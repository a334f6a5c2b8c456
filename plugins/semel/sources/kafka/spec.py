"""The declaration of topics as a source."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from semel.clients.kafka.connection import brokers
from semel.declare.parts import RESERVED_PREFIX, OnRefused, Text, twice
from semel.declare.place import TOPIC, Location, reached
from semel.sources.messages import CONNECTION, TEXT, MessagesSpec

_MARK, _NO_DOT = "[A-Za-z0-9._-]", "[A-Za-z0-9_-]"
TOPIC_NAME = rf"^({_NO_DOT}{_MARK}?|\.{_NO_DOT}|{_MARK}{{3,249}})$"
"""What Kafka takes as a topic's name: all of these but `.` and `..`."""


REGISTRY = r"^([A-Za-z_][A-Za-z0-9_]*|https?://[^\s/?#@,]+(/[^\s?#@,]*)?)$"
"""The name of a connection, or a URL without a login: that belongs into a connection."""


class KafkaSourceSpec(MessagesSpec):
    """The messages of topics of a Kafka cluster."""

    unit: ClassVar[str] = "offsets"
    page: ClassVar[str] = "kafka"
    part: ClassVar[str] = "partition"
    expires: ClassVar[str] = (
        "the topic's retention, or its compaction, has deleted records that were read"
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
    """The cluster's addresses, as host:port,host:port, where it needs no login and no TLS."""
    topics: tuple[Annotated[str, Field(pattern=TOPIC_NAME)], ...] = ()
    """The topics, by name. This or pattern."""
    pattern: Text | None = None
    """All topics whose whole name matches this regular expression, new ones too."""
    value: Literal["json", "avro", "csv", "bytes"]
    """What a message's value is. json: one object. avro: a record, whose schema is in the registry
    under the id that is before it. csv: the fields of one record, in the schema's order. bytes: one
    binary column."""
    registry: str | None = Field(default=None, pattern=REGISTRY)
    """Only for value: avro. The Schema Registry: an Airflow connection (of type http), or the URL
    of one that needs neither login nor TLS of its own."""
    key: str | None = None
    """The column, string or binary, that takes a message's key."""
    timestamp: str | None = None
    """The column (timestamp) that takes a message's timestamp."""
    headers: dict[str, Text] = {}
    """Columns, string or binary, each with the header that it takes (the last one of that name).
    "*" is all of them, for a column array<struct<key:string,value:binary>>."""
    tombstones: Literal["count", "keep"] = "count"
    """Messages without a value. count: they are passed over, and told. keep: each is a record with
    nothing in the columns of its value."""
    consumer_group: Text | None = None
    """Finalized offsets are committed to this group, for tools that show lag. semel never reads
    them."""

    @field_validator("registry", mode="before")
    @classmethod
    def _registry(cls, found: object) -> object:
        # Its own words: who puts a login into the URL is not to read it in a log.
        if isinstance(found, str) and not re.fullmatch(REGISTRY, found):
            raise ValueError(
                "is neither the name of an Airflow connection nor a URL such as "
                "http://schemas:8081; a login belongs in a connection, and so do several URLs"
            )
        return found

    def describe(self) -> str:
        """The topics, their cluster, and what a value is."""
        if self.pattern:
            # A table's cell ends at a bar, also within code.
            shown = "the topics that match `" + self.pattern.replace("|", "\\|") + "`"
        else:
            names = ", ".join(f"`{name}`" for name in self.topics)
            shown = f"the topic{'s' * (len(self.topics) > 1)} {names}"
        return f"{shown} of {reached(self.connection, self.bootstrap_servers)}, {self.value}"

    def selection_rule(self) -> str:
        """The times that messages have."""
        return "the messages' timestamps"

    def datasets(self, claimed: Callable[[], Iterable[str]]) -> list[tuple[str, str]]:
        """The topics; of those by a pattern, the ones that were read."""
        from semel.clients.kafka.cluster import Cluster

        topics = self.topics or sorted({name.rpartition("/")[0] for name in claimed()})
        cluster = Cluster(connection=self.connection, servers=self.bootstrap_servers)
        return [(cluster.address.partition(",")[0], topic) for topic in topics]

    def reads_from(self, place: Location) -> bool:
        """Whether a sink's topic, or the control topic beside it, is one of them."""
        written = (place.name, f"{RESERVED_PREFIX}_{place.name}")
        found = {*self.topics, *(t for t in written if re.fullmatch(self.pattern or "", t))}
        servers = brokers(self.connection, self.bootstrap_servers)
        return not found.isdisjoint(written) and place.kind == TOPIC and not (
            servers.isdisjoint(place.servers)
        )

    @property
    def acknowledged(self) -> bool:
        """Whether the source is told what is finalized."""
        return self.consumer_group is not None

    @property
    def on_refused_or_default(self) -> OnRefused:
        """What is declared: by default a run fails when records are gone."""
        return self.on_refused or OnRefused.FAIL

    @property
    def connections(self) -> tuple[str, ...]:
        """The Airflow connections that it names."""
        registry = None if "://" in (self.registry or "") else self.registry
        return tuple(name for name in (self.connection, registry) if name)

    @property
    def unparsed_columns(self) -> dict[str, str]:
        """Key, timestamp and headers."""
        filled = {self.key: "key", self.timestamp: "timestamp"}
        filled |= {name: f"header {header}" for name, header in self.headers.items()}
        return {name: what for name, what in filled.items() if name}

    @property
    def has_typed_values(self) -> bool:
        """By schemas of a registry."""
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
            yield ("pattern",), f"is no regular expression ({error})"
        wanted = {("key",): (self.key, TEXT), ("timestamp",): (self.timestamp, ("timestamp",))}
        wanted |= self._metadata_types("headers", self.headers)
        yield from self._unparsed_problems("key, timestamp and headers", wanted)
        yield from self._value_problems()
        if self.value == "avro" and self.registry is None:
            yield ("registry",), "is missing: value: avro needs a connection or the URL of one"
        if self.value != "avro" and self.registry is not None:
            yield ("registry",), f"has no meaning with value: {self.value}; leave it out"


DECLARED = (KafkaSourceSpec,)
