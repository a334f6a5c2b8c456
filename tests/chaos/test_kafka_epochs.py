"""A cluster that lost records of a topic, and has given their offsets to others before semel looks
again: only the epochs of its leaders tell that from a topic that has grown.
"""

import pytest
import xxhash

from fixtures.batches.account import advised, ids, quiet, refusals, run
from fixtures.batches.workbench import Workbench
from fixtures.commands.shell import Shell
from fixtures.kafka.broker import Kafka
from fixtures.kafka.topics import Topic, claimed, in_output, messages_of
from fixtures.postgres.server import lose
from semel.audit import audit
from semel.errors import SourceError
from semel.ledger import Ledger
from semel.model.split import splits_of
from semel.pipeline.opening import open_source
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.repair.adopt import adopt
from semel.reports.gaps import gaps


@pytest.fixture
def topic(bench: Workbench, kafka: Kafka) -> Topic:
    """One partition with `events(0, 2000)`, in many small batches."""
    made = Topic(bench, kafka)
    kafka.produce(made.name, messages_of(0, 2000), batch_num_messages="100")
    return made


# Attacks KS2, KS9.
@pytest.mark.parametrize(
    "grown", [2500, pytest.param(0, marks=pytest.mark.rest)], ids=["past it", "to the same end"]
)
def test_lost_below_what_was_read_and_grown_again(
    topic: Topic, ledger: Ledger, grown: int
) -> None:
    """The plan refuses the partition, and names the offset from which on its records are others:
    by the command that it names each of them is read, and none twice.
    """
    spec = topic.spec()
    run(ledger, spec, "r1")
    end = topic.kafka.lose_tail(topic.name)
    assert 0 < end < 1000
    last = 3000 + (grown or 2000 - end)
    topic.append(3000, last)
    for _ in range(2):
        with pytest.raises(SourceError, match=f"truncated.* from offset {end} on") as told:
            run(ledger, spec, "r2")
    assert refusals(ledger) == {"0": "truncated"}
    advised(ledger, str(told.value), "--from")
    run(ledger, spec, "r2")
    assert in_output(spec) == ids(0, 2000) + ids(3000, last)
    assert gaps(ledger, spec).gaps == ()


# Attacks KS1, KS9.
def test_lost_below_what_was_claimed_and_grown_past_it(topic: Topic, ledger: Ledger) -> None:
    """Other records than those that were planned are never read for a claim: the stage fails before
    its job, and a task would by itself. Once the batch is given up, the plan says the rest.
    """
    spec = topic.spec(limits={"records_per_batch_max": 1000})
    run(ledger, spec, "r1")
    batch = plan(ledger, spec, "r2").batch.batch_id
    end = topic.kafka.lose_tail(topic.name)
    topic.append(3000, 6000)
    [split] = splits_of(claimed(ledger, batch), 1 << 20, whole=set())
    with pytest.raises(SourceError, match="another record is now at offset"):
        list(open_source(spec).read(split, batch, xxhash.xxh3_128()))
    others = f"from offset {end} on the partition now has other records"
    with pytest.raises(SourceError, match=others) as told:
        run(ledger, spec, "r2")
    assert told.value.next == f"semel abandon {batch}"
    abandon(ledger, batch, "lost")
    with pytest.raises(SourceError, match=f"truncated.* from offset {end} on") as told:
        run(ledger, spec, "r2")
    advised(ledger, str(told.value), "--from")
    for key in ("r2", "r3", "r4"):
        run(ledger, spec, key)
    assert in_output(spec) == ids(0, 1000) + ids(3000, 6000)


# Attacks KS9.
@pytest.mark.rest
def test_another_leader_that_lost_nothing(topic: Topic, ledger: Ledger) -> None:
    """It goes on as it was, also where nothing was kept of the leader before."""
    spec = topic.spec(limits={"records_per_batch_max": 1500})
    run(ledger, spec, "r1")
    planned = plan(ledger, spec, "r2").batch.batch_id
    topic.kafka.broker.kill()
    topic.kafka.broker.start()
    run(ledger, spec, "r2")
    topic.append(2000, 2010)
    run(ledger, spec, "r3")
    assert in_output(spec) == ids(0, 2010) and audit(spec).ok
    [claim] = claimed(ledger, planned)
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE semel.source_partition SET evidence = evidence - 'leader_epoch'"
        )
    topic.append(2010, 2020)
    run(ledger, spec, "r4")
    assert in_output(spec) == ids(0, 2020)
    [partition] = ledger.rows("partitions", "by_id", partitions=[claim.source_partition_id])
    assert partition["evidence"]["leader_epoch"] > claim.evidence["leader_epoch"]


# Attacks KS9.
@pytest.mark.rest
def test_an_audit_and_an_adopted_ledger_see_it_too(topic: Topic, ledger: Ledger) -> None:
    """The markers hold the epochs: the audit names what is not there any more, and a ledger that
    was lost refuses the partition as the one before did.
    """
    spec = topic.spec()
    run(ledger, spec, "r1")
    end = topic.kafka.lose_tail(topic.name)
    topic.append(3000, 5500)
    found = audit(spec)
    assert not found.ok
    assert "the cluster has lost records" in str(found), found
    lose(ledger)
    adopt(ledger, spec, log=quiet)
    with pytest.raises(SourceError, match=f"truncated.* from offset {end} on"):
        plan(ledger, spec, "r2")


# Attacks A3, KS9.
@pytest.mark.parametrize("same", [True, False], ids=["--same", "as it is"])
def test_what_is_left_is_not_read_again(
    topic: Topic, ledger: Ledger, shell: Shell, same: bool
) -> None:
    """Of a partition that lost records `semel accept` reads the others, and none twice, whatever a
    user types: `--same` is refused, and names the command that does.
    """
    spec = topic.spec(name="events")
    run(ledger, spec, "r1")
    end = topic.kafka.lose_tail(topic.name)
    topic.append(3000, 3000 + 2500)
    with pytest.raises(SourceError, match="truncated"):
        run(ledger, spec, "r2")
    command = f"semel accept events {topic.at()}"
    if same:
        command = shell.fails(f"{command} --same")
        assert f"from offset {end} on" in shell.err and command.endswith(f"--from {end}")
    assert f"is read from offset {end} on as partition 2" in shell.runs(command)
    run(ledger, spec, "r2")
    assert in_output(spec) == ids(0, 2000) + ids(3000, 5500)
    assert gaps(ledger, spec).gaps == ()
