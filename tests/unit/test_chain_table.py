"""The decision table for a batch of another pipeline, in every cell."""

from itertools import product

import pytest

from semel.sources.pipeline.matching import BatchDecision, UpstreamProgress, judge

NONE, ALIVE, SILENT, COMMITTED = UpstreamProgress

OTHER_CONTENT = {
    NONE: dict.fromkeys(UpstreamProgress, BatchDecision.GO_ON),
    ALIVE: dict.fromkeys(UpstreamProgress, BatchDecision.WAIT),
    SILENT: dict.fromkeys(UpstreamProgress, BatchDecision.TAKE_OVER),
    COMMITTED: {
        NONE: BatchDecision.REPLAYED,
        ALIVE: BatchDecision.WAIT,
        SILENT: BatchDecision.REPLAYED,
        COMMITTED: BatchDecision.FOLLOW,
    },
}
"""By the readers, and by the replay that has claimed the content shown."""


# Attacks CH1.
@pytest.mark.parametrize(
    ("same", "readers", "replay"), list(product([False, True], UpstreamProgress, UpstreamProgress))
)
def test_every_cell(same: bool, readers: UpstreamProgress, replay: UpstreamProgress) -> None:
    """The table of docs/chain.md: plan goes on with content that its open partition has."""
    expected = BatchDecision.GO_ON if same else OTHER_CONTENT[readers][replay]
    assert judge(same=same, readers=readers, replay=replay) is expected
