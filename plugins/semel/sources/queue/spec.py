"""The declarations of queues as sources: what is received from one is read from its spool."""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from semel import settings
from semel.declare.parts import Duration, Model, OnRefused, Select, Size, Text, path_problem
from semel.declare.place import Location, reached
from semel.model.batch import Log
from semel.sources import ReceiveResult
from semel.sources.messages import CONNECTION, MessagesSpec, Problem

if TYPE_CHECKING:
    from semel.clients.queue import Queue

UNKNOWN = ""
"""The address of ids that a semel made which did not write it down."""

_MADE = re.compile(r"@\d{4}-\d\d-\d\dT[\d:.]+Z$")
"""When a stream was made, behind its address."""

RECEIVERS_MAX = 32
"""Each is a task of Airflow's, and a process."""

_SERVERS = r"^[a-z]+://[^\s/?#@,]+(,[a-z]+://[^\s/?#@,]+)*$"
_URL = r"^https?://[^\s/?#@]+/[^\s?#@]+$"
_ENDPOINT = r"^https?://[^\s/?#@]+/?$"
"""URLs without a login: that belongs in a connection."""


def _without_login(found: object, pattern: str, like: str) -> object:
    """The same. In words of its own: who puts a login into a URL is not to read it in a log."""
    if isinstance(found, str) and not re.fullmatch(pattern, found):
        raise ValueError(f"is no URL such as {like}; a login belongs in a connection")
    return found


class Until(Model):
    """When a receive ends: at the first of these."""

    idle: Duration = timedelta(seconds=10)
    """No message came for so long: no queue says that it is empty."""
    seconds: int = Field(default=120, ge=1, strict=True)
    """It has received for so many seconds."""
    messages: int = Field(default=1_000_000, ge=1, strict=True)
    """It has so many messages."""
    bytes: Size = 1 << 30
    """It has so many bytes of values."""


