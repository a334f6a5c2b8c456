"""Steps of the archive, commit, finalize, compare and repairs, typed: each works once its message
was followed. `steps.txt` lists all.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from types import SimpleNamespace

import pytest

import steps
from fixtures.batches.account import committed, first_batch, ids, quiet, run, settled, sql
from fixtures.batches.chains import again, link
from fixtures.batches.faults import dies_at
from fixtures.batches.replays import aside, two_batches, waiting
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.contract.sources import Upstream
from fixtures.postgres.warehouse import TABLE, UPSERT, Warehouse
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.airflow import told
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
    path = layout.marker(layout.of(spec), 1)
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
    path = layout.marker(layout.of(spec), 1)
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
    content = json.loads(layout.marker(layout.of(spec), 1).read_text())
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
    staging = layout.staging(layout.of(spec))
    with failpoints.armed("finalize.before_rename", lambda: shutil.rmtree(staging)):
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
    assert "has claimed other content" in shell.err
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
    doing = told.doing(context, spec.name, batch, raised.value)
    told.failed(SimpleNamespace(error=log.append), raised.value, doing)
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
    layout.marker(layout.of(spec), 1).unlink()
    [path] = layout.of(spec).glob("claims/*")
    path.write_bytes(b"not ours")
    step = shell.fails("semel run events")
    path.unlink()
    shell.runs(step)
    assert settled(spec).counts.survivors == write_marker.CLAIMS_IN_MARKER_MAX + 1


def test_a_marker_that_was_damaged(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The audit says which, and what else is broken."""
    spec = first_batch(bench, ledger, events(0, 8))
    path = layout.marker(layout.of(spec), 1)
    path.write_text("{")
    step = shell.fails("semel letters events")
    assert path.name in shell.runs(step, code=1)


@pytest.mark.parametrize("what", ["output", "decisions"])
def test_a_compare_of_damaged_files(
    bench: Workbench, ledger: Ledger, shell: Shell, what: str
) -> None:
    """The audit names the batch whose file it is."""
    spec = two_batches(bench, ledger)
    root = spec.sink_path() if what == "output" else layout.of(spec) / what
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
