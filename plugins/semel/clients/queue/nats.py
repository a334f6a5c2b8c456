"""Receive from a stream of NATS JetStream by a durable pull consumer.

A message's id is its sequence number in the stream and the time when the stream stored it, in
nanoseconds. Each delivery has the same two. The number alone is not unique: a server that lost its
last messages gives their numbers to other messages.
"""

import asyncio
import json
import re
import ssl
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from semel import settings
from semel.clients.connection import (
    ConnectionSettingsError,
    Fields,
    connection_text,
    parse_connection,
    require_kind,
    require_package,
    translate_settings_errors,
)
from semel.clients.queue import MALFORMED, Attributes, PulledMessages, Queue, QueueInfo
from semel.errors import SemelError, TerminalError, UnavailableError

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

ANSWER_SECONDS = 10
"""Longest wait for a server's answer."""

_PENDING_BYTES = 128 << 20
"""The client's buffer of arrived messages: enough for one pull and one message. The client drops
messages above it, and the server delivers them again."""

_STEP_SECONDS = 5
"""Longest wait of one pull request for a message."""

_NOW_SECONDS = 0.1
"""Wait of a request for messages that are available now. With no wait at all, the server would not
answer while the consumer is at its limit of unacknowledged messages (max_ack_pending)."""

_FULL_SECONDS = 0.02
"""Pause if this receiver itself has as many unacknowledged messages as the consumer allows."""

_EXAMPLE = '"conn_type": "nats", "host": "nats.example.com", "login": "me", "password": "..."'

_ACK = "$JS.ACK."
_DONE = {"404", "408"}
"""Statuses that end a pull: the stream ran out of messages, or none came within its time."""

_SIZES = re.compile("(?i)maxbytes|batch completed|maxwaiting")
"""The text of a status 409 if a pull ended at a bound, its own or one of other pulls."""

_WORD = rb"([^ \t\r\n]+)[ \t]+"
_LINES = {
    f"{verb}_RE": re.compile(rb"\A%b[ \t]+%b%b(%b)?%b(\d+)\r\n" % (
        verb.encode(), _WORD, _WORD, _WORD, rb"(\d+)[ \t]+" if verb == "HMSG" else b"",
    )) for verb in ("MSG", "HMSG")
}  # fmt: skip
"""The line before a message: subject, number of the subscription, subject for replies, sizes."""

T = TypeVar("T")


def open_queue(
    *,
    connection: str | None,
    servers: str | None,
    stream: str,
    consumer: str,
    hold: int = 1,
    find: Callable[[str], str | None] = settings.connection,
) -> Queue:
    """The consumer of a stream. It connects at the first request.

    `connection`: the name of an Airflow connection; else `servers`, as `nats://host:port,...`.
    `hold`: the unacknowledged messages of all receivers of the pipeline together, at most.
    Raises TerminalError if the package is not installed or the connection is unusable.
    """
    with require_package("NATS", "nats"):
        from nats.aio.client import Client
        from nats.protocol import parser

    class ServerParser(parser.Parser):
        """Splits words as the server does: a subject may contain other white space."""

        parse = FunctionType(parser.Parser.parse.__code__, vars(parser) | _LINES)

    class RawClient(Client):
        """Keeps the bytes of headers and subjects. nats-py breaks the connection at some that a
        server accepts, and drops all but one header of a name.
        """

        def __init__(self) -> None:
            super().__init__()
            self._ps = ServerParser(self)

        async def _process_headers(self, headers: bytes | None) -> dict[str, Any] | None:
            if not headers:
                return None
            line = headers.partition(b"\r\n")[0].decode("latin-1").removeprefix("NATS/1.0")
            status, _, description = line.strip().partition(" ")
            return {"Status": status, "Description": description, "": headers}

        def _build_message(self, sid: int, subject: bytes, *parts: Any) -> "Msg":
            message = super()._build_message(sid, b"", *parts)
            message.subject = subject.decode("utf-8", "surrogateescape")
            return message

    config = _config(connection, servers, find)
    server = f"connection {connection!r}" if connection else servers
    return _Nats(RawClient, config, stream, consumer, server, hold)


