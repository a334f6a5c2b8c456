"""A ledger and a sink that the version before made: after `semel migrate` all goes on."""

import json
from contextlib import suppress

import pytest

from fix_account import committed, ids, quiet
from fix_engine import LocalEngine
from fix_pipelines import Workbench, events
from fix_postgres import lose
from semel.abandon import abandon
from semel.adopt import adopt
from semel.errors import RetryableError
from semel.ledger import Ledger
from semel.ledger.migrate import migrate
from semel.plan import plan
from semel.reader import dataset
from semel.run import run_batch
from semel.sinks import archive
from semel.spec.pipeline import Spec
from semel.stage import stage


def run(ledger: Ledger, spec: Spec, key: str):
    return run_batch(ledger, spec, key, LocalEngine(), log=quiet)


def as_revision_6(ledger: Ledger, spec: Spec) -> None:
    """Take the ledger and the markers back to what 0006 had."""
    with ledger.transaction() as connection:
        for statement in (
            "ALTER TABLE semel.pipeline DROP COLUMN archive_path",
            "ALTER TABLE semel.pipeline RENAME COLUMN sink_address TO sink_path",
            "ALTER TABLE semel.pipeline RENAME CONSTRAINT pipeline_sink_address_not_null"
            " TO pipeline_sink_path_not_null",
            "CREATE TABLE semel_alembic (version_num varchar(32) PRIMARY KEY)",
            "INSERT INTO semel_alembic VALUES ('0006')",
        ):
            connection.exec_driver_sql(statement)
    for path in archive.markers(archive.of(spec)).iterdir():
        marker = json.loads(path.read_text())
        marker["format"] = 2
        del marker["sink"]
        for file in marker["files"]:
            if file.pop("root") == "archive":
                file["path"] = f"_semel/{file['path']}"
        path.write_text(json.dumps(marker))


@pytest.fixture
def old(bench: Workbench, ledger: Ledger) -> Spec:
    """A pipeline with batches in every state, as the version before left it."""
    (bench.data / "out" / "events" / "_semel").mkdir(parents=True)
    spec = bench.spec()
    bench.write("in/a.jsonl", [*events(0, 10), *events(0, 3)])
    run(ledger, spec, "finalized")
    bench.write("in/b.jsonl", events(5, 20))
    committed(ledger, spec, "committed")
    bench.write("in/c.jsonl", events(20, 30))
    staged = plan(ledger, spec, "staged").batch.batch_id
    stage(ledger, spec, staged, LocalEngine(), log=quiet)
    bench.write("in/d.jsonl", events(30, 40))
    abandon(ledger, plan(ledger, spec, "abandoned").batch.batch_id, "by hand")
    lost = plan(ledger, spec, "lost").batch.batch_id

    def fails(_: object) -> None:
        raise RetryableError("the engine failed")

    with suppress(RetryableError):
        stage(ledger, spec, lost, LocalEngine(before_write=fails), log=quiet)
    bench.write("in/e.jsonl", events(40, 50))
    plan(ledger, spec, "planned")
    as_revision_6(ledger, spec)
    return spec


def test_batches_in_every_state_go_on(bench: Workbench, ledger: Ledger, old: Spec) -> None:
    """Each run of before ends, none of them twice; the archive stays where it was."""
    assert migrate(ledger.dsn) == "0007"
    for key in ("finalized", "committed", "staged", "abandoned", "lost", "planned"):
        run(ledger, old, key)
    sink = old.sink_path()
    assert archive.of(old) == sink / "_semel"
    assert sorted(dataset(sink).to_table().column("id").to_pylist()) == ids(0, 50)
    bench.write("in/f.jsonl", events(45, 60))
    run(ledger, old, "new")
    assert sorted(dataset(sink).to_table().column("id").to_pylist()) == ids(0, 60)


def test_markers_of_both_formats_are_adopted(
    bench: Workbench, ledger: Ledger, old: Spec
) -> None:
    """What formats 2 and 3 say of a sink goes together; nothing is read twice."""
    migrate(ledger.dsn)
    run(ledger, old, "committed")
    lose(ledger)
    assert adopt(ledger, old, log=quiet).batches == 2
    run(ledger, old, "new")
    assert sorted(dataset(old.sink_path()).to_table().column("id").to_pylist()) == ids(0, 50)
