"""Steps of the archive, commit, finalize, compare and repairs, typed: each works once its message
was followed. `steps.txt` lists all.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

import steps
from fixtures.batches.account import committed, first_batch, ids, quiet, run, settled, sql
from fixtures.batches.chains import again, link
from fixtures.batches.faults import dies_at
from fixtures.batches.replays import (
    admitted, aside, replayed, two_batches, waiting, with_letters,
)  # fmt: skip
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.contract.sources import Upstream
from fixtures.files.rights import no_overrides
from fixtures.postgres.server import database, lose
from fixtures.postgres.warehouse import TABLE, UPSERT, Warehouse
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.airflow import task_failure
from semel.archive import layout, write_marker
from semel.errors import SemelError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.repair.exact import exact
from semel.stage import stage

REPLAY = "semel replay events --batches 1 --request again"


def test_a_marker_of_another_attempt(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """show has the attempt that won, to compare with; the run ends once that one's is back."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 8))
    with dies_at("finalize.after_mark"):
        run(ledger, spec, "cli")
    path = layout.marker(layout.archive_folder(spec), 1)
    right = path.read_text()
    path.write_text(json.dumps(json.loads(right) | {"fence": 2}))
    step = shell.fails("semel run events")
    assert "fence 1, status won" in shell.runs(step)
    path.write_text(right)
    shell.runs("semel run events")
    assert settled(spec).ids == ids(0, 8)


@pytest.mark.parametrize("how", ["gone", "another pipeline's"])
def test_a_marker_that_a_replay_is_to_replace(
    bench: Workbench, ledger: Ledger, shell: Shell, how: str
) -> None:
    """The same replay goes on once the marker is restored."""
    spec = first_batch(bench, ledger, events(0, 8))
    path = layout.marker(layout.archive_folder(spec), 1)
    right = path.read_text()

    def harm() -> None:
        path.unlink()
        if how != "gone":
            path.write_text(json.dumps(json.loads(right) | {"pipeline": "others"}))

    with failpoints.armed("finalize.after_publish", harm):
        step = shell.fails(REPLAY)
    path.write_text(right)
    shell.runs(step)
    assert settled(spec).ids == ids(0, 8)


def test_a_marker_that_is_kept_aside_already(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """The same replay goes on once what has its name is moved away."""
    spec = first_batch(bench, ledger, events(0, 8))
    path = aside(spec, 1, 1)
    content = json.loads(layout.marker(layout.archive_folder(spec), 1).read_text())
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content | {"files": []}))
    step = shell.fails(REPLAY)
    assert str(path) in shell.err
    path.rename(bench.folder / path.name)
    shell.runs(step)
    assert settled(spec).ids == ids(0, 8)


