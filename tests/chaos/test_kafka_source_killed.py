"""Batches of a topic whose process is killed, whose messages are compacted, or are many."""

import os
import signal
import time

import pytest

from fix_account import ids, quiet, settled
from fix_engine import LocalEngine
from fix_faults import Children
from fix_kafka import COMPACTED, Kafka
from fix_pipelines import Workbench
from fix_topics import Topic
from semel import faults
from semel.abandon import abandon
from semel.errors import RetryableError, TerminalError
from semel.gaps import gaps
from semel.ledger import Ledger
from semel.run import run_batch
from semel.spec.pipeline import Spec
from test_kill import scripts


def run(ledger: Ledger, spec: Spec, key: str):
    return run_batch(ledger, spec, key, LocalEngine(), log=quiet)


def in_output(spec: Spec) -> list[str]:
    return settled(spec, audited=False).ids


def keyed(bench: Workbench, kafka: Kafka) -> Topic:
    """Ten keys, ten records each, in a topic that is compacted."""
    made = Topic(bench, kafka, config=COMPACTED)
    for n in range(100):
        made.append(n, n + 1, key=b"%d" % (n % 10))
    return made


def test_compacted_between_two_attempts(bench: Workbench, kafka: Kafka, ledger: Ledger) -> None:
    """The output is one attempt's, whole: here the second one's, which found fewer records."""
    topic = keyed(bench, kafka)
    spec = topic.spec(record_id=["id"])

    def fails(_: object) -> None:
        raise RetryableError("the engine failed")

    with pytest.raises(RetryableError):
        run_batch(ledger, spec, "r1", LocalEngine(before_write=fails), log=quiet)
    topic.kafka.compacted(topic.name)
    counts = run(ledger, spec, "r1").finalized.counts
    assert counts.records_read == counts.survivors == 10
    assert in_output(spec) == ids(90, 100)


# Attacks S13.
@pytest.mark.rest
def test_compacted_after_an_attempt_was_staged(
    bench: Workbench, kafka: Kafka, ledger: Ledger
) -> None:
    """An attempt that was staged and lost to another batch, then fewer records: told, and what is
    left is read once the batch is given up."""
    topic = keyed(bench, kafka)
    spec = topic.spec(record_id=["id"], limits={"records_per_batch_max": 100})

    left = [True]

    def rival(_: object) -> None:
        if left:
            left.pop()
            topic.append(95, 105, key=b"other")
            run(ledger, spec, "r2")
            topic.kafka.compacted(topic.name)

    with pytest.raises(TerminalError, match="read other bytes") as told:
        run_batch(ledger, spec, "r1", LocalEngine(before_write=rival), log=quiet)
    assert told.value.next == "semel abandon 1"
    abandon(ledger, 1, "compacted")
    run(ledger, spec, "r3")
    run(ledger, spec, "r4")
    assert in_output(spec) == ids(90, 105)


POINTS = [point for point in faults.POINTS if scripts("files", point)[0] == "contested"]
SHORT = (
    "plan.before_write", "plan.after_write", "stage.after_begin", "stage.after_seal",
    "commit.before_restage", "commit.after_win", "finalize.after_mark",
)  # fmt: skip


@pytest.mark.parametrize(
    "point", [pytest.param(p, marks=() if p in SHORT else pytest.mark.proof) for p in POINTS]
)
def test_the_process_is_killed(
    bench: Workbench, kafka: Kafka, ledger: Ledger, children: Children, point: str
) -> None:
    """SIGKILL at each point of a run over a topic, once more at its next pass, then the same
    requests again: each record once, repeats and bad values accounted for.
    """
    topic = Topic(bench, kafka, partitions=2)
    spec = topic.spec(record_id=["id"], limits={"records_per_batch_max": 60})
    topic.append(0, 50)
    topic.put([b"{bad"])
    topic.append(20, 80, partition=1)
    for _ in range(2):
        child = children.start("contested", f"{point}:pause")
        if child.reached(point):
            os.kill(child.process.pid, signal.SIGKILL)
            assert child.ended()[0] == -signal.SIGKILL
    for key in ("r1", "r2", "r3"):
        run(ledger, spec, key)
    found = settled(spec, audited=False)
    assert found.ids == ids(0, 80)
    assert (len(found.decisions), len(found.letters)) == (30, 1)
    assert found.counts.records_read == 111 and gaps(ledger, spec).gaps == ()


@pytest.mark.proof
def test_a_million_records(bench: Workbench, kafka: Kafka, ledger: Ledger) -> None:
    """1 M records of 4 partitions, and a partition that comes meanwhile: each once."""
    topic = Topic(bench, kafka, partitions=4)
    for part in range(4):
        topic.append(part * 250_000, (part + 1) * 250_000, partition=part)
    spec = topic.spec(record_id=["id"])

    def meanwhile(_: object) -> None:
        topic.kafka.add_partitions(topic.name, 5)
        topic.append(1_000_000, 1_000_100, partition=4)

    began = time.monotonic()
    done = run_batch(ledger, spec, "r1", LocalEngine(before_write=meanwhile), log=quiet)
    print(f"1 M records in {time.monotonic() - began:.1f} s: {done.seconds}")
    assert done.finalized.counts.survivors == 1_000_000
    run(ledger, spec, "r2")
    assert in_output(spec) == sorted(ids(0, 1_000_100))
