"""The decision table for a batch of another pipeline, in every cell."""

from itertools import product

import pytest

from semel.sources.pipeline.matching import Does, Progress, judge

NONE, ALIVE, SILENT, COMMITTED = Progress

OTHER_CONTENT = {
    NONE: dict.fromkeys(Progress, Does.GO_ON),
    ALIVE: dict.fromkeys(Progress, Does.WAIT),
    SILENT: dict.fromkeys(Progress, Does.TAKE_OVER),
    COMMITTED: {
        NONE: Does.REPLAYED,
        ALIVE: Does.WAIT,
        SILENT: Does.REPLAYED,
        COMMITTED: Does.FOLLOW,
    },
}
"""By the readers, and by the replay that has claimed the content shown."""


# Attacks CH1.
@pytest.mark.parametrize(
    ("same", "readers", "replay"), list(product([False, True], Progress, Progress))
)
def test_every_cell(same: bool, readers: Progress, replay: Progress) -> None:
    """The table of docs/chain.md: plan goes on with content that its open partition has."""
    expected = Does.GO_ON if same else OTHER_CONTENT[readers][replay]
    assert judge(same=same, readers=readers, replay=replay) is expected
