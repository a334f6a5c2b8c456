"""Pipelines whose sink is a Kafka topic: plan to finalize, a lost ledger, and Kafka to Kafka."""

import re

import pytest

from fix_account import quiet
from fix_engine import LocalEngine
from fix_kafka import Kafka, Record
from fix_pipelines import Workbench, events
from fix_postgres import lose
from fix_sink_kafka import Outlet, dies, ids
from semel import faults
from semel.adopt import adopt
from semel.audit import audit
from semel.errors import TerminalError
from semel.find import find
from semel.ledger import Ledger
from semel.run import run_batch
from semel.spec.pipeline import Spec


def declared(bench: Workbench, outlet: Outlet, **changes: object) -> Spec:
    servers = outlet.kafka.broker.bootstrap
    sink = {"type": "kafka", "bootstrap_servers": servers, "topic": outlet.topic, "key": "id"}
    return bench.spec(sink={**sink, "position_columns": True}, **changes)


def run(ledger: Ledger, spec: Spec, key: str) -> None:
    run_batch(ledger, spec, key, LocalEngine(), log=quiet)


def proven(spec: Spec) -> None:
    verdict = audit(spec)
    assert verdict.ok, [check for check in verdict.checks if not check.ok]


def test_records_are_in_the_topic_once(bench: Workbench, ledger: Ledger, outlet: Outlet) -> None:
    """Two batches, repeats among them: each id once, with its batch; the audit proves it, and an id
    is found.
    """
    spec = declared(bench, outlet.make())
    bench.write("in/a.jsonl", [*events(0, 50), *events(0, 5)])
    run(ledger, spec, "r1")
    bench.write("in/b.jsonl", [*events(40, 80), b"{bad"])
    run(ledger, spec, "r2")
    assert outlet.ids == ids(0, 80)
    batches = [(row["_semel_batch"], row["_semel_seq"]) for row in outlet.read()]
    assert (batches.count((1, 1)), batches.count((2, 2))) == (50, 30)
    proven(spec)
    [place] = find(spec, ["e000003"]).places[:1]
    assert (place.what, place.batch_id) == ("output", 1) and place.file.endswith(outlet.topic)


# Attacks D10.
def test_a_lost_ledger_is_made_again(bench: Workbench, ledger: Ledger, outlet: Outlet) -> None:
    """By the markers. What landed without one is named, with what makes adopt go on, and is there
    again after it: that was decided by a person.
    """
    spec = declared(bench, outlet.make())
    bench.write("in/a.jsonl", events(0, 20))
    run(ledger, spec, "r1")
    bench.write("in/b.jsonl", events(20, 30))
    with faults.armed("finalize.after_publish", dies), pytest.raises(faults.FaultError):
        run(ledger, spec, "r2")
    lose(ledger)
    with pytest.raises(TerminalError, match="knows no pipeline 'events'"):
        run(ledger, spec, "r3")
    with pytest.raises(TerminalError, match="has messages of batches 2, which no marker") as error:
        adopt(ledger, spec, log=quiet)
    [key] = re.findall(r"printf '(.*)\|NULL\\n'", str(error.value))
    outlet.kafka.produce(outlet.control, [Record(value=None, key=key.encode())])
    adopt(ledger, spec, log=quiet)
    run(ledger, spec, "r3")
    known = sorted(row["id"] for row in outlet.read() if row["_semel_batch"] != 2)
    assert known == ids(0, 30) and len(outlet.ids) == 40
    # Files of the lost batch lie in the archive still.
    assert [check.name for check in audit(spec).checks if not check.ok] == ["strays"]


def test_kafka_to_kafka(
    bench: Workbench, ledger: Ledger, outlet: Outlet, kafka: Kafka
) -> None:
    """From a topic with an aborted transaction to a topic, through a death of finalize: a consumer
    of committed messages sees each record once.
    """
    outlet.make()
    source = kafka.topic(partitions=2)
    for start in (0, 40):
        texts = [str(event).replace("'", '"').encode() for event in events(start, start + 40)]
        records = [Record(value=text, partition=n % 2) for n, text in enumerate(texts)]
        kafka.begin(source, records[:10]).abort_transaction()
        done = kafka.begin(source, records)
        done.commit_transaction()
        spec = declared(
            bench,
            outlet,
            source={
                "type": "kafka",
                "bootstrap_servers": kafka.broker.bootstrap,
                "topics": [source],
                "value": "json",
                "schema": {"id": "string", "n": "bigint", "at": "timestamp"},
            },
        )
        with faults.armed("sink.before_cut", dies), pytest.raises(faults.FaultError):
            run(ledger, spec, f"r{start}")
        run(ledger, spec, f"r{start}")
    assert outlet.ids == ids(0, 80)
