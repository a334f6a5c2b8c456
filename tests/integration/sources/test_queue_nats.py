"""NATS JetStream as its users make it: consumers with the service's defaults, at their limits."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from fixtures.batches.account import ids, quiet, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.queue.nats import Nats
from fixtures.queue.segments import values_of
from fixtures.wait import wait_for
from semel.clients.queue import PulledMessages, Queue
from semel.clients.queue import nats as client
from semel.errors import SourceError, TerminalError
from semel.ledger import Ledger
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.sources import LedgerView
from semel.sources.queue.receive import Bounds, receive
from semel.sources.queue.source import Segments
from semel.sources.queue.spec import Until
from semel.sources.queue.spool import Spool
from semel.sources.sealed.parts import PartOffer

ROOT = Path(__file__).resolve().parents[3]

SIZE = 64 << 20

SHORT = Until(idle=timedelta(seconds=0.5))


def opened(nats: Nats, stream: str) -> Queue:
    return client.open_queue(
        connection=None, servers=nats.servers, stream=stream, consumer="semel"
    )


@pytest.fixture
def queues(nats: Nats) -> Iterator[Any]:
    """Opens clients of a stream, as receivers have them; closed at the end."""
    with ExitStack() as stack:

        def one(stream: str) -> Queue:
            queue = stack.enter_context(opened(nats, stream))
            queue.describe()
            return queue

        yield one


def taken(queue: Queue, total: int) -> PulledMessages:
    """Pull until so many messages came: one pull has what came within a tenth of a second."""
    found, end = PulledMessages(), time.monotonic() + 60
    while len(found) < total:
        assert time.monotonic() < end, f"{len(found)} of {total} came"
        more = queue.pull(5_000, SIZE, 0.5)
        for name, column in vars(found).items():
            column += getattr(more, name)
    return found


def by_default(nats: Nats, stream: str, **config: Any) -> None:
    """Make the stream's consumer anew, with the service's own settings but for these."""
    wanted = ConsumerConfig(
        **{"durable_name": "semel", "ack_policy": AckPolicy.EXPLICIT, **config}
    )

    async def make(js: Any) -> None:
        await js.delete_consumer(stream, "semel")
        await js.add_consumer(stream, wanted)

    nats.do(make)


def spec_of(bench: Workbench, nats: Nats, stream: str, **source: Any) -> Spec:
    """A pipeline of a stream, by the ids of its messages."""
    return bench.spec(
        record_id=["mid"],
        source={
            "type": "nats", "servers": nats.servers, "stream": stream, "consumer": "semel",
            "spool": "spool", "value": "json", "message_id": "mid",
            "schema": {"id": "string", "n": "bigint", "at": "timestamp", "mid": "string"},
            **source,
        },
    )  # fmt: skip


def test_a_pull_at_max_ack_pending_is_answered(nats: Nats, queues: Any) -> None:
    """Where others hold all that the consumer hands out, a pull returns nothing within its time, as
    of an empty queue; once they acknowledge, the rest comes. The server would never answer a pull
    that does not wait: it counts what is not acknowledged yet as pending."""
    stream = nats.stream(pending=10)
    nats.publish(stream, [b"%d" % n for n in range(25)])
    one, other = queues(stream), queues(stream)
    held = taken(one, 10)
    assert len(held) == 10
    for queue in (one, other):
        began = time.monotonic()
        assert len(queue.pull(5_000, SIZE, 0.5)) == 0
        assert time.monotonic() - began < 5
    one.acknowledge(held.handles)
    found = list(held.values)
    while len(found) < 25:
        more = other.pull(5_000, SIZE, 0.5)
        assert len(more)
        other.acknowledge(more.handles)
        found += more.values
    assert sorted(found) == sorted(b"%d" % n for n in range(25))


# Attacks Q1.
def test_what_a_client_holds_of_a_stream_that_was_made_anew(nats: Nats, queues: Any) -> None:
    """Messages of the old stream that a client has and did not give out yet are dropped: their
    numbers would acknowledge messages of the new one, which nobody has."""
    stream = nats.stream()
    nats.publish(stream, [b"old"] * 6)
    queue, other = queues(stream), queues(stream)
    queue.acknowledge(queue.pull(1, SIZE, 0.5).handles)
    queue._run(queue._request(3, 0, SIZE))  # An answer that comes behind its pull.
    nats.delete(stream)
    nats.stream(stream)
    nats.publish(stream, [b"new"] * 3)
    other.describe()
    assert taken(other, 3).values == [b"new"] * 3
    queue.describe()
    found = queue.pull(5_000, SIZE, 0.1)
    queue.acknowledge(found.handles)
    assert found.values == [] and nats.unacknowledged(stream) == (3, 0)


def test_a_default_consumer_is_received_from(nats: Nats, bench: Workbench) -> None:
    """More than a consumer hands out at once comes in one receive, and not at the pace of its
    limit: 5,000 messages took 14 minutes."""
    stream = nats.stream()
    by_default(nats, stream)
    nats.publish(stream, [b"%d" % n for n in range(5_000)])
    with opened(nats, stream) as queue:
        bounds = Bounds(idle=1, seconds=60)
        done = receive(queue, bench.data / "spool" / "events", "events", bounds, quiet)
    assert done.messages == 5_000 and done.unacknowledged == done.redelivered == 0
    assert nats.unacknowledged(stream) == (0, 0)


@pytest.mark.parametrize(("receivers", "told"), [(1, False), (4, True)])
def test_check_reports_a_low_max_ack_pending(
    nats: Nats, bench: Workbench, receivers: int, told: bool
) -> None:
    """Receivers that wait for each other's acknowledgements are slow, and no more: check says so,
    with the command that changes it."""
    stream = nats.stream(pending=10_000, max_age=86_400)
    spec = spec_of(bench, nats, stream, receivers=receivers)
    said = open_source(spec).check_service(spec.dedup.horizon)
    wanted = f"nats consumer edit {stream} semel --max-pending 40000 --force"
    assert (wanted in said) is told


def values(start: int, stop: int) -> list[bytes]:
    return [json.dumps(event).encode() for event in events(start, stop)]


class Stream:
    """A stream, its pipeline, and what a user does with both."""

    def __init__(self, bench: Workbench, ledger: Ledger, nats: Nats) -> None:
        self.bench, self.ledger, self.nats = bench, ledger, nats
        self.name = nats.stream()
        self.spec = spec_of(bench, nats, self.name)
        self.runs = 0

    def read(self, other: str | None = None, **source: Any) -> list[str]:
        """Receive, run, and return what receive said."""
        self.spec = spec_of(self.bench, self.nats, other or self.name, **source)
        said: list[str] = []
        self.spec.source.receive(self.spec.name, SHORT, said.append)
        self.runs += 1
        run(self.ledger, self.spec, f"r{self.runs}")
        return said

    def publish(self, start: int, stop: int) -> None:
        self.nats.publish(self.name, values(start, stop))

    def there(self) -> list[str]:
        """The ids that are in the output, as the audit agrees."""
        return settled(self.spec).ids


@pytest.fixture
def stream(bench: Workbench, ledger: Ledger, nats: Nats) -> Stream:
    return Stream(bench, ledger, nats)


ANOTHER = "the queue is not the one of the last receive"


# Attacks Q4.
def test_a_restored_backup_repeats_nothing(stream: Stream) -> None:
    """A stream that is restored from its own backup is made at another time, and delivers all that
    it has again: each message is known by its number and its time. What came behind the backup
    has the numbers of what comes now, and other times. Receive says that the queue is another one.
    """
    stream.publish(0, 10)
    backup = stream.nats.backup(stream.name)
    stream.publish(10, 20)
    stream.read()
    stream.nats.delete(stream.name)
    stream.nats.restore(backup)
    stream.publish(20, 30)
    assert ANOTHER in stream.read()[0]
    assert stream.there() == ids(0, 30)
    assert settled(stream.spec).counts.duplicates_catalog == 10


def without_addresses(_: Segments, offers: list[PartOffer], __: LedgerView) -> Any:
    """The offers of an older semel."""
    found = [
        replace(offer, evidence={k: v for k, v in offer.evidence.items() if k != "address"})
        for offer in offers
    ]
    return found, []


# Attacks Q4.
def test_a_pipeline_that_ran_before_keeps_its_ids(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of an older semel have the time at which the stream was made, and the catalog has them as
    hashes. What is delivered again to such a pipeline is a repeat, in the next run, and once the
    stream was restored from a backup. What an old batch wrote is proven as it was read.
    """
    stream.publish(0, 10)
    with monkeypatch.context() as patch:
        patch.setattr(Segments, "_with_addresses", without_addresses)
        stream.read()
    backup = stream.nats.backup(stream.name)
    by_default(stream.nats, stream.name)
    stream.publish(10, 20)
    stream.read()
    stream.nats.delete(stream.name)
    stream.nats.restore(backup)
    by_default(stream.nats, stream.name)
    stream.publish(20, 30)
    stream.read()
    assert stream.there() == ids(0, 30)
    assert settled(stream.spec).counts.duplicates_catalog == 20
    kept = {row["mid"].partition("#")[0] for row in settled(stream.spec).rows}
    assert len(kept) == 1 and kept.pop().startswith(f"nats:{stream.name}@20")


