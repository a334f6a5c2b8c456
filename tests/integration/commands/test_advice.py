"""The advice at the end of an error is followed: it is accepted, and ends the trouble."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

import steps
from fixtures.batches.account import advised, committed, ids, quiet, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.postgres.server import database
from fixtures.spark.local import LocalEngine
from semel.airflow import task_failure
from semel.commit import commit
from semel.errors import SemelError, UnavailableError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.spark import check, session
from semel.stage import stage

DAYS = {"path": "in/*.jsonl", "select": "interval", "interval_from": "%Y-%m-%d.jsonl"}
@pytest.mark.parametrize(
    ("line", "code", "step"),
    [
        ("semel run nonsense", 2, "semel batches"),
        ("semel gaps nonsense", 2, "semel batches"),
        ("semel show 99", 1, "semel batches"),
        ("semel abandon 99", 1, "semel batches"),
        ("semel letters events --batch 99", 1, "semel batches events"),
        ("semel find events one two", 1, "semel find --help"),
        ("semel days events --from 1900-01-01", 1, "semel days --help"),
        ("semel accept events in/b.jsonl", 1, "semel gaps events"),
        ("semel accept events --refused 99", 1, "semel batches events"),
        ("semel adopt nonsense", 2, "semel batches"),
    ],
)
def test_what_is_not_there(
    bench: Workbench, ledger: Ledger, shell: Shell, line: str, code: int, step: str
) -> None:
    """The next command shows what is there, and succeeds. With --json it is a field of its own."""
    bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    shell.runs("semel run events")
    assert shell.fails(line, code) == shell.answers(line, code)["next"] == step
    shell.runs(step)


def test_a_declaration_that_is_wrong(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """validate says the same of the file, and is content once that is corrected."""
    bench.spec()
    path = bench.pipelines / "events.yaml"
    right = path.read_text(encoding="utf-8")
    path.write_text(right.replace("record_id", "record_ids"), encoding="utf-8")
    step = shell.fails("semel run events")
    assert step == f"semel validate {path}"
    assert "did you mean record_id?" in shell.runs(step, code=1)
    path.write_text(right, encoding="utf-8")
    shell.runs(step)


@pytest.mark.usefixtures("ledger")
def test_a_run_without_an_interval(
    bench: Workbench, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts no Spark, and names one that can be run: yesterday's."""
    bench.spec(source=DAYS)
    with monkeypatch.context() as patch:
        patch.setattr(session, "open_engine", lambda *_: pytest.fail("it started Spark"))
        step = shell.fails("semel run events")
    assert "or give --interval START END" in shell.err
    shell.runs(step)


