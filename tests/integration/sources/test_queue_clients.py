"""What `Queue` promises, of the clients of all services, against real servers."""

import json
import re
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.kafka.registry import answering
from fixtures.queue.pubsub import MESSAGE_BYTES_MAX as PUBSUB_BYTES_MAX
from fixtures.queue.sqs import CONNECTION
from fixtures.queue.sqs import MESSAGE_BYTES_MAX as SQS_BYTES_MAX
from semel.clients.queue import PulledMessages, Queue, nats, pubsub, sqs
from semel.errors import TerminalError, UnavailableError

ROOT = Path(__file__).parents[3]
SIZE = 64 << 20
OF_NATS = ("nats", "nats by default", "nats restored")
"""A consumer that holds much, one with the service's max_ack_pending, and one from a backup."""

BYTES_MAX = {"sqs": SQS_BYTES_MAX, "pubsub": PUBSUB_BYTES_MAX, **dict.fromkeys(OF_NATS, 8 << 20)}
DEADLINES = {"sqs": 1, "pubsub": 10, **dict.fromkeys(OF_NATS, 1)}
"""The shortest ones, in seconds; pstest takes none below Pub/Sub's own."""


def _nats(server: Any, kind: str = "nats") -> Any:
    """The server of NATS by the words of the others."""

    def queue(deadline_seconds: int = 30) -> str:
        pending = 1_000 if kind == "nats by default" else 20_000
        stream = server.stream(ack_wait=deadline_seconds, pending=pending)
        if kind == "nats restored":
            backup = server.backup(stream)
            server.delete(stream)
            server.restore(backup)
        return stream

    def opened(stream: str) -> Queue:
        return nats.open_queue(
            connection=None, servers=server.servers, stream=stream, consumer="semel"
        )

    def send(stream: str, values: Any, **headers: str) -> None:
        server.publish(stream, [(value, headers) for value in values])

    return SimpleNamespace(
        queue=queue, send=send, opened=opened, delete=server.delete, kill=server.kill, pause=server.pause,
    )  # fmt: skip


MADE: dict[str, dict[str, Any]] = {
    "sqs fifo": {"fifo": True},
    "sqs dead": {"deliveries": 3},
    "pubsub": {},
    "pubsub ordered": {"ordered": True},
    "pubsub dead": {"deliveries": 5},
}
"""Queues as their users make them. Pub/Sub is of proof: Go builds its server in a minute, and its
deadlines are of ten seconds.
"""


OTHERS = [pytest.param(made, marks=pytest.mark.proof) for made in (*MADE, *OF_NATS[1:])]


