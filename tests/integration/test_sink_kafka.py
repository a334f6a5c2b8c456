"""A Kafka topic as a sink: what it promises beyond the contract of all sinks."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest

from fix_kafka import Kafka, Record
from fix_sink_kafka import Outlet, dies, ids, marker
from fix_sinks import table
from semel import faults, limits
from semel.errors import CorruptionError, OutcomeUnknownError, RetryableError, TerminalError
from semel.sinks import Old, Presence
from semel.sinks.kafka import control, landing
from semel.sinks.kafka.control import Note

WAIT_SECONDS = 60


def note_of(outlet: Outlet, batch_id: int = 1) -> Note | None:
    cluster = outlet.sink()._target.cluster
    return control.find(cluster, outlet.control, "events", batch_id, 10)


# Attacks KP1, KP2.
@pytest.mark.parametrize("point", ["sink.after_fence", "sink.before_cut", "sink.after_cut"])
def test_a_publish_that_dies_is_finished(outlet: Outlet, point: str) -> None:
    """At each point, in the first cut and in a later one: each row is there once."""
    outlet.make()
    first, second = outlet.won(table(0, 10)), outlet.won(table(10, 20), batch_id=2)
    small = outlet.sink(transaction_bytes=500)
    for won, sink, nth in ((first, outlet.sink(), 1), (second, small, 2)):
        nth = 1 if point == "sink.after_fence" else nth
        with faults.armed(point, dies, nth) as passed, pytest.raises(faults.FaultError):
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

    with ThreadPoolExecutor(1) as pool, faults.armed("sink.before_cut", sleep, cut):
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
        with faults.armed("sink.before_cut", lambda: stand(0)):
            first = pool.submit(publish)
            assert both[0][0].wait(WAIT_SECONDS)
        with faults.armed("sink.before_cut", lambda: stand(1)):
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
        with faults.armed("sink.before_cut", dies), pytest.raises(faults.FaultError):
            outlet.sink().publish(won, won.files)

    with faults.armed("sink.before_cut", fence):
        sink.publish(won, won.files)
    assert outlet.ids == [] and sink.look(won) == [Presence.ABSENT]
    outlet.finalize(won, sink)
    assert outlet.ids == ids(0, 10)


# Attacks KP11.
@pytest.mark.parametrize("then", [1, 700, 1 << 30])
def test_another_size_of_transactions_moves_nothing(outlet: Outlet, then: int) -> None:
    """A batch that landed in part goes on at the row where it ended, whatever the size is now."""
    outlet.make(partitions=1)
    won = outlet.won(table(0, 12), table(12, 20))
    with faults.armed("sink.after_cut", dies, 3), pytest.raises(faults.FaultError):
        outlet.sink(transaction_bytes=300).publish(won, won.files)
    done = note_of(outlet)
    there = [row["id"] for row in outlet.read()]
    assert 3 <= done.rows < 20 and there == ids(0, done.rows)
    assert outlet.sink().look(won) == [Presence.ABSENT] * 2
    outlet.finalize(won, outlet.sink(transaction_bytes=then))
    assert [row["id"] for row in outlet.read()] == ids(0, 20)
    assert note_of(outlet).spans[0][0] == done.spans[0][0]


# Attacks KP11.
def test_a_batch_of_one_transaction_is_never_seen_in_part(outlet: Outlet) -> None:
    """Up to transaction_bytes it is one transaction: nothing of it is there before its commit."""
    outlet.make()
    won, seen = outlet.won(table(0, 50), table(50, 100)), []
    with faults.armed("sink.before_cut", lambda: seen.append(outlet.ids)):
        outlet.sink().publish(won, won.files)
    assert seen == [[]] and outlet.ids == ids(0, 100)


# Attacks KP2.
def test_part_of_another_batch_is_loud(outlet: Outlet) -> None:
    """Also where that landed in part alone."""
    outlet.make()
    won = outlet.won(table(0, 20))
    with faults.armed("sink.after_cut", dies), pytest.raises(faults.FaultError):
        outlet.sink(transaction_bytes=300).publish(won, won.files)
    before, other = outlet.ids, outlet.other_digest(won)
    assert outlet.sink().look(other) == [Presence.WRONG]
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
    ends = threading.Timer(3, open_one.abort_transaction)
    ends.start()
    outlet.finalize(won)
    ends.join()
    assert outlet.sink().look(won) == [Presence.RIGHT] and outlet.ids == ids(0, 10)
    again = kafka.begin(outlet.control, [record])
    ends = threading.Timer(3, again.abort_transaction)
    ends.start()
    outlet.sink().publish(won, won.files)
    ends.join()
    assert outlet.ids == ids(0, 10)


# Attacks KP3.
def test_an_aborted_note_is_none(outlet: Outlet, kafka: Kafka) -> None:
    """Its messages were aborted with it: the batch is absent, and lands."""
    outlet.make()
    won = outlet.won(table(0, 10))
    note = replace(Note.of(won), rows=10)
    kafka.begin(outlet.control, [Record(value=note.to_bytes(), key=note.key)]).abort_transaction()
    assert outlet.sink().look(won) == [Presence.ABSENT]
    outlet.finalize(won)
    assert outlet.ids == ids(0, 10)


# Attacks KP3.
def test_what_stays_hidden_is_an_error(
    outlet: Outlet, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that nobody ends stops look, by an error that says so; nothing is guessed."""
    monkeypatch.setattr(limits, "KAFKA_TRANSACTION_SECONDS", 1)
    outlet.make()
    kafka.begin(outlet.control, [Record(value=b"{}", key=b'["events",7]')])
    with pytest.raises(RetryableError, match="a transaction is open"):
        outlet.sink().look(outlet.won(table(0, 10)))


