"""The declarations of queues as sources: what is received from one is read from its spool."""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from semel import settings
from semel.clients.objects import access
from semel.declare.parts import Duration, Model, OnRefused, Select, Size, Text, path_problem
from semel.declare.place import Location, service
from semel.model.batch import Log
from semel.sources import ReceiveResult
from semel.sources.messages import CONNECTION, MessagesSpec, Problem
from semel.storage import ArchivePath, StorePath, at

if TYPE_CHECKING:
    from semel.clients.queue import Queue

UNKNOWN = ""
"""The address of ids from an older version of semel, which did not record it."""

_CREATED = re.compile(r"@\d{4}-\d\d-\d\dT[\d:.]+Z$")
"""The creation time of a stream, at the end of its address."""

RECEIVERS_MAX = 32
"""Each receiver is an Airflow task and a process."""

_SERVERS = r"^[a-z]+://[^\s/?#@,]+(,[a-z]+://[^\s/?#@,]+)*$"
_URL = r"^https?://[^\s/?#@]+/[^\s?#@]+$"
_ENDPOINT = r"^https?://[^\s/?#@]+/?$"
"""URLs without a login, which belongs in a connection."""


def _without_login(value: object, pattern: str, like: str) -> object:
    """Return the value. The error never quotes it, because a URL may contain a password."""
    if isinstance(value, str) and not re.fullmatch(pattern, value):
        raise ValueError(f"must be a URL such as {like}; a login belongs in a connection")
    return value


class Until(Model):
    """A receive ends at the first bound that it reaches."""

    idle: Duration = timedelta(seconds=10)
    """The longest time without a message; a queue does not report that it is empty."""
    seconds: int = Field(default=120, ge=1, strict=True)
    """The longest time that it receives, in seconds."""
    messages: int = Field(default=1_000_000, ge=1, strict=True)
    """The most messages."""
    bytes: Size = 1 << 30
    """The most bytes of values."""


