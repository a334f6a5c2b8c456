"""The digest of a spec: the same in each version of semel, for declarations that mean the same."""

from typing import Any

import pytest

from fixtures.batches.specs import CLICKS
from semel.declare.parts import Dedup
from semel.pipeline.spec import Spec
from semel.sources.files.spec import FilesSourceSpec
from semel.sources.spec import CsvOptions

DAYS = CLICKS | {
    "name": "days", "description": "d", "schedule": "@daily",
    "source": CLICKS["source"] | {
        "path": "in/*.csv", "format": "csv", "select": "interval",
        "interval_from": "d-%Y-%m-%d.csv", "lookback": "2 hours", "closed_after": "1 minute",
        "on_refused": "warn", "csv": {"delimiter": ";", "quote": "\"", "multiline": False},
    },
    "record_id": ["id"], "record_time": "at",
    "dedup": {
        "scope": "bucket", "horizon": "1 week", "shards": 4, "late": "accept", "keep_ids": True,
    },
    "sink": CLICKS["sink"] | {
        "path": "out/days", "format": "jsonl", "partition_by": ["at"], "position_columns": True,
    },
    "limits": CLICKS["limits"] | {"quarantine_ratio_max": 0.5},
    "max_active_runs": 2,
}  # fmt: skip

KEPT = CLICKS | {"source": CLICKS["source"] | {"unknown": "keep"}}

STORED = [
    (CLICKS, "172bee59822bfc93d4a3ca877a347b1732c0ef7df72885e109518724a4d627b3"),
    (DAYS, "f68f545304dffea1c74a8c91c96120b7f751c0ac0ca5fcde87ca812f3ba5f5c7"),
    (KEPT, "1f40f1c6beb8d306d1c1dc0ca564d565794a166d2379a797f98a6f5be94fe622"),
]
"""Stored specs and their digests."""


# Attacks P20.
@pytest.mark.parametrize(("stored", "digest"), STORED)
def test_a_stored_spec_keeps_its_digest(stored: dict[str, Any], digest: str) -> None:
    """What one version planned is staged and finalized by each later one."""
    spec = Spec.from_json(stored)
    assert spec.digest() == digest
    assert Spec.from_json(spec.to_json()) == spec


# Attacks P20.
def test_a_key_that_comes_later_changes_a_digest_only_when_it_is_used() -> None:
    """A new key with its default leaves each digest as it was; another value is another digest."""

    class LaterCsv(CsvOptions):
        comment: str = ""

    class LaterSource(FilesSourceSpec):
        csv: LaterCsv = LaterCsv()
        from_end: bool = False

    class LaterDedup(Dedup):
        memory: int = 7

    class LaterSpec(Spec):
        source: LaterSource
        dedup: LaterDedup = LaterDedup()
        owner: str | None = None

    source, csv, dedup = DAYS["source"], DAYS["source"]["csv"], DAYS["dedup"]
    assert LaterSpec.from_json(DAYS).digest() == STORED[1][1]
    used = [
        DAYS | {"owner": "me"},
        DAYS | {"source": source | {"from_end": True}},
        DAYS | {"source": source | {"csv": csv | {"comment": "#"}}},
        DAYS | {"dedup": dedup | {"memory": 8}},
    ]
    assert len({LaterSpec.from_json(stored).digest() for stored in (DAYS, *used)}) == 5


@pytest.mark.parametrize("key", ["description", "schedule", "max_active_runs"])
def test_what_is_not_of_the_data_is_in_no_digest(key: str) -> None:
    """A pipeline may be described and scheduled anew while its batches are on their way."""
    assert CLICKS[key] != DAYS[key]
    assert Spec.from_json(CLICKS | {key: DAYS[key]}).digest() == STORED[0][1]
