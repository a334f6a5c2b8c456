"""classify: judged against a model that walks the records one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from semel.stage.classify import Dropped, Repeat, classify, pack_dropped, unpack_dropped
from semel.stage.task_ids import TaskIds

pairs = st.tuples(st.integers(0, 5), st.integers(0, 2))
tasks = st.lists(st.lists(pairs, max_size=15), max_size=4)


def part(task: int, ids: list[tuple[int, int]]) -> TaskIds:
    """Rows are the odd ones: other shards own the rest."""
    return TaskIds(
        task=task,
        h1=np.array([h1 for h1, _ in ids], np.uint64),
        h2=np.array([h2 for _, h2 in ids], np.uint32),
        row=np.arange(1, 2 * len(ids), 2, dtype=np.uint32),
    )


# Attacks S8.
@given(tasks, st.sets(pairs))
def test_the_first_in_source_order_wins(tasks, catalog):
    """Exactly one copy of each new id stays, the first; a known id loses every copy, as known."""

    def known(h1, h2):
        assert h1.tolist() == sorted(h1.tolist())
        asked = list(zip(h1.tolist(), h2.tolist(), strict=True))
        assert len(set(asked)) == len(asked)
        return np.array([pair in catalog for pair in asked], dtype=bool)

    verdict = classify([part(10 + at, ids) for at, ids in enumerate(tasks)], known)

    seen, expected = set(), {}
    for at, ids in enumerate(tasks):
        for place, pair in enumerate(ids):
            if pair in catalog:
                expected.setdefault(10 + at, []).append((2 * place + 1, Repeat.OF_CATALOG))
            elif pair in seen:
                expected.setdefault(10 + at, []).append((2 * place + 1, Repeat.OF_BATCH))
            else:
                seen.add(pair)
    got = {
        task: list(zip(dropped.rows.tolist(), dropped.reason.tolist(), strict=True))
        for task, dropped in verdict.dropped.items()
    }
    assert got == expected
    assert verdict.survivors == len(seen)
    assert verdict.h1.tolist() == sorted(verdict.h1.tolist())
    assert set(zip(verdict.h1.tolist(), verdict.h2.tolist(), strict=True)) == seen


@given(st.lists(st.integers(0, 2**32 - 1), max_size=10))
def test_packing_is_lossless(rows):
    """The dropped rows arrive behind the shuffle as they were, also from an unaligned place."""
    dropped = Dropped(rows=np.array(rows, np.uint32), reason=np.ones(len(rows), np.uint8))
    back = unpack_dropped(memoryview(b"x" + pack_dropped(dropped))[1:])
    assert np.array_equal(back.rows, dropped.rows)
    assert np.array_equal(back.reason, dropped.reason)
