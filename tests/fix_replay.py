"""Two finalized batches, and replays and admissions of them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fix_account import quiet, run, sql
from fix_engine import LocalEngine
from fix_pipelines import Workbench, events
from semel.archive import layout
from semel.audit import audit
from semel.commit import commit
from semel.ledger import Ledger
from semel.pipeline import Spec
from semel.reader import dataset
from semel.repair.accept import accept_columns
from semel.runs import replay, requarantine
from semel.stage import stage

BAD = b'{"id": "x1", "n": 1.5, "at": "2026-01-01T00:00:00Z"}'
"""A record that is none while `n` is a whole number, and one by the declaration of `as_float`."""

REPEATED = b'{"id": "e000003", "n": 2.5, "at": "2026-01-01T00:00:00Z"}'
"""The same, of an id that `events` has."""


def replayed(ledger: Ledger, spec: Spec, root: int, key: str) -> replay.Replayed:
    return replay.run(ledger, spec, key, root, LocalEngine(), log=quiet)


def waiting(ledger: Ledger, spec: Spec, root: int, key: str) -> int:
    """The number of a replay that has committed, and is not finalized."""
    number = replay.plan(ledger, spec, key, root)[0].batch_id
    stage(ledger, spec, number, LocalEngine(), log=quiet)
    commit(ledger, spec, number, lambda: None, log=quiet)
    return number


def admitted(ledger: Ledger, spec: Spec, root: int = 1, key: str = "q") -> requarantine.Admitted:
    """Judge the dead letters of a batch again."""
    return requarantine.run(ledger, spec, key, root, LocalEngine(), log=quiet)


def rows(spec: Spec) -> list[dict[str, Any]]:
    return sorted(dataset(spec.sink_path()).to_table().to_pylist(), key=lambda r: r["id"])


def as_float(bench: Workbench, **changes: Any) -> Spec:
    """Another type of a column that is no id: what a replay gives differs from what was there."""
    schema = {"id": "string", "n": "double", "at": "timestamp"}
    return bench.spec(source={"schema": schema}, **changes)


def allow(ledger: Ledger, spec: Spec) -> None:
    accept_columns(ledger, spec)


def wider(bench: Workbench, ledger: Ledger, **changes: Any) -> Spec:
    """`as_float` as the declaration of now: its columns are accepted."""
    spec = as_float(bench, **changes)
    allow(ledger, spec)
    return spec


def two_batches(bench: Workbench, ledger: Ledger, **changes: object) -> Spec:
    """Two batches with repeats within and between them, and a bad record."""
    spec = bench.spec(**changes)
    bench.write("in/a.jsonl", [*events(0, 50), b"{bad", *events(40, 60)])
    run(ledger, spec, "r1")
    bench.write("in/b.jsonl", events(55, 70))
    run(ledger, spec, "r2")
    return spec


def with_letters(bench: Workbench, ledger: Ledger, **changes: Any) -> Spec:
    """A batch with five dead letters, three of which are records by `wider`, which it returns.

    By id one of these is new (x1, which is there twice), and one is a repeat of e000003.
    """
    spec = bench.spec(**changes)
    bench.write("in/a.jsonl", [*events(0, 20), BAD, b"{bad", *events(15, 30), BAD, REPEATED])
    bench.write("in/b.jsonl", [*events(30, 40), b"[]"])
    run(ledger, spec, "r1")
    return wider(bench, ledger, **changes)


def proven(spec: Spec, replayed: int | None = None) -> None:
    """The audit passes, and has as many replayed batches."""
    verdict = audit(spec)
    assert verdict.ok, {check.name: check.offenders for check in verdict.checks if not check.ok}
    assert replayed in (None, verdict.replayed)


def broken(spec: Spec) -> set[str]:
    """The checks of the audit that fail."""
    return {check.name for check in audit(spec).checks if not check.ok}


def hours_pass(ledger: Ledger) -> None:
    """Whoever replaced an output has been finalized for long."""
    sql(ledger, "UPDATE semel.batch SET finalized_at = finalized_at - interval '2 hours'")


def falls_silent(ledger: Ledger) -> None:
    """Whoever is at work has shown no life for long."""
    sql(ledger, "UPDATE semel.batch SET seen_at = seen_at - interval '1 hour'")


BY_DAY = {"select": "interval", "interval_from": "%Y-%m-%d.jsonl"}
DAY, ONE = datetime(2026, 1, 1, tzinfo=UTC), timedelta(days=1)


def three_days(bench: Workbench, ledger: Ledger) -> Spec:
    """Three days from DAY on, each with a batch of ten records, as runs of the schedule ask."""
    spec = bench.spec(source=BY_DAY, schedule="@daily")
    for n in range(3):
        bench.write(f"in/2026-01-0{n + 1}.jsonl", events(10 * n, 10 * n + 10))
        interval = DAY + n * ONE, DAY + (n + 1) * ONE
        run(ledger, spec, f"airflow:events:scheduled__{n}", interval)
    return spec


def aside(spec: Spec, root: int, generation: int) -> Path:
    return layout.replaced(layout.of(spec), root, generation)


def refusal(ledger: Ledger, spec: Spec, root: int) -> Exception:
    """Why a batch cannot be replayed: plan says it, and nothing was written."""
    count = len(ledger.rows("look", "batches", name=spec.name, count=100))
    why = replay.look(ledger, spec, root, "again").why
    with pytest.raises(type(why)) as raised:
        replay.plan(ledger, spec, "again", root)
    assert str(raised.value) == str(why)
    assert len(ledger.rows("look", "batches", name=spec.name, count=100)) == count
    return raised.value
