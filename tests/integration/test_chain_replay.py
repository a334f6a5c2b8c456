"""Replays that travel down a chain: what reads an output that was replayed reads the new one."""

import json
from collections.abc import Iterator

import pytest

from fixtures.batches.account import advised, ids, quiet, refusals, run, settled, sql
from fixtures.batches.replays import replayed
from fixtures.batches.workbench import Workbench
from fixtures.contract.sources import Upstream
from fixtures.postgres.server import lose
from semel.archive.marker import markers_of
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.repair.adopt import adopt
from semel.runs import replay


@pytest.fixture
def up(bench: Workbench, ledger: Ledger) -> Iterator[Upstream]:
    """The pipeline that is read, in the same ledger."""
    yield Upstream(bench, ledger)


def only(up: Upstream, condition: str) -> Spec:
    """The upstream, whose output has only these rows now."""
    (up.bench.transforms / "only.sql").write_text(f"SELECT * FROM records WHERE {condition}")
    return up.files.spec(name="up", transforms=[{"sql": "only.sql"}])


# Attacks CH2.
def test_a_replay_reads_the_new_output(up: Upstream, ledger: Ledger) -> None:
    up.append(0, 10)
    up.append(10, 20)
    spec = up.spec()
    run(ledger, spec, "r1")
    replayed(ledger, only(up, "n < 5"), 1, "again")
    done = replayed(ledger, spec, 3, "down")
    assert done.batch.judges
    assert settled(spec).ids == ids(0, 5) + ids(10, 20)
    assert run(ledger, spec, "r2").plan.refusals == ()
