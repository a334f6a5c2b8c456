"""How claims become splits, and splits tasks."""

import pickle
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from fixtures.files.claims import claim_of
from semel.model.split import Split, Splits, splits_of
from semel.sources.files.source import SPLIT_BYTES as SPLIT_OF_A_TASK

SPLIT_BYTES = 100

spans = st.tuples(st.integers(0, 300), st.integers(1, 950), st.booleans())


@given(st.lists(spans, min_size=1, max_size=20), st.integers(1, 8))
def test_tasks_share_out_all_bytes(spans: list[tuple[int, int, bool]], splits_max: int) -> None:
    """Each claimed byte is in one split; tasks follow each other, and hold up to a split's size and
    a number of splits.
    """
    claims = [
        claim_of(f"f{n}", n, start, start + length)
        for n, (start, length, _) in enumerate(spans)
    ]  # fmt: skip
    whole = {n for n, (_, _, whole) in enumerate(spans) if whole}
    with patch("semel.model.split.SPLITS_PER_TASK_MAX", splits_max):
        splits = splits_of(claims, SPLIT_BYTES, whole=whole)
    assert [split.number for split in splits] == list(range(len(splits)))
    for claim in claims:
        own = [split for split in splits if split.claim == claim]
        assert [claim.start, *(s.end for s in own)] == [*(s.start for s in own), claim.end]
        assert claim.ordinal not in whole or len(own) == 1
        assert len(own) <= 2 or len(own) % 4 == 0
    sizes: dict[int, list[int]] = {}
    for split in splits:
        sizes.setdefault(split.task, []).append(split.end - split.start)
    assert list(sizes) == list(range(splits[-1].task + 1))
    assert all(len(held) == 1 or sum(held) <= SPLIT_BYTES for held in sizes.values())
    assert all(len(held) <= splits_max for held in sizes.values())
    held = list(sizes.values())
    for a, b in zip(held, held[1:], strict=False):
        assert sum(a) + b[0] > SPLIT_BYTES or len(a) == splits_max


def test_ten_thousand_small_files_are_for_all_cores() -> None:
    """Files of one record are spread over tasks of some hundred, not one task of all."""
    claims = [
        claim_of(f"f{n}", n, 0, 40)
        for n in range(10_000)
    ]
    splits = splits_of(claims, SPLIT_OF_A_TASK, whole=set())
    assert splits[-1].task + 1 == 40


@given(st.lists(st.integers(1, 5), min_size=1, max_size=10))
def test_a_task_opens_its_own_splits(sizes: list[int]) -> None:
    """On the other side of a pickle, splits are the same by number and by task, also pickled twice,
    and those of other tasks stay closed.
    """
    claim = claim_of("f", 0, 0, 100)
    tasks = [task for task, size in enumerate(sizes) for _ in range(size)]
    made = [
        Split(number=number, task=task, claim=claim, start=number, end=number + 1)
        for number, task in enumerate(tasks)
    ]
    found = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(Splits(made)))))
    for task in range(len(sizes)):
        assert list(found.of_task(task)) == [split for split in made if split.task == task]
        assert found._open.keys() == set(range(task + 1))
    assert list(found) == made and len(found) == len(made)
    assert [found[n] for n in range(len(made))] == made and found[-1] == made[-1]
    assert [found.task_of(n) for n in range(len(made))] == tasks
