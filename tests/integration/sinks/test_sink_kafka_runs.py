"""Pipelines whose sink is a Kafka topic: plan to finalize, a lost ledger, and Kafka to Kafka."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Message

from fixtures.batches.account import ids, quiet, run
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.kafka.broker import COMPACTED, Kafka, Record
from fixtures.kafka.outlet import Outlet, dies
from fixtures.postgres.server import lose
from fixtures.spark.local import LocalEngine
from fixtures.wait import wait_for
from semel import failpoints
from semel.audit import audit
from semel.clients.kafka.cluster import Cluster
from semel.compare import BatchRange, compare
from semel.errors import TerminalError
from semel.ledger import Ledger
from semel.pipeline.opening import open_sink
from semel.pipeline.spec import Spec
from semel.repair.adopt import adopt
from semel.reports.find import find
from semel.sinks.kafka import control, reading


def declared(bench: Workbench, outlet: Outlet, **changes: Any) -> Spec:
    servers = outlet.kafka.broker.bootstrap
    sink = {"type": "kafka", "bootstrap_servers": servers, "topic": outlet.topic, "key": "id"}
    sink |= {"position_columns": True, **changes.pop("sink", {})}
    return bench.spec(sink=sink, **changes)


def proven(spec: Spec) -> None:
    verdict = audit(spec)
    assert verdict.ok, [check for check in verdict.checks if not check.ok]


def test_records_are_in_the_topic_once(
    bench: Workbench, ledger: Ledger, outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three batches, repeats among them: each id once, with its batch; the audit proves it. Who
    reads the rows of many batches reads the control topic once, and not for each of them: what a
    history costs would grow with its square.
    """
    spec = declared(bench, outlet.make())
    for n in range(3):
        bench.write(f"in/{n}.jsonl", [*events(10 * n, 10 * n + 10), *events(0, 2), b"{bad"])
        run(ledger, spec, f"r{n}")
    assert outlet.ids == ids(0, 30)
    batches = [(row["_semel_batch"], row["_semel_seq"]) for row in outlet.read()]
    assert sorted(batches) == [(1, 1)] * 10 + [(2, 2)] * 10 + [(3, 3)] * 10
    proven(spec)
    read: list[str] = []
    between = control.committed_messages

    def watched(cluster: Cluster, topic: str, *more: Any) -> Iterator[Message]:
        read.append(topic)
        return between(cluster, topic, *more)

    monkeypatch.setattr(control, "committed_messages", watched)
    [place] = find(spec, ["e000029"]).places
    assert (place.what, place.batch_id) == ("output", 3) and place.file.endswith(outlet.topic)
    assert read == [outlet.control] + [outlet.topic] * 3
    del read[:]
    words = {"open_job": lambda: nullcontext(LocalEngine()), "difference_limit": 5, "log": quiet}
    compared = compare(ledger, spec, BatchRange(first=2, last=3), **words)
    assert (compared.rows_live, compared.total) == (20, 0)
    assert read == [outlet.control] + [outlet.topic] * 2


# Attacks D10.
def test_a_lost_ledger_is_made_again(bench: Workbench, ledger: Ledger, outlet: Outlet) -> None:
    """By the markers. What landed without one is named, with what makes adopt go on, and is there
    again after it: that was decided by a person.
    """
    spec = declared(bench, outlet.make())
    bench.write("in/a.jsonl", events(0, 20))
    run(ledger, spec, "r1")
    bench.write("in/b.jsonl", events(20, 30))
    with failpoints.armed("finalize.after_publish", dies), pytest.raises(failpoints.FaultError):
        run(ledger, spec, "r2")
    lose(ledger)
    with pytest.raises(TerminalError, match="does not know pipeline 'events'"):
        run(ledger, spec, "r3")
    with pytest.raises(TerminalError, match="has rows of batch 2, which landed .* no marker") as error:
        adopt(ledger, spec, log=quiet)
    [key] = re.findall(r"printf '(.*)\|NULL\\n'", str(error.value))
    outlet.kafka.produce(outlet.control, [Record(value=None, key=key.encode())])
    adopt(ledger, spec, log=quiet)
    run(ledger, spec, "r3")
    known = sorted(row["id"] for row in outlet.read() if row["_semel_batch"] != 2)
    assert known == ids(0, 30) and len(outlet.ids) == 40
    # Files of the lost batch lie in the archive still.
    assert [check.name for check in audit(spec).checks if not check.ok] == ["strays"]