# Attacks Q4.
@pytest.mark.proof
def test_a_purged_stream_goes_on(stream: Stream) -> None:
    """Its messages have numbers that no others had: all are read, and nobody is told of another
    queue."""
    stream.publish(0, 10)
    stream.read()
    stream.nats.do(lambda js: js.purge_stream(stream.name))
    stream.publish(10, 20)
    assert stream.read() == []
    assert stream.there() == ids(0, 20)


# Attacks Q4.
@pytest.mark.proof
def test_a_stream_that_was_deleted_and_made_again(stream: Stream) -> None:
    """Its messages have the numbers of the old ones, and other times: all are read, and receive
    says that the queue is another one."""
    stream.publish(0, 10)
    stream.read()
    stream.nats.delete(stream.name)
    stream.nats.stream(stream.name)
    stream.publish(10, 20)
    assert ANOTHER in stream.read()[0]
    assert stream.there() == ids(0, 20)


def mirror(stream: Stream, *, promoted: bool = False) -> str:
    """Make a mirror of a stream and its consumer; promote it, so that it takes the messages."""
    name, config = f"m-{stream.name}", {"retention": "limits", "storage": "file"}
    source = {"mirror": {"name": stream.name}}
    subjects = {"subjects": [f"{stream.name}.*"]}

    async def make(js: Any) -> None:
        async def ask(what: str, **more: Any) -> None:
            data = json.dumps({"name": name, **config, **more}).encode()
            told = await js._nc.request(f"$JS.API.STREAM.{what}.{name}", data)
            assert "error" not in json.loads(told.data), told.data

        first = await js.stream_info(stream.name)
        await ask("CREATE", **source)
        while (await js.stream_info(name)).state.last_seq < first.state.last_seq:
            await asyncio.sleep(0.05)
        if promoted:
            await js.delete_stream(stream.name)
            await ask("UPDATE", **subjects)

    stream.nats.do(make)
    stream.nats.consumer(name, 30, 20_000)
    return name


