"""A Kafka topic as a sink: what it promises beyond the contract of all sinks."""

import json
import re
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal

import confluent_kafka
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import KafkaError, KafkaException

from fixtures.batches.account import ids, run
from fixtures.batches.workbench import Workbench, events
from fixtures.contract.sinks import table
from fixtures.kafka.broker import Kafka, Record
from fixtures.kafka.outlet import CONTROL, Outlet, dies, marker
from fixtures.kafka.server import Listener
from semel import failpoints, limits
from semel.archive import layout
from semel.audit import audit
from semel.clients.kafka.cluster import Cluster
from semel.errors import CorruptionError, OutcomeUnknownError, RetryableError, TerminalError
from semel.ledger import Ledger
from semel.sinks import Presence
from semel.sinks.kafka import control, landing
from semel.sinks.kafka.control import ControlNote

WAIT_SECONDS = 60


def note_of(outlet: Outlet, batch_id: int = 1) -> ControlNote | None:
    cluster = outlet.sink()._target.cluster
    return control.find_note(cluster, outlet.control, "events", batch_id, 10)


# Attacks KP1, KP2.
@pytest.mark.parametrize("point", ["sink.after_fence", "sink.before_cut", "sink.after_cut"])
def test_a_publish_that_dies_is_finished(outlet: Outlet, point: str) -> None:
    """At each point, in the first cut and in a later one: each row is there once."""
    outlet.make()
    first, second = outlet.won(table(0, 10)), outlet.won(table(10, 20), batch_id=2)
    small = outlet.sink(transaction_bytes=500)
    for won, sink, nth in ((first, outlet.sink(), 1), (second, small, 2)):
        nth = 1 if point == "sink.after_fence" else nth
        with failpoints.armed(point, dies, nth) as passed, pytest.raises(failpoints.FaultError):
            sink.publish(won, won.files)
        assert passed.hit
        outlet.finalize(won, sink)
    assert outlet.ids == ids(0, 20)


# Attacks KP2, KP4.
@pytest.mark.parametrize("cut", [1, 3])
def test_a_zombie_that_slept_before_its_commit(outlet: Outlet, cut: int) -> None:
    """Its commit fails, it changes nothing, and it ends well: the batch has landed meanwhile."""
    outlet.make()
    won, sink = outlet.won(table(0, 20)), outlet.sink(transaction_bytes=400)
    slept, go = threading.Event(), threading.Event()

    def sleep() -> None:
        slept.set()
        assert go.wait(WAIT_SECONDS)

    with ThreadPoolExecutor(1) as pool, failpoints.armed("sink.before_cut", sleep, cut):
        zombie = pool.submit(sink.publish, won, won.files)
        assert slept.wait(WAIT_SECONDS)
        outlet.finalize(won)
        go.set()
        assert zombie.result(WAIT_SECONDS) is None
    assert outlet.ids == ids(0, 20) and note_of(outlet).landed


# Attacks KP4.
def test_who_was_fenced_waits_for_the_other(outlet: Outlet) -> None:
    """And fences nobody in turn: two finalizers would keep each other from landing for ever."""
    outlet.make()
    won = outlet.won(table(0, 10))
    both = [(threading.Event(), threading.Event()) for _ in range(2)]

    def stand(nth: int) -> None:
        stands, go = both[nth]
        stands.set()
        assert go.wait(WAIT_SECONDS)

    def publish() -> None:
        outlet.sink().publish(won, won.files)

    with ThreadPoolExecutor(2) as pool:
        with failpoints.armed("sink.before_cut", lambda: stand(0)):
            first = pool.submit(publish)
            assert both[0][0].wait(WAIT_SECONDS)
        with failpoints.armed("sink.before_cut", lambda: stand(1)):
            second = pool.submit(publish)
            assert both[1][0].wait(WAIT_SECONDS)
        both[0][1].set()
        with pytest.raises(TimeoutError):
            first.result(2)
        both[1][1].set()
        assert first.result(WAIT_SECONDS) is second.result(WAIT_SECONDS) is None
    assert outlet.ids == ids(0, 10)