# Attacks KP10.
def test_what_the_retention_of_the_output_deleted(
    bench: Workbench, ledger: Ledger, outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit says where the topic begins now and what its retention is. What that deletes is no
    fault: the other batches are proven. What it does not delete was taken by somebody.
    """
    spec = declared(bench, outlet.make(partitions=1, retention_ms="600000"))
    for n in range(2):
        bench.write(f"in/{n}.jsonl", events(10 * n, 10 * n + 10))
        run(ledger, spec, f"r{n}")
    outlet.kafka.delete_records(outlet.topic, {0: 5})
    [blamed] = [check for check in audit(spec).checks if check.name == "files"]
    [one] = blamed.offenders
    assert one.batch == 1 and "now begins at offset 5" in one.what
    assert "retention.ms=600000, " in one.what and "A user has deleted them" in one.what
    now = time.time()
    with monkeypatch.context() as patch:
        patch.setattr(reading, "time", SimpleNamespace(time=lambda: now + 700))
        verdict = audit(spec)
    assert verdict.ok and (verdict.batches, verdict.gone) == (2, 1)
    [note] = verdict.notes
    assert note.startswith("batch 1 cannot be proven, except for their files: ")
    assert "Its retention (retention.ms=600000, " in note and "for longer" in note
    outlet.kafka.configure(outlet.topic, "retention.ms", "1")
    wait_for(lambda: not outlet.kafka.drain(outlet.topic), "the retention")
    verdict = audit(spec)
    assert verdict.ok and (verdict.batches, verdict.gone) == (2, 2)


def keyed(bench: Workbench, ledger: Ledger, outlet: Outlet) -> Spec:
    """Two batches in a compacted topic, of five keys: of the first one's rows four are gone."""
    outlet.make(partitions=1, **{name.replace(".", "_"): COMPACTED[name] for name in COMPACTED})
    spec = declared(bench, outlet, sink={"key": "n"})
    for batch, keys in enumerate(((0, 1, 2, 3, 4), (0, 1, 2, 5, 3))):
        rows = [{"id": f"e{batch}{key}", "n": key} for key in keys]
        bench.write(f"in/{batch}.jsonl", rows)
        run(ledger, spec, f"r{batch}")
        proven(spec)
    outlet.kafka.compacted(outlet.topic)
    return spec


# Attacks KP10.
@pytest.mark.rest
def test_what_compaction_took_is_no_fault(
    bench: Workbench, ledger: Ledger, outlet: Outlet, shell: Shell
) -> None:
    """A compacted topic keeps of each key the last row: the audit says how many are gone and proves
    the others, find goes on, and who reads the batch is told.
    """
    spec = keyed(bench, ledger, outlet)
    assert "; compacted, so it keeps the last row of each key; " in open_sink(spec).describe(None)
    verdict = audit(spec)
    assert verdict.ok and (verdict.batches, verdict.gone) == (2, 0)
    [note] = verdict.notes
    assert note.startswith("batch 1: ") and "4 of 5 rows are missing" in note
    assert "cleanup.policy=compact" in note
    assert find(spec, ["e14"]).places == () and find(spec, ["e14"]).gone == (1,)
    [place] = find(spec, ["e04"]).places
    assert (place.what, place.batch_id) == ("output", 1)
    assert "the sink has deleted rows of batch 1" in shell.runs("semel find events e00")
    step = shell.fails("semel compare events --batches 1..2")
    assert "4 of 5 rows are missing" in shell.err
    assert "4 of 5 rows are missing" in shell.runs(step)


# Attacks KP10.
def test_what_compaction_did_not_take(bench: Workbench, ledger: Ledger, outlet: Outlet) -> None:
    """More rows than it has offsets without a message, a row that is there twice, and what is gone
    from a topic that is not compacted are faults.
    """
    spec = keyed(bench, ledger, outlet)
    [key] = {read.key for read in outlet.kafka.drain(outlet.control) if b",1]" in read.key}
    [first] = (r.value for r in outlet.kafka.drain(outlet.control) if r.key == key)
    lie = {**json.loads(first), "rows": 50, "total": 50}
    outlet.kafka.produce(outlet.control, [Record(value=json.dumps(lie).encode(), key=key)])
    assert "49 of 50 rows are missing" in offender(spec, "files")
    outlet.kafka.produce(outlet.control, [Record(value=first, key=key)])
    left = next(read for read in outlet.kafka.drain(outlet.topic) if b'"e04"' in read.value)
    outlet.kafka.produce(outlet.topic, [Record(value=left.value, key=b"9")])
    assert offender(spec, "output") == "2 rows for 1 survivors"
    outlet.kafka.configure(outlet.topic, "cleanup.policy", "delete")
    assert "4 of 5 rows are missing" in offender(spec, "files")


def offender(spec: Spec, name: str) -> str:
    """What a check of an audit blames first."""
    return next(c.offenders[0].what for c in audit(spec).checks if c.name == name and not c.ok)


@contextmanager
def consumer(kafka: Kafka, source: str, sink: str) -> Iterator[subprocess.Popen[str]]:
    """Another library's consumer in a process of its own, which looks on at two topics."""
    script = Path(__file__).parents[2] / "fire" / "consumer.py"
    command = [sys.executable, str(script), kafka.broker.bootstrap, "1", source, sink]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "looking\n"
            yield process
        finally:
            process.kill()


def test_kafka_to_kafka(
    bench: Workbench, ledger: Ledger, outlet: Outlet, kafka: Kafka
) -> None:
    """From a topic with aborted transactions and repeats to a topic, through a death and a twin of
    finalize: a consumer in another process, of another library, sees each record once.
    """
    outlet.make()
    source = kafka.topic(partitions=2)
    declaration = {
        "type": "kafka", "bootstrap_servers": kafka.broker.bootstrap, "topics": [source],
        "value": "json", "schema": {"id": "string", "n": "bigint", "at": "timestamp"},
    }  # fmt: skip
    spec = declared(bench, outlet, source=declaration)
    with consumer(kafka, source, outlet.topic) as looks_on:
        for start in (0, 40):
            again = [*events(start, start + 40), *events(0, 5)]
            texts = [json.dumps(event).encode() for event in again]
            records = [Record(value=text, partition=n % 2) for n, text in enumerate(texts)]
            never = json.dumps({"id": "never", "n": 1}).encode()
            kafka.begin(source, [Record(value=never), *records[:10]]).abort_transaction()
            kafka.begin(source, records).commit_transaction()
            key = f"r{start}"
            if start:
                # A twin does it all meanwhile: who was fenced finds that.
                with failpoints.armed("sink.before_cut", lambda key=key: run(ledger, spec, key)):
                    run(ledger, spec, key)
                continue
            with failpoints.armed("sink.before_cut", dies), pytest.raises(failpoints.FaultError):
                run(ledger, spec, key)
            run(ledger, spec, key)
        looks_on.terminate()
        said = json.loads(looks_on.communicate(timeout=60)[0])
    assert said["broken"] == "" and said["records"] == 80
    assert sorted(said["sink"]) == sorted(said["source"]) == ids(0, 80)


@pytest.mark.rest
def test_the_consumer_tells_a_repeat(kafka: Kafka) -> None:
    """It ends by itself at the first id that is in the output twice; an aborted one is none."""
    source, sink = kafka.topic(), kafka.topic(partitions=2)
    first, copy = (Record(value=b'{"id": "e1"}', partition=n) for n in (0, 1))
    kafka.produce(sink, [first])
    kafka.begin(sink, [copy]).abort_transaction()
    with consumer(kafka, source, sink) as looks_on:
        looks_on.terminate()
        said = json.loads(looks_on.communicate(timeout=60)[0])
    assert (said["broken"], said["sink"], looks_on.returncode) == ("", ["e1"], 0)
    kafka.produce(sink, [copy])
    with consumer(kafka, source, sink) as looks_on:
        said = json.loads(looks_on.communicate(timeout=60)[0])
    assert "e1 is at (" in said["broken"] and looks_on.returncode == 1