# Attacks Q4.
@pytest.mark.proof
@pytest.mark.parametrize("promoted", [False, True])
def test_a_mirror_has_the_ids_of_its_stream(stream: Stream, promoted: bool) -> None:
    """A pipeline that reads another stream is refused, after it has received, until a person says
    which of two it is: declared as the old one, its messages are repeats by number and time."""
    stream.publish(0, 10)
    stream.read()
    name = mirror(stream, promoted=promoted)
    stream.publish(10, 20)
    if not promoted:
        assert stream.read() == [] and stream.there() == ids(0, 20)
    with pytest.raises(SourceError, match="other stream.*Declare source.address"):
        stream.read(name)
    stream.read(name, address=stream.name)
    assert stream.there() == ids(0, 20)
    assert settled(stream.spec).counts.duplicates_catalog == (10 if promoted else 20)


# Attacks Q4.
@pytest.mark.proof
def test_another_stream_is_another_queue(stream: Stream) -> None:
    """Declared with its own name, a stream is read as one of its own, and what the spool has of the
    old one still as that one's."""
    stream.publish(0, 10)
    stream.read()
    stream.publish(10, 20)
    stream.spec.source.receive(stream.spec.name, SHORT, quiet)
    other = stream.nats.stream()
    stream.nats.publish(other, values(20, 30))
    stream.read(other, address=other)
    assert stream.there() == ids(0, 30)
    addresses = {row["mid"].partition("#")[0] for row in settled(stream.spec).rows}
    assert addresses == {f"nats:{stream.name}", f"nats:{other}"}


