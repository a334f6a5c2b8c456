"""What the epochs of leaders prove about what was read: the table, and what its columns mean."""

from itertools import product
from pathlib import Path

import pytest

from semel.sources.kafka import epochs
from semel.sources.kafka.epochs import EpochVerdict, LeaderChange, ReadEnd, judge
from semel.sources.kafka.topics import Extent, epoch_of

_ENDS = {
    ReadEnd.DELETED: "its first offset, or before",
    ReadEnd.WITHIN: "an offset behind its first one, and not behind its end",
    ReadEnd.PAST_END: "an offset behind the partition's end",
}
_EPOCH = {
    LeaderChange.UNKNOWN: "one of the two is not known",
    LeaderChange.SAME: "the same",
    LeaderChange.OTHER: "another",
}


# Attacks KS9.
def test_the_table_of_the_page_is_the_one_of_the_code() -> None:
    """Each of the nine cells is in one row of docs/kafka.md, which says what the code does."""
    text = Path(__file__).parents[2].joinpath("docs", "kafka.md").read_text(encoding="utf-8")
    found = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    rows = [row for row in found if row and row[0] in _ENDS.values()]
    assert len(rows) == 5
    for lies, led in product(ReadEnd, LeaderChange):
        [row] = [r for r in rows if r[0] == _ENDS[lies] and r[1] in ("any", _EPOCH[led])]
        assert row[2].startswith(judge(lies, led))


@pytest.mark.parametrize(
    ("end", "wanted"),
    [
        (9, ReadEnd.DELETED), (10, ReadEnd.DELETED),
        (11, ReadEnd.WITHIN), (20, ReadEnd.WITHIN), (21, ReadEnd.PAST_END),
    ],  # fmt: skip
)
def test_where_an_end_lies(end: int, wanted: ReadEnd) -> None:
    """Of records at offsets 10 to 20, without the last."""
    assert epochs._end_position(end, Extent(low=10, end=20, epoch=3)) is wanted


@pytest.mark.parametrize(
    ("then", "now", "wanted"),
    [
        (3, 3, LeaderChange.SAME),
        (3, 4, LeaderChange.OTHER),
        (4, 3, LeaderChange.OTHER),
        (0, 0, LeaderChange.SAME),
        (None, 3, LeaderChange.UNKNOWN),
        (3, None, LeaderChange.UNKNOWN),
    ],
)
def test_who_led(then: int | None, now: int | None, wanted: LeaderChange) -> None:
    """The first epoch is 0. One that went back is another too: the cluster was restored."""
    assert epochs._leader_change(then, now) is wanted


def test_a_cluster_without_epochs() -> None:
    """The client says so in two ways."""
    assert (epoch_of(None), epoch_of(-1), epoch_of(0)) == (None, None, 0)


def test_nobody_is_asked_where_the_table_tells() -> None:
    """A cluster of None cannot be asked: what is proven without it is not asked for."""
    there = {("t", 0): Extent(low=0, end=20, epoch=3), ("t", 1): Extent(low=0, end=20, epoch=3)}
    position = epochs.ReadPosition
    read = {("t", 0): position(end=20, epoch=3), ("t", 1): position(end=25, epoch=2)}
    assert epochs.first_lost_offsets(None, read, there) == {("t", 1): 20}
    assert judge(ReadEnd.WITHIN, LeaderChange.OTHER) is EpochVerdict.QUERY