def _config(
    connection: str | None, servers: str | None, find: Callable[[str], str | None]
) -> dict[str, Any]:
    """The client's settings. They include secrets: never print them."""
    if connection is None:
        return {"servers": (servers or "").split(",")}
    text = connection_text(connection, find, _EXAMPLE)
    with translate_settings_errors(connection, "NATS"):
        return _config_from_fields(parse_connection(text))


_EXTRA = ("token", "user_credentials", "nkeys_seed", "tls_hostname")
"""Settings of nats-py that an extra may have; the second and third are paths of files."""

_TLS = ("tls_ca", "tls_cert", "tls_key")
"""Paths of PEM files: the trusted authority, and the client's certificate and key."""


def _config_from_fields(fields: Fields) -> dict[str, Any]:
    require_kind(fields, "nats")
    extra = {key: fields.extra[key] for key in (*_EXTRA, *_TLS, "servers") if key in fields.extra}
    for key, value in extra.items():
        if not isinstance(value, str):
            raise ConnectionSettingsError(f"{key!r} is not text")
    servers = extra.pop("servers", None)
    if not servers:
        if not fields.host:
            raise ConnectionSettingsError("it has no host")
        scheme = "tls" if any(key in extra for key in _TLS) else "nats"
        servers = f"{scheme}://{fields.host}:{fields.port or 4222}"
    config: dict[str, Any] = {"servers": servers.split(",")}
    if any(key in extra for key in _TLS):
        try:
            config["tls"] = ssl.create_default_context(cafile=extra.get("tls_ca"))
            if "tls_cert" in extra:
                config["tls"].load_cert_chain(extra["tls_cert"], extra.get("tls_key"))
        except OSError as error:  # ssl.SSLError is one.
            raise ConnectionSettingsError(
                f"semel cannot read its certificates: {error.strerror}"
            ) from None
    config |= {key: extra[key] for key in _EXTRA if key in extra}
    login = {"user": fields.login, "password": fields.password}
    return config | {key: value for key, value in login.items() if value}


