"""The audit of what replays really made: it passes, and a lie about it is told."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fix_account import quiet
from fix_engine import LocalEngine
from fix_pipelines import Workbench, events
from fix_replay import allow, as_float, aside, replayed, run, sql, two_batches
from fix_sink_postgres import Warehouse
from semel import faults, replay, requarantine
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
    "folders": {"sink": {"partition_by": ["id"]}},
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


@pytest.mark.rest
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


BAD = b'{"id": "x1", "n": 1.5, "at": "2026-01-01T00:00:00Z"}'
REPEATED = b'{"id": "e000003", "n": 2.5, "at": "2026-01-01T00:00:00Z"}'


def admitted(bench: Workbench, ledger: Ledger, **changes: Any) -> Spec:
    """Batch 1 with five dead letters; batches 2 and 3 are admissions of it, and 4 replays 2.

    By id, one of the letters survives, two are repeats.
    """
    spec = bench.spec(**changes)
    bench.write("in/a.jsonl", [*events(0, 20), BAD, b"{bad", *events(15, 30), BAD, REPEATED])
    bench.write("in/b.jsonl", [*events(30, 40), b"[]"])
    run(ledger, spec, "r1")
    spec = as_float(bench, **changes)
    allow(ledger, spec)
    for _ in range(2):
        requarantine.run(ledger, spec, "q", 1, LocalEngine(), log=quiet)
    replayed(ledger, spec, 2, "again")
    return spec


@pytest.mark.parametrize("kind", KINDS)
def test_dead_letters_that_were_admitted(bench: Workbench, ledger: Ledger, kind: str) -> None:
    """RP9: an admission's records are the dead letters that were left; they may be replayed."""
    spec = admitted(bench, ledger, **KINDS[kind])
    assert [(m.counts.records_read, m.counts.quarantined) for m in markers(spec.sink_path())] == [
        (50, 5), (5, 2), (2, 2),
    ]  # fmt: skip
    proven(spec, 1)


def test_lies_about_admissions(bench: Workbench, ledger: Ledger) -> None:
    """RP9: a dead letter that is admitted twice, or by a batch that none left it to, is told."""
    spec = admitted(bench, ledger, **KINDS["position"])
    path = archive.marker(archive.of(spec), 3)
    content = json.loads(path.read_bytes())
    for admits, said in (
        ({"batch_id": 1, "admission": 1}, "batch 2 judged the same dead letters"),
        ({"batch_id": 1, "admission": 3}, "no marker is of admission 2 of batch 1"),
        ({"batch_id": 7, "admission": 1}, "batch 7, whose dead letters it judged, has no marker"),
    ):
        path.write_text(json.dumps(content | {"admits": admits}))
        verdict = audit(spec)
        assert "source" in broken(verdict)
        found = next(check for check in verdict.checks if check.name == "source").offenders
        assert said in found[0].what and found[0].batch == 3
    path.write_text(json.dumps(content))
    own = archive.marker(archive.of(spec), 2)
    content = json.loads(own.read_bytes())
    data = next(file for file in content["files"] if file["kind"] == "data")
    table = pq.read_table(spec.sink_path() / data["path"], partitioning=None)
    twice = table.set_column(
        table.schema.get_field_index("_semel_offset"), "_semel_offset",
        pa.array([0] * table.num_rows, pa.int64()),
    )  # fmt: skip
    (spec.sink_path() / data["path"]).unlink()
    pq.write_table(twice, spec.sink_path() / data["path"])
    assert {"files", "output"} <= broken(audit(spec))


TABLE = {"type": "postgres", "connection": "warehouse", "table": "events", "create": True}


def test_a_table(
    bench: Workbench, ledger: Ledger, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a table are those of the newest output; each that is gone or other is told, and so
    are batches whose rows have landed and that are not finalized."""
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", warehouse.dsn)
    spec = two_batches(bench, ledger, sink=TABLE)
    for key in ("again", "once more"):
        replayed(ledger, spec, 1, key)
        proven(spec, 1)
    assert audit(spec).notes == ()
    bench.write("in/c.jsonl", events(70, 75))

    def die() -> None:
        raise faults.FaultError("died here")

    with faults.armed("finalize.after_publish", die), pytest.raises(faults.FaultError):
        run(ledger, spec, "r3")
    verdict = audit(spec)
    assert "the sink has rows of batches 5, which no marker lists" in verdict.notes[0]
    assert broken(verdict) == {"strays"}
    finalize(ledger, spec, 5)
    proven(spec, 1)
    warehouse.run("UPDATE events SET n = 7 WHERE id = 'e000003'")
    assert broken(audit(spec)) == {"content"}
    warehouse.run("DELETE FROM events WHERE id = 'e000003'")
    assert broken(audit(spec)) == {"output", "sums"}


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
