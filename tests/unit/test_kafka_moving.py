"""What a cluster answers while the leader of a partition changes, as when a broker is started."""

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from semel.sinks.kafka.ends import ends_of
from semel.sources.kafka import topics


def done(answer: object) -> Future:
    future: Future = Future()
    if isinstance(answer, int):
        future.set_exception(KafkaException(KafkaError(answer)))
    else:
        future.set_result(answer)
    return future


class Moving:
    """An admin client of one partition, whose first requests for offsets are refused."""

    def __init__(self, refused: int, times: int) -> None:
        self.refused, self.left, self.asked = refused, times, 0

    def poll(self, _seconds: float) -> None:
        """Nothing to hand out."""

    def describe_topics(self, names: object, **_: object) -> dict[str, Future]:
        return {"t": done(SimpleNamespace(topic_id="i", partitions=[SimpleNamespace(id=0)]))}

    def list_offsets(self, wanted: dict, **_: object) -> dict[TopicPartition, Future]:
        self.asked += 1
        self.left -= 1
        answer = self.refused if self.left >= 0 else SimpleNamespace(offset=7, leader_epoch=1)
        return {part: done(answer) for part in wanted}


ASKERS = {
    "source": lambda admin: topics.offsets(admin, [("t", 0)], "high")["t", 0],
    "sink": lambda admin: ends_of(admin, "t").spans[0][1],
}


@pytest.mark.parametrize("ask", ASKERS.values(), ids=ASKERS)
def test_a_partition_whose_leader_changes_is_asked_again(ask: Callable[[Moving], int]) -> None:
    """It is over soon, and no reason to tell anybody that the cluster is away."""
    admin = Moving(KafkaError.UNKNOWN_LEADER_EPOCH, times=3)
    assert ask(admin) == 7 and admin.asked >= 4


@pytest.mark.parametrize("ask", ASKERS.values(), ids=ASKERS)
def test_another_refusal_is_told_at_once(ask: Callable[[Moving], int]) -> None:
    """Such as a right that lacks."""
    admin = Moving(KafkaError.TOPIC_AUTHORIZATION_FAILED, times=100)
    with pytest.raises(KafkaException):
        ask(admin)
    assert admin.asked == 1