class QueueSourceSpec(MessagesSpec):
    """The messages of a queue, read from a spool in a folder or in a store."""

    unit: ClassVar[str] = "messages"
    page: ClassVar[str] = "queues"
    part: ClassVar[str] = "segment"
    complete: ClassVar[str] = "message"
    awaited: ClassVar[str] = "a receiver that seals its segment"
    expires: ClassVar[str] = "source.keep_spool is over, and collect has removed what was read"
    own_folder: ClassVar[bool] = True
    folder_key: ClassVar[str | None] = "spool"
    receives: ClassVar[bool] = True
    plan_keys: ClassVar[tuple[str, ...]] = (
        *MessagesSpec.plan_keys, "spool", "keep_spool", "until", "receivers",
    )  # fmt: skip

    connection: str | None = Field(default=None, pattern=CONNECTION)
    """The Airflow connection; on the command line the variable AIRFLOW_CONN_<CONNECTION>."""
    spool: Text
    """The folder where receive stores messages before it acknowledges them: on a local file system
    of this machine, within the data roots; or the URL of a store, which all machines reach by
    SEMEL_ARCHIVES_CONNECTION. Each pipeline uses a subfolder."""
    keep_spool: Duration | None = timedelta(days=7)
    """How long a finalized segment stays, for replays, comparisons and the audit. null: for
    ever."""
    until: Until = Until()
    """The bounds of one receive."""
    receivers: int = Field(default=1, ge=1, le=RECEIVERS_MAX, strict=True)
    """How many tasks of a run receive in parallel, each into separate segments."""
    value: Literal["json", "csv", "bytes"]
    """The form of a message's value. json: one object. csv: the fields of one record, in the
    schema's order. bytes: one binary column."""
    message_id: str | None = None
    """The column (string) for the queue's address, #, and the service's id of the message. Each
    delivery of a message has the same."""
    published: str | None = None
    """The column (timestamp) for the time at which the service received the message."""
    attributes: dict[str, Text] = {}
    """Columns, string or binary, each with its attribute (header). "*" means all attributes, for a
    column array<struct<key:string,value:binary>>."""
    ordering_key: str | None = None
    """The column (string) for the message's ordering key or group."""

    @property
    def exclusive_inputs(self) -> set[str]:
        """The queue or subscription that receive empties, regardless of the connection."""
        return {getattr(self, "queue", "") or getattr(self, "subscription", "")}

    def id_address(self, segment: str, last: str | None) -> str | None:  # noqa: ARG002
        """The prefix for the ids of a segment's messages. Returns None if the segment comes from
        another queue.

        `segment`: the queue's address in the segment. `last`: the address of the newest ids;
        UNKNOWN if an older semel did not record it, None before the first id.
        """
        return segment

    def open_queue(self) -> "Queue":
        """Connect to the queue. Raises TerminalError if a package is missing, or the connection
        cannot be used.
        """
        raise NotImplementedError

    def receive(self, pipeline: str, until: Until | None, log: Log) -> ReceiveResult:
        """As `semel.sources.queue.receive`. `until` None: for ever."""
        from semel.sources.queue.receive import Bounds, receive

        bounds = Bounds()
        if until is not None:
            bounds = Bounds(
                idle=until.idle.total_seconds(), seconds=until.seconds, messages=until.messages,
                size=until.bytes,
            )  # fmt: skip
        with self.open_queue() as queue:
            return receive(queue, self.spool_of(pipeline), pipeline, bounds, log)

    def folder(self) -> Path | None:
        """The folder of all spools. None if it is in a store."""
        spools = self.spools()
        return spools if isinstance(spools, Path) else None

    def place(self) -> Location:
        """The folder or prefix of all spools."""
        spools = self.spools()
        return Location.of(spools) if isinstance(spools, Path) else spools.location

    def spools(self) -> ArchivePath:
        """The place of all spools. Raises TerminalError if it lies outside the data roots."""
        if StorePath.is_url(self.spool):
            return at(self.spool)
        return settings.allowed(self.spool, "source.spool")

    def spool_of(self, pipeline: str) -> ArchivePath:
        """The spool of a pipeline. Raises as `spools` does."""
        return self.spools() / pipeline

    def reads_from(self, place: Location) -> bool:  # noqa: ARG002
        """No sink writes to a queue."""
        return False

    @property
    def retention(self) -> timedelta | None:
        """`source.keep_spool`."""
        return self.keep_spool

    @property
    def on_refused_or_default(self) -> OnRefused:
        """By default a run fails, because the queue no longer has a refused message."""
        return self.on_refused or OnRefused.FAIL

    def selection_rule(self) -> str:
        """Plan does not select messages by a time."""
        return "its arrival"

    @property
    def connections(self) -> tuple[str, ...]:
        """The declared Airflow connection."""
        return (self.connection,) if self.connection else ()

    @property
    def unparsed_columns(self) -> dict[str, str]:
        """The columns that the value does not fill, each with its origin."""
        filled = {
            self.message_id: "message_id",
            self.published: "published",
            self.ordering_key: "ordering_key",
        }
        filled |= {column: f"attribute {name}" for column, name in self.attributes.items()}
        return {column: what for column, what in filled.items() if column}

    # Keeps Q4.
    def id_problems(
        self, record_id: tuple[str, ...], bucket_by: str | None
    ) -> Iterator[Problem]:
        """A queue repeats messages, and only their ids identify the repeats."""
        if not record_id:
            name = self.message_id or "message_id"
            lines = "" if self.message_id else f"source.message_id: {name}, in the schema "
            lines += "" if self.message_id else f"{name}: string, and "
            yield ("record_id",), (
                "is missing: a queue delivers messages more than once, and semel finds repeats by "
                f"their id. Declare {lines}record_id: [{name}]; or, if publishers repeat records, "
                "the columns that identify a record"
            )
        if bucket_by and bucket_by == self.published and self.message_id not in record_id:
            yield ("dedup", "scope"), (
                f"bucket does not work with record_time: {bucket_by} and this record_id: if a "
                "publisher repeats a record, the repeat has another time of publishing, so semel "
                "would search another bucket. Declare scope: horizon, a record_time in the record "
                f"itself, or record_id: [{self.message_id or 'message_id'}]"
            )

    @field_validator("spool")
    @classmethod
    def _spool(cls, spool: str) -> str:
        if StorePath.is_url(spool):
            return str(access.check_url(spool))
        if why := path_problem(spool):
            raise ValueError(f"{spool!r} {why}")
        return spool

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        if self.select is not Select.ARRIVAL:
            yield ("select",), (
                "must be arrival: a queue keeps no old messages. interval works only with sources "
                "that can be read again"
            )
        wanted = {
            ("message_id",): (self.message_id, ("string",)),
            ("published",): (self.published, ("timestamp",)),
            ("ordering_key",): (self.ordering_key, ("string",)),
            **self._metadata_types("attributes", self.attributes),
        }
        named = "message_id, published, ordering_key and attributes"
        yield from self._unparsed_problems(named, wanted)
        yield from self._value_problems()


