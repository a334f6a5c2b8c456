"""What a plan makes of a cluster's answers: its table, and what passes soon: a partition's leader
changes, deleted segments are there."""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from semel.errors import UnavailableError
from semel.sinks.kafka.ends import topic_ends
from semel.sources.kafka import topics
from semel.sources.kafka.audit.topics import TopicAuditor
from semel.sources.kafka.edges import find_edges
from semel.sources.kafka.matching import LedgerMatch, TopicDecision, judge
from semel.sources.kafka.topics import Extent, FoundPartition


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


def audited(admin: Moving) -> int:
    """Where a partition ends as an audit finds it."""
    reading = TopicAuditor(None, None, admin, None, None)
    claim = SimpleNamespace(name="t/0", identity="i/0", start=7, end=7)
    reading.place_of(claim)
    return claim.end


ASKERS = {
    "audit": audited,
    "source": lambda admin: topics.offsets(admin, [("t", 0)], "high")["t", 0],
    "sink": lambda admin: topic_ends(admin, "t").spans[0][1],
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


DAY = datetime(2026, 1, 2, tzinfo=UTC)


class Deleted(Moving):
    """One that tells no offset by a time, and has a record of `newest`."""

    def __init__(self, newest: datetime) -> None:
        self.newest = newest

    def list_offsets(self, wanted: dict, **_: object) -> dict[TopicPartition, Future]:
        last = SimpleNamespace(offset=39, timestamp=round(self.newest.timestamp() * 1000))
        none = SimpleNamespace(offset=-1, timestamp=-1)
        newest = OffsetSpec.max_timestamp()._value
        return {p: done(last if spec._value == newest else none) for p, spec in wanted.items()}


def edges(newest: datetime, *, low: int) -> object:
    found = FoundPartition(
        topic="t", topic_id="T", partition=0, extent=Extent(low=low, end=40, epoch=1), high=40
    )
    cluster = SimpleNamespace(
        admin=lambda: nullcontext(Deleted(newest)),
        consumer=lambda **_: nullcontext(SimpleNamespace(assign=list)),
    )
    return find_edges(cluster, [found], (DAY, DAY + timedelta(days=1)), lambda _: {})


# Attacks KS5.
def test_no_offset_for_a_time_that_has_records_is_no_end() -> None:
    """Where records were deleted a cluster may tell none; taken for the end of the partition, an
    interval would have all that others have. It comes again.
    """
    with pytest.raises(UnavailableError, match="t/0: Kafka cannot yet find the first") as told:
        edges(DAY + timedelta(days=3), low=20)
    assert told.value.next == "again"


def test_no_offset_is_no_wonder_where_nothing_was_deleted() -> None:
    """Of a topic that begins at its first offset none is told where it has none."""
    starts, ends = edges(DAY + timedelta(days=3), low=0)
    assert ends == {("t", 0): -1}


_SAYS = {
    TopicDecision.BEGIN: "begin:",
    TopicDecision.JOIN: "join:",
    TopicDecision.GO_ON: "it goes on",
    TopicDecision.REFUSE: "refused",
}
_HELD = {
    LedgerMatch.NOTHING: "nothing",
    LedgerMatch.OPEN: "its source partition, open or closed",
    LedgerMatch.CLOSED: "its source partition, open or closed",
    LedgerMatch.OTHER: "its name, under another topic's id",
}


# Attacks KS2.
def test_the_table_of_the_page_is_the_one_of_the_code() -> None:
    """Each of the sixteen cells is in one row of docs/kafka.md, which says what the code does."""
    text = Path(__file__).parents[2].joinpath("docs", "kafka.md").read_text(encoding="utf-8")
    found = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    rows = [row for row in found if row and row[0] in _HELD.values()]
    assert len(rows) == 5
    for held, known, shrunk in product(LedgerMatch, (False, True), (False, True)):
        cells = _HELD[held], "yes" if known else "no", "yes" if shrunk else "no"
        (row,) = [
            row
            for row in rows
            if all(there in ("", cell) for there, cell in zip(row, cells, strict=False))
        ]
        assert row[3].startswith(_SAYS[judge(held, known, shrunk)])