# Attacks KP1, KP2.
@pytest.mark.rest
def test_the_broker_dies_before_the_commit(outlet: Outlet, kafka: Kafka) -> None:
    """And comes back: the batch lands once, by this call or by a later one."""
    outlet.make()
    won = outlet.won(table(0, 200), table(200, 300))

    def crash() -> None:
        kafka.broker.kill()
        threading.Timer(1, kafka.broker.start).start()

    with faults.armed("sink.before_cut", crash) as passed:
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
    assert outlet.sink().look(won) == [Presence.RIGHT if landed else Presence.ABSENT]
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
    with faults.armed("sink.before_cut", kafka.broker.kill), pytest.raises(RetryableError):
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
    with pytest.raises(CorruptionError, match="hold 20 rows, and its manifest says 15"):
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
    assert [(note.pipeline, note.batch_id) for note in sink.notes().found] == [("events", 1)]


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
        with pytest.raises(TerminalError, match="which batches have landed.*restore it"):
            call()
    with pytest.raises((TerminalError, RetryableError)):
        sink.look(won)
    assert outlet.ids == ids(0, 10)


# Attacks KP5.
def test_a_topic_that_is_missing_is_told_with_the_remedy(outlet: Outlet) -> None:
    """Before any work."""
    with pytest.raises(TerminalError, match=r"no topic .*kafka-topics.sh .* --create --topic rows"):
        outlet.sink().check(table(0, 1).schema, outlet.folder)


# Attacks KP5.
def test_a_control_topic_that_forgets_is_refused(outlet: Outlet, kafka: Kafka) -> None:
    """One that deletes what is old would let a batch land again."""
    kafka.topic(outlet.topic)
    kafka.topic(outlet.control)
    with pytest.raises(TerminalError, match="cleanup.policy=delete, and would forget"):
        outlet.sink().check(table(0, 1).schema, outlet.folder)


# Attacks KP5.
def test_a_compacted_topic_needs_a_key(outlet: Outlet) -> None:
    """It is declared; and a row whose key is null is set aside."""
    outlet.make(cleanup_policy="compact")
    with pytest.raises(TerminalError, match="takes no message without a key; declare sink.key"):
        outlet.sink(key=None).check(table(0, 1).schema, outlet.folder)
    refuses = outlet.sink().check(table(0, 1).schema, outlet.folder)
    rows = pa.table({"id": ["a", None], "n": [1, 2]})
    assert [(r.rows.tolist(), r.reason) for r in refuses(rows)] == [([1], "null")]


# Attacks KP5.
@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"key": "x"}, "sink.key names 'x', which is no column"),
        ({"key": ("id", "x")}, "sink.key names 'x'"),
        ({"headers": (("h", "x"),)}, "sink.headers names 'x'"),
    ],
)
def test_columns_that_the_output_lacks_are_named(
    outlet: Outlet, declared: dict, said: str
) -> None:
    """Before any work where the columns are known, else before the batch is staged."""
    sink = outlet.make().sink(**declared)
    for call in (
        lambda: sink.check(table(0, 1).schema, outlet.folder),
        lambda: sink.check_staged(table(0, 1).schema, ()),
    ):
        with pytest.raises(TerminalError, match=said):
            call()
    own = table(0, 1).rename_columns(["id", "n", "_semel_batch"])
    with pytest.raises(TerminalError, match="semel writes this field itself"):
        outlet.sink().check_staged(own.schema, ())


# Attacks KP8.
def test_a_replay_is_refused(outlet: Outlet) -> None:
    """With what to do in its place."""
    old = Old(pipeline="events", commit_seq=1, batches=(1,))
    with pytest.raises(TerminalError, match="cannot be replaced.*another name and topic"):
        outlet.sink().check_replace(old)


# Attacks KP10.
def test_rows_that_are_gone_are_told(outlet: Outlet, kafka: Kafka) -> None:
    """Retention, or somebody, deleted messages of a batch: nobody gets a part for the whole."""
    outlet.make(partitions=1)
    won = outlet.won(table(0, 10))
    outlet.finalize(won)
    assert sum(len(rows) for rows in outlet.sink().rows(marker(won))) == 10
    kafka.delete_records(outlet.topic, {0: 3})
    with pytest.raises(TerminalError, match="offsets 0 to 10 of partition 0 are not all there"):
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