def test_a_pipeline_that_never_planned(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """accept needs a first run."""
    bench.spec()
    path = bench.write("in/a.jsonl", events(0, 10))
    step = shell.fails(f"semel accept events {path}")
    assert step == "semel run events"
    shell.runs(step)
    assert settled(bench.spec()).ids == ids(0, 10)


def test_nothing_to_read_where_that_fails(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """gaps shows what is there: here nothing, which is right."""
    bench.spec(source={"on_empty": "fail"})
    step = shell.fails("semel run events")
    assert step == "semel gaps events"
    shell.runs(step)


def test_a_refused_file_of_an_interval(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """gaps names the command that accepts it; then the run succeeds, and all is there."""
    bench.spec(source=DAYS)
    run = "semel run events --interval 2026-01-03 2026-01-04"
    path = bench.write("in/2026-01-03.jsonl", events(0, 10))
    shell.runs(run)
    path.write_bytes(b"")
    bench.write("in/2026-01-03.jsonl", events(20, 25))
    step = shell.fails(run)
    assert step == "semel gaps events"
    advised(ledger, shell.runs(step, code=1))
    shell.runs(run)
    shell.runs(step)


def test_a_file_that_is_away(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The same command again, once the file is back."""
    spec = bench.spec()
    path = bench.write("in/a.jsonl", events(0, 8))
    plan(ledger, spec, "cli")
    away = path.rename(bench.folder / path.name)
    step = shell.fails("semel run events")
    away.rename(path)
    shell.runs(step)
    assert settled(spec).ids == ids(0, 8)


def test_a_file_that_a_batch_has_claimed(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """accept waits for its batch; once that is abandoned, the same accept is taken."""
    spec = bench.spec()
    path = bench.write("in/a.jsonl", events(0, 8))
    batch = plan(ledger, spec, "r1").batch.batch_id
    path.unlink()
    bench.write("in/b.jsonl", events(20, 30))
    plan(ledger, spec, "r2")
    step = shell.fails(f"semel accept events {path} --lost")
    assert step == f"semel abandon {batch}"
    shell.runs(step)


def test_files_of_a_committed_batch_that_were_damaged(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """The same command again, once they are restored."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 8))
    batch = committed(ledger, spec, "cli")
    with ledger.transaction() as connection:
        of = "SELECT staged_path FROM semel.manifest_file WHERE batch_id = %s AND kind = 'data'"
        path = Path(connection.exec_driver_sql(of, (batch,)).scalar())
    kept = path.read_bytes()
    path.write_bytes(b"damaged")
    step = shell.fails("semel run events")
    path.write_bytes(kept)
    shell.runs(step)
    assert settled(spec).ids == ids(0, 8)


def no_spark(*_: object) -> None:
    raise UnavailableError("Spark does not answer")


def test_no_ledger(
    bench: Workbench, ledger: Ledger, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """check says what is wrong with it."""
    bench.spec()
    monkeypatch.setenv("SEMEL_LEDGER_DSN", "postgresql://nobody@127.0.0.1:1/none")
    assert shell.fails("semel batches") == "semel check"
    assert shell.fails("semel gaps events") == "semel check events"
    monkeypatch.setattr(check, "open_engine", no_spark)
    assert "ledger" in shell.runs("semel check events", code=1)


def test_a_database_that_is_no_ledger_yet(
    bench: Workbench, shell: Shell, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """migrate makes it one."""
    bench.spec()
    with database(postgres) as dsn:
        monkeypatch.setenv("SEMEL_LEDGER_DSN", dsn)
        step = shell.fails("semel batches")
        assert step == "semel migrate"
        shell.runs(step)
        shell.runs("semel batches")


def said(error_of: Callable[[], object], spec: Spec, task: str, batch: int) -> list[str]:
    """What a task of a DAG run says that fails so."""
    log: list[str] = []
    with pytest.raises(SemelError) as raised:
        error_of()
    context = {
        "ti": SimpleNamespace(try_number=1, max_tries=0),
        "task": SimpleNamespace(task_id=task),
    }
    doing = task_failure.retry_steps(context, spec.name, batch, raised.value)
    task_failure.log_failure(SimpleNamespace(error=log.append), raised.value, doing)
    return log


def test_a_task_of_an_abandoned_batch(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """Its run is cleared whole: the same request plans its batch anew, and is finalized."""
    from semel.plan.abandon import abandon

    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 8))
    key = "airflow:events:manual__1"
    batch = plan(ledger, spec, key).batch.batch_id
    abandon(ledger, batch, "by hand")
    lines = said(lambda: stage(ledger, spec, batch, LocalEngine()), spec, "stage", batch)
    assert lines[-1] == "next: clear the whole run"
    shell.runs(f"semel run events --request {key}")
    assert settled(spec).ids == ids(0, 8)


def test_a_task_of_another_declaration(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """Its run is cleared whole: the same request plans its batch anew, by the new declaration."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 8))
    key = "airflow:events:manual__1"
    batch = plan(ledger, spec, key).batch.batch_id
    spec = bench.spec(sink={"position_columns": True})
    lines = said(lambda: stage(ledger, spec, batch, LocalEngine()), spec, "stage", batch)
    assert lines[-1] == "next: clear the whole run"
    shell.runs(f"semel run events --request {key}")
    steps.typed_in_a_shell("clear the whole run")
    assert settled(spec).ids == ids(0, 8)


def test_a_task_without_a_ledger(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """An outage names the check of the pipeline."""
    spec = bench.spec()
    away = Ledger("postgresql://nobody@127.0.0.1:1/none")
    lines = said(lambda: plan(away, spec, "r1"), spec, "plan", None)
    assert lines[-1] == "next: semel check events"


SILENT = "UPDATE semel.batch SET seen_at = now() - interval '2 hours'"


@pytest.mark.parametrize("source", [{}, DAYS])
@pytest.mark.parametrize("state", ["planned", "committed"])
def test_a_batch_whose_run_is_gone(
    bench: Workbench, ledger: Ledger, shell: Shell, source: dict, state: str
) -> None:
    """gaps names what goes on with it, by its own request and interval; then all is finalized."""
    spec = bench.spec(source=source)
    bench.write("in/2026-01-03.jsonl", events(0, 8))
    day = (datetime(2026, 1, 3, tzinfo=UTC), datetime(2026, 1, 4, tzinfo=UTC))
    key = "airflow:events:it's gone"
    batch = plan(ledger, spec, key, day).batch.batch_id
    if state == "committed":
        stage(ledger, spec, batch, LocalEngine(), quiet)
        commit(ledger, spec, batch, lambda: None, quiet)
    with ledger.transaction() as connection:
        connection.exec_driver_sql(SILENT)
        if state == "committed":
            connection.exec_driver_sql(SILENT.replace("seen_at", "committed_at"))
    *_, step = shell.runs("semel gaps events", code=1).splitlines()
    shell.runs(step.removeprefix("next: "))
    shell.runs("semel gaps events")
    assert settled(spec).ids == ids(0, 8)


def test_an_audit_that_fails(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """It names a batch that is broken, to look at."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 8))
    shell.runs("semel run events")
    next(spec.sink_path().rglob("events-*.parquet")).write_bytes(b"other")
    *_, step = shell.runs("semel audit events", code=1).splitlines()
    assert step == "next: semel show 1"
    assert "file: data" in shell.runs(step.removeprefix("next: "))
