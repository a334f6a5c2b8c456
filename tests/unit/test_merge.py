"""What to merge: few runs, few rewrites, and nothing that expires apart."""

import dataclasses
import math
import random
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from semel import collect
from semel.catalog.runs import IdRun, span_seconds
from semel.collect.merge import merge_candidates
from semel.errors import RetryableError

START = datetime(2026, 1, 1, tzinfo=UTC)


def run(number: int, *, ids: int = 1000, expires_at: datetime = START, shard: int = 0) -> IdRun:
    return IdRun(
        id_run_id=number, pipeline_id=1, attempt_id=number, shard=shard, buckets=None,
        seq_min=number, seq_max=number, expires_at=expires_at, segment_id=1,
        ids=ids, filter_bytes=32, checksum="",
    )  # fmt: skip


SIZES = {
    "equal": lambda _: 1000,
    "random": lambda random_: random_.randint(1, 1000),
    "wild": lambda random_: int(10 ** random_.uniform(0, 6)),
}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("horizon", [5 * 86_400, 10**9], ids=["expiring", "lasting"])
def test_runs_stay_few_and_rewrites_logarithmic(size, horizon):
    """After each merge a shard has 16 runs at most, and ids are rewritten log2(batches) times."""
    random_ = random.Random(1)
    live: dict[int, IdRun] = {}
    written = stored = 0
    batches = 3000
    for number in range(batches):
        now = START + timedelta(minutes=10 * number)
        live = {key: each for key, each in live.items() if each.expires_at > now}
        expires_at = now + timedelta(seconds=horizon)
        live[number] = run(number, ids=size(random_), expires_at=expires_at)
        stored += live[number].ids
        for group in merge_candidates(live.values(), horizon_seconds=horizon):
            span = span_seconds(horizon)
            assert len({each.expires_at.timestamp() // span for each in group}) == 1
            largest = max(group, key=lambda each: each.id_run_id)
            merged = dataclasses.replace(
                largest,
                ids=sum(each.ids for each in group),
                expires_at=max(each.expires_at for each in group),
            )
            for each in group:
                del live[each.id_run_id]
            live[merged.id_run_id] = merged
            written += merged.ids
        assert len(live) <= 16
    assert written <= math.log2(batches) * stored


def test_each_shard_for_itself():
    """Only a shard with too many runs is merged, and never with another shard's."""
    runs = [run(number, shard=number % 2) for number in range(20)] + [
        run(20 + number, shard=1) for number in range(10)
    ]
    groups = merge_candidates(runs, horizon_seconds=10**9)
    assert [{each.shard for each in group} for group in groups] == [{1}]
    assert merge_candidates(runs[:20], horizon_seconds=10**9) == []


@pytest.mark.parametrize("error", [RetryableError, KeyboardInterrupt])
def test_no_merge_begins_after_one_that_failed(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Of two merges at work one fails, or is interrupted: the other ends, and no third begins."""
    meeting, begun = threading.Barrier(2, timeout=20), []

    def merge(_: object, __: object, group: tuple[IdRun, ...]) -> None:
        begun.append(group)
        if meeting.wait() == 0:
            raise error("no")
        time.sleep(0.5)  # So that the other one has failed by now.

    monkeypatch.setattr(collect.merge, "merge", merge)
    monkeypatch.setattr(collect, "MERGES_AT_ONCE", 2)
    groups = [(run(2 * n), run(2 * n + 1)) for n in range(6)]
    if error is RetryableError:
        done, [(failed, _)] = collect._merge_groups(None, None, groups)
        assert done == 2 and failed in groups[:2]
    else:
        with pytest.raises(error):
            collect._merge_groups(None, None, groups)
    assert len(begun) == 2 and all(group in begun for group in groups[:2])