class QueueSourceSpec(MessagesSpec):
    """The messages of a queue, as a spool on this machine has them."""

    unit: ClassVar[str] = "messages"
    page: ClassVar[str] = "queues"
    part: ClassVar[str] = "segment"
    complete: ClassVar[str] = "message"
    awaited: ClassVar[str] = "a receiver that seals its segment"
    expires: ClassVar[str] = "source.keep_spool is over, and collect has removed what was read"
    own_folder: ClassVar[bool] = True
    receives: ClassVar[bool] = True
    plan_keys: ClassVar[tuple[str, ...]] = (
        *MessagesSpec.plan_keys, "spool", "keep_spool", "until", "receivers",
    )  # fmt: skip

    connection: str | None = Field(default=None, pattern=CONNECTION)
    """The Airflow connection; on the command line the variable AIRFLOW_CONN_<CONNECTION>."""
    spool: Text
    """The folder that messages are received into, before they are acknowledged: on a local file
    system of this machine, within the data roots. Each pipeline has a folder of its own in it."""
    keep_spool: Duration | None = timedelta(days=7)
    """How long a segment stays once all of it is finalized: for replays, comparisons and the audit.
    null: for ever."""
    until: Until = Until()
    """The bounds of one receive."""
    receivers: int = Field(default=1, ge=1, le=RECEIVERS_MAX, strict=True)
    """How many tasks of a run receive side by side, each into segments of its own."""
    value: Literal["json", "csv", "bytes"]
    """What a message's value is. json: one object. csv: the fields of one record, in the schema's
    order. bytes: one binary column."""
    message_id: str | None = None
    """The column (string) that takes the queue's address, #, and the service's id of the message:
    the same each time that the message is delivered."""
    published: str | None = None
    """The column (timestamp) that takes the time at which the service got the message."""
    attributes: dict[str, Text] = {}
    """Columns, string or binary, each with the attribute (header) that it takes. "*" is all of
    them, for a column array<struct<key:string,value:binary>>."""
    ordering_key: str | None = None
    """The column (string) that takes the message's ordering key or group."""

    @property
    def exclusive_inputs(self) -> set[str]:
        """Its queue or subscription, whoever reaches it."""
        return {getattr(self, "queue", "") or getattr(self, "subscription", "")}

    def id_address(self, segment: str, last: str | None) -> str | None:  # noqa: ARG002
        """What the ids of a segment's messages begin with; None: its queue is not the pipeline's.

        `segment`: the queue's address in it. `last`: that of the newest ids before; UNKNOWN: an
        older semel did not write it down; None: there are no ids yet.
        """
        return segment

    def opened_queue(self) -> "Queue":
        """A connection to the queue. TerminalError: a package is not installed, or the connection
        cannot be used.
        """
        raise NotImplementedError

    def receive(self, pipeline: str, until: Until | None, log: Log) -> ReceiveResult:
        """As `semel.sources.queue.receive`. `until`: None: for ever."""
        from semel.sources.queue.receive import Bounds, receive

        bounds = Bounds()
        if until is not None:
            bounds = Bounds(
                idle=until.idle.total_seconds(), seconds=until.seconds, messages=until.messages,
                size=until.bytes,
            )  # fmt: skip
        with self.opened_queue() as queue:
            return receive(queue, self.spool_of(pipeline), pipeline, bounds, log)

    def folder(self) -> Path:
        """The folder of all spools."""
        return settings.allowed(self.spool, "source.spool")

    def spool_of(self, pipeline: str) -> Path:
        """The spool of a pipeline. TerminalError: it lies outside the data roots."""
        return self.folder() / pipeline

    def reads_from(self, place: Location) -> bool:  # noqa: ARG002
        """No sink writes to a queue."""
        return False

    @property
    def retention(self) -> timedelta | None:
        """As it is declared."""
        return self.keep_spool

    @property
    def on_refused_or_default(self) -> OnRefused:
        """What is declared: by default a run fails, as what is refused was acknowledged."""
        return self.on_refused or OnRefused.FAIL

    def selection_rule(self) -> str:
        """Nothing: all is taken as it arrives."""
        return "its arrival"

    @property
    def connections(self) -> tuple[str, ...]:
        """The Airflow connections that it names."""
        return (self.connection,) if self.connection else ()

    @property
    def unparsed_columns(self) -> dict[str, str]:
        """What a message has beside its value."""
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
        """A queue delivers a message again: only its id tells."""
        if not record_id:
            name = self.message_id or "message_id"
            lines = "" if self.message_id else f"source.message_id: {name}, in the schema "
            lines += "" if self.message_id else f"{name}: string, and "
            yield ("record_id",), (
                "is missing: a queue delivers messages more than once, and only an id tells. "
                f"Declare {lines}record_id: [{name}]; or name the columns that tell records apart "
                "where publishers repeat themselves"
            )
        if bucket_by and bucket_by == self.published and self.message_id not in record_id:
            yield ("dedup", "scope"), (
                f"bucket does not go with record_time: {bucket_by} and this record_id: a publisher "
                "that repeats a record gives it another time of publishing, so the two would be "
                "looked for in two buckets. Declare scope: horizon, a record_time that is in the "
                f"record, or record_id: [{self.message_id or 'message_id'}]"
            )

    @field_validator("spool")
    @classmethod
    def _spool(cls, spool: str) -> str:
        if why := path_problem(spool):
            raise ValueError(f"{spool!r} {why}")
        return spool

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        if self.select is not Select.ARRIVAL:
            yield ("select",), (
                "must be arrival: a queue has no past to read again; interval is for sources that "
                "keep what they had"
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
    """A stream of NATS JetStream, by a durable pull consumer."""

    plan_keys: ClassVar[tuple[str, ...]] = (
        *QueueSourceSpec.plan_keys, "connection", "servers", "address"
    )

    type: Literal["nats"]
    """The kind of source."""
    servers: str | None = Field(default=None, pattern=_SERVERS)
    """The servers, as nats://host:port,nats://host:port, where they need no login. This or
    connection."""
    stream: str = Field(pattern=r"^[^\s.*>/\\]+$")
    """The stream."""
    consumer: str = Field(pattern=r"^[^\s.*>/\\]+$")
    """Its durable pull consumer, with explicit acknowledgements. It must be there."""
    address: str | None = Field(default=None, pattern=r"^[^\s.*>/\\]+$")
    """The name of a stream that ids begin with, where this one took its place with all numbers: a
    mirror, a backup under another name. Or this one's, where another queue is read from now on."""

    @field_validator("servers", mode="before")
    @classmethod
    def _servers(cls, found: object) -> object:
        return _without_login(found, _SERVERS, "nats://queue:4222")

    def opened_queue(self) -> "Queue":
        """By its client."""
        from semel.clients.queue import nats
        from semel.sources.queue.receive import HELD_MESSAGES

        return nats.opened(
            connection=self.connection, servers=self.servers, stream=self.stream,
            consumer=self.consumer, hold=self.receivers * HELD_MESSAGES,
        )  # fmt: skip

    @property
    def exclusive_inputs(self) -> set[str]:
        """Its consumer, on each server, or by the connection."""
        ways = self.servers.split(",") if self.servers else [f"connection {self.connection}"]
        return {f"the consumer {self.consumer} of {self.stream} on {way}" for way in ways}

    # Keeps Q4.
    def id_address(self, segment: str, last: str | None) -> str | None:
        """By the stream's name: it is made at another time when a backup is restored. Ids that have
        that time go on with theirs.
        """
        queue = _MADE.sub("", segment)
        renamed = self.address and queue == f"nats:{self.stream}"
        own = f"nats:{self.address}" if renamed else queue
        if last is None:
            return own
        if last == UNKNOWN and own == queue:
            return segment
        if own in (last, _MADE.sub("", last)):
            return last
        return own if not self.message_id or (self.address and last != UNKNOWN) else None

    def describe(self) -> str:
        """Stream, consumer and servers."""
        return (
            f"the stream `{self.stream}` of {reached(self.connection, self.servers)}, by its "
            f"consumer `{self.consumer}`, {self.value}"
        )

    def datasets(self, claimed: Callable[[], Iterable[str]]) -> list[tuple[str, str]]:  # noqa: ARG002
        """The stream; where a connection leads to is not told."""
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
    """The queue's URL. Without a connection the machine's own credentials are taken."""
    endpoint: str | None = Field(default=None, pattern=_ENDPOINT)
    """The URL of a service that is not AWS."""

    @field_validator("queue", mode="before")
    @classmethod
    def _queue(cls, found: object) -> object:
        return _without_login(found, _URL, "https://sqs.eu-west-1.amazonaws.com/123456789012/name")

    @field_validator("endpoint", mode="before")
    @classmethod
    def _endpoint(cls, found: object) -> object:
        return _without_login(found, _ENDPOINT, "http://127.0.0.1:9324")

    def opened_queue(self) -> "Queue":
        """By its client."""
        from semel.clients.queue import sqs

        return sqs.opened(connection=self.connection, endpoint=self.endpoint, queue=self.queue)

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
    """The subscription, as projects/P/subscriptions/S. Without a connection the machine's own
    credentials are taken (application default credentials)."""

    def opened_queue(self) -> "Queue":
        """By its client."""
        from semel.clients.queue import pubsub

        return pubsub.opened(connection=self.connection, subscription=self.subscription)

    def describe(self) -> str:
        """The subscription."""
        return f"the subscription `{self.subscription}`, {self.value}"

    def datasets(self, claimed: Callable[[], Iterable[str]]) -> list[tuple[str, str]]:  # noqa: ARG002
        """The subscription, as OpenLineage names it."""
        _, project, _, name = self.subscription.split("/")
        return [("pubsub", f"subscription:{project}:{name}")]


DECLARED = (NatsSourceSpec, SqsSourceSpec, PubsubSourceSpec)