class NatsSourceSpec(QueueSourceSpec):
    """A stream of NATS JetStream, read by a durable pull consumer."""

    plan_keys: ClassVar[tuple[str, ...]] = (*QueueSourceSpec.plan_keys, "connection", "servers", "address")

    type: Literal["nats"]
    """The kind of source."""
    servers: str | None = Field(default=None, pattern=_SERVERS)
    """Servers without a login, as nats://host:port,nats://host:port. This or connection."""
    stream: str = Field(pattern=r"^[^\s.*>/\\]+$")
    """The stream."""
    consumer: str = Field(pattern=r"^[^\s.*>/\\]+$")
    """Its durable pull consumer, with explicit acknowledgements. It must exist."""
    address: str | None = Field(default=None, pattern=r"^[^\s.*>/\\]+$")
    """The stream name at the start of ids. If this stream replaces an old one with the same numbers
    (a mirror, a renamed backup), the old name. If you switch to a different queue, the new name."""

    @field_validator("servers", mode="before")
    @classmethod
    def _servers(cls, value: object) -> object:
        return _without_login(value, _SERVERS, "nats://queue:4222")

    def open_queue(self) -> "Queue":
        """Connect to the servers."""
        from semel.clients.queue import nats
        from semel.sources.queue.receive import HOLD_MESSAGES_MAX

        return nats.open_queue(
            connection=self.connection, servers=self.servers, stream=self.stream,
            consumer=self.consumer, hold=self.receivers * HOLD_MESSAGES_MAX,
        )  # fmt: skip

    @property
    def exclusive_inputs(self) -> set[str]:
        """The consumer, once for each server or for the connection."""
        ways = self.servers.split(",") if self.servers else [f"connection {self.connection}"]
        return {f"the consumer {self.consumer} of {self.stream} on {way}" for way in ways}

    # Keeps Q4.
    def id_address(self, segment: str, last: str | None) -> str | None:
        """By the stream's name only, because restoring a backup changes its creation time. Ids that
        already contain a creation time keep it.
        """
        queue = _CREATED.sub("", segment)
        renamed = self.address and queue == f"nats:{self.stream}"
        current = f"nats:{self.address}" if renamed else queue
        if last is None:
            return current
        if last == UNKNOWN and current == queue:
            return segment
        if current in (last, _CREATED.sub("", last)):
            return last
        return current if not self.message_id or (self.address and last != UNKNOWN) else None

    def describe(self) -> str:
        """Stream, consumer and servers."""
        return (
            f"the stream `{self.stream}` of {service(self.connection, self.servers)}, by its "
            f"consumer `{self.consumer}`, {self.value}"
        )

    def datasets(self, claimed: Callable[[], Iterable[str]]) -> list[tuple[str, str]]:  # noqa: ARG002
        """The stream. The address behind a connection stays private."""
        return [((self.servers or "nats").partition(",")[0], self.stream)]

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        if (self.connection is None) == (self.servers is None):
            yield ("connection",), "declare either connection or servers"


class SqsSourceSpec(QueueSourceSpec):
    """A queue of Amazon SQS."""

    plan_keys: ClassVar[tuple[str, ...]] = (*QueueSourceSpec.plan_keys, "connection", "endpoint")

    type: Literal["sqs"]
    """The kind of source."""
    queue: str = Field(pattern=_URL)
    """The queue's URL. Without a connection, semel uses the credentials of the machine."""
    endpoint: str | None = Field(default=None, pattern=_ENDPOINT)
    """The URL of a service other than AWS."""

    @field_validator("queue", mode="before")
    @classmethod
    def _queue(cls, value: object) -> object:
        return _without_login(value, _URL, "https://sqs.eu-west-1.amazonaws.com/123456789012/name")

    @field_validator("endpoint", mode="before")
    @classmethod
    def _endpoint(cls, value: object) -> object:
        return _without_login(value, _ENDPOINT, "http://127.0.0.1:9324")

    def open_queue(self) -> "Queue":
        """Connect to SQS, or to the endpoint."""
        from semel.clients.queue import sqs

        return sqs.open_queue(connection=self.connection, endpoint=self.endpoint, queue=self.queue)

    def describe(self) -> str:
        """The queue."""
        return f"the queue `{self.queue}`, {self.value}"

    def datasets(self, claimed: Callable[[], Iterable[str]]) -> list[tuple[str, str]]:  # noqa: ARG002
        """The queue, by its URL."""
        url = urlsplit(self.queue)
        return [(f"sqs://{url.netloc}", url.path.removeprefix("/"))]


class PubsubSourceSpec(QueueSourceSpec):
    """A subscription of Google Pub/Sub."""

    plan_keys: ClassVar[tuple[str, ...]] = (*QueueSourceSpec.plan_keys, "connection")

    type: Literal["pubsub"]
    """The kind of source."""
    subscription: str = Field(pattern=r"^projects/[^/\s]+/subscriptions/[^/\s]+$")
    """The subscription, as projects/P/subscriptions/S. Without a connection, semel uses the
    credentials of the machine (application default credentials)."""

    def open_queue(self) -> "Queue":
        """Connect to Pub/Sub."""
        from semel.clients.queue import pubsub

        return pubsub.open_queue(connection=self.connection, subscription=self.subscription)

    def describe(self) -> str:
        """The subscription."""
        return f"the subscription `{self.subscription}`, {self.value}"

    def datasets(self, claimed: Callable[[], Iterable[str]]) -> list[tuple[str, str]]:  # noqa: ARG002
        """The subscription, as OpenLineage names it."""
        _, project, _, name = self.subscription.split("/")
        return [("pubsub", f"subscription:{project}:{name}")]


DECLARED = (NatsSourceSpec, SqsSourceSpec, PubsubSourceSpec)