@pytest.fixture(params=["nats", "sqs", *OTHERS])
def made(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def kind(made: str) -> str:
    return made.partition(" ")[0]


class Making:
    """A server whose queues are made with these properties."""

    def __init__(self, server: Any, properties: dict[str, Any]) -> None:
        self._server, self._properties = server, properties

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def queue(self, deadline_seconds: int = 30) -> str:
        return self._server.queue(deadline_seconds, **self._properties)


@pytest.fixture
def server(made: str, kind: str, request: pytest.FixtureRequest) -> Any:
    found = request.getfixturevalue(kind)
    return _nats(found, made) if kind == "nats" else Making(found, MADE.get(made, {}))


@pytest.fixture
def opened(server: Any) -> Any:
    """Opens a client of a queue and asks what it is, as receive does; it is closed at the end."""
    with ExitStack() as stack:

        def asked(name: str) -> Queue:
            queue = stack.enter_context(server.opened(name))
            queue.describe()
            return queue

        yield asked


def pulled(queue: Queue, total: int, seconds: float = 20, messages: int = 5_000) -> PulledMessages:
    """Pull until so many messages came."""
    found, end = PulledMessages(), time.monotonic() + seconds
    while len(found) < total:
        assert time.monotonic() < end, f"{len(found)} of {total} came within {seconds} s"
        more = queue.pull(messages, SIZE, 0.5)
        for name, column in vars(found).items():
            column += getattr(more, name)
    return found


def test_messages_come_once_when_acknowledged(server: Any, opened: Any) -> None:
    """All messages come as they were sent, each once; after that a pull returns nothing within
    seconds, though more would be waited for."""
    name = server.queue()
    server.send(name, [b"value %d" % n for n in range(250)])
    queue = opened(name)
    found = pulled(queue, 250)
    assert sorted(found.values) == sorted(b"value %d" % n for n in range(250))
    assert len(set(found.ids)) == 250
    assert all(len(column) == 250 for column in vars(found).values())
    now = time.time() * 1e6
    assert all(now - 60e6 < at < now + 60e6 for at in found.published)
    assert queue.acknowledge(found.handles) == 0
    asked = time.monotonic()
    assert len(queue.pull(1, SIZE, 0.5)) == 0
    assert time.monotonic() - asked < 10


def test_a_pull_takes_no_more_than_asked(server: Any, opened: Any) -> None:
    """A pull returns at most as many messages as it was asked for; what more was on its way comes
    by the next one."""
    name = server.queue()
    queue = opened(name)
    assert len(queue.pull(100, SIZE, 0.02)) == 0
    server.send(name, [b"%d" % n for n in range(40)])
    found: list[bytes] = []
    for _ in range(200):
        more = queue.pull(7, SIZE, 0.2)
        assert len(more) <= 7
        found += more.values
        queue.acknowledge(more.handles)
        if len(found) == 40:
            break
    assert sorted(found) == sorted(b"%d" % n for n in range(40))


def test_a_lapsed_deadline_delivers_again(kind: str, server: Any, opened: Any) -> None:
    """A message that nobody acknowledges in time comes again with its id, its time and its value.
    An acknowledgement of the first delivery is refused or does no harm. It takes as long as the
    shortest deadline: no clock of a service can be moved."""
    name = server.queue(DEADLINES[kind])
    server.send(name, [b"x"])
    queue = opened(name)
    first = pulled(queue, 1)
    again = pulled(queue, 1, 40)
    assert (again.ids, again.published, again.values) == (first.ids, first.published, first.values)
    if first.attempts[0]:
        assert (first.attempts, again.attempts) == ([1], [2])
    assert queue.acknowledge(first.handles) in (0, 1)
    assert queue.acknowledge(again.handles) in (0, 1)
    assert len(queue.pull(1, SIZE, 2 * DEADLINES["sqs"])) == 0


def test_extend_holds(kind: str, server: Any, opened: Any) -> None:
    """What is extended at half of its time is not delivered to anybody else for two times its
    deadline. It takes that long."""
    deadline = DEADLINES[kind]
    name = server.queue(deadline)
    server.send(name, [b"x"])
    queue, other = opened(name), opened(name)
    assert queue.describe().deadline_seconds == deadline
    held = pulled(queue, 1)
    end = time.monotonic() + 2 * deadline
    while time.monotonic() < end:
        queue.extend(held.handles)
        assert len(other.pull(1, SIZE, deadline / 2 - 0.25)) == 0
    assert queue.acknowledge(held.handles) == 0


def test_hand_back_delivers_again_at_once(server: Any, opened: Any) -> None:
    """What is handed back comes again long before its deadline, to whoever asks."""
    name = server.queue(600)
    server.send(name, [b"%d" % n for n in range(25)])
    queue, other = opened(name), opened(name)
    first = pulled(queue, 25)
    queue.hand_back(first.handles)
    again = pulled(other, 25)
    assert sorted(again.ids) == sorted(first.ids)
    other.acknowledge(again.handles)


def test_the_largest_message(kind: str, server: Any, opened: Any) -> None:
    """The largest message that the service takes comes whole, also where less was asked for."""
    name = server.queue()
    largest = b"x" * (BYTES_MAX[kind] - 1000)
    server.send(name, [largest, b"small"])
    queue = opened(name)
    found: list[bytes] = []
    for _ in range(20):
        more = queue.pull(1, 1000, 1)
        queue.acknowledge(more.handles)
        found += more.values
        if len(found) == 2:
            break
    assert sorted(map(len, found)) == [5, len(largest)]


def test_text_attributes(server: Any, opened: Any) -> None:
    """Attributes have the names and the bytes that the publisher gave."""
    name = server.queue()
    server.send(name, [b"x"], **{"Event-Id": "17", "who": "Ærø" if server_is_utf8(server) else "A"})
    [found] = pulled(opened(name), 1).attributes
    assert dict(found)["Event-Id"] == b"17"
    assert dict(found)["who"] in (b"A", "Ærø".encode())


def server_is_utf8(server: Any) -> bool:
    """NATS headers are written by a client that takes ASCII alone."""
    return not isinstance(server, SimpleNamespace)


def test_sqs_attributes_that_are_no_text(sqs: Any) -> None:
    """A Binary attribute keeps its bytes."""
    name = sqs.queue()
    sqs.send(name, [b"x"], raw=b"\xff\0\x01", text="t")
    with sqs.opened(name) as queue:
        [found] = pulled(queue, 1).attributes
    assert dict(found) == {"raw": b"\xff\0\x01", "text": b"t"}


def test_about(kind: str, server: Any, opened: Any) -> None:
    """The address, the deadline and the retention are the service's; another queue has another
    address."""
    one, two = server.queue(45), server.queue(45)
    server.send(one, [b"1", b"2"])
    about, other = opened(one).describe(), opened(two).describe()
    assert about.address != other.address
    assert about.deadline_seconds == 45
    if kind != "pubsub":
        assert about.waiting == 2
    if kind == "pubsub":
        assert about.address == server.topic_of(one)
        assert about.retention.days == 7
    if kind == "sqs":
        assert about.address.startswith("arn:aws:sqs:")


def test_no_such_queue(server: Any, opened: Any) -> None:
    """A queue that is deleted in the middle of a run is told by a pull, and by `about`, which a
    receiver asks then: with its name, as an error that stays."""
    name = server.queue()
    queue = opened(name)
    server.delete(name)
    with pytest.raises((TerminalError, UnavailableError)):
        pulled(queue, 1, 60)
    with pytest.raises(TerminalError) as caught:
        queue.describe()
    assert name in str(caught.value)


def test_killed_in_the_middle_of_a_pull(server: Any, opened: Any) -> None:
    """A service that dies while a message is waited for is told of, by a pull and by all else that
    is asked: none waits for it to come back."""
    name = server.queue()
    queue = opened(name)
    assert len(queue.pull(1, SIZE, 0.02)) == 0
    server.kill()
    for ask in (lambda: pulled(queue, 1, 60), queue.describe, lambda: queue.acknowledge(["x"])):
        if kind_of(queue) is nats and ask is not queue.describe:
            continue  # Its handles are not text; it waits for its server to come back.
        with pytest.raises(UnavailableError):
            ask()


def kind_of(queue: Queue) -> Any:
    return {"Sqs": sqs, "Pubsub": pubsub}.get(type(queue).__name__, nats)


def test_a_service_that_hangs(server: Any, opened: Any) -> None:
    """One that takes connections and says nothing is told of: it costs the bound of an answer, as
    nothing else can tell it from one that has nothing to say."""
    name = server.queue()
    queue = opened(name)
    server.pause()
    with pytest.raises(UnavailableError):
        queue.describe()


@pytest.mark.proof
def test_a_deleted_topic_is_no_address(pubsub: Any) -> None:
    """A subscription whose topic was deleted is refused: its messages' ids are of no topic."""
    name = pubsub.queue()
    pubsub.delete_topic(name)
    with pubsub.opened(name) as queue, pytest.raises(TerminalError, match="was deleted"):
        queue.describe()


def test_a_queue_that_holds_nothing_is_refused(sqs: Any) -> None:
    """With a VisibilityTimeout of 0 each message comes again before it is stored."""
    with sqs.opened(sqs.queue(0)) as queue, pytest.raises(TerminalError, match="30 seconds"):
        queue.describe()


def test_a_consumer_that_gives_up_is_refused(request: pytest.FixtureRequest) -> None:
    """One that delivers a message only so often would keep it from receivers that come later."""
    server = request.getfixturevalue("nats")
    stream = server.stream(deliveries=5)
    with _nats(server).opened(stream) as queue:
        with pytest.raises(TerminalError, match="after 5 attempts") as refused:
            queue.describe()
    assert refused.value.next == f"nats consumer edit {stream} semel --max-deliver -1 --force"


CALLS = {
    "sqs:GetQueueAttributes": {"GetQueueAttributes"},
    "sqs:ReceiveMessage": {"ReceiveMessage"},
    "sqs:DeleteMessage": {"DeleteMessageBatch"},
    "sqs:ChangeMessageVisibility": {"ChangeMessageVisibilityBatch"},
    "pubsub.subscriptions.get": {"GetSubscription"},
    "pubsub.subscriptions.consume": {"Pull", "Acknowledge", "ModifyAckDeadline"},
}
"""Rights, and the calls that each allows, by the services' documentation."""


def test_the_rights_are_those_of_its_calls(
    kind: str, made: str, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a receiver asks of the service needs the listed rights, and each of them is needed.
    The page lists them, too."""
    if kind == "nats":
        return  # Its permissions are subjects.
    calls, name = set(), server.queue(60)
    with server.opened(name) as queue:
        if kind == "sqs":
            queue._client.meta.events.register(
                "before-call.sqs", lambda model, **_: calls.add(model.name)
            )
        else:
            get, call = queue._client.get_subscription, queue._call
            monkeypatch.setattr(
                queue._client, "get_subscription", lambda **k: calls.add("GetSubscription") or get(**k)
            )
            monkeypatch.setattr(queue, "_call", lambda n, *a, **k: calls.add(n) or call(n, *a, **k))
        queue.describe()
        server.send(name, [b"1", b"2"])
        some = pulled(queue, 2)
        queue.extend(some.handles)
        queue.acknowledge(some.handles[:1])
        queue.hand_back(some.handles[1:])
        rights = re.findall(r"sqs:\w+|pubsub[.\w]+", queue.rights)
    assert calls == set().union(*(CALLS[right] for right in rights))
    page = (ROOT / "docs" / "queues.md").read_text(encoding="utf-8")
    assert all(f"`{right}`" in page for right in rights)


def test_credentials_that_expire_are_renewed(
    sqs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that a program gives (credential_process) and that are over are asked for again by the
    next request of the same client."""
    counted, program = tmp_path / "count", tmp_path / "give.py"
    program.write_text(
        "import json, datetime, pathlib\n"
        f"file = pathlib.Path({str(counted)!r})\n"
        "n = int(file.read_text()) + 1 if file.exists() else 1\n"
        "file.write_text(str(n))\n"
        # Below ten minutes botocore must renew before it signs.
        "at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=1)\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': f'AKIA{n}', 'SecretAccessKey': 's',\n"
        "    'SessionToken': 't', 'Expiration': at.isoformat()}))\n"
    )
    config = tmp_path / "config"
    command = shlex.join([sys.executable, str(program)])
    config.write_text(f"[profile short]\ncredential_process = {command}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    connection = {"conn_type": "aws", "extra": {"profile_name": "short"}}
    name, signed = sqs.queue(), []
    with sqs.opened(name, lambda _: json.dumps(connection)) as queue:
        queue._client.meta.events.register(
            "before-send.sqs", lambda request, **_: signed.append(request.headers["Authorization"])
        )
        sqs.send(name, [b"x"])
        found = pulled(queue, 1)
        until = time.monotonic() + 1.1
        while time.monotonic() < until:
            queue.describe()
        assert queue.acknowledge(found.handles) == 0
    keys = {str(each).partition("AKIA")[2].partition("/")[0] for each in signed}
    assert len(keys) > 1, keys


REFUSALS = [
    ("AccessDenied", 403, TerminalError, "sqs:GetQueueAttributes"),
    ("KMS.AccessDeniedException", 400, TerminalError, "kms:Decrypt"),
    ("InvalidClientTokenId", 403, TerminalError, "AWS refuses the connection"),
    ("SignatureDoesNotMatch", 403, TerminalError, "AWS refuses the connection"),
    ("ExpiredToken", 403, TerminalError, "expired"),
    ("com.amazonaws.sqs#QueueDoesNotExist", 400, TerminalError, "there is no queue"),
    ("ThrottlingException", 400, UnavailableError, "too busy"),
    ("Whatever", 503, UnavailableError, "too busy"),
    ("Unheard", 400, TerminalError, "refuses a call"),
]
"""What AWS says of what ElasticMQ does not do; the words of others are AWS's documentation's."""


@pytest.mark.parametrize(("code", "status", "error", "said"), REFUSALS)
def test_what_aws_refuses(code: str, status: int, error: type, said: str) -> None:
    """Each refusal of AWS says whether to try later, and else what to correct, without a secret."""
    with answering() as there:
        there.status, there.body = status, json.dumps({"__type": code, "message": "m"}).encode()
        secret = CONNECTION["password"]
        client = sqs.open_queue(
            connection="aws_tests", endpoint=None, queue=f"{there.url}/1/q",
            find=lambda _: json.dumps(CONNECTION),
        )  # fmt: skip
        with client as queue, pytest.raises(error) as caught:
            queue.describe()
    assert said in str(caught.value)
    assert secret not in repr(caught.value) + repr(vars(queue)) + str(caught.value)


CONNECTIONS: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (sqs.open_queue, {"conn_type": "http"}, "not aws"),
    (sqs.open_queue, {"conn_type": "aws", "login": "only"}, "one of access key id"),
    (sqs.open_queue, {"conn_type": "aws", "extra": {"role_arn": "arn:geheim"}}, "profile_name"),
    (sqs.open_queue, {"conn_type": "aws", "extra": {"region_name": 7}}, "not text"),
    (sqs.open_queue, {"conn_type": "aws", "extra": {"profile_name": "geheim"}}, "ProfileNotFound"),
    (pubsub.open_queue, {"conn_type": "aws"}, "not google_cloud_platform"),
    (
        pubsub.open_queue,
        {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": '{"geheim": 1}'}},
        "service account",
    ),
    (
        pubsub.open_queue,
        {
            "conn_type": "google_cloud_platform",
            "extra": {"keyfile_dict": {"type": "service_account", "private_key": "geheim"}},
        },
        "its key is incomplete",
    ),
    (
        pubsub.open_queue,
        {"conn_type": "google_cloud_platform", "extra": {"key_path": "/nowhere/geheim"}},
        "cannot read its key file",
    ),
    (
        pubsub.open_queue,
        {"conn_type": "google_cloud_platform", "extra": {"impersonation_chain": "geheim"}},
        "does not support",
    ),
]


@pytest.mark.parametrize(("opened", "connection", "said"), CONNECTIONS)
def test_connections_that_cannot_be_used(
    opened: Callable[..., Any], connection: dict[str, Any], said: str
) -> None:
    """What is wrong with a connection is told, with the connection's name, and nothing of what it
    holds."""
    where = {"queue": "https://sqs.eu-west-1.amazonaws.com/1/q", "endpoint": None}
    if opened is pubsub.open_queue:
        where = {"subscription": "projects/p/subscriptions/s"}
    with pytest.raises(TerminalError) as caught:
        opened(connection="mine", find=lambda _: json.dumps(connection), **where)
    assert said in str(caught.value) and "'mine'" in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_sqs_takes_region_and_host_of_the_url() -> None:
    """AWS is asked in the region that the queue's URL names; what is not AWS, at the URL's host, so
    no request of another service's queue goes to AWS."""
    found = {}
    for url in (
        "https://sqs.eu-west-3.amazonaws.com/1/q", "https://eu-west-3.queue.amazonaws.com/1/q",
        "http://queues.example:9324/1/q",
    ):  # fmt: skip
        with sqs.open_queue(
            connection="c", endpoint=None, queue=url, find=lambda _: json.dumps(CONNECTION)
        ) as queue:
            found[url] = queue._client.meta.endpoint_url
    assert list(found.values()) == [
        "https://sqs.eu-west-3.amazonaws.com", "https://sqs.eu-west-3.amazonaws.com",
        "http://queues.example:9324",
    ]  # fmt: skip


def test_no_google_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where there is neither a connection nor a key, the message says what to set."""
    for name in ("PUBSUB_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(TerminalError, match="GOOGLE_APPLICATION_CREDENTIALS"):
        pubsub.open_queue(connection=None, subscription="projects/p/subscriptions/s")