class _Nats(Queue):
    """A connection, with an event loop that runs only within a call."""

    def __init__(
        self, client: "type[Client]", config: dict[str, Any], stream: str, consumer: str,
        server: str, hold: int,
    ) -> None:  # fmt: skip
        self._client_class, self._config = client, config
        self.stream, self.consumer, self._hold = stream, consumer, hold
        self._title = f"the stream {stream!r} of NATS ({server})"
        self._loop = asyncio.new_event_loop()
        self._client: Client | None = None
        self._created: str | None = None
        self._bounds: dict[str, int] = {}
        self._arrived: list[Msg] = []
        self._unacknowledged = 0
        self._statuses: dict[str, tuple[str, str]] = {}
        self._arrival = asyncio.Event()
        self._pulls = 0
        self._last_error = ""

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine. Raises the client's errors as SemelErrors."""
        from nats.errors import Error

        try:
            return self._loop.run_until_complete(work)
        except ImportError as error:
            raise TerminalError(
                f"{self._title}: this login needs a package that is not installed ({error})",
                next="pip install 'nats-py[nkeys]'",
            ) from None
        except (Error, OSError, asyncio.TimeoutError) as error:
            raise self._translate_error(error) from None

    def _translate_error(self, error: BaseException) -> SemelError:
        from nats import errors

        text = " ".join(f"{self._last_error or str(error) or type(error).__name__}".split())[:300]
        is_refused = "authorization" in text.lower() or "permissions" in text.lower()
        if is_refused or isinstance(error, errors.AuthorizationError):
            return TerminalError(
                f"{self._title}: the user of the connection lacks a right ({text}). Grant these: "
                f"{self.rights}"
            )
        if isinstance(error, ssl.SSLCertVerificationError):
            return TerminalError(
                f"{self._title}: this machine does not trust its certificate ({text}). Correct "
                "tls_ca of the connection"
            )
        return UnavailableError(
            f"{self._title} does not answer ({text}). Start it, or correct its address"
        )

    async def _connected_client(self) -> "Client":
        """The client; connects it if it is not connected."""
        if self._client is not None and self._client.is_connected:
            return self._client
        await self._end()
        self._last_error = ""

        async def record_error(error: Exception) -> None:
            self._last_error = str(error) or type(error).__name__

        client = self._client_class()
        self._arrived.clear()  # The server delivers them again.
        self._unacknowledged = 0
        async with asyncio.timeout(ANSWER_SECONDS):
            await client.connect(
                **self._config, name="semel", allow_reconnect=False, error_cb=record_error,
                connect_timeout=ANSWER_SECONDS, max_reconnect_attempts=1,
            )  # fmt: skip
        self._inbox = client.new_inbox()
        await client.subscribe(
            f"{self._inbox}.*", cb=self._take, pending_msgs_limit=-1,
            pending_bytes_limit=_PENDING_BYTES,
        )  # fmt: skip
        self._client = client
        return client

    async def _take(self, message: "Msg") -> None:
        if message.reply.startswith(_ACK):
            self._arrived.append(message)
        else:
            headers = message.headers or {}
            status = headers.get("Status", ""), headers.get("Description", "")
            self._statuses[message.subject] = status
        self._arrival.set()

    async def _query(self, subject: str) -> dict[str, Any]:
        """The answer of JetStream's API. Returns {} if the stream or consumer does not exist."""
        client = await self._connected_client()
        request = client.request(f"$JS.API.{subject}", b"", timeout=ANSWER_SECONDS)
        answer = json.loads((await self._await_connected(client, request)).data)
        if error := answer.get("error"):
            if error.get("code") == 404:
                return {}
            self._last_error = str(error.get("description"))
            raise OSError(self._last_error)
        return answer

    def describe(self) -> QueueInfo:
        return self._run(self._describe())

    async def _describe(self) -> QueueInfo:
        stream = await self._query(f"STREAM.INFO.{self.stream}")
        if not stream:
            raise TerminalError(f"{self._title} does not exist. Create it or correct source.stream")
        consumer = await self._query(f"CONSUMER.INFO.{self.stream}.{self.consumer}")
        if not consumer:
            raise TerminalError(
                f"{self._title} lacks the consumer {self.consumer!r}. Create it",
                next=self._add(self.consumer),
            )
        config = consumer["config"]
        for is_wrong, why, remedy in self._unfit(config, paused=consumer.get("paused", False)):
            if is_wrong:
                title = f"consumer {self.consumer!r} of {self._title}"
                raise TerminalError(f"{title} {why}", next=remedy)
        if stream["created"] != self._created:
            # Arrived messages have numbers of the deleted stream, which this one gave to others.
            self._created, self._unacknowledged = stream["created"], 0
            self._arrived.clear()
        self._bounds = {
            "batch": config.get("max_batch") or 1 << 30,
            "expires": config.get("max_expires") or _STEP_SECONDS * 10**9,
            "max_bytes": config.get("max_bytes") or 1 << 30,
            "pending": pending if (pending := config.get("max_ack_pending", -1)) > 0 else 1 << 30,
        }
        max_age = stream["config"].get("max_age")
        return QueueInfo(
            address=f"nats:{self.stream}@{self._created}",
            deadline_seconds=min([config["ack_wait"], *(config.get("backoff") or [])]) / 1e9,
            retention=timedelta(microseconds=max_age / 1000) if max_age else timedelta.max,
            waiting=consumer["num_pending"],
            notes=tuple(self._notes(config)),
        )

    def _add(self, consumer: str) -> str:
        return (
            f"nats consumer add {self.stream} {consumer} --pull --ack explicit --deliver all "
            "--wait 60s --max-pending 20000 --defaults"
        )

    def _edit(self, change: str) -> str:
        return f"nats consumer edit {self.stream} {self.consumer} {change} --force"

    def _unfit(self, config: dict[str, Any], *, paused: bool) -> list[tuple[Any, str, str]]:
        """Reasons why semel cannot use a consumer: whether each applies, its text, a command."""
        push = config.get("deliver_subject") or config.get("ack_policy") != "explicit"
        another = "Create another consumer, and name it in source.consumer"
        return [
            (push, f"is not a pull consumer with explicit acknowledgements. {another}",
             self._add(f"{self.consumer}2")),
            (config.get("priority_groups"), f"serves only priority groups. {another}",
             self._add(f"{self.consumer}2")),
            (config.get("max_deliver", -1) > 0,
             f"stops delivering a message after {config.get('max_deliver')} attempts "
             "(max_deliver). If receivers crash so often, that message is lost. Remove the limit",
             self._edit("--max-deliver -1")),
            (config.get("headers_only"),
             "delivers messages without values (headers_only). Disable this setting",
             self._edit("--no-headers-only")),
            (paused, f"is paused until {config.get('pause_until')}. Resume it",
             f"nats consumer resume {self.stream} {self.consumer} --force"),
        ]  # fmt: skip

    def _notes(self, config: dict[str, Any]) -> Iterator[str]:
        """Settings of the consumer that leave messages out or slow it down."""
        policy, pending = config.get("deliver_policy", "all"), self._bounds["pending"]
        only = config.get("filter_subjects") or [config.get("filter_subject", "")]
        idle_seconds = config.get("inactive_threshold", 0) / 1e9
        for applies, note in (
            (policy != "all", f"skips messages from before its creation (deliver_policy {policy})"),
            (only != [""], f"delivers only these subjects: {', '.join(only)}"),
            (config.get("replay_policy") == "original",
             "delivers no faster than messages were published (replay_policy original)"),
            (idle_seconds, f"is deleted by the server after {idle_seconds:,.0f} s without a pull"),
            (pending < self._hold,
             f"allows {pending:,} unacknowledged messages (max_ack_pending), but this pipeline's "
             f"receivers want up to {self._hold:,}, so they wait for acknowledgements. For more "
             f"speed: {self._edit(f'--max-pending {self._hold}')}"),
        ):  # fmt: skip
            if applies:
                yield f"Consumer {self.consumer!r} {note}"

    @property
    def rights(self) -> str:
        """The permissions, as text for the server's configuration."""
        api, consumer = "$JS.API", f"{self.stream}.{self.consumer}"
        publish = [
            f"{api}.STREAM.INFO.{self.stream}", f"{api}.CONSUMER.INFO.{consumer}",
            f"{api}.CONSUMER.MSG.NEXT.{consumer}", f"$JS.ACK.{consumer}.>",
        ]  # fmt: skip
        return f'permissions: {{publish: {json.dumps(publish)}, subscribe: ["_INBOX.>"]}}'

    async def _await_connected(self, client: "Client", work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`. Raises UnavailableError soon after the connection is lost, which
        nats-py does not report to a waiting caller."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=0.5))[0]:
                self._check_connected(client)
            return task.result()
        finally:
            task.cancel()

    def _check_connected(self, client: "Client | None") -> "Client":
        if client is None or not client.is_connected:
            raise UnavailableError(f"{self._title}: the connection was lost")
        return client

    async def _check_stream(self) -> None:
        """Raises UnavailableError if the stream is not the one that `describe` saw."""
        stream = await self._query(f"STREAM.INFO.{self.stream}")
        if stream.get("created") != self._created:
            raise UnavailableError(f"{self._title} was deleted or created again meanwhile")

    def pull(self, messages: int, size: int, seconds: float) -> PulledMessages:
        return self._run(self._pull(messages, size, seconds))

    async def _pull(self, messages: int, size: int, seconds: float) -> PulledMessages:
        """1. Request available messages, as many as the consumer allows. 2. Without any, wait
        for one message of any size. 3. Request those that came with it. 4. Check that all belong to
        the stream that `describe` saw.
        """
        self._check_connected(self._client)
        capacity = self._bounds["pending"] - self._unacknowledged - len(self._arrived)
        if capacity > 0:
            await self._request(min(messages, capacity), 0, size)
        elif not self._arrived:
            await asyncio.sleep(min(seconds, _FULL_SECONDS))
        # At its limit the consumer waits for this receiver's acknowledgements: return to it.
        is_full = capacity < messages and self._unacknowledged > 0
        ends = self._loop.time() + (0 if is_full else seconds)
        while not self._arrived and (seconds_left := ends - self._loop.time()) > 0:
            await self._request(1, min(seconds_left, _STEP_SECONDS))
            if self._arrived and messages > 1:
                await self._request(messages - 1, 0, size)
        pulled, self._arrived = self._arrived[:messages], self._arrived[messages:]
        if pulled:
            await self._check_stream()
            self._unacknowledged += len(pulled)
        return _message_columns(pulled)

    async def _request(self, messages: int, seconds: float, size: int | None = None) -> None:
        """Request messages, and wait until they arrive or a status ends the request."""
        client = self._client
        self._pulls += 1
        inbox = f"{self._inbox}.{self._pulls}"
        request: dict[str, Any] = {"batch": min(messages, self._bounds["batch"])}
        if size is not None:
            request["max_bytes"] = max(min(size, self._bounds["max_bytes"]), 1)
        wait = min(max(int((seconds or _NOW_SECONDS) * 1e9), 1_000_000), self._bounds["expires"])
        request |= {"expires": wait} | ({} if seconds else {"no_wait": True})
        arrived_before = len(self._arrived)
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self.consumer}"
        await client.publish(subject, json.dumps(request).encode(), inbox)
        async with asyncio.timeout(seconds + ANSWER_SECONDS):
            wanted = arrived_before + request["batch"]
            while inbox not in self._statuses and len(self._arrived) < wanted:
                self._arrival.clear()
                self._check_connected(client)
                with suppress(asyncio.TimeoutError):
                    # nats-py does not report a lost connection, so check it every 0.5 s.
                    await asyncio.wait_for(self._arrival.wait(), 0.5)
        status, description = self._statuses.pop(inbox, ("404", ""))
        self._statuses.clear()  # Statuses of complete earlier pulls.
        if "maxwaiting" in description.lower():
            await asyncio.sleep(_FULL_SECONDS)
        if status not in _DONE and not (status == "409" and _SIZES.search(description)):
            raise UnavailableError(
                f"{self._title} refuses a pull by consumer {self.consumer!r} "
                f"({status} {description}). Run this again"
            )

    def acknowledge(self, handles: Sequence[Any]) -> int:
        """Acknowledge all. The server does not report those that come too late."""
        self._unacknowledged -= len(handles)
        try:
            # An acknowledgement names a number, which another stream gives to another message.
            self._run(self._check_stream())
            self._run(self._reply(handles, b"+ACK"))
        except UnavailableError:
            return len(handles)
        return 0

    def extend(self, handles: Sequence[Any]) -> None:
        with suppress(SemelError):
            self._run(self._reply(handles, b"+WPI"))

    def hand_back(self, handles: Sequence[Any]) -> None:
        self._unacknowledged -= len(handles)
        with suppress(SemelError):
            self._run(self._reply(handles, b"-NAK"))

    async def _reply(self, handles: Sequence[str], reply: bytes) -> None:
        client = self._check_connected(self._client)
        for handle in handles:
            await client.publish(handle, reply)
        await self._await_connected(client, client.flush(ANSWER_SECONDS))

    async def _end(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        with suppress(SemelError):
            self._run(self._reply([message.reply for message in self._arrived], b"-NAK"))
        with suppress(SemelError):
            self._run(self._end())
        self._loop.close()


def _message_columns(messages: "Sequence[Msg]") -> PulledMessages:
    columns = PulledMessages()
    for message in messages:
        # $JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<sequence>.<...>.<ns>.<...>
        words = message.reply.split(".")
        at = 4 if len(words) == 9 else 6
        attempt, sequence, nanoseconds = words[at], words[at + 1], words[at + 3]
        columns.ids.append(f"{sequence}-{nanoseconds}")
        columns.published.append(int(nanoseconds) // 1000)
        columns.attributes.append(_attributes(message.headers[""]) if message.headers else [])
        columns.ordering_keys.append(message.subject)
        columns.attempts.append(int(attempt))
        columns.values.append(message.data)
        columns.handles.append(message.reply)
    return columns


def _attributes(headers: bytes) -> Attributes:
    """The headers in their order, except those without a name."""
    first, *lines = headers.split(b"\r\n")
    *lines, end, last = lines if len(lines) > 1 else (b"", b"-")
    if not first.startswith(b"NATS/1.0") or end or last or not all(b":" in line for line in lines):
        return [(MALFORMED, headers)]
    pairs = (line.partition(b":")[::2] for line in lines)
    named = [(name.decode("utf-8", "replace").strip(), value.strip()) for name, value in pairs]
    return [(name, value) for name, value in named if name]
