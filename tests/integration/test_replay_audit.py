"""The audit of what replays really made: it passes, and a lie about it is told."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fix_account import quiet
from fix_engine import LocalEngine
from fix_pipelines import Workbench, events
from fix_replay import allow, as_float, aside, replayed, run, sql, two_batches
from semel import faults, replay
from semel.audit import Verdict, audit
from semel.collect import collect
from semel.commit import commit
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.manifest import Kind
from semel.reader import markers
from semel.run import run_batch
from semel.sinks import archive
from semel.spark.engine import SparkEngine
from semel.spec.pipeline import Spec
from semel.stage import stage


def broken(verdict: Verdict) -> set[str]:
    return {check.name for check in verdict.checks if not check.ok}


def proven(spec: Spec, replayed: int) -> None:
    verdict = audit(spec)
    assert broken(verdict) == set(), [c.offenders for c in verdict.checks if not c.ok]
    assert verdict.replayed == replayed


KINDS: dict[str, dict[str, Any]] = {
    "id": {},
    "position": {"record_id": None, "sink": {"position_columns": True}},
    "counts": {"record_id": None},
    "bucket": {"record_time": "at", "dedup": {"scope": "bucket", "horizon": "3650d"}},
    "csv": {"sink": {"format": "csv"}},
    "folders": {"sink": {"partition_by": ["n"]}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_replays_made(bench: Workbench, ledger: Ledger, kind: str) -> None:
    """By id, by position, by content, by bucket; of generations 2 and 3."""
    spec = two_batches(bench, ledger, **KINDS[kind])
    for key in ("again", "once more"):
        replayed(ledger, spec, 1, key)
        proven(spec, 1)
    replayed(ledger, spec, 2, "again")
    proven(spec, 2)


def test_another_schema(bench: Workbench, ledger: Ledger) -> None:
    """Verdicts by the declaration of then, rows by that of now, in a batch that came later too."""
    two_batches(bench, ledger)
    spec = as_float(bench)
    allow(ledger, spec)
    replayed(ledger, spec, 1, "again")
    bench.write("in/c.jsonl", [*events(65, 80), b'{"id": "x", "n": 2.5}'])
    run(ledger, spec, "r3")
    proven(spec, 1)


def test_a_corrected_transform(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """A transform that filters rows, corrected: its rows are of survivors, each once."""
    query = bench.transforms / "some.sql"
    query.write_text("SELECT id, n FROM records WHERE n < 40")
    spec = bench.spec(transforms=["some.sql"])
    bench.write("in/a.jsonl", [*events(0, 50), b"{bad", *events(40, 60)])
    run_batch(ledger, spec, "r1", spark_engine, log=quiet)
    query.write_text("SELECT id, n FROM records WHERE n < 30")
    replay.run(ledger, spec, "again", 1, spark_engine, log=quiet)
    proven(spec, 1)
    assert audit(spec).totals.rows_written == 30
    old = json.loads(aside(spec, 1, 1).read_bytes())["code"]["files"]
    (archive.code(archive.of(spec)) / f"{old['some.sql']}.sql").unlink()
    assert broken(audit(spec)) == {"code"}


def old_files(spec: Spec) -> list[Path]:
    return sorted(spec.sink_path().rglob("*b00000001-*"))


def test_while_old_files_go(bench: Workbench, ledger: Ledger) -> None:
    """Before collect removed what was replaced, killed in the middle of it, and after."""
    spec = two_batches(bench, ledger, sink={"partition_by": ["n"]})
    replayed(ledger, spec, 1, "again")
    sql(ledger, "UPDATE semel.batch SET finalized_at = finalized_at - interval '2 hours'")
    some = old_files(spec)
    for path in some[: len(some) // 2]:
        path.unlink()
    proven(spec, 1)
    assert collect(ledger, spec, quiet).replaced_removed == 1
    assert not old_files(spec)
    proven(spec, 1)


@pytest.mark.parametrize("point", ["finalize.before_rename", "finalize.after_rename"])
def test_a_finalizer_that_died(bench: Workbench, ledger: Ledger, point: str) -> None:
    """Before its marker is there, a replay's files are not listed; the old output is proven."""
    spec = two_batches(bench, ledger)
    batch, _ = replay.plan(ledger, spec, "again", 1)
    stage(ledger, spec, batch.batch_id, LocalEngine(), log=quiet)
    commit(ledger, spec, batch.batch_id, lambda: None, log=quiet)

    class Killed(Exception):
        pass

    def die() -> None:
        raise Killed

    with faults.armed(point, die), pytest.raises(Killed):
        finalize(ledger, spec, batch.batch_id)
    there = point == "finalize.after_rename"
    verdict = audit(spec)
    assert broken(verdict) == (set() if there else {"strays"}) and verdict.replayed == there
    finalize(ledger, spec, batch.batch_id)
    proven(spec, 1)


def test_a_row_that_a_replay_lost(bench: Workbench, ledger: Ledger) -> None:
    """A row that is gone from the newest output alone, whatever its marker says, is told."""
    spec = two_batches(bench, ledger)
    replayed(ledger, spec, 1, "again")
    marker = markers(spec.sink_path())[0]
    (file,) = marker.of_kind(Kind.DATA)
    path = marker.path_of(file)
    table = pq.read_table(path, partitioning=None)
    path.unlink()
    pq.write_table(table.slice(1), path)
    verdict = audit(spec)
    assert {"files", "output"} <= broken(verdict)
    found = next(check for check in verdict.checks if check.name == "output").offenders
    assert [one.what for one in found] == ["the survivor is not in the output"]


def test_the_command(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """`semel audit` says how many batches were replayed."""
    from semel.cli import main

    spec = two_batches(bench, ledger)
    replayed(ledger, spec, 1, "again")
    monkeypatch.setenv("SEMEL_LEDGER_DSN", ledger.dsn)
    assert main(["audit", spec.name]) == 0
    assert f"audit of {spec.name}: passed; 2 batches (1 replayed), 86" in capsys.readouterr().out
    assert main(["audit", spec.name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replayed"] == 1
