"""Verbs that read topics again, after batches were finalized: replay, requarantine, compare, adopt.
"""

import pytest

from fixtures.batches.account import ids, quiet, run, settled
from fixtures.batches.compares import compared
from fixtures.batches.replays import allow, replayed, rows
from fixtures.kafka.broker import Record
from fixtures.kafka.topics import Topic
from fixtures.postgres.server import lose
from fixtures.spark.local import LocalEngine
from semel.audit import audit
from semel.errors import SourceError
from semel.ledger import Ledger
from semel.model.split import Split
from semel.pipeline.spec import Spec
from semel.repair.adopt import adopt
from semel.runs import requarantine
from semel.sources.kafka.source import KafkaSource

WIDER = {"schema": {"id": "string", "n": "double", "at": "timestamp"}}
BAD = b'{"id": "x1", "n": 1.5, "at": "2026-01-01T00:00:00Z"}'


def land(topic: Topic, ledger: Ledger, **changes: object) -> Spec:
    """Two batches with repeats within and between them, gaps of offsets, and bad records."""
    spec = topic.spec(**changes)
    topic.append(0, 30)
    topic.kafka.begin(topic.name, [Record(value=b"{}")] * 5).abort_transaction()
    topic.put([BAD, b"{bad"])
    topic.append(20, 40)
    run(ledger, spec, "r1")
    topic.append(35, 50)
    run(ledger, spec, "r2")
    return spec


@pytest.mark.rest
def test_a_replay(topic: Topic, ledger: Ledger) -> None:
    """The same records by another declaration, and the audit proves it."""
    before = settled(land(topic, ledger, record_id=["id"])).ids
    spec = topic.spec(source=WIDER, record_id=["id"])
    allow(ledger, spec)
    for root in (1, 2):
        replayed(ledger, spec, root, "again")
    found = settled(spec)
    assert found.ids == before and {type(row["n"]) for row in found.rows} == {float}
    assert audit(spec).replayed == 2


def test_a_replay_of_what_is_gone(topic: Topic, ledger: Ledger) -> None:
    """Records that retention has deleted cannot be replayed: it says so, and changes nothing."""
    spec = land(topic, ledger)
    topic.kafka.delete_records(topic.name, {0: 10})
    with pytest.raises(SourceError, match="below 10 have been deleted") as told:
        replayed(ledger, spec, 1, "again")
    assert "The output stays what it is" in str(told.value) and "abandon" not in str(told.value)
    assert told.value.next == "semel show 1"
    replayed(ledger, spec, 2, "again")
    assert len(settled(spec).ids) == 65


@pytest.mark.rest
def test_dead_letters_are_judged_again(topic: Topic, ledger: Ledger) -> None:
    """Of a topic: what is good by the new declaration is new, once."""
    land(topic, ledger, record_id=["id"])
    spec = topic.spec(source=WIDER, record_id=["id"])
    allow(ledger, spec)
    done = requarantine.run(ledger, spec, "q", 1, LocalEngine(), log=quiet).finalized.counts
    assert (done.records_read, done.survivors, done.quarantined, done.bytes_read) == (2, 1, 1, 0)
    assert [row["id"] for row in rows(spec)] == [*ids(0, 50), "x1"]
    assert audit(spec).ok
    again = requarantine.run(ledger, spec, "q", 1, LocalEngine(), log=quiet).finalized.counts
    assert (again.records_read, again.quarantined) == (1, 1) and audit(spec).ok


@pytest.mark.rest
def test_compare(topic: Topic, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch of all offsets gives what the batches gave, and is cut as a plan cuts."""
    sizes, read = [], KafkaSource.read

    def seen(self: KafkaSource, split: Split, *more: object) -> object:
        sizes.append(split.end - split.start)
        return read(self, split, *more)

    monkeypatch.setattr(KafkaSource, "split_size", 10)
    monkeypatch.setattr(KafkaSource, "read", seen)
    spec = land(topic, ledger)
    found = compared(ledger, spec, 1, 2)
    assert found.equal and found.by == "row" and not found.differences, found
    assert max(sizes) <= 10
    topic.kafka.delete_records(topic.name, {0: 10})
    with pytest.raises(SourceError, match="below 10 have been .* a range without batch 1") as told:
        compared(ledger, spec, 1, 2)
    assert "abandon" not in str(told.value)
    assert compared(ledger, spec, 2, 2).equal


def test_adopt(topic: Topic, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that was lost: the topic goes on where it was, and nothing is read twice. A replay
    cuts its claims as the batch did."""
    monkeypatch.setattr(KafkaSource, "split_size", 10)
    spec = land(topic, ledger, record_id=["id"])
    before = settled(spec).ids
    lose(ledger)
    done = adopt(ledger, spec, log=quiet)
    assert (done.batches, done.source_partitions, done.files_found) == (2, 1, 1)
    topic.append(45, 60)
    run(ledger, spec, "r3")
    assert settled(spec).ids == [*before, *ids(50, 60)]
    replayed(ledger, spec, 1, "again")
    assert settled(spec).ids == [*before, *ids(50, 60)]
