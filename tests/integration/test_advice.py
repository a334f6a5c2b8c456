"""The advice at the end of an error is followed: it is accepted, and ends the trouble."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from fix_account import advised, committed, ids, quiet, settled
from fix_engine import LocalEngine
from fix_pipelines import Workbench, events
from fix_postgres import database, lose
from semel.airflow import told
from semel.cli import main
from semel.commit import commit
from semel.errors import SemelError, UnavailableError
from semel.ledger import Ledger
from semel.plan import plan
from semel.spark import check
from semel.spec.pipeline import Spec
from semel.stage import stage

DAYS = {"path": "in/*.jsonl", "select": "interval", "interval_from": "%Y-%m-%d.jsonl"}
NUMBERS = {"schema": {"id": "string", "n": "boolean"}}


class _Opened:
    """An engine as `open_engine` gives it."""

    def __enter__(self) -> LocalEngine:
        return LocalEngine()

    def __exit__(self, *_: object) -> None:
        pass


@dataclass
class Shell:
    """Runs commands as a user types them."""

    bench: Workbench
    ledger: Ledger
    capsys: pytest.CaptureFixture[str]

    def fails(self, line: str, code: int = 1) -> str:
        """Run a command that fails. Returns the command that it says is next."""
        assert main(shlex.split(line)[1:]) == code
        last = self.capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("next: semel "), last
        return last.removeprefix("next: ")

    def runs(self, line: str, code: int = 0) -> str:
        """Run a command, and return what it prints."""
        assert main(shlex.split(line)[1:]) == code, self.capsys.readouterr().err
        return self.capsys.readouterr().out


@pytest.fixture
def shell(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys
) -> Shell:
    monkeypatch.setenv("SEMEL_SPARK_REMOTE", "local[1]")
    monkeypatch.setattr("semel.spark.session.open_engine", lambda *_: _Opened())
    return Shell(bench, ledger, capsys)


@pytest.mark.parametrize(
    ("line", "code", "step"),
    [
        ("semel run nonsense", 2, "semel validate"),
        ("semel gaps nonsense", 2, "semel validate"),
        ("semel show 99", 1, "semel batches"),
        ("semel abandon 99", 1, "semel batches"),
        ("semel letters events --batch 99", 1, "semel batches events"),
        ("semel find events one two", 1, "semel find --help"),
        ("semel days events --from 1900-01-01", 1, "semel days --help"),
        ("semel accept events in/b.jsonl", 1, "semel gaps events"),
        ("semel accept events --refused 99", 1, "semel batches events"),
        ("semel adopt nonsense", 2, "semel validate"),
    ],
)
def test_what_is_not_there(shell: Shell, line: str, code: int, step: str) -> None:
    """The next command shows what is there, and succeeds."""
    shell.bench.spec()
    shell.bench.write("in/a.jsonl", events(0, 10))
    shell.runs("semel run events")
    assert shell.fails(line, code) == step
    shell.runs(step)


def test_json_has_it_as_a_field(shell: Shell) -> None:
    """One object, whose `next` is the command alone."""
    shell.bench.spec()
    assert '"next": "semel batches"' in shell.runs("semel show 99 --json", code=1)


def test_a_declaration_that_is_wrong(shell: Shell) -> None:
    """validate says the same of the file, and is content once that is corrected."""
    shell.bench.spec()
    path = shell.bench.pipelines / "events.yaml"
    right = path.read_text(encoding="utf-8")
    path.write_text(right.replace("record_id", "record_ids"), encoding="utf-8")
    step = shell.fails("semel run events")
    assert step == f"semel validate {path}"
    assert "did you mean record_id?" in shell.runs(step, code=1)
    path.write_text(right, encoding="utf-8")
    shell.runs(step)


def test_a_run_without_an_interval(shell: Shell) -> None:
    """It names one that can be run: yesterday's."""
    shell.bench.spec(source=DAYS)
    shell.runs(shell.fails("semel run events"))


