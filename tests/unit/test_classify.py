"""classify: judged against a model that walks the records one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from semel.stage.classify import (
    Dropped,
    Repeat,
    SplitIds,
    classify,
    pack_dropped,
    pack_ids,
    unpack_dropped,
    unpack_ids,
)

pairs = st.tuples(st.integers(0, 5), st.integers(0, 2))
splits = st.lists(st.lists(pairs, max_size=15), max_size=4)


def part(split: int, ids: list[tuple[int, int]]) -> SplitIds:
    """Rows are the odd ones: other shards own the rest."""
    return SplitIds(
        split=split,
        h1=np.array([h1 for h1, _ in ids], np.uint64),
        h2=np.array([h2 for _, h2 in ids], np.uint32),
        row=np.arange(1, 2 * len(ids), 2, dtype=np.uint32),
    )


# Attacks S8.
@given(splits, st.sets(pairs))
def test_the_first_in_source_order_wins(splits, catalog):
    """Exactly one copy of each new id stays, the first; a known id loses every copy, as known."""

    def known(h1, h2):
        assert h1.tolist() == sorted(h1.tolist())
        asked = list(zip(h1.tolist(), h2.tolist(), strict=True))
        assert len(set(asked)) == len(asked)
        return np.array([pair in catalog for pair in asked], dtype=bool)

    verdict = classify([part(10 + at, ids) for at, ids in enumerate(splits)], known)

    seen, expected = set(), {}
    for at, ids in enumerate(splits):
        for place, pair in enumerate(ids):
            if pair in catalog:
                expected.setdefault(10 + at, []).append((2 * place + 1, Repeat.OF_CATALOG))
            elif pair in seen:
                expected.setdefault(10 + at, []).append((2 * place + 1, Repeat.OF_BATCH))
            else:
                seen.add(pair)
    got = {
        split: list(zip(dropped.rows.tolist(), dropped.reason.tolist(), strict=True))
        for split, dropped in verdict.dropped.items()
    }
    assert got == expected
    assert verdict.survivors == len(seen)
    assert verdict.h1.tolist() == sorted(verdict.h1.tolist())
    assert set(zip(verdict.h1.tolist(), verdict.h2.tolist(), strict=True)) == seen


@given(st.lists(pairs, max_size=10), st.integers(0, 2**40))
def test_packing_is_lossless(ids, split):
    """What travels through the shuffle arrives as it was, also from an unaligned place."""
    sent = part(split, ids)
    got = unpack_ids(memoryview(b"x" + pack_ids(sent))[1:])
    assert got.split == split
    for name in ("h1", "h2", "row"):
        assert np.array_equal(getattr(got, name), getattr(sent, name))
    dropped = Dropped(rows=sent.row, reason=np.ones(len(ids), np.uint8))
    back = unpack_dropped(pack_dropped(dropped))
    assert np.array_equal(back.rows, dropped.rows)
    assert np.array_equal(back.reason, dropped.reason)
