"""What retention took is accepted as lost, while others accept it too, or plan what they saw."""

import threading
from collections.abc import Callable

import pytest

from fixtures.batches.account import ids, run
from fixtures.kafka.topics import Topic, in_output
from semel import failpoints
from semel.errors import StateError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.repair import losses
from semel.repair.losses import accept_loss, preview_loss
from semel.reports.gaps import gaps

WAIT_SECONDS = 30


def lost(ledger: Ledger) -> list[tuple[int, int]]:
    """The losses on somebody's word, as offsets."""
    text = "SELECT lower(span), upper(span) FROM semel.loss WHERE reason = 'gone'"
    with ledger.engine.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(text)]


@pytest.fixture
def half_read(topic: Topic, ledger: Ledger) -> Spec:
    """Of a topic of twenty records a batch has read ten."""
    spec = topic.spec()
    topic.append(0, 10)
    run(ledger, spec, "r1")
    topic.append(10, 20)
    return spec


@pytest.fixture
def once_looked(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Has something done once, when an accept has looked and not yet written."""
    look = losses.take_survey

    def arm(done: Callable[[], None]) -> None:
        def looks(*words: object) -> object:
            found = look(*words)
            monkeypatch.setattr(losses, "take_survey", look)
            done()
            return found

        monkeypatch.setattr(losses, "take_survey", looks)

    return arm


# Attacks A5, KS3.
def test_two_accepts_at_once(
    topic: Topic, ledger: Ledger, half_read: Spec, once_looked
) -> None:
    """What another one records as lost meanwhile is lost once, and both are told the same."""
    topic.kafka.delete_records(topic.name, {0: 15})
    other = []
    once_looked(lambda: other.extend(accept_loss(ledger, half_read, topic.at())))
    assert accept_loss(ledger, half_read, topic.at()) == other
    assert lost(ledger) == [(10, 15)]
    run(ledger, half_read, "r2")
    assert in_output(half_read) == ids(0, 10) + ids(15, 20)


# Attacks A5, KS3, P2.
def test_an_accept_beside_a_plan(
    topic: Topic, ledger: Ledger, half_read: Spec, once_looked
) -> None:
    """What a plan claims that had looked before it was gone is not lost until that batch is given
    up, also where the accept had looked before the plan wrote.
    """
    looked, planned = threading.Event(), threading.Event()
    raised: list[Exception] = []

    def meanwhile() -> None:
        looked.set()
        assert planned.wait(WAIT_SECONDS)

    def accepts() -> None:
        try:
            accept_loss(ledger, half_read, topic.at())
        except StateError as error:
            raised.append(error)

    once_looked(meanwhile)
    thread = threading.Thread(target=accepts)

    def gone() -> None:
        topic.kafka.delete_records(topic.name, {0: 20})
        thread.start()
        assert looked.wait(WAIT_SECONDS)

    with failpoints.armed("plan.before_lock", gone):
        batch = plan(ledger, half_read, "r2").batch.batch_id
    planned.set()
    thread.join(WAIT_SECONDS)
    assert [error.next for error in raised] == [f"semel abandon {batch}"]
    assert lost(ledger) == []
    abandon(ledger, batch, "gone")
    accept_loss(ledger, half_read, topic.at())
    assert lost(ledger) == [(10, 20)] and gaps(ledger, half_read).gaps == ()


def test_a_topic_that_goes_while_it_is_looked_at(
    topic: Topic, ledger: Ledger, half_read: Spec, once_looked
) -> None:
    """An accept that meets a topic that is just being deleted looks again."""
    topic.kafka.delete_records(topic.name, {0: 15})

    def deleted() -> None:
        raise FileNotFoundError(topic.name)

    once_looked(deleted)
    foreseen = preview_loss(ledger, half_read, topic.at())
    once_looked(deleted)
    assert accept_loss(ledger, half_read, topic.at()) == foreseen
    assert lost(ledger) == [(10, 15)]