# Attacks Q4.
@pytest.mark.proof
def test_a_backup_under_another_name(stream: Stream) -> None:
    """As of a mirror: refused, and by a declared address its messages are repeats."""
    stream.publish(0, 10)
    backup = stream.nats.backup(stream.name)
    stream.read()
    stream.nats.delete(stream.name)
    stream.nats.restore(backup, name := f"r-{stream.name}")
    stream.publish(10, 20)
    with pytest.raises(SourceError, match="other stream"):
        stream.read(name)
    stream.read(name, address=stream.name)
    assert stream.there() == ids(0, 20)


# Attacks Q3, Q4.
@pytest.mark.proof
def test_a_segment_of_another_stream_is_missed_when_it_is_gone(stream: Stream) -> None:
    """It was acknowledged: who removes it, in place of a declaration, is told of the loss."""
    stream.publish(0, 10)
    stream.read()
    other = stream.nats.stream()
    stream.nats.publish(other, values(10, 20))
    for reason in ("other stream", "gone"):
        with pytest.raises(SourceError, match=reason):
            stream.read(other)
        sealed = stream.spec.source.spool_of(stream.spec.name) / "sealed"
        max(sealed.iterdir()).unlink()


SUBJECTS = [b"\xff", b"a\x0bb", b"a\x0cb", b"a\x1cb", "\u00e9".encode(), b"x" * 4_000]
"""The server takes each; the first is no text."""

GOOD_HEADERS = [
    b"NATS/1.0\r\nK: v\r\n\r\n", b"NATS/1.0\r\n: no name\r\nK:v\r\n\r\n",
    b"NATS/1.0 404 No Messages\r\nK: \xff\r\n\r\n", b"NATS/1.0\r\n\r\n",
]  # fmt: skip
BAD_HEADERS = [
    b"NATS/1.0", b"NATS/1.0   ", b"NATS/1.0\r\n", b"X", b"K: v\r\n\r\n", b"NATS/1.0\r\nK: v",
    b"NATS/1.0\r\nno colon\r\n\r\n", b"NATS/1.0 \xff", b"NATS/1.0 \xff\xff\xff\r\n",
]  # fmt: skip


def publish_poison(stream: Stream) -> None:
    """One message for each subject, then one for each block of headers."""
    cases = [(subject, b"") for subject in SUBJECTS]
    cases += [(b"h", headers) for headers in [*GOOD_HEADERS, *BAD_HEADERS]]
    for (subject, headers), value in zip(cases, values(0, len(cases)), strict=True):
        stream.nats.publish_raw(stream.name.encode() + b"." + subject, value, headers)


@pytest.mark.parametrize("declared", [True, False])
def test_a_message_that_the_client_cannot_read(stream: Stream, declared: bool) -> None:
    """What is no text in a subject, and headers that are no block of headers, end no connection:
    such a message is a dead letter where a column takes of it what cannot be read, and a record
    like all others where none does. The audit agrees."""
    publish_poison(stream)
    columns = {"subject": "string", "key": "binary"} if declared else {}
    schema = {"id": "string", "n": "bigint", "at": "timestamp", "mid": "string"} | columns
    beside = {"ordering_key": "subject", "attributes": {"key": "K"}} if declared else {}
    stream.read(schema=schema, **beside)
    found = settled(stream.spec)
    good = len(SUBJECTS) + len(GOOD_HEADERS)
    total = good + len(BAD_HEADERS)
    assert found.ids == (ids(1, good) if declared else ids(0, total))
    assert [at for _, at, *_ in found.letters] == ([0, *range(good, total)] if declared else [])
    if declared:
        keys = {row["n"]: row["key"] for row in found.rows}
        assert [keys[len(SUBJECTS) + n] for n in range(4)] == [b"v", b"v", b"\xff", None]
        texts = {row["subject"] for row in found.rows}
        assert {f"{stream.name}.{subject.decode()}" for subject in SUBJECTS[1:]} < texts
    assert stream.nats.unacknowledged(stream.name) == (0, 0)