# Attacks KP4.
def test_who_was_fenced_by_one_that_died_goes_on(
    outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a bounded time, and the next round lands the batch."""
    monkeypatch.setattr(limits, "KAFKA_TRANSACTION_SECONDS", 2)
    outlet.make()
    won, sink = outlet.won(table(0, 10)), outlet.sink()

    def fence() -> None:
        with failpoints.armed("sink.before_cut", dies), pytest.raises(failpoints.FaultError):
            outlet.sink().publish(won, won.files)

    with failpoints.armed("sink.before_cut", fence):
        sink.publish(won, won.files)
    assert outlet.ids == [] and sink.query_presence(won) == [Presence.ABSENT]
    outlet.finalize(won, sink)
    assert outlet.ids == ids(0, 10)


# Attacks KP11.
@pytest.mark.parametrize("then", [1, 700, 1 << 30])
def test_another_size_of_transactions_moves_nothing(outlet: Outlet, then: int) -> None:
    """A batch that landed in part goes on at the row where it ended, whatever the size is now."""
    outlet.make(partitions=1)
    won = outlet.won(table(0, 12), table(12, 20))
    with failpoints.armed("sink.after_cut", dies, 3), pytest.raises(failpoints.FaultError):
        outlet.sink(transaction_bytes=300).publish(won, won.files)
    done = note_of(outlet)
    there = [row["id"] for row in outlet.read()]
    assert 3 <= done.rows < 20 and there == ids(0, done.rows)
    assert outlet.sink().query_presence(won) == [Presence.ABSENT] * 2
    outlet.finalize(won, outlet.sink(transaction_bytes=then))
    assert [row["id"] for row in outlet.read()] == ids(0, 20)
    assert note_of(outlet).spans[0][0] == done.spans[0][0]


# Attacks KP11.
def test_a_batch_of_one_transaction_is_never_seen_in_part(outlet: Outlet) -> None:
    """Up to transaction_bytes it is one transaction: nothing of it is there before its commit."""
    outlet.make()
    won, seen = outlet.won(table(0, 50), table(50, 100)), []
    with failpoints.armed("sink.before_cut", lambda: seen.append(outlet.ids)):
        outlet.sink().publish(won, won.files)
    assert seen == [[]] and outlet.ids == ids(0, 100)


# Attacks KP2.
def test_part_of_another_batch_is_loud(outlet: Outlet) -> None:
    """Also where that landed in part alone."""
    outlet.make()
    won = outlet.won(table(0, 20))
    with failpoints.armed("sink.after_cut", dies), pytest.raises(failpoints.FaultError):
        outlet.sink(transaction_bytes=300).publish(won, won.files)
    before, other = outlet.ids, replace(won, digest=won.digest[::-1])
    assert outlet.sink().query_presence(other) == [Presence.WRONG]
    outlet.sink().publish(other, other.files)
    assert outlet.ids == before


# Attacks KP3.
def test_an_open_transaction_of_another_batch_hides_nothing(outlet: Outlet, kafka: Kafka) -> None:
    """A producer died behind its note. What landed after that is found all the same, and not
    written again.
    """
    outlet.make()
    record = Record(value=b"{}", key=b'["events",7]')
    open_one = kafka.begin(outlet.control, [record])
    won = outlet.won(table(0, 10))
    ends = threading.Timer(1.5, open_one.abort_transaction)
    ends.start()
    outlet.finalize(won)
    ends.join()
    assert outlet.sink().query_presence(won) == [Presence.RIGHT] and outlet.ids == ids(0, 10)
    again = kafka.begin(outlet.control, [record])
    ends = threading.Timer(1.5, again.abort_transaction)
    ends.start()
    outlet.sink().publish(won, won.files)
    ends.join()
    assert outlet.ids == ids(0, 10)


# Attacks KP3.
def test_an_aborted_note_is_none(outlet: Outlet, kafka: Kafka) -> None:
    """Its messages were aborted with it: the batch is absent, and lands."""
    outlet.make()
    won = outlet.won(table(0, 10))
    note = replace(ControlNote.of(won), rows=10)
    kafka.begin(outlet.control, [Record(value=note.to_bytes(), key=note.key)]).abort_transaction()
    assert outlet.sink().query_presence(won) == [Presence.ABSENT]
    outlet.finalize(won)
    assert outlet.ids == ids(0, 10)


# Attacks KP3.
def test_what_stays_hidden_is_an_error(
    outlet: Outlet, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that nobody ends stops look, by an error that says so; nothing is guessed. Also
    one that is open since before stage: all that look has to read lies behind what is certain.
    """
    monkeypatch.setattr(limits, "KAFKA_TRANSACTION_SECONDS", 1)
    outlet.make()
    won, sink = outlet.won(table(0, 10)), outlet.sink()
    kafka.begin(outlet.control, [Record(value=b"{}", key=b'["events",7]')])
    with pytest.raises(RetryableError, match="an open transaction hides"):
        sink.query_presence(won)
    kafka.produce(outlet.control, [Record(value=None, key=b"other")])
    sink.check(won.schema, outlet.folder)
    kafka.produce(outlet.control, [Record(value=None, key=b"other")])
    with pytest.raises(RetryableError, match="an open transaction hides"):
        sink.query_presence(won)


# Attacks KP1, KP2.
@pytest.mark.rest
def test_the_broker_dies_before_the_commit(outlet: Outlet, kafka: Kafka) -> None:
    """And comes back: the batch lands once, by this call or by a later one."""
    outlet.make()
    won = outlet.won(table(0, 200), table(200, 300))

    def crash() -> None:
        kafka.broker.kill()
        threading.Timer(1, kafka.broker.start).start()

    with failpoints.armed("sink.before_cut", crash) as passed:
        outlet.finalize(won)
    assert passed.hit and outlet.ids == ids(0, 300)


# Attacks KP2.
@pytest.mark.parametrize("landed", [True, False])
def test_a_doubtful_commit_is_looked_up(
    outlet: Outlet, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    """Whether it landed or not, whoever lost the reply concludes nothing, and each row is there
    once in the end.
    """
    outlet.make()
    won, commit = outlet.won(table(0, 10)), landing._Landing._commit

    def lost(self: object) -> None:
        if landed:
            commit(self)
        raise OutcomeUnknownError("the reply was lost")

    with monkeypatch.context() as patch:
        patch.setattr(landing._Landing, "_commit", lost)
        with pytest.raises(OutcomeUnknownError):
            outlet.sink().publish(won, won.files)
    assert outlet.sink().query_presence(won) == [Presence.RIGHT if landed else Presence.ABSENT]
    outlet.finalize(won)
    assert outlet.ids == ids(0, 10)


# Attacks KP1.
@pytest.mark.rest
def test_a_commit_without_an_answer_is_told(
    outlet: Outlet, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker goes before the commit and stays away: the error says that nothing is known."""
    monkeypatch.setattr(landing, "_COMMIT_SECONDS", 1)
    monkeypatch.setattr(landing, "ANSWER_SECONDS", 2)
    outlet.make()
    won = outlet.won(table(0, 10))
    with failpoints.armed("sink.before_cut", kafka.broker.kill), pytest.raises(RetryableError):
        outlet.sink().publish(won, won.files)
    kafka.broker.start()
    outlet.finalize(won)
    assert outlet.ids == ids(0, 10)


# Attacks KP1.
def test_staged_files_that_lack_rows_land_nothing(outlet: Outlet) -> None:
    """The manifest says how many rows there are: with another number nothing is committed."""
    outlet.make()
    won = outlet.won(table(0, 10), table(10, 15))
    short = outlet.won(table(0, 10)).files[0]
    files = (won.files[0], replace(won.files[1], staged_path=short.staged_path))
    harmed = replace(won, files=files)
    with pytest.raises(CorruptionError, match="have 20 rows, and its manifest lists 15"):
        outlet.sink().publish(harmed, harmed.files)
    assert outlet.ids == [] and note_of(outlet) is None


# Attacks KP7.
def test_topics_are_made_where_nothing_was(outlet: Outlet, kafka: Kafka) -> None:
    """With create both topics are made, the control topic compacted; twice changes nothing."""
    sink = outlet.sink(create=True)
    for _ in range(2):
        sink.check(table(0, 1).schema, outlet.folder)
    won = outlet.won(table(0, 10))
    outlet.finalize(won, sink)
    assert outlet.ids == ids(0, 10)
    assert [(note.pipeline, note.batch_id) for note in sink.notes().batch_notes] == [("events", 1)]


# Attacks KP7.
def test_a_lost_control_topic_is_never_made_anew(outlet: Outlet, kafka: Kafka) -> None:
    """It says what landed: beside a topic that has messages an empty one would let batches land
    again.
    """
    sink, won = outlet.make().sink(create=True), outlet.won(table(0, 10))
    outlet.finalize(won, sink)
    kafka.delete(outlet.control)
    for call in (
        lambda: sink.check(won.schema, outlet.folder),
        lambda: sink.publish(won, won.files),
    ):
        with pytest.raises(TerminalError, match="batches that have landed.*restore it"):
            call()
    with pytest.raises((TerminalError, RetryableError)):
        sink.query_presence(won)
    assert outlet.ids == ids(0, 10)


# Attacks KP5.
def test_topics_that_do_not_fit(outlet: Outlet, kafka: Kafka) -> None:
    """Each is told before any work, with the remedy: a topic that is missing, a control topic that
    deletes what is old and would let a batch land again, a compacted topic without a key.
    """

    def refused(said: str, **declared: object) -> None:
        with pytest.raises(TerminalError, match=said):
            outlet.sink(**declared).check(table(0, 1).schema, outlet.folder)

    refused(r"no topic .*kafka-topics.sh .* --create --topic rows")
    kafka.topic(outlet.topic, config={"cleanup.policy": "compact"})
    kafka.topic(outlet.control)
    refused("cleanup.policy=delete and would lose")
    kafka.configure(outlet.control, "cleanup.policy", "compact")
    refused("each message needs a key. Declare sink.key", key=None)
    refuses = outlet.sink().check(table(0, 1).schema, outlet.folder)
    [null] = refuses(pa.table({"id": ["a", None], "n": [1, 2]}))
    assert (null.rows.tolist(), null.reason) == ([1], "null")


# Attacks KP10.
def test_rows_that_are_gone_are_told(outlet: Outlet, kafka: Kafka) -> None:
    """Retention, or somebody, deleted messages of a batch: nobody gets a part for the whole."""
    outlet.make(partitions=1)
    won = outlet.won(table(0, 10))
    outlet.finalize(won)
    assert sum(len(rows) for rows in outlet.sink().rows(marker(won))) == 10
    kafka.delete_records(outlet.topic, {0: 3})
    with pytest.raises(TerminalError, match="offsets 0 to 10 of partition 0, but that now begins"):
        list(outlet.sink().rows(marker(won)))


# Attacks KP10.
def test_a_batch_that_was_written_twice_is_seen(outlet: Outlet) -> None:
    """Though the note of the first time is gone: who asks for what lies elsewhere gets both."""
    outlet.make()
    won, sink = outlet.won(table(0, 10)), outlet.sink()
    outlet.finalize(won)
    outlet.kafka.produce(outlet.control, [Record(value=None, key=b'["events",1]')])
    outlet.finalize(won)
    assert sum(len(rows) for rows in sink.rows(marker(won))) == 10
    with sink:
        assert sum(len(rows) for rows in sink.rows(marker(won), strays=True)) == 20


# Attacks KP12.
def test_notes_of_earlier_batches_are_not_read(outlet: Outlet) -> None:
    """What the control topic held when stage began is behind whoever looks for the batch: that a
    history is long costs nothing. A note that came later is found, by a twin as well.
    """
    outlet.make()
    won, sink = outlet.won(table(0, 10)), outlet.sink()
    damaged = Record(value=b"no note", key=b'["events",1]')
    outlet.kafka.produce(outlet.control, [damaged])
    with pytest.raises(CorruptionError, match="is not a valid note"):
        sink.query_presence(won)
    sink.check(won.schema, outlet.folder)
    assert sink.query_presence(won) == [Presence.ABSENT]
    outlet.finalize(won)
    sink.publish(won, won.files)
    assert sink.query_presence(won) == [Presence.RIGHT] and outlet.ids == ids(0, 10)


# Attacks KP12.
@pytest.mark.parametrize("harm", ["restored", "another leader", "not written"])
def test_notes_that_may_lie_before_are_read(outlet: Outlet, kafka: Kafka, harm: str) -> None:
    """Where the control topic was restored from a copy, where another broker led it meanwhile, and
    where the file of stage is damaged, its notes may lie anywhere: nothing lands again.
    """
    outlet.make()
    won, sink = outlet.won(table(0, 10)), outlet.sink()
    outlet.finalize(won)
    [note] = kafka.drain(outlet.control)
    kafka.produce(outlet.control, [Record(value=None, key=b"other")] * 3)
    sink.check(won.schema, outlet.folder)  # As if stage had been later than the note.
    assert sink.query_presence(won) == [Presence.ABSENT]
    kept = outlet.folder / "_control.json"
    if harm == "restored":
        kafka.delete(outlet.control)
        kafka.topic(outlet.control, config=CONTROL)
        filler = [Record(value=None, key=b"other")] * 9
        kafka.produce(outlet.control, [Record(value=note.value, key=note.key), *filler])
    elif harm == "another leader":
        plain = json.loads(kept.read_text())
        kept.write_text(json.dumps({**plain, "leaders": {"0": plain["leaders"]["0"] - 1}}))
    else:
        kept.write_text(kept.read_text()[:20])
    assert sink.query_presence(won) == [Presence.RIGHT]
    sink.publish(won, won.files)
    assert outlet.ids == ids(0, 10)


# Attacks KP5, KP6.
def test_a_limit_beyond_what_clients_take(outlet: Outlet) -> None:
    """A topic may allow 2 GiB a message, more than librdkafka sends: rows land."""
    outlet.make(max_message_bytes="2147483647")
    sink, won = outlet.sink(), outlet.won(table(0, 12))
    sink.check(won.schema, outlet.folder)
    sink.publish(won, won.files)
    assert outlet.ids == ids(0, 12)


# Attacks KP5.
def test_a_control_topic_that_takes_no_note(outlet: Outlet, kafka: Kafka) -> None:
    """It is refused before any work; so is a batch that has committed, and lands once its limit is
    what the message says.
    """
    outlet.make()
    sink, won = outlet.sink(), outlet.won(table(0, 12))
    control = sink._target.control
    kafka.configure(control, "max.message.bytes", "200")
    for step in (lambda: sink.check(won.schema, outlet.folder),
                 lambda: sink.publish(won, won.files)):  # fmt: skip
        with pytest.raises(TerminalError, match="the size of a large note. ") as told:
            step()
    name, value = re.search(rf"--topic {control} --add-config (\S+)=(\d+)", str(told.value)).groups()
    kafka.configure(control, name, value)
    outlet.finalize(won, sink)
    assert outlet.ids == ids(0, 12)


# Attacks KP6.
def test_each_message_that_passes_the_check_is_taken(outlet: Outlet) -> None:
    """Around the limit, byte by byte: the broker takes what the check passes, and most of what the
    check sets aside is too large indeed.
    """
    outlet.make(max_message_bytes="4000")
    sink = outlet.sink()
    refuses = sink.check(table(0, 1).schema, outlet.folder)
    texts = ["x" * size for size in range(3700, 4000, 7)] + ['"\n\x01é' * 500]
    rows = pa.table({"id": [f"e{n:06d}" for n in range(len(texts))], "text": texts})
    [large] = refuses(rows)
    assert large.reason == "large" and "4000" in large.detail
    passed = [n for n in range(len(texts)) if n not in large.rows]
    assert 0 < len(passed) < len(texts)
    won = outlet.won(rows.take(pa.array(passed)))
    outlet.finalize(won, sink)
    assert len(outlet.read()) == len(passed)


# Attacks KP6, S27.
def test_what_the_topic_will_refuse_is_a_dead_letter(
    bench: Workbench, ledger: Ledger, outlet: Outlet
) -> None:
    """A message that is too large is set aside before its id is known; the other rows land."""
    outlet.make(max_message_bytes="2000")
    long = {"id": "e000003" + "x" * 5000, "n": 3, "at": None}
    bench.write("in/a.jsonl", [*events(0, 3), long, *events(4, 10)])
    servers = outlet.kafka.broker.bootstrap
    sink = {"type": "kafka", "bootstrap_servers": servers, "topic": outlet.topic, "key": "id"}
    spec = bench.spec(sink=sink)
    done = run(ledger, spec, "r1")
    assert outlet.ids == sorted({*ids(0, 10)} - {"e000003"})
    assert (done.finalized.counts.quarantined, audit(spec).ok) == (1, True)
    [letters] = layout.archive_folder(spec).glob("dead_letters/*.parquet")
    [letter] = pq.read_table(letters).to_pylist()
    assert letter["reason"] == "sink_refuses" and letter["detail"].startswith("large: ")
    [row] = bench.data.joinpath("in/a.jsonl").read_bytes().splitlines()[3:4]
    assert letter["raw"] == row


_RIGHTS = [
    ("topic", "READ"), ("topic", "WRITE"), ("topic", "DESCRIBE_CONFIGS"), ("control", "READ"),
    ("control", "WRITE"), ("control", "DESCRIBE_CONFIGS"), ("id", "WRITE"),
]  # fmt: skip


# Attacks KP5.
@pytest.mark.parametrize("lacking", [None, *_RIGHTS])
def test_a_right_that_is_lacking_is_told_before_any_work(
    outlet: Outlet, kafka: Kafka, monkeypatch: pytest.MonkeyPatch, lacking: tuple[str, str] | None
) -> None:
    """With those of docs/kafka.md a batch lands and is read back; without one of them stage says
    so, and quotes no password.
    """
    outlet.make()
    user, password = f"writer-{secrets.token_hex(4)}", "s3cret-word"
    kafka.user(user, password)
    places = {
        "topic": {"topic": outlet.topic}, "control": {"topic": outlet.control},
        "id": {"ids_of": f"semel.{outlet.topic}."},
    }  # fmt: skip
    for place, operation in _RIGHTS:
        if (place, operation) != lacking:
            kafka.allow(user, operation, **places[place])
    login = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": user, "sasl_password": password}
    extra = kafka.client(Listener.SCRAM, **login)
    monkeypatch.setenv("AIRFLOW_CONN_OWN", json.dumps({"conn_type": "kafka", "extra": extra}))
    sink, won = outlet.sink(cluster=Cluster(connection="own")), outlet.won(table(0, 10))
    if lacking is None:
        sink.check(won.schema, outlet.folder)
        outlet.finalize(won, sink)
        assert sum(len(rows) for rows in sink.rows(marker(won))) == 10
        return
    began = time.monotonic()
    remedy = "(Give|Grant) it the rights that docs/kafka.md lists"
    with pytest.raises(TerminalError, match=remedy) as error:
        sink.check(won.schema, outlet.folder)
    assert password not in str(error.value) and time.monotonic() - began < 10


# Attacks KP9.
def test_refused_rows_can_be_kept_while_the_others_land(
    outlet: Outlet, kafka: Kafka
) -> None:
    """The topic's limit was lowered since stage: finalize says what to do, the refused row is kept
    before the others are visible, and it is counted.
    """
    outlet.make()
    texts = ["x" * (5000 if n == 7 else 10) for n in range(12)]
    won = outlet.won(pa.table({"id": ids(0, 12), "text": texts}))
    sink = outlet.sink()
    with failpoints.armed("sink.after_cut", dies, 2), pytest.raises(failpoints.FaultError):
        outlet.sink(transaction_bytes=200).publish(won, won.files)
    kafka.configure(outlet.topic, "max.message.bytes", "2000")
    with pytest.raises(TerminalError, match=f"semel accept events --refused {won.batch_id}"):
        sink.publish(won, won.files)
    kept: list[tuple[pa.Table, list[str]]] = []
    sink.publish_accepting(won, lambda rows: kept.append((rows, outlet.ids)))
    [(rows, before)] = kept
    assert rows.column("id").to_pylist() == ["e000007"] and "e000011" not in before
    assert "max.message.bytes" in rows.column("_semel_refusal")[0].as_py()
    assert outlet.ids == sorted({*ids(0, 12)} - {"e000007"})
    assert sink.query_presence(won) == [Presence.RIGHT] and sink.count_refused(won) == 1
    sink.publish_accepting(won, lambda _: pytest.fail("it has landed"))


MURMUR2 = {
    "21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829, "abc": 479470107,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
}  # fmt: skip
"""Hashes in the tests of Kafka's own `Utils.murmur2`."""


def test_keys_land_where_java_puts_them(outlet: Outlet, kafka: Kafka) -> None:
    """By murmur2, as Java's producers choose a partition, so that consumers find a key in one. A
    null makes no key, and an empty header."""
    outlet.make(partitions=5)
    outlet.finalize(
        outlet.won(pa.table({"id": [*MURMUR2, None]})), outlet.sink(headers=(("the-id", "id"),))
    )
    found = {read.key: read for read in kafka.drain(outlet.topic)}
    assert found.pop(None).headers == [("the-id", None)]
    assert {key.decode(): read.partition for key, read in found.items()} == {
        key: (number & 0x7FFFFFFF) % 5 for key, number in MURMUR2.items()
    }
    assert all(read.headers == [("the-id", key)] for key, read in found.items())


# Attacks KP10.
def test_rows_come_back_as_they_were(outlet: Outlet) -> None:
    """Each type, nulls too, among messages of others."""
    rows = pa.table({
        "id": ["a", 'q"\n\\', None], "n": pa.array([2**63 - 1, -(2**63), None]),
        "x": [0.1, 1e300, None], "flag": [True, False, None],
        "price": pa.array([Decimal("1.10"), Decimal("-99999.99"), None], pa.decimal128(7, 2)),
        "day": pa.array([0, 20000, None], pa.date32()),
        "at": pa.array([0, 1_700_000_000_123_456, None], pa.timestamp("us", "UTC")),
        "local": pa.array([0, 1_700_000_000_123_456, None], pa.timestamp("us")),
        "raw": [b"\x00\xff", b"", None],
        "many": pa.array([[1, None], [], None], pa.list_(pa.int64())),
        "part": pa.array([{"a": 1, "b": "x"}, {"a": None, "b": None}, None]),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    })  # fmt: skip
    outlet.make()
    won = outlet.won(rows)
    outlet.kafka.produce(outlet.topic, [Record(value=b"no json", key=b"x"), Record(value=None)])
    others = [Record(value=b'{"id":"z"}'), Record(value=None)]
    with failpoints.armed("sink.before_cut", lambda: outlet.kafka.produce(outlet.topic, others)):
        outlet.finalize(won)
    found = pa.concat_tables(outlet.sink().rows(marker(won)))
    assert found.schema == rows.schema
    assert found.take(_order(found)).to_pylist() == rows.take(_order(rows)).to_pylist()


def _order(rows: pa.Table) -> pa.Array:
    texts = [text or "" for text in rows.column("id").to_pylist()]
    return pa.array(sorted(range(len(texts)), key=texts.__getitem__))


def test_a_check_that_another_one_fences(outlet: Outlet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts check one topic at the same time: the one that is fenced may be tried again."""

    class Fenced(confluent_kafka.Producer):
        def init_transactions(self, *_: object) -> None:
            raise KafkaException(KafkaError(KafkaError._FENCED))

    sink = outlet.make().sink()
    monkeypatch.setattr(confluent_kafka, "Producer", Fenced)
    with pytest.raises(RetryableError, match="another process uses this transactional.id"):
        sink.describe(None)
