"""Sets of buckets against sets of numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.model.buckets import Buckets, union
from tiers import examples

NUMBERS = st.lists(st.integers(-60, 60), max_size=40)
ALL = np.arange(-70, 70)


def of(numbers: list[int]) -> Buckets:
    return Buckets.of(np.array(numbers, np.int64))


def held(buckets: Buckets) -> set[int]:
    return set(ALL[buckets.has(ALL)].tolist())


# Attacks G1, C5.
@settings(derandomize=True, database=None, deadline=None, max_examples=examples(300))
@given(one=NUMBERS, two=NUMBERS)
def test_a_set_is_what_it_was_made_of(one: list[int], two: list[int]) -> None:
    """Made, joined, asked and compared like the set of the same numbers; no two ranges touch."""
    first, second = of(one), of(two)
    assert held(first) == set(one)
    assert held(first | second) == set(one) | set(two)
    assert (first | second) == of(one + two) == union([first, None, second])
    assert first.overlaps(second) == bool(set(one) & set(two))
    assert first.end == (max(one) + 1 if one else None)
    assert Buckets.of_ranges(first.ranges) == first
    assert all(end < start for (_, end), (start, _) in zip(first.ranges, first.ranges[1:]))


@settings(derandomize=True, database=None, deadline=None, max_examples=examples(100))
@given(numbers=NUMBERS.filter(bool), most=st.integers(1, 6))
def test_a_set_of_many_ranges_takes_in_its_smallest_gaps(numbers: list[int], most: int) -> None:
    """It lacks nothing, begins and ends as before, and each gap that is left is as large as any
    that was taken in."""
    with pytest.MonkeyPatch.context() as patch:
        exact = of(numbers)
        patch.setattr("semel.model.buckets.BUCKET_RANGES_MAX", most)
        found = of(numbers)
        assert exact | of(numbers[:1]) == found
    assert held(found) >= set(numbers) and len(found.ranges) == min(most, len(exact.ranges))
    assert (min(held(found)), max(held(found))) == (min(numbers), max(numbers))
    gaps = [two[0] - one[1] for one, two in zip(exact.ranges, exact.ranges[1:])]
    left = [two[0] - one[1] for one, two in zip(found.ranges, found.ranges[1:])]
    assert sorted(left) == sorted(gaps, reverse=True)[: most - 1][::-1]


@pytest.mark.parametrize("ranges", [[(1, 1)], [(2, 1)], [(1, 3), (3, 4)], [(5, 6), (1, 2)]])
def test_ranges_that_are_none(ranges: list[tuple[int, int]]) -> None:
    """A damaged marker's are told, not guessed."""
    with pytest.raises(ValueError, match="not in order"):
        Buckets.of_ranges(ranges)


def test_of_nothing() -> None:
    assert union([None, None]) is None and union([]) is None
    assert of([]).to_ledger() == "{}" and of([]).end is None