UNFIT = {
    "push": ({"deliver_subject": "somewhere"}, "with explicit acknowledgements", "consumer add"),
    "ack all": ({"ack_policy": "all"}, "with explicit acknowledgements", "consumer add"),
    "ack none": ({"ack_policy": "none"}, "with explicit acknowledgements", "consumer add"),
    "groups": (
        {"priority_groups": ["a"], "priority_policy": "overflow"}, "serves only priority groups",
        "consumer add",
    ),
    "deliveries": ({"max_deliver": 3}, "after 3 attempts", "--max-deliver -1 --force"),
    "headers": ({"headers_only": True}, "without values", "--no-headers-only --force"),
    "paused": (
        {"pause_until": "2999-01-01T00:00:00Z"}, "is paused until 2999",
        "nats consumer resume",
    ),
}  # fmt: skip

NOTED = {
    "new": ({"deliver_policy": "new"}, "skips messages from before its creation"),
    "by sequence": ({"deliver_policy": "by_start_sequence", "opt_start_seq": 2}, "by_start_seq"),
    "last": ({"deliver_policy": "last"}, "(deliver_policy last)"),
    "subject": ({"filter_subject": "S.a"}, "delivers only these subjects: S.a"),
    "subjects": ({"filter_subjects": ["S.a", "S.b"]}, "delivers only these subjects: S.a, S.b"),
    "original": ({"replay_policy": "original"}, "no faster than messages were published"),
    "inactive": ({"inactive_threshold": 3_600 * 10**9}, "after 3,600 s without a pull"),
    "low": ({}, "allows 1,000 unacknowledged messages"),
}  # fmt: skip


