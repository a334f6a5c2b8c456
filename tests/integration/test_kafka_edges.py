"""Intervals of topics that were written in transactions: their marks have the time of today."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from types import SimpleNamespace
from typing import ClassVar

import pytest
from confluent_kafka import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fix_account import ids, quiet, settled
from fix_engine import LocalEngine
from fix_kafka import Kafka
from fix_pipelines import Workbench
from fix_topics import Topic, messages_of, stamp
from semel.errors import SourceError, UnavailableError
from semel.gaps import gaps
from semel.kafka.cluster import Cluster
from semel.ledger import Ledger
from semel.plan import plan
from semel.run import run_batch
from semel.sources.kafka import edges
from semel.sources.kafka.messages import PLAN_ASKS_SECONDS, first_sizes
from semel.sources.kafka.topics import FoundPartition
from semel.spec.pipeline import Spec
from semel.stack.process import wait_until

DAY = timedelta(days=1)
TOLD_SECONDS_MAX = 10
DAYS = [datetime(2026, 1, 1, tzinfo=UTC) + n * DAY for n in range(6)]


def run(ledger: Ledger, spec: Spec, day: int) -> None:
    run_batch(ledger, spec, f"day{day}", LocalEngine(), (DAYS[day], DAYS[day + 1]), log=quiet)


def transact(topic: Topic, start: int, stop: int, when: datetime, *, commit: bool = True) -> None:
    """Send some events in a transaction of its own. The mark behind them bears the time of now."""
    [(_, end)] = topic.kafka.ends(topic.name).values()
    made = messages_of(start, stop, timestamp_ms=stamp(when))
    producer = topic.kafka.begin(topic.name, made)
    producer.commit_transaction() if commit else producer.abort_transaction()
    # It is written some time after the producer has been told.
    behind = end + stop - start + 1
    assert wait_until(lambda: topic.kafka.ends(topic.name)[0][1] == behind, 30)


# Attacks KS5.
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0)], ids=str)
def test_history_that_was_sent_in_transactions(
    topic: Topic, ledger: Ledger, order: Sequence[int]
) -> None:
    """Sent today in a transaction each, days of long ago are backfilled in any order: each has its
    own records, and none is left.
    """
    for day in range(4):
        transact(topic, 10 * day, 10 * day + 10, DAYS[day])
        transact(topic, 900, 905, DAYS[day], commit=False)
    spec = topic.spec(source={"select": "interval"})
    for day in order:
        before = settled(spec, audited=False).ids if day != order[0] else []
        run(ledger, spec, day)
        new = sorted(set(settled(spec, audited=False).ids) - set(before))
        assert new == ids(10 * day, 10 * day + 10)
    assert gaps(ledger, spec).gaps == ()


_numbers = count()


# Attacks KS5.
@pytest.mark.rest
@given(
    sent=st.lists(
        st.tuples(st.integers(0, 5 * 24 - 1), st.sampled_from(["plain", "committed", "aborted"])),
        min_size=1,
        max_size=8,
    ),
    order=st.permutations(range(5)),
)
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_transactions_in_any_order(
    bench: Workbench,
    kafka: Kafka,
    ledger: Ledger,
    sent: list[tuple[int, str]],
    order: list[int],
) -> None:
    """Whatever is sent how and of which time: intervals that touch take each record once."""
    topic, made = Topic(bench, kafka), 0
    for hours, how in sent:
        when = DAYS[0] + timedelta(hours=hours)
        if how == "aborted":
            transact(topic, 900, 902, when, commit=False)
            continue
        if how == "committed":
            transact(topic, made, made + 2, when)
        else:
            topic.append(made, made + 2, timestamp_ms=stamp(when))
        made += 2
    spec = topic.spec(name=f"e{next(_numbers)}", source={"select": "interval"})
    for day in order:
        run(ledger, spec, day)
    assert settled(spec, audited=False).ids == ids(0, made)
    assert gaps(ledger, spec).gaps == ()


def test_a_search_goes_on_where_an_earlier_interval_ended(
    topic: Topic, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backfill in order reads each day once to find where it ends, however much was before."""
    for day in range(5):
        transact(topic, 100 * day, 100 * day + 100, DAYS[day])
    began: list[int] = []

    class Searched(edges._Log):
        def _first(self, starts: dict, since: int) -> dict:
            began.extend(starts.values() if since >= 0 else ())
            return super()._first(starts, since)

    monkeypatch.setattr(edges, "_Log", Searched)
    spec = topic.spec(source={"select": "interval"})
    for day in range(5):
        began.clear()
        run(ledger, spec, day)
        assert min(began, default=0) >= 101 * day
    assert settled(spec, audited=False).ids == ids(0, 500)


