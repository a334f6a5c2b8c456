"""The topic is a witness too: its notes against what markers and ledger say."""

import json

import pytest

from fixtures.batches.account import committed, ids, quiet
from fixtures.batches.workbench import Workbench, events
from fixtures.kafka.broker import Kafka, Record
from fixtures.kafka.outlet import Outlet
from fixtures.postgres.server import database
from fixtures.spark.local import LocalEngine
from semel.archive import ownership
from semel.audit import audit
from semel.cli import main
from semel.errors import StateError, TerminalError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.pipeline.opening import open_sink
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.runs.run import run_batch


def declared(bench: Workbench, outlet: Outlet, name: str = "events", **sink: object) -> Spec:
    servers = outlet.kafka.broker.bootstrap
    plain = {"type": "kafka", "bootstrap_servers": servers, "topic": outlet.topic, "key": "id"}
    return bench.spec(name, sink={**plain, **sink})


def run(ledger: Ledger, spec: Spec, key: str) -> None:
    run_batch(ledger, spec, key, LocalEngine(), log=quiet)


def landed(bench: Workbench, ledger: Ledger, outlet: Outlet) -> Spec:
    """A pipeline with two finalized batches."""
    spec = declared(bench, outlet.make())
    for number in (1, 2):
        bench.write(f"in/{number}.jsonl", events(10 * number, 10 * number + 10))
        run(ledger, spec, f"r{number}")
    return spec


def misses(bench: Workbench, ledger: Ledger, outlet: Outlet, spec: Spec, batch: int) -> None:
    """The third batch is refused, as the note of one of two is gone, and nothing of it lands."""
    bench.write("in/3.jsonl", events(30, 40))
    with pytest.raises(TerminalError, match=f"has no note of batch {batch}"):
        run(ledger, spec, "r3")
    assert outlet.ids == ids(10, 30)


def other_name(outlet: Outlet) -> str:
    """The broker by another name of its host."""
    return outlet.kafka.broker.bootstrap.replace("127.0.0.1", "localhost")