def test_a_pipeline_that_never_planned(shell: Shell) -> None:
    """accept needs a first run."""
    shell.bench.spec()
    path = shell.bench.write("in/a.jsonl", events(0, 10))
    step = shell.fails(f"semel accept events {path}")
    assert step == "semel run events"
    shell.runs(step)
    assert settled(shell.bench.spec()).ids == ids(0, 10)


def test_nothing_to_read_where_that_fails(shell: Shell) -> None:
    """gaps shows what is there: here nothing, which is right."""
    shell.bench.spec(source={"on_empty": "fail"})
    step = shell.fails("semel run events")
    assert step == "semel gaps events"
    shell.runs(step)


def test_a_refused_file_of_an_interval(shell: Shell) -> None:
    """gaps names the command that accepts it; then the run succeeds, and all is there."""
    shell.bench.spec(source=DAYS)
    run = "semel run events --interval 2026-01-03 2026-01-04"
    path = shell.bench.write("in/2026-01-03.jsonl", events(0, 10))
    shell.runs(run)
    path.write_bytes(b"")
    shell.bench.write("in/2026-01-03.jsonl", events(20, 25))
    step = shell.fails(run)
    assert step == "semel gaps events"
    advised(shell.ledger, shell.runs(step, code=1))
    shell.capsys.readouterr()
    shell.runs(run)
    shell.runs(step)


def test_too_many_bad_records(shell: Shell) -> None:
    """The same command again, once the file is corrected."""
    spec = shell.bench.spec(limits={"quarantine_ratio_max": 0.1}, source=NUMBERS)
    shell.bench.write("in/a.jsonl", events(0, 8))
    step = shell.fails("semel run events")
    shell.bench.write("in/a.jsonl", [{"id": one["id"], "n": True} for one in events(0, 8)])
    shell.runs(step)
    assert settled(spec).ids == ids(0, 8)


def test_a_file_that_is_away(shell: Shell) -> None:
    """The same command again, once the file is back."""
    spec = shell.bench.spec()
    path = shell.bench.write("in/a.jsonl", events(0, 8))
    plan(shell.ledger, spec, "cli")
    away = path.rename(shell.bench.folder / path.name)
    step = shell.fails("semel run events")
    away.rename(path)
    shell.runs(step)
    assert settled(spec).ids == ids(0, 8)


def test_a_file_that_a_batch_has_claimed(shell: Shell) -> None:
    """accept waits for its batch; once that is abandoned, the same accept is taken."""
    spec = shell.bench.spec()
    path = shell.bench.write("in/a.jsonl", events(0, 8))
    batch = plan(shell.ledger, spec, "r1").batch.batch_id
    path.unlink()
    shell.bench.write("in/b.jsonl", events(20, 30))
    plan(shell.ledger, spec, "r2")
    step = shell.fails(f"semel accept events {path} --lost")
    assert step == f"semel abandon {batch}"
    shell.runs(step)


def test_a_new_ledger_beside_an_old_sink(shell: Shell) -> None:
    """adopt takes over what is there; then the run goes on."""
    spec = shell.bench.spec()
    shell.bench.write("in/a.jsonl", events(0, 8))
    shell.runs("semel run events")
    lose(shell.ledger)
    step = shell.fails("semel run events")
    assert step == "semel adopt events"
    shell.runs(step)
    shell.bench.write("in/b.jsonl", events(4, 12))
    shell.runs("semel run events")
    assert settled(spec).ids == ids(0, 12)


def test_files_of_a_committed_batch_that_were_damaged(shell: Shell) -> None:
    """The same command again, once they are restored."""
    spec = shell.bench.spec()
    shell.bench.write("in/a.jsonl", events(0, 8))
    batch = committed(shell.ledger, spec, "cli")
    with shell.ledger.transaction() as connection:
        of = "SELECT staged_path FROM semel.manifest_file WHERE batch_id = %s AND kind = 'data'"
        path = Path(connection.exec_driver_sql(of, (batch,)).scalar())
    kept = path.read_bytes()
    path.write_bytes(b"damaged")
    step = shell.fails("semel run events")
    path.write_bytes(kept)
    shell.runs(step)
    assert settled(spec).ids == ids(0, 8)