def made(nats: Nats, stream: str, config: dict[str, Any]) -> None:
    """The stream's consumer with this configuration, in the words of the service."""

    def named(value: Any) -> Any:
        return value.replace("S.", f"{stream}.") if isinstance(value, str) else value

    config = {
        key: [named(one) for one in value] if isinstance(value, list) else named(value)
        for key, value in config.items()
    }
    wanted = {"durable_name": "semel", "ack_policy": "explicit", "deliver_policy": "all", **config}

    async def make(js: Any) -> None:
        await js.delete_consumer(stream, "semel")
        data = json.dumps({"stream_name": stream, "config": wanted}).encode()
        told = await js._nc.request(f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.semel", data)
        assert "error" not in json.loads(told.data), told.data

    nats.do(make)


@pytest.mark.parametrize("case", UNFIT)
def test_consumers_that_no_receive_can_use(case: str, nats: Nats) -> None:
    """What a consumer is configured to leave out of messages, or not to deliver, is refused with
    the command that mends it, before anything is pulled: no run is green with empty values."""
    config, why, command = UNFIT[case]
    stream = nats.stream()
    made(nats, stream, config)
    with opened(nats, stream) as queue, pytest.raises(TerminalError, match=why) as refused:
        queue.describe()
    assert command in refused.value.next and stream in refused.value.next


@pytest.mark.parametrize("case", NOTED)
def test_check_reports_consumers_that_leave_messages_out(
    case: str, nats: Nats, bench: Workbench
) -> None:
    """A consumer that begins late, filters or is slow is what its user may want: check says so."""
    config, note = NOTED[case]
    stream = nats.stream(max_age=86_400)
    made(nats, stream, config)
    spec = spec_of(bench, nats, stream)
    said = open_source(spec).check_service(spec.dedup.horizon)
    with spec.source.open_queue() as queue:
        assert f"receive needs {queue.rights}" in said
    assert note.replace("S.", f"{stream}.") in said
    assert ("delivers only these" in said) is case.startswith("subject")


@pytest.mark.parametrize(
    "bounds",
    [
        {"max_batch": 1}, {"max_expires": 50 * 10**6}, {"max_bytes": 100}, {"max_waiting": 1},
        {"max_ack_pending": 1}, {"mem_storage": True, "sample_freq": "100%"},
    ],
    ids=lambda bounds: next(iter(bounds)),
)  # fmt: skip
def test_consumers_with_bounds(bounds: dict[str, Any], nats: Nats, queues: Any) -> None:
    """Whatever a consumer bounds, two receivers get all of it, and none takes that for an error.
    They wait side by side before anything comes, which takes half a second."""
    stream = nats.stream()
    made(nats, stream, bounds)
    pair, found = [queues(stream), queues(stream)], []

    def take(queue: Queue) -> None:
        while len(found) < 20:
            some = queue.pull(5_000, SIZE, 0.3)
            queue.acknowledge(some.handles)
            found.extend(some.values)

    with ThreadPoolExecutor(2) as threads:
        taking = [threads.submit(take, queue) for queue in pair]
        time.sleep(0.5)
        nats.publish(stream, [b"%d" % n for n in range(20)])
        for each in taking:
            each.result(60)
    assert sorted(found) == sorted(b"%d" % n for n in range(20))


def test_the_least_rights(nats_of_my_own: Nats) -> None:
    """With the permissions that check prints, and no other, all is received."""
    stream, rights = limited(nats_of_my_own)
    page = (ROOT / "docs" / "queues.md").read_text(encoding="utf-8")
    assert rights.replace(stream, "flights") in page
    with by_user(nats_of_my_own, stream, "me") as queue:
        assert queue.describe().waiting == 2_500
        found = taken(queue, 2_500)
        queue.extend(found.handles[:1])
        queue.hand_back(found.handles[:1])
        assert queue.acknowledge(found.handles[1:]) == 0
        again = taken(queue, 1)
        assert again.ids == found.ids[:1] and again.attempts == [2]
        assert queue.acknowledge(again.handles) == 0 and queue.describe().waiting == 0


@pytest.mark.proof
def test_a_right_that_is_missing(nats_of_my_own: Nats) -> None:
    """The error prints all that are needed. The client waits for the answer that never comes."""
    stream, rights = limited(nats_of_my_own)
    with by_user(nats_of_my_own, stream, "less") as queue:
        with pytest.raises(TerminalError, match="lacks a right") as refused:
            queue.describe()
    assert rights in str(refused.value)


def limited(nats: Nats) -> tuple[str, str]:
    """A stream with messages on a server with users: `me` has the permissions that check prints,
    and `less` lacks one. Returns both names."""
    stream = nats.stream()
    with opened(nats, stream) as queue:
        rights = queue.rights
    nats.publish(stream, [b"%d" % n for n in range(2_500)])
    less = rights.replace(f"$JS.API.STREAM.INFO.{stream}", "nothing")
    nats.kill()
    nats.more = (
        f"authorization {{ users: [ {{user: me, password: p, {rights}}}, "
        f"{{user: less, password: p, {less}}} ] }}\n"
    )
    nats.start()
    return stream, rights


def by_user(nats: Nats, stream: str, user: str) -> Queue:
    there = {"conn_type": "nats", "host": "127.0.0.1", "port": nats.port}
    return client.open_queue(
        connection="c", servers=None, stream=stream, consumer="semel",
        find=lambda _: json.dumps({**there, "login": user, "password": "p"}),
    )  # fmt: skip


@pytest.fixture
def nats_of_my_own(tmp_path: Path) -> Iterator[Nats]:
    """A server that a test may configure."""
    server = Nats(tmp_path)
    server.start()
    yield server
    server.start()
    server.kill()


# Attacks Q1.
@pytest.mark.proof
def test_many_receivers_of_a_default_consumer(nats: Nats, tmp_path: Path) -> None:
    """Eight receivers share 1,000 messages in flight, of 20,000; two are killed. None fails, all is
    in the spool and acknowledged. The server must deliver again what the dead held."""
    stream, total = nats.stream(), 20_000
    by_default(nats, stream, ack_wait=2)
    sent = [b"%d" % n for n in range(total)]
    nats.publish(stream, sent)
    words = [sys.executable, "-m", "fixtures.queue.receiver", "nats", stream, str(tmp_path), "5"]
    began = time.monotonic()
    receivers = [
        subprocess.Popen(
            words, cwd=ROOT / "tests", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            env=os.environ | {"NATS_SERVERS": nats.servers},
        )
        for _ in range(8)
    ]  # fmt: skip
    wait_for(lambda: nats.unacknowledged(stream)[1] < total / 2, "half of all", 300, 0.1)
    for dead in receivers[:2]:
        dead.kill()
    codes = [receiver.wait(300) for receiver in receivers]
    print(f"{total} messages by 8 receivers, 2 killed, in {time.monotonic() - began:.1f} s")
    assert codes == [-signal.SIGKILL] * 2 + [0] * 6
    assert nats.unacknowledged(stream) == (0, 0)
    Spool(tmp_path).recover(quiet)
    spooled = [value for path in (tmp_path / "sealed").iterdir() for value in values_of(path)]
    assert set(spooled) == set(sent)