# Attacks H3.
def test_a_cluster_that_has_another_name(
    bench: Workbench, ledger: Ledger, outlet: Outlet
) -> None:
    """While a batch is committed: the verb takes the new address, and the batch lands once."""
    spec = declared(bench, outlet.make())
    bench.write("in/1.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    bench.write("in/2.jsonl", events(10, 20))
    batch = committed(ledger, spec, "r2")
    renamed = declared(bench, outlet, bootstrap_servers=other_name(outlet))
    bench.write("in/3.jsonl", events(20, 30))
    with pytest.raises(StateError, match="`semel accept events --moved`"):
        run(ledger, renamed, "r3")
    assert main(["accept", "events", "--moved"]) == 0
    finalize(ledger, renamed, batch)
    run(ledger, renamed, "r3")
    assert outlet.ids == ids(0, 30) and audit(renamed).ok


# Attacks H2, H3.
def test_another_topic_is_no_moved_one(bench: Workbench, ledger: Ledger, outlet: Outlet) -> None:
    """An edited topic: neither the plan nor the verb follows it; put back, the pipeline goes on."""
    spec = declared(bench, outlet.make())
    bench.write("in/1.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    other = Outlet(outlet.kafka, outlet.folder).make()
    declared(bench, other)
    bench.write("in/2.jsonl", events(10, 20))
    with pytest.raises(StateError, match="Put the declaration .* back"):
        run(ledger, declared(bench, other), "r2")
    assert main(["accept", "events", "--moved"]) == 1
    run(ledger, declared(bench, outlet), "r2")
    assert outlet.ids == ids(0, 20) and other.read() == []


# Attacks H2.
def test_two_pipelines_in_one_topic(bench: Workbench, ledger: Ledger, outlet: Outlet) -> None:
    """By two names of the host: refused at plan; and where both have committed before, before the
    second one's first message.
    """
    one = declared(bench, outlet.make(), "one")
    two = declared(bench, outlet, "two", bootstrap_servers=other_name(outlet))
    three = declared(bench, outlet, "three", bootstrap_servers=f"{other_name(outlet)},127.0.0.1:1")
    bench.write("in/1.jsonl", events(0, 10))
    first, second = committed(ledger, one, "r1"), committed(ledger, two, "r1")
    finalize(ledger, one, first)
    said = f"has batch {first} of pipeline 'one'. A table or topic belongs to one"
    with pytest.raises(TerminalError, match=said):
        finalize(ledger, two, second)
    with pytest.raises(TerminalError, match=said):
        plan(ledger, three, "r1")
    assert outlet.ids == ids(0, 10)


# Attacks H2.
def test_two_ledgers(
    bench: Workbench, ledger: Ledger, outlet: Outlet, postgres: str, template: str
) -> None:
    """Both planned before a message was there: the second one says so before any work."""
    spec = declared(bench, outlet.make())
    bench.write("in/1.jsonl", events(0, 10))
    with database(postgres, template) as dsn, Ledger(dsn) as second:
        theirs = declared(bench, outlet, archive="theirs")
        plan(second, theirs, "r1")
        run(ledger, spec, "r1")
        with pytest.raises(TerminalError, match="pipeline 'events' of another ledger"):
            run(second, theirs, "r1")
    assert outlet.ids == ids(0, 10)


# Attacks H2.
@pytest.mark.parametrize("create", [False, True])
def test_a_topic_that_was_made_anew(
    bench: Workbench, ledger: Ledger, outlet: Outlet, create: bool
) -> None:
    """Empty, with its control topic, as after a broker's disk was lost: nothing lands beside what is
    gone.
    """
    spec = declared(bench, outlet.make(), create=create)
    bench.write("in/1.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    for name in (outlet.topic, outlet.control):
        outlet.kafka.delete(name)
    if not create:
        outlet.make()
    bench.write("in/2.jsonl", events(10, 20))
    with pytest.raises(TerminalError, match="has no note of batch 1"):
        run(ledger, spec, "r2")
    assert outlet.read() == []


# Attacks H2.
def test_a_topic_whose_newest_note_is_gone(
    bench: Workbench, ledger: Ledger, outlet: Outlet, kafka: Kafka
) -> None:
    """Of a topic of an earlier time: whatever lies behind the notes that are left."""
    spec = landed(bench, ledger, outlet)
    kafka.produce(outlet.control, [Record(value=None, key=b'["events",2]')])
    kafka.produce(outlet.control, [Record(value=b"of somebody", key=b"else")] * 300)
    misses(bench, ledger, outlet, spec, 2)


# Attacks H2.
def test_a_topic_whose_last_note_is_that_of_an_earlier_number(
    bench: Workbench, ledger: Ledger, outlet: Outlet, kafka: Kafka
) -> None:
    """Of runs side by side the later one may end first: what lands last has not the last number."""
    spec = declared(bench, outlet.make())
    for number in (1, 2):
        bench.write(f"in/{number}.jsonl", events(10 * number, 10 * number + 10))
        committed(ledger, spec, f"r{number}")
    for batch in (2, 1):
        finalize(ledger, spec, batch)
    kafka.produce(outlet.control, [Record(value=None, key=b'["events",1]')])
    misses(bench, ledger, outlet, spec, 1)


# Attacks H2.
def test_a_topic_of_an_earlier_time(
    bench: Workbench, ledger: Ledger, outlet: Outlet, kafka: Kafka
) -> None:
    """A note that went is missed by `semel check` and by the audit; and messages of a batch that
    nobody knows are strays, by number.
    """
    spec = landed(bench, ledger, outlet)
    ownership.check_markers(spec, open_sink(spec))
    value = json.dumps({"id": "x", "n": 1, "at": None}).encode()[:-1]
    value += b',"_semel_batch":77,"_semel_seq":77}'
    kafka.produce(outlet.topic, [Record(value=value, key=b"x")])
    assert {o.batch for c in audit(spec).checks for o in c.offenders} == {77}
    kafka.produce(outlet.control, [Record(value=None, key=b'["events",2]')])
    with pytest.raises(TerminalError, match="has no note of batch 2"):
        ownership.check_markers(spec, open_sink(spec))
    verdict = audit(spec)
    assert 2 in {o.batch for c in verdict.checks for o in c.offenders}
