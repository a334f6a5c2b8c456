"""Two finalized batches, and replays of them."""

from pathlib import Path
from typing import Any

import pytest

from fix_account import quiet
from fix_engine import LocalEngine
from fix_pipelines import Workbench, events
from semel import replay
from semel.accept import accept_columns
from semel.ledger import Ledger
from semel.reader import dataset
from semel.run import run_batch
from semel.sinks import archive
from semel.spec.pipeline import Spec


def run(ledger: Ledger, spec: Spec, key: str) -> None:
    run_batch(ledger, spec, key, LocalEngine(), log=quiet)


def replayed(ledger: Ledger, spec: Spec, root: int, key: str) -> replay.Replayed:
    return replay.run(ledger, spec, key, root, LocalEngine(), log=quiet)


def rows(spec: Spec) -> list[dict[str, Any]]:
    return sorted(dataset(spec.sink_path()).to_table().to_pylist(), key=lambda r: r["id"])


def as_float(bench: Workbench, **changes: Any) -> Spec:
    """Another type of a column that is no id: what a replay gives differs from what was there."""
    schema = {"id": "string", "n": "double", "at": "timestamp"}
    return bench.spec(source={"schema": schema}, **changes)


def allow(ledger: Ledger, spec: Spec) -> None:
    accept_columns(ledger, spec)


def two_batches(bench: Workbench, ledger: Ledger, **changes: object) -> Spec:
    """Two batches with repeats within and between them, and a bad record."""
    spec = bench.spec(**changes)
    bench.write("in/a.jsonl", [*events(0, 50), b"{bad", *events(40, 60)])
    run(ledger, spec, "r1")
    bench.write("in/b.jsonl", events(55, 70))
    run(ledger, spec, "r2")
    return spec


def sql(ledger: Ledger, text: str) -> None:
    with ledger.transaction() as connection:
        connection.exec_driver_sql(text)


def aside(spec: Spec, root: int, generation: int) -> Path:
    return archive.replaced(archive.of(spec), root, generation)


def refusal(ledger: Ledger, spec: Spec, root: int) -> Exception:
    """Why a batch cannot be replayed: plan says it, and nothing was written."""
    count = len(ledger.rows("look", "batches", name=spec.name, count=100))
    why = replay.look(ledger, spec, root, "again").why
    with pytest.raises(type(why)) as raised:
        replay.plan(ledger, spec, "again", root)
    assert str(raised.value) == str(why)
    assert len(ledger.rows("look", "batches", name=spec.name, count=100)) == count
    return raised.value