def test_partitions_end_where_each_has_its_edge(
    bench: Workbench, kafka: Kafka, ledger: Ledger
) -> None:
    """Many partitions are searched at once, and each has its own edges; an empty one has none."""
    topic = Topic(bench, kafka, partitions=5)
    for at in range(4):
        for day in range(3):
            start = 100 * at + 10 * day
            made = messages_of(start, start + 10 - at, timestamp_ms=stamp(DAYS[day]), partition=at)
            kafka.begin(topic.name, made).commit_transaction()
    spec = topic.spec(source={"select": "interval"})
    for day in range(3):
        run(ledger, spec, day)
        starts = [(at, 100 * at + 10 * d) for at in range(4) for d in range(day + 1)]
        taken = [one for at, start in starts for one in ids(start, start + 10 - at)]
        assert settled(spec, audited=False).ids == taken


class Quiet(Cluster):
    """A cluster that gives nothing for a while, as where all that is read was aborted."""

    asked: ClassVar[int]

    @contextmanager
    def admin(self) -> Iterator[object]:
        type(self).asked += 1
        with super().admin() as admin:
            yield admin

    @contextmanager
    def consumer(self, **config: object) -> Iterator[object]:
        with super().consumer(**config) as consumer:
            until = time.monotonic() + 2.5 * PLAN_ASKS_SECONDS

            def consume(wanted: int, timeout: float) -> list[Message]:
                if time.monotonic() < until:
                    time.sleep(timeout)
                    return []
                return consumer.consume(wanted, timeout=timeout)

            yield SimpleNamespace(
                assign=consumer.assign,
                incremental_unassign=consumer.incremental_unassign,
                consume=consume,
            )


def test_a_plan_waits_while_the_cluster_answers(topic: Topic) -> None:
    """A plan that gets no message asks whether the cluster is there, and reads on when it is."""
    topic.append(0, 10, timestamp_ms=stamp(DAYS[0]))
    cluster = Quiet(servers=topic.kafka.broker.bootstrap)
    Quiet.asked = 0
    assert len(first_sizes(cluster, topic.name, 0, 0, 10)) == 10
    assert Quiet.asked == 2
    place = FoundPartition(topic=topic.name, topic_id="T", partition=0, low=0, end=10, high=10)
    found = edges.find_edges(cluster, [place], (DAYS[0], DAYS[1]), lambda _: {})
    assert found == ({(topic.name, 0): 0}, {(topic.name, 0): -1})
    assert Quiet.asked == 5


@pytest.mark.proof
def test_a_broker_that_dies_while_a_plan_looks_for_an_interval(
    topic: Topic, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan fails within ten seconds and some, writes nothing, and may be tried again."""
    topic.append(0, 10, timestamp_ms=stamp(DAYS[0]))
    spec = topic.spec(source={"select": "interval"})

    class Dying(edges._Log):
        def heads(self, starts: dict) -> dict:
            topic.kafka.broker.kill()
            return super().heads(starts)

    began = time.monotonic()
    with monkeypatch.context() as patched, pytest.raises(UnavailableError, match="not answer"):
        patched.setattr(edges, "_Log", Dying)
        plan(ledger, spec, "r1", (DAYS[0], DAYS[1]))
    assert time.monotonic() - began < TOLD_SECONDS_MAX
    topic.kafka.broker.start()
    assert plan(ledger, spec, "r1", (DAYS[0], DAYS[1])).batch.batch_id == 1


def test_a_topic_that_is_deleted_while_a_plan_looks(
    topic: Topic, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan looks again, and says then what became of it; so it does where records go."""
    topic.append(0, 10, timestamp_ms=stamp(DAYS[0]))
    spec = topic.spec(source={"select": "interval"})
    run(ledger, spec, 0)
    topic.append(10, 20, timestamp_ms=stamp(DAYS[1]))
    left: list[Callable[[], None]] = []

    class Late(edges._Log):
        def heads(self, starts: dict) -> dict:
            if left:
                left.pop()()
            return super().heads(starts)

    monkeypatch.setattr(edges, "_Log", Late)
    left.append(lambda: topic.kafka.delete_records(topic.name, {0: 15}))
    with pytest.raises(SourceError, match="1 partition is refused(?s:.*)offsets 10 to 15"):
        plan(ledger, spec, "r1", (DAYS[1], DAYS[2]))
    left.append(lambda: topic.kafka.delete(topic.name))
    with pytest.raises(SourceError, match="no such topic"):
        plan(ledger, spec, "r1", (DAYS[1], DAYS[2]))
