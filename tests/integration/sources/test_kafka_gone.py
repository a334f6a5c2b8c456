"""Records of a topic that are gone for good after their batches were finalized: what a verb that
would read them again says, and that its way out works."""

import pytest

from fixtures.batches.account import ids, run, settled
from fixtures.batches.replays import rows
from fixtures.batches.workbench import Workbench
from fixtures.commands.shell import Shell
from fixtures.kafka.broker import Kafka, Record
from fixtures.kafka.topics import Topic
from semel.ledger import Ledger
from semel.pipeline.spec import Spec


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
    assert "batch 2: " in shell.err and "below 5 have been deleted" in shell.err
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


@pytest.mark.parametrize("option", ["", " --requarantine"], ids=["output", "dead letters"])
def test_all_of_them_are_named(
    topic: Topic, ledger: Ledger, shell: Shell, option: str
) -> None:
    """Two of five batches are gone, and one has no dead letters: nothing is done, both are named,
    and so are the commands that take the others, each of which does.
    """
    spec = topic.spec(name="events")
    for at in range(5):
        topic.append(10 * at, 10 * at + 10, partition=at % 2)
        if at != 2:
            topic.put([Record(value=b"{bad", partition=at % 2)])
        run(ledger, spec, f"r{at}")
    topic.kafka.delete_records(topic.name, {1: 15})
    line = "semel replay events --batches {}" + option
    numbers = ["1", "3", "5"] if not option else ["1", "5"]
    step = shell.fails(line.format("1..5"))
    assert step == line.format(numbers[0])
    for gone, others in ((2, 11), (4, 22)):
        assert f"batch {gone}: batch {gone} has claimed offsets {others - 11} to" in shell.err
    assert all(f"`{line.format(n)}`" in shell.err for n in numbers)
    with ledger.transaction() as connection:
        made = connection.exec_driver_sql("SELECT count(*) FROM semel.batch").scalar_one()
    assert made == 5, "nothing was planned"
    shell.runs(f"{line.format('1..5')} --dry-run", code=1)
    for n in numbers:
        shell.runs(line.format(n))
    step = shell.fails(line.format("4"))
    shown = "semel letters events --batch 4" if option else "semel show 4"
    assert step == shown and "abandon" not in shell.err
    shell.runs(step)
    assert [row["id"] for row in rows(spec)] == ids(0, 50)


def test_a_comparison_leaves_them_out(four: Spec, shell: Shell) -> None:
    """It names the batch, and shows which there are."""
    step = shell.fails("semel compare events --batches 1..4")
    assert "Compare a range without batch 2" in shell.err
    assert step == "semel batches events"
    shell.runs(step)
    shell.runs("semel compare events --batches 3..4")
