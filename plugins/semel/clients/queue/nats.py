"""A stream of NATS JetStream, read by a durable pull consumer.

A message's id is its sequence number in the stream and the time at which the stream took it, in
nanoseconds: both are the same each time that it is delivered. The number alone would not do: a
server that lost its last messages gives their numbers to others.
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
    installed,
    parsed,
    require_kind,
    text_of,
    usable,
)
from semel.clients.queue import MALFORMED, About, Attributes, Pulled, Queue
from semel.errors import SemelError, TerminalError, UnavailableError

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

ANSWER_SECONDS = 10
"""How long a server may take to answer."""

_PENDING_BYTES = 128 << 20
"""What the client holds at most of messages that have come: what one pull asks for, and one
message. The client would drop what is above it, and the server deliver that again."""

_STEP_SECONDS = 5
"""The longest wait for a message that is asked of a server at once."""

_NOW_SECONDS = 0.1
"""The wait of a request for the messages that are there. It needs one: where the consumer lets no
more be held (max_ack_pending), the server would answer a request without one never."""

_FULL_SECONDS = 0.02
"""The wait where this receiver itself holds all that the consumer lets be held."""

_EXAMPLE = '"conn_type": "nats", "host": "nats.example.com", "login": "me", "password": "..."'

_ACK = "$JS.ACK."
_DONE = {"404", "408"}
"""Statuses that end a pull: no messages, and no more within its time."""

_SIZES = re.compile("(?i)maxbytes|batch completed|maxwaiting")
"""What a status 409 says of a pull that ended because of bounds, its own or those of others."""

_WORD = rb"([^ \t\r\n]+)[ \t]+"
_LINES = {
    f"{verb}_RE": re.compile(rb"\A%b[ \t]+%b%b(%b)?%b(\d+)\r\n" % (
        verb.encode(), _WORD, _WORD, _WORD, rb"(\d+)[ \t]+" if verb == "HMSG" else b"",
    )) for verb in ("MSG", "HMSG")
}  # fmt: skip
"""What comes before a message: subject, number of the subscription, where to reply, sizes."""

T = TypeVar("T")


def opened(
    *,
    connection: str | None,
    servers: str | None,
    stream: str,
    consumer: str,
    hold: int = 1,
    find: Callable[[str], str | None] = settings.connection,
) -> Queue:
    """A connection to a stream, by its consumer. It is made at the first request.

    `connection`: the name of an Airflow connection; else `servers`, as `nats://host:port,...`.
    `hold`: how many messages all receivers of the pipeline hold at once.
    TerminalError: the package is not installed, or the connection cannot be used.
    """
    with installed("NATS", "nats"):
        from nats.aio.client import Client
        from nats.protocol import parser

    class Words(parser.Parser):
        """Parts words as the server does: a subject may have other white space."""

        parse = FunctionType(parser.Parser.parse.__code__, vars(parser) | _LINES)

    class Raw(Client):
        """Keeps the bytes of headers and subjects. The client ends the connection at some that a
        server takes, and keeps one of several headers of a name.
        """

        def __init__(self) -> None:
            super().__init__()
            self._ps = Words(self)

        async def _process_headers(self, headers: bytes | None) -> dict[str, Any] | None:
            if not headers:
                return None
            line = headers.partition(b"\r\n")[0].decode("latin-1").removeprefix("NATS/1.0")
            status, _, said = line.strip().partition(" ")
            return {"Status": status, "Description": said, "": headers}

        def _build_message(self, sid: int, subject: bytes, *rest: Any) -> "Msg":
            made = super()._build_message(sid, b"", *rest)
            made.subject = subject.decode("utf-8", "surrogateescape")
            return made

    config = _config(connection, servers, find)
    named = f"connection {connection!r}" if connection else servers
    return _Nats(Raw, config, stream, consumer, named, hold)


def _config(
    connection: str | None, servers: str | None, find: Callable[[str], str | None]
) -> dict[str, Any]:
    """The client's settings, secrets included: they are never shown."""
    if connection is None:
        return {"servers": (servers or "").split(",")}
    text = text_of(connection, find, _EXAMPLE)
    with usable(connection, "NATS"):
        return _of_fields(parsed(text))


_EXTRA = ("token", "user_credentials", "nkeys_seed", "tls_hostname")
"""Settings of nats-py that an extra may have; the second and third are paths of files."""

_TLS = ("tls_ca", "tls_cert", "tls_key")
"""Paths of PEM files: whom to trust, and what to show."""


