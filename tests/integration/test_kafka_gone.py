"""Records of a topic that are gone for good after their batches were finalized: what a verb that
would read them again says, and that its way out works."""

import pytest

from fix_account import ids, run, settled
from fix_kafka import Kafka
from fix_pipelines import Workbench
from fix_shell import Shell
from fix_topics import Topic
from semel.ledger import Ledger
from semel.pipeline import Spec


@pytest.fixture
def topic(bench: Workbench, kafka: Kafka) -> Topic:
    return Topic(bench, kafka, partitions=2)


@pytest.fixture
def four(topic: Topic, ledger: Ledger) -> Spec:
    """Four batches of ten records each, two of each partition; the second one's are gone."""
    spec = topic.spec(name="events")
    for at in range(4):
        topic.append(10 * at, 10 * at + 10, partition=at % 2)
        run(ledger, spec, f"r{at}")
    topic.kafka.delete_records(topic.name, {1: 5})
    return spec


def test_a_replay_leaves_them_out(four: Spec, shell: Shell) -> None:
    """Nothing is done, the commands that replay the others are named, and each does; what is asked
    for again alone can only be looked at.
    """
    step = shell.fails("semel replay events --batches 1..4")
    assert "batch 2: " in shell.err and "before 5 were deleted" in shell.err
    others = ["semel replay events --batches 1", "semel replay events --batches 3..4"]
    assert step == others[0]
    for line in others:
        assert f"`{line}`" in shell.err
    for line in others:
        shell.runs(line)
    step = shell.fails("semel replay events --batches 2")
    assert step == "semel show 2" and "The output stays what it is" in shell.err
    shell.runs(step)
    assert settled(four, audited=False).ids == ids(0, 40)


def test_a_comparison_leaves_them_out(four: Spec, shell: Shell) -> None:
    """It names the batch, and shows which there are."""
    step = shell.fails("semel compare events --batches 1..4")
    assert "Compare a range without batch 2" in shell.err
    assert step == "semel batches events"
    shell.runs(step)
    shell.runs("semel compare events --batches 3..4")