def test_an_attempt_whose_folder_is_gone(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The same replay goes on once the folder that the message names is there."""
    spec = first_batch(bench, ledger, events(0, 8), sink={"path": "out/of events"})
    staging = layout.staging(layout.archive_folder(spec))
    with failpoints.armed("storage.before_swap", lambda: shutil.rmtree(staging)):
        step = shell.fails(REPLAY)
    [command] = re.findall("mkdir -p .*", shell.err)
    subprocess.run(["bash", "-c", command], check=True)
    shell.runs(step)
    assert settled(spec).ids == ids(0, 8)


def test_a_batch_that_is_abandoned_before_its_commit(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """The same run plans its records in a new batch."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 8))
    with failpoints.armed("stage.after_seal", lambda: abandon(ledger, 1, "by hand")):
        step = shell.fails("semel run events")
    shell.runs(step)
    assert settled(spec).ids == ids(0, 8)


def test_a_guarantee_that_changes_before_a_commit(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """The same run plans its records again, exactly once."""
    bench.spec(guarantee="at_least_once")
    bench.write("in/a.jsonl", events(0, 8))
    shell.runs("semel run events")
    bench.write("in/b.jsonl", events(4, 12))
    with failpoints.armed("commit.before_compare", lambda: exact(ledger, bench.spec(), log=quiet)):
        step = shell.fails("semel run events")
    shell.runs(step)
    assert settled(bench.spec()).ids == ids(0, 12)


def test_claimed_content_that_is_replaced_before_a_commit(
    linked: Upstream, ledger: Ledger, shell: Shell
) -> None:
    """The same run plans the batch again, with the content that is there."""
    linked.append(0, 10)
    spec = link(linked, "events", "up")

    def replaced() -> None:
        again(linked, 5)
        content = json.dumps({"content": "another"})
        other = "UPDATE semel.source_partition SET evidence = evidence || CAST(:new AS jsonb)"
        sql(ledger, other, new=content)

    with failpoints.armed("commit.before_compare", replaced):
        step = shell.fails("semel run events")
    assert "that was replaced since" in shell.err
    shell.runs(step)
    assert settled(spec).ids == ids(0, 5)


def test_finalize_of_a_batch_that_never_committed(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """The whole run is cleared: its request plans the records in a new batch."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 8))
    batch = plan(ledger, spec, "airflow:events:manual__1").batch.batch_id
    abandon(ledger, batch, "by hand")
    step = step_of_a_task(lambda: finalize(ledger, spec, batch), spec, "finalize", batch)
    assert step == "clear the whole run"
    shell.runs("semel run events --request airflow:events:manual__1")
    steps.typed_in_a_shell(step)
    assert settled(spec).ids == ids(0, 8)


def test_an_attempt_that_lost(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """show has the attempt that won in its place."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 8))
    batch = plan(ledger, spec, "r1").batch.batch_id
    rival = LocalEngine(before_write=lambda _: run(ledger, spec, "r1"))
    step = step_of_a_task(lambda: stage(ledger, spec, batch, rival, quiet), spec, "stage", batch)
    assert "fence 2, status won" in shell.runs(step)
    assert settled(spec).ids == ids(0, 8)


def step_of_a_task(verb: Callable[[], object], spec: Spec, task: str, batch: int) -> str:
    """The last line that a task of a DAG run logs that fails so."""
    log: list[str] = []
    with pytest.raises(SemelError) as raised:
        verb()
    context = {
        "ti": SimpleNamespace(try_number=1, max_tries=0),
        "task": SimpleNamespace(task_id=task),
    }
    doing = task_failure.retry_steps(context, spec.name, batch, raised.value)
    task_failure.log_failure(SimpleNamespace(error=log.append), raised.value, doing)
    return log[-1].removeprefix("next: ")


def test_a_file_that_is_replaced_while_it_is_read(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """The same run plans what is there now."""
    spec = bench.spec()
    path = bench.write("in/a.jsonl", events(0, 8))

    def replaced() -> None:
        path.unlink()
        bench.write("in/a.jsonl", events(20, 28))

    with failpoints.armed("stage.after_folders", replaced):
        step = shell.fails("semel run events")
    shell.runs(step)
    assert settled(spec).ids == ids(20, 28)


def test_a_file_of_claims_that_is_another(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The audit knows nothing of a batch without a marker: the same run ends once it is removed."""
    spec = bench.spec()
    for number in range(write_marker.CLAIMS_IN_MARKER_MAX + 1):
        bench.write(f"in/{number}.jsonl", events(number, number + 1))
    with dies_at("finalize.after_mark"):
        run(ledger, spec, "cli")
    layout.marker(layout.archive_folder(spec), 1).unlink()
    [path] = layout.archive_folder(spec).glob("claims/*")
    path.write_bytes(b"not ours")
    step = shell.fails("semel run events")
    path.unlink()
    shell.runs(step)
    assert settled(spec).counts.survivors == write_marker.CLAIMS_IN_MARKER_MAX + 1


def test_a_marker_that_was_damaged(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The audit says which, and what else is broken."""
    spec = first_batch(bench, ledger, events(0, 8))
    path = layout.marker(layout.archive_folder(spec), 1)
    path.write_text("{")
    step = shell.fails("semel letters events")
    assert path.name in shell.runs(step, code=1)


@pytest.mark.parametrize("what", ["output", "decisions"])
def test_a_compare_of_damaged_files(
    bench: Workbench, ledger: Ledger, shell: Shell, what: str
) -> None:
    """The audit names the batch whose file it is."""
    spec = two_batches(bench, ledger)
    root = spec.sink_path() if what == "output" else layout.archive_folder(spec) / what
    [path] = root.glob("*b00000002*")
    path.write_bytes(path.read_bytes()[:-20])
    step = shell.fails("semel compare events --batches 1..2")
    assert f"{path.name}" in shell.runs(step, code=1)


def test_a_compare_whose_table_takes_no_batch(
    bench: Workbench, ledger: Ledger, shell: Shell, table: Warehouse
) -> None:
    """The same compare ends once the table is as semel needs it."""
    first_batch(bench, ledger, events(0, 8), sink=TABLE)
    table.run("ALTER TABLE events SET UNLOGGED")
    step = shell.fails("semel compare events --batches 1")
    table.run("ALTER TABLE events SET LOGGED")
    assert "equal" in shell.runs(step)


def test_a_compare_of_rows_that_were_replaced(
    bench: Workbench, ledger: Ledger, shell: Shell, table: Warehouse
) -> None:
    """Rows of an upsert are proven by the audit."""
    first_batch(bench, ledger, events(0, 8), sink={**TABLE, **UPSERT, "key": ["id"]})
    assert "passed" in shell.runs(shell.fails("semel compare events --batches 1"))


def test_a_compare_beside_a_replay(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The replay is shown; once it is finalized, the batch is compared."""
    spec = first_batch(bench, ledger, events(0, 8))
    number = waiting(ledger, spec, 1, "again")
    step = shell.fails("semel compare events --batches 1")
    assert f"batch_id: {number}" in shell.runs(step)
    finalize(ledger, spec, number)
    shell.runs("semel compare events --batches 1")


def test_a_compare_of_rows_that_a_table_refused(
    bench: Workbench, ledger: Ledger, shell: Shell, table: Warehouse
) -> None:
    """The refused rows are listed."""
    spec = bench.spec(sink=TABLE)
    bench.write("in/a.jsonl", events(0, 8))
    committed(ledger, spec, "r1")
    table.run("CREATE TABLE events (id text, n bigint CHECK (n < 7), at timestamptz, "
              "_semel_batch bigint, _semel_seq bigint)")  # fmt: skip
    shell.runs("semel accept events --refused 1")
    assert "e000007" in shell.runs(shell.fails("semel compare events --batches 1"))


def test_a_compare_of_erased_rows(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The batch's account has who erased how many, and why."""
    spec = first_batch(bench, ledger, events(0, 8))
    next(iter(spec.sink_path().glob("*.parquet"))).unlink()
    shell.runs("semel accept events --erased 1 --rows 8 --why 'ticket 4711'")
    assert "ticket 4711" in shell.runs(shell.fails("semel compare events --batches 1"))


def test_a_compare_of_another_guarantee(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The batches are listed; those since the change are compared."""
    first_batch(bench, ledger, events(0, 8), guarantee="at_least_once")
    bench.spec()
    shell.runs("semel exact events")
    bench.write("in/b.jsonl", events(4, 12))
    shell.runs("semel run events")
    lines = shell.runs(shell.fails("semel compare events --batches 1..2")).splitlines()
    assert [line.split()[0] for line in lines if line.split()[0].isdigit()] == ["2", "1"], lines
    shell.runs("semel compare events --batches 2")


def test_a_declaration_that_cannot_be_read(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """validate is content once the file's rights are back."""
    bench.spec()
    path = bench.pipelines / "events.yaml"
    path.chmod(0o000)
    with no_overrides():
        step = shell.fails("semel run events")
    path.chmod(0o644)
    shell.runs(step)


def test_a_sink_that_is_declared_elsewhere(
    bench: Workbench, ledger: Ledger, shell: Shell, table: Warehouse
) -> None:
    """The same run goes on once the declaration is put back."""
    first_batch(bench, ledger, events(0, 8), sink=TABLE)
    bench.write("in/b.jsonl", events(8, 10))
    bench.spec(sink={**TABLE, "table": "others"})
    step = shell.fails("semel run events")
    bench.spec(sink=TABLE)
    shell.runs(step)
    assert table.run("SELECT count(*) FROM events") == [(10,)]


def test_a_batch_that_is_abandoned_already(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """It is shown, with who gave it up."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 8))
    plan(ledger, spec, "r1")
    shell.runs("semel abandon 1 --reason 'ticket 4711'")
    assert "ticket 4711" in shell.runs(shell.fails("semel abandon 1"))


def test_a_sink_that_moves_beside_a_batch(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The batch is listed that is to be finished first; then the sink moves."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 8))
    batch = plan(ledger, spec, "r1").batch.batch_id
    bench.spec(sink={"path": "out/others"})
    assert f"{batch} " in shell.runs(shell.fails("semel run events"))
    bench.spec()
    shell.runs("semel run events --request r1")
    spec = bench.spec(sink={"path": "out/others"})
    for folder in ("out/events", "out/_semel/events"):
        (bench.data / folder).rename(bench.data / folder.replace("events", "others"))
    bench.write("in/b.jsonl", events(8, 10))
    shell.runs("semel run events")
    assert settled(spec).ids == ids(0, 10)


@pytest.fixture
def lose_for(postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Makes an empty database the ledger of commands. Returns its address."""
    with ExitStack() as made:

        def lose_it() -> str:
            monkeypatch.setenv("SEMEL_LEDGER_DSN", dsn := made.enter_context(database(postgres)))
            return dsn

        yield lose_it


def test_batches_of_another_ledger(
    bench: Workbench,
    ledger: Ledger,
    shell: Shell,
    lose_for: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An empty database is made a ledger, and takes over all of them."""
    first_batch(bench, ledger, events(0, 8))
    lose_for()
    shell.runs("semel migrate")
    shell.runs("semel adopt events")
    bench.write("in/b.jsonl", events(8, 10))
    with monkeypatch.context() as patch:
        patch.setenv("SEMEL_LEDGER_DSN", ledger.dsn)
        shell.runs("semel run events")
    step = shell.fails("semel adopt events")
    assert "has markers of batch 2 that this ledger does not have" in shell.err
    lose_for()
    shell.runs(step)
    assert "2 batches" in shell.runs("semel adopt events")


def test_numbers_that_another_pipeline_has(
    bench: Workbench, ledger: Ledger, shell: Shell, lose_for: Callable[[], str]
) -> None:
    """An empty database is made the ledger of the one pipeline; the other keeps its own."""
    spec, visits = first_batch(bench, ledger, events(0, 8)), bench.spec("visits")
    lose_for()
    shell.runs("semel migrate")
    shell.runs("semel run visits")
    step = shell.fails("semel adopt events")
    assert "batch 1 to 'visits'" in shell.err
    bench.write("in/b.jsonl", events(8, 10))
    shell.runs("semel run visits")
    lose_for()
    shell.runs(step)
    assert "1 batch" in shell.runs("semel adopt events")
    shell.runs("semel run events")
    assert settled(spec).ids == settled(visits).ids == ids(0, 10)


def edited(path: Path, **values: object) -> str:
    """Let a marker say something else. Returns its text before."""
    right = path.read_text()
    path.write_text(json.dumps(json.loads(right) | values))
    return right


def test_ids_that_nobody_has(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The same adopt ends once output or source is restored."""
    spec = first_batch(bench, ledger, events(0, 8))
    next(iter(spec.sink_path().glob("*.parquet"))).unlink()
    source = bench.data / "in/a.jsonl"
    source.rename(kept := bench.folder / "kept")
    lose(ledger)
    step = shell.fails("semel adopt events")
    kept.rename(source)
    assert "8 ids" in shell.runs(step)


APART: dict[str, dict[str, object]] = {
    "two ledgers": {"commit_seq": 1},
    "two claims": {},
    "damaged": {"counts": None},
}
"""What the second marker says that cannot be taken over; of two claims, those of the first."""


@pytest.mark.parametrize("how", APART)
def test_markers_that_cannot_be_taken_over(
    bench: Workbench, ledger: Ledger, shell: Shell, how: str
) -> None:
    """The same adopt ends once that marker is moved aside; then its records are read again."""
    spec = first_batch(bench, ledger, events(0, 8))
    bench.write("in/a.jsonl", events(8, 10), "ab")
    run(ledger, spec, "r2")
    lose(ledger)
    first, second = (layout.marker(layout.archive_folder(spec), n) for n in (1, 2))
    values = APART[how]
    if how == "two claims":
        values = {"claims": json.loads(first.read_text())["claims"]}
    edited(second, **values)
    step = shell.fails("semel adopt events")
    second.rename(bench.folder / second.name)
    assert "1 batch" in shell.runs(step)
    next(iter(spec.sink_path().glob("*b00000002*"))).unlink()
    shell.runs("semel run events")
    assert settled(spec).ids == ids(0, 10)


@pytest.mark.parametrize("how", ["gone", "counts", "another batch's"])
def test_a_replaced_marker_that_cannot_be_taken_over(
    bench: Workbench, ledger: Ledger, shell: Shell, how: str
) -> None:
    """The same adopt ends once it is restored."""
    spec = first_batch(bench, ledger, events(0, 8))
    replayed(ledger, spec, 1, "again")
    lose(ledger)
    path = aside(spec, 1, 1)
    plain = json.loads(path.read_text())
    right = edited(path, **{
        "counts": {"counts": plain["counts"] | {"survivors": 7}}, "another batch's": {"fence": 9},
    }.get(how, {}))  # fmt: skip
    if how == "gone":
        path.unlink()
    step = shell.fails("semel adopt events")
    path.write_text(right)
    assert "1 batch" in shell.runs(step)


def test_an_admission_whose_batch_has_no_marker(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """The same adopt ends once the marker of the batch is restored."""
    spec = with_letters(bench, ledger)
    admitted(ledger, spec)
    lose(ledger)
    path = layout.marker(layout.archive_folder(spec), 1)
    path.rename(kept := bench.folder / path.name)
    step = shell.fails("semel adopt events")
    kept.rename(path)
    assert "2 batches" in shell.runs(step)


def test_a_table_that_lacks_a_batch(
    bench: Workbench, ledger: Ledger, shell: Shell, table: Warehouse
) -> None:
    """The same adopt ends once its rows are restored, with their note."""
    first_batch(bench, ledger, events(0, 8), sink=TABLE)
    names = ("events", "semel_batch")
    for name in names:
        table.run(f"CREATE TABLE kept_{name} AS SELECT * FROM {name}")
        table.run(f"DELETE FROM {name}")
    lose(ledger)
    step = shell.fails("semel adopt events")
    for name in names:
        table.run(f"INSERT INTO {name} SELECT * FROM kept_{name}")
    assert "1 batch" in shell.runs(step)


@pytest.mark.parametrize("verb", ["run", "replay"])
def test_rows_that_landed_just_before_the_ledger_was_lost(
    bench: Workbench, ledger: Ledger, shell: Shell, table: Warehouse, verb: str
) -> None:
    """The same adopt ends once the statements of the message were run."""
    spec = first_batch(bench, ledger, events(0, 8), sink=TABLE)
    bench.write("in/b.jsonl", events(8, 10))
    with dies_at("finalize.after_publish"):
        run(ledger, spec, "r2") if verb == "run" else replayed(ledger, spec, 1, "again")
    lose(ledger)
    step = shell.fails("semel adopt events")
    if verb == "run":
        [statements] = re.findall("DELETE FROM .* IN .2.(?=;)", shell.err)
        for statement in statements.split("; "):
            table.run(statement)
    else:
        [change] = re.findall("SET _semel_batch = 1 WHERE _semel_batch = 2", shell.err)
        table.run(f"UPDATE events {change}")
        table.run("DELETE FROM semel_batch WHERE batch_id = 2")
    assert "1 batch" in shell.runs(step)
    shell.runs("semel run events")
    shell.runs("semel replay events --batches 1")
    assert table.run("SELECT count(*) FROM events") == [(10,)]


def test_a_changed_file_that_is_called_erased(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """The audit names the file that is another one, and passes once it is restored."""
    spec = first_batch(bench, ledger, events(0, 8))
    path = next(iter(spec.sink_path().glob("*.parquet")))
    right = path.read_bytes()
    pq.write_table(pq.read_table(path, partitioning=None), path, compression="none")
    step = shell.fails("semel accept events --erased 1 --rows 8 --why x")
    assert path.name in shell.runs(step, code=1)
    path.write_bytes(right)
    shell.runs(step)


def test_more_rows_than_a_batch_had(
    bench: Workbench, ledger: Ledger, shell: Shell, table: Warehouse
) -> None:
    """The audit names the replay that puts back what the batch made."""
    first_batch(bench, ledger, events(0, 8), sink=TABLE)
    table.run("INSERT INTO events SELECT * FROM events LIMIT 1")
    step = shell.fails("semel accept events --erased 1 --rows 1 --why x")
    *_, replay = shell.runs(step, code=1).splitlines()
    shell.runs(replay.removeprefix("next: "))
    assert table.run("SELECT count(*) FROM events") == [(8,)]


def test_ids_that_exact_cannot_find(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The same command ends once output or source is restored."""
    spec = first_batch(bench, ledger, events(0, 8), guarantee="at_least_once")
    next(iter(spec.sink_path().glob("*.parquet"))).unlink()
    source = bench.data / "in/a.jsonl"
    source.rename(kept := bench.folder / "kept")
    bench.spec()
    step = shell.fails("semel exact events")
    kept.rename(source)
    assert "the catalog has 8 ids of 1 batch" in shell.runs(step)


def test_a_file_in_the_place_of_one_of_ids(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The same command ends once it is moved aside."""
    spec = first_batch(bench, ledger, events(0, 8), guarantee="at_least_once")
    path = layout.ids_list(layout.archive_folder(spec), 1)
    path.parent.mkdir()
    path.write_text("mine")
    bench.spec(dedup={"keep_ids": True})
    step = shell.fails("semel exact events")
    path.rename(bench.folder / "aside")
    assert "the catalog has 8 ids of 1 batch" in shell.runs(step)


def test_ids_that_the_ledger_lost(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The audit reads no catalog: the same run ends once the table is restored."""
    spec = first_batch(bench, ledger, events(0, 8))
    bench.write("in/b.jsonl", events(4, 12))
    sql(ledger, "CREATE TABLE kept AS SELECT * FROM semel.ids_1 WHERE kind = 0")
    sql(ledger, "DELETE FROM semel.ids_1 WHERE kind = 0")
    step = shell.fails("semel run events")
    assert "are missing" in shell.err
    sql(ledger, "INSERT INTO semel.ids_1 SELECT * FROM kept")
    sql(ledger, "DROP TABLE kept")
    shell.runs(step)
    assert settled(spec).ids == ids(0, 12)


@pytest.mark.parametrize(("command", "first"), [("run", 4), ("run", 100), ("collect", 4)])
def test_a_table_of_ids_that_somebody_removed(
    bench: Workbench, ledger: Ledger, shell: Shell, command: str, first: int
) -> None:
    """A command that reads from it or only writes to it names the table. The command works again
    once the table is restored, or adopt has filled an empty ledger.
    """
    spec = first_batch(bench, ledger, events(0, 8))
    bench.write("in/b.jsonl", events(first, first + 8))
    sql(ledger, "ALTER TABLE semel.ids_1 SET SCHEMA public")
    step = shell.fails(f"semel {command} events")
    said = " ".join(shell.err.split())
    assert "semel.ids_1 is missing" in said
    assert "Restore the table from a backup of the ledger, or adopt the pipelines into an" in said
    assert step == f"semel {command} events"
    sql(ledger, "ALTER TABLE public.ids_1 SET SCHEMA semel")
    shell.runs(step)

    sql(ledger, "DROP TABLE semel.ids_1")
    shell.fails("semel collect events")
    lose(ledger)
    shell.runs("semel adopt events")
    bench.write("in/c.jsonl", events(0, 20))
    shell.runs("semel run events")
    assert settled(spec).ids == sorted({*ids(0, 20), *ids(first, first + 8)})