def _of_fields(found: Fields) -> dict[str, Any]:
    require_kind(found, "nats")
    extra = {key: found.extra[key] for key in (*_EXTRA, *_TLS, "servers") if key in found.extra}
    for key, value in extra.items():
        if not isinstance(value, str):
            raise ConnectionSettingsError(f"{key!r} is no text")
    servers = extra.pop("servers", None)
    if not servers:
        if not found.host:
            raise ConnectionSettingsError("it names no host")
        scheme = "tls" if any(key in extra for key in _TLS) else "nats"
        servers = f"{scheme}://{found.host}:{found.port or 4222}"
    config: dict[str, Any] = {"servers": servers.split(",")}
    if any(key in extra for key in _TLS):
        try:
            config["tls"] = ssl.create_default_context(cafile=extra.get("tls_ca"))
            if "tls_cert" in extra:
                config["tls"].load_cert_chain(extra["tls_cert"], extra.get("tls_key"))
        except OSError as error:  # ssl.SSLError is one.
            raise ConnectionSettingsError(
                f"its certificates cannot be read: {error.strerror}"
            ) from None
    config |= {key: extra[key] for key in _EXTRA if key in extra}
    login = {"user": found.login, "password": found.password}
    return config | {key: value for key, value in login.items() if value}


class _Nats(Queue):
    """A connection, with an event loop that runs while something is asked."""

    def __init__(
        self, client: "type[Client]", config: dict[str, Any], stream: str, consumer: str,
        named: str, hold: int,
    ) -> None:  # fmt: skip
        self._make, self._config = client, config
        self.stream, self.consumer, self._hold = stream, consumer, hold
        self._where = f"the stream {stream!r} of NATS ({named})"
        self._loop = asyncio.new_event_loop()
        self._client: Client | None = None
        self._created: str | None = None
        self._bounds: dict[str, int] = {}
        self._arrived: list[Msg] = []
        self._held = 0
        self._statuses: dict[str, tuple[str, str]] = {}
        self._news = asyncio.Event()
        self._pulls = 0
        self._last_error = ""

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it; the client's errors in semel's words."""
        from nats.errors import Error

        try:
            return self._loop.run_until_complete(work)
        except ImportError as error:
            raise TerminalError(
                f"{self._where}: this login needs a package that is not installed ({error})",
                next="pip install 'nats-py[nkeys]'",
            ) from None
        except (Error, OSError, asyncio.TimeoutError) as error:
            raise self._meaning(error) from None

    def _meaning(self, error: BaseException) -> SemelError:
        from nats import errors

        said = " ".join(f"{self._last_error or str(error) or type(error).__name__}".split())[:300]
        refused = "authorization" in said.lower() or "permissions" in said.lower()
        if refused or isinstance(error, errors.AuthorizationError):
            return TerminalError(
                f"{self._where}: the user of the connection has no right to it ({said}). Give it "
                f"these: {self.rights}"
            )
        if isinstance(error, ssl.SSLCertVerificationError):
            return TerminalError(
                f"{self._where}: its certificate is not trusted ({said}); correct tls_ca of the "
                "connection"
            )
        return UnavailableError(f"{self._where} does not answer ({said}); start it, or correct "
                                "its address")

    async def _connected(self) -> "Client":
        """The client, connected; a lost connection is made anew."""
        if self._client is not None and self._client.is_connected:
            return self._client
        await self._end()
        self._last_error = ""

        async def heard(error: Exception) -> None:
            self._last_error = str(error) or type(error).__name__

        client = self._make()
        self._arrived.clear()  # They are delivered again.
        self._held = 0
        async with asyncio.timeout(ANSWER_SECONDS):
            await client.connect(
                **self._config, name="semel", allow_reconnect=False, error_cb=heard,
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
            told = headers.get("Status", ""), headers.get("Description", "")
            self._statuses[message.subject] = told
        self._news.set()

    async def _ask(self, what: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        """What JetStream's API answers; {} where there is no such thing."""
        client = await self._connected()
        data = json.dumps(request).encode() if request else b""
        asked = client.request(f"$JS.API.{what}", data, timeout=ANSWER_SECONDS)
        found = json.loads((await self._answered(client, asked)).data)
        if error := found.get("error"):
            if error.get("code") == 404:
                return {}
            self._last_error = str(error.get("description"))
            raise OSError(self._last_error)
        return found

    def about(self) -> About:
        return self._run(self._about())

    async def _about(self) -> About:
        stream = await self._ask(f"STREAM.INFO.{self.stream}")
        if not stream:
            raise TerminalError(
                f"there is no stream {self.stream!r} on {self._where}; make it, or correct "
                "source.stream"
            )
        consumer = await self._ask(f"CONSUMER.INFO.{self.stream}.{self.consumer}")
        if not consumer:
            raise TerminalError(
                f"{self._where} has no consumer {self.consumer!r}", next=self._add(self.consumer)
            )
        config = consumer["config"]
        for wrong, why, remedy in self._unfit(config, paused=consumer.get("paused", False)):
            if wrong:
                who = f"consumer {self.consumer!r} of {self._where}"
                raise TerminalError(f"{who} {why}", next=remedy)
        if stream["created"] != self._created:
            # Numbers of another stream: to acknowledge by them would lose messages of this one.
            self._created, self._held = stream["created"], 0
            self._arrived.clear()
        self._bounds = {
            "batch": config.get("max_batch") or 1 << 30,
            "expires": config.get("max_expires") or _STEP_SECONDS * 10**9,
            "max_bytes": config.get("max_bytes") or 1 << 30,
            "pending": pending if (pending := config.get("max_ack_pending", -1)) > 0 else 1 << 30,
        }
        kept = stream["config"].get("max_age")
        return About(
            address=f"nats:{self.stream}@{self._created}",
            deadline_seconds=min([config["ack_wait"], *(config.get("backoff") or [])]) / 1e9,
            retention=timedelta(microseconds=kept / 1000) if kept else timedelta.max,
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
        """What no receive can do with a consumer: whether it is so, why, and the command."""
        push = config.get("deliver_subject") or config.get("ack_policy") != "explicit"
        another = "Create another one, and name it in source.consumer"
        return [
            (push, f"is not a pull consumer with explicit acknowledgements. {another}",
             self._add(f"{self.consumer}2")),
            (config.get("priority_groups"), f"serves priority groups alone. {another}",
             self._add(f"{self.consumer}2")),
            (config.get("max_deliver", -1) > 0,
             f"delivers a message at most {config.get('max_deliver')} times (max_deliver): one that "
             "receivers crash with so often is lost. Remove the limit",
             self._edit("--max-deliver -1")),
            (config.get("headers_only"), "delivers no values (headers_only). Let it deliver them",
             self._edit("--no-headers-only")),
            (paused, f"delivers nothing before {config.get('pause_until')} (paused). Resume it",
             f"nats consumer resume {self.stream} {self.consumer} --force"),
        ]  # fmt: skip

    def _notes(self, config: dict[str, Any]) -> Iterator[str]:
        """How the consumer differs from one that delivers all there is, as fast as it can."""
        policy, pending = config.get("deliver_policy", "all"), self._bounds["pending"]
        only = config.get("filter_subjects") or [config.get("filter_subject", "")]
        idle_seconds = config.get("inactive_threshold", 0) / 1e9
        for there, what in (
            (policy != "all", f"leaves out what came before it began (deliver_policy {policy})"),
            (only != [""], f"delivers these subjects alone: {', '.join(only)}"),
            (config.get("replay_policy") == "original",
             "delivers no faster than messages were published (replay_policy original)"),
            (idle_seconds, f"is deleted by the server after {idle_seconds:,.0f} s without a pull"),
            (pending < self._hold,
             f"lets receivers hold {pending:,} messages at once (max_ack_pending), and this "
             f"pipeline's hold up to {self._hold:,}, so they wait for acknowledgements. For more "
             f"speed: {self._edit(f'--max-pending {self._hold}')}"),
        ):  # fmt: skip
            if there:
                yield f"Consumer {self.consumer!r} {what}"

    @property
    def rights(self) -> str:
        """As a server's configuration has them."""
        api, one = "$JS.API", f"{self.stream}.{self.consumer}"
        publish = [
            f"{api}.STREAM.INFO.{self.stream}", f"{api}.CONSUMER.INFO.{one}",
            f"{api}.CONSUMER.MSG.NEXT.{one}", f"$JS.ACK.{one}.>",
        ]  # fmt: skip
        return f'permissions: {{publish: {json.dumps(publish)}, subscribe: ["_INBOX.>"]}}'

    async def _answered(self, client: "Client", work: Coroutine[Any, Any, T]) -> T:
        """What comes of it, or at once that the connection was lost, which the client tells nobody
        who waits."""
        task = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({task}, timeout=0.5))[0]:
                if not client.is_connected:
                    raise UnavailableError(f"{self._where}: the connection was lost")
            return task.result()
        finally:
            task.cancel()

    async def _unchanged(self) -> None:
        """UnavailableError: the stream is not the one that `about` has told of."""
        found = await self._ask(f"STREAM.INFO.{self.stream}")
        if found.get("created") != self._created:
            raise UnavailableError(f"{self._where} was deleted or made anew meanwhile")

    def pull(self, messages: int, size: int, seconds: float) -> Pulled:
        return self._run(self._pull(messages, size, seconds))

    async def _pull(self, messages: int, size: int, seconds: float) -> Pulled:
        """1. What is there, up to what the consumer lets be held. 2. If nothing is, one message,
        whatever its size. 3. What came since. 4. They are of the stream that `about` told of.
        """
        if self._client is None or not self._client.is_connected:
            raise UnavailableError(f"{self._where}: the connection was lost")
        room = self._bounds["pending"] - self._held - len(self._arrived)
        if room > 0:
            await self._request(min(messages, room), 0, size)
        elif not self._arrived:
            await asyncio.sleep(min(seconds, _FULL_SECONDS))
        # What this one holds may be what is waited for: it is to be acknowledged first.
        ends = self._loop.time() + (0 if room < messages and self._held > 0 else seconds)
        while not self._arrived and (left := ends - self._loop.time()) > 0:
            await self._request(1, min(left, _STEP_SECONDS))
            if self._arrived and messages > 1:
                await self._request(messages - 1, 0, size)
        found, self._arrived = self._arrived[:messages], self._arrived[messages:]
        if found:
            await self._unchanged()
            self._held += len(found)
        return _pulled(found)

    async def _request(self, messages: int, seconds: float, size: int | None = None) -> None:
        """Ask for messages, and wait until they are here, or a status says that no more come."""
        client = self._client
        self._pulls += 1
        inbox = f"{self._inbox}.{self._pulls}"
        request: dict[str, Any] = {"batch": min(messages, self._bounds["batch"])}
        if size is not None:
            request["max_bytes"] = max(min(size, self._bounds["max_bytes"]), 1)
        wait = min(max(int((seconds or _NOW_SECONDS) * 1e9), 1_000_000), self._bounds["expires"])
        request |= {"expires": wait} | ({} if seconds else {"no_wait": True})
        there = len(self._arrived)
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self.consumer}"
        await client.publish(subject, json.dumps(request).encode(), inbox)
        async with asyncio.timeout(seconds + ANSWER_SECONDS):
            while inbox not in self._statuses and len(self._arrived) < there + request["batch"]:
                self._news.clear()
                if not client.is_connected:
                    raise UnavailableError(f"{self._where}: the connection was lost")
                with suppress(asyncio.TimeoutError):
                    # A lost connection tells nobody.
                    await asyncio.wait_for(self._news.wait(), 0.5)
        status, said = self._statuses.pop(inbox, ("404", ""))
        self._statuses.clear()  # Those of pulls that got all.
        if "maxwaiting" in said.lower():
            await asyncio.sleep(_FULL_SECONDS)
        if status not in _DONE and not (status == "409" and _SIZES.search(said)):
            raise UnavailableError(
                f"{self._where} does not let {self.consumer!r} be pulled from ({status} {said})"
            )

    def acknowledge(self, handles: Sequence[Any]) -> int:
        """The server gets them all; of one that comes too late it says nothing."""
        self._held -= len(handles)
        try:
            # By their numbers: of a stream made anew they would be others.
            self._run(self._unchanged())
            self._run(self._tell(handles, b"+ACK"))
        except UnavailableError:
            return len(handles)
        return 0

    def extend(self, handles: Sequence[Any]) -> None:
        with suppress(SemelError):
            self._run(self._tell(handles, b"+WPI"))

    def hand_back(self, handles: Sequence[Any]) -> None:
        self._held -= len(handles)
        with suppress(SemelError):
            self._run(self._tell(handles, b"-NAK"))

    async def _tell(self, handles: Sequence[str], what: bytes) -> None:
        client = self._client
        if client is None or not client.is_connected:
            raise UnavailableError(f"{self._where}: the connection was lost")
        for handle in handles:
            await client.publish(handle, what)
        await self._answered(client, client.flush(ANSWER_SECONDS))

    async def _end(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        with suppress(SemelError):
            self._run(self._tell([message.reply for message in self._arrived], b"-NAK"))
        with suppress(SemelError):
            self._run(self._end())
        self._loop.close()


def _pulled(messages: "Sequence[Msg]") -> Pulled:
    found = Pulled()
    for message in messages:
        # $JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<sequence>.<...>.<ns>.<...>
        words = message.reply.split(".")
        at = 4 if len(words) == 9 else 6
        delivered, sequence, nanoseconds = words[at], words[at + 1], words[at + 3]
        found.ids.append(f"{sequence}-{nanoseconds}")
        found.published.append(int(nanoseconds) // 1000)
        found.attributes.append(_attributes(message.headers[""]) if message.headers else [])
        found.ordering_keys.append(message.subject)
        found.attempts.append(int(delivered))
        found.values.append(message.data)
        found.handles.append(message.reply)
    return found


def _attributes(headers: bytes) -> Attributes:
    """The headers, as they were sent, but for those without a name."""
    first, *lines = headers.split(b"\r\n")
    *lines, end, last = lines if len(lines) > 1 else (b"", b"-")
    if not first.startswith(b"NATS/1.0") or end or last or not all(b":" in one for one in lines):
        return [(MALFORMED, headers)]
    pairs = (line.partition(b":")[::2] for line in lines)
    found = [(name.decode("utf-8", "replace").strip(), value.strip()) for name, value in pairs]
    return [(name, value) for name, value in found if name]