def no_spark(*_: object) -> _Opened:
    raise UnavailableError("Spark does not answer")


def test_no_ledger(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """check says what is wrong with it."""
    shell.bench.spec()
    monkeypatch.setenv("SEMEL_LEDGER_DSN", "postgresql://nobody@127.0.0.1:1/none")
    assert shell.fails("semel batches") == "semel check"
    assert shell.fails("semel gaps events") == "semel check events"
    monkeypatch.setattr(check, "open_engine", no_spark)
    assert "ledger" in shell.runs("semel check events", code=1)


def test_a_database_that_is_no_ledger_yet(
    shell: Shell, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """migrate makes it one."""
    shell.bench.spec()
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
    doing = told.doing(context, spec.name, batch, raised.value)
    told.failed(SimpleNamespace(error=log.append), raised.value, doing)
    return log


def test_a_task_of_an_abandoned_batch(shell: Shell) -> None:
    """Its run is cleared whole: the same request plans its batch anew, and is finalized."""
    from semel.abandon import abandon

    spec = shell.bench.spec()
    shell.bench.write("in/a.jsonl", events(0, 8))
    key = "airflow:events:manual__1"
    batch = plan(shell.ledger, spec, key).batch.batch_id
    abandon(shell.ledger, batch, "by hand")
    lines = said(lambda: stage(shell.ledger, spec, batch, LocalEngine()), spec, "stage", batch)
    assert lines[-1] == "next: clear the whole run"
    shell.runs(f"semel run events --request {key}")
    assert settled(spec).ids == ids(0, 8)


def test_a_task_without_a_ledger(shell: Shell) -> None:
    """An outage names the check of the pipeline."""
    spec = shell.bench.spec()
    away = Ledger("postgresql://nobody@127.0.0.1:1/none")
    lines = said(lambda: plan(away, spec, "r1"), spec, "plan", None)
    assert lines[-1] == "next: semel check events"


SILENT = "UPDATE semel.batch SET seen_at = now() - interval '2 hours'"


@pytest.mark.parametrize("source", [{}, DAYS])
@pytest.mark.parametrize("state", ["planned", "committed"])
def test_a_batch_whose_run_is_gone(shell: Shell, source: dict, state: str) -> None:
    """gaps names what goes on with it, by its own request and interval; then all is finalized."""
    spec = shell.bench.spec(source=source)
    shell.bench.write("in/2026-01-03.jsonl", events(0, 8))
    day = (datetime(2026, 1, 3, tzinfo=UTC), datetime(2026, 1, 4, tzinfo=UTC))
    key = "airflow:events:it's gone"
    batch = plan(shell.ledger, spec, key, day).batch.batch_id
    if state == "committed":
        stage(shell.ledger, spec, batch, LocalEngine(), quiet)
        commit(shell.ledger, spec, batch, lambda: None, quiet)
    with shell.ledger.transaction() as connection:
        connection.exec_driver_sql(SILENT)
        if state == "committed":
            connection.exec_driver_sql(SILENT.replace("seen_at", "committed_at"))
    *_, step = shell.runs("semel gaps events", code=1).splitlines()
    shell.runs(step.removeprefix("next: "))
    shell.runs("semel gaps events")
    assert settled(spec).ids == ids(0, 8)


def test_what_has_arrived_and_is_in_no_batch(shell: Shell) -> None:
    """gaps names the run that takes it."""
    shell.bench.spec()
    shell.bench.write("in/a.jsonl", events(0, 8))
    *_, step = shell.runs("semel gaps events", code=1).splitlines()
    shell.runs(step.removeprefix("next: "))
    shell.runs("semel gaps events")


def test_an_audit_that_fails(shell: Shell) -> None:
    """It names a batch that is broken, to look at."""
    spec = shell.bench.spec()
    shell.bench.write("in/a.jsonl", events(0, 8))
    shell.runs("semel run events")
    next(spec.sink_path().rglob("events-*.parquet")).unlink()
    *_, step = shell.runs("semel audit events", code=1).splitlines()
    assert step == "next: semel show 1"
    assert "file: data" in shell.runs(step.removeprefix("next: "))
