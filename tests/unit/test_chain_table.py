"""The decision table for a batch of another pipeline, in every cell."""

from itertools import product

import pytest

from semel.sources.pipeline.matching import Does, Follower, OpenContent, Readers, judge

NONE, ALIVE, SILENT, COMMITTED = Follower
"""Of the follower, in the columns of the tables."""

UNLESS_SAME = {
    Readers.NONE: dict.fromkeys(Follower, Does.GO_ON),
    Readers.ALIVE: dict.fromkeys(Follower, Does.WAIT),
    Readers.SILENT: dict.fromkeys(Follower, Does.TAKE_OVER),
    Readers.COMMITTED: {
        NONE: Does.REPLAYED,
        ALIVE: Does.WAIT,
        SILENT: Does.REPLAYED,
        COMMITTED: Does.FOLLOW,
    },
}


# Attacks CH1.
@pytest.mark.parametrize(
    ("content", "readers", "follower"), list(product(OpenContent, Readers, Follower))
)
def test_every_cell(content: OpenContent, readers: Readers, follower: Follower) -> None:
    """The table of docs/chain.md; only a name without a partition and without readers begins."""
    expected = UNLESS_SAME[readers][follower]
    if content is OpenContent.SAME:
        expected = Does.GO_ON
    elif content is OpenContent.NONE and readers is Readers.NONE:
        expected = Does.BEGIN
    assert judge(content, readers, follower) is expected
