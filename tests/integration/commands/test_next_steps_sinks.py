"""Steps of sinks, typed: each works once its message was followed."""

import json

import pytest

from fixtures.batches.account import committed, ids, run
from fixtures.batches.faults import dies_at
from fixtures.batches.workbench import Workbench, events
from fixtures.bigquery.outlet import EVENTS, NAME, OWN, BigTable
from fixtures.bigquery.server import FakeBigQuery
from fixtures.commands.shell import Shell
from fixtures.delta.outlet import Delta
from fixtures.kafka.broker import Kafka
from fixtures.kafka.outlet import Outlet
from fixtures.objects.outlet import Prefix
from fixtures.objects.s3 import S3
from fixtures.postgres.warehouse import TABLE, Warehouse
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.sinks.objects.notes import MARKERS

KEEP = """CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER keep BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION keep()"""


def ready(bench: Workbench, ledger: Ledger, sink: dict, at: str = "") -> Spec:
    """A pipeline whose one batch has committed, and maybe died at a point of finalize."""
    spec = bench.spec(sink=sink)
    bench.write("in/a.jsonl", events(0, 10))
    batch = committed(ledger, spec, "cli")
    if at:
        with dies_at(at):
            finalize(ledger, spec, batch)
    return spec


def landed(table: Warehouse) -> list[str]:
    return [name for (name,) in table.run("SELECT id FROM events ORDER BY 1")]


def test_a_table_that_refuses_rows(
    bench: Workbench, ledger: Ledger, table: Warehouse, shell: Shell
) -> None:
    """The same run lands them once the table takes them."""
    first = bench.spec(sink=TABLE)
    bench.write("in/0.jsonl", events(20, 21))
    run(ledger, first, "r1")
    ready(bench, ledger, TABLE)
    table.run("ALTER TABLE events ADD CONSTRAINT few CHECK (n > 5)")
    step = shell.fails("semel run events")
    table.run("ALTER TABLE events DROP CONSTRAINT few")
    shell.runs(step)
    assert landed(table) == ids(0, 10) + ids(20, 21)


def test_a_note_that_was_removed(
    bench: Workbench, ledger: Ledger, table: Warehouse, shell: Shell
) -> None:
    """The same run lands the rows once those without the note were taken out."""
    run(ledger, bench.spec(sink=TABLE), "r1")
    bench.write("in/0.jsonl", events(20, 21))
    run(ledger, bench.spec(sink=TABLE), "r2")
    ready(bench, ledger, TABLE, "sink.after_publish")
    table.run("DELETE FROM semel_batch WHERE batch_id = 2")
    step = shell.fails("semel run events")
    table.run("DELETE FROM events WHERE _semel_batch = 2")
    shell.runs(step)
    assert landed(table) == ids(0, 10) + ids(20, 21)


def test_rows_that_a_trigger_keeps(
    bench: Workbench, ledger: Ledger, table: Warehouse, shell: Shell
) -> None:
    """The same replay is done once the table lets the old rows go."""
    run(ledger, ready(bench, ledger, TABLE), "cli")
    table.run(KEEP)
    step = shell.fails("semel replay events --batches 1")
    table.run("DROP TRIGGER keep ON events")
    shell.runs(step)
    assert landed(table) == ids(0, 10)
    assert {batch for (batch,) in table.run("SELECT _semel_batch FROM events")} == {2}


def test_rows_that_somebody_removed(
    bench: Workbench, ledger: Ledger, table: Warehouse, shell: Shell
) -> None:
    """A replay puts them in again."""
    run(ledger, ready(bench, ledger, TABLE), "cli")
    table.run("DELETE FROM events WHERE n > 7")
    shell.runs(shell.fails("semel find events e000003"))
    assert landed(table) == ids(0, 10)
    shell.runs("semel find events e000003")


def test_a_table_of_an_earlier_time(
    bench: Workbench, ledger: Ledger, table: Warehouse, shell: Shell
) -> None:
    """A replay puts in again what the table lacks; then the run goes on."""
    run(ledger, ready(bench, ledger, TABLE), "cli")
    bench.write("in/b.jsonl", events(10, 20))
    run(ledger, bench.spec(sink=TABLE), "r2")
    table.run("DELETE FROM events WHERE _semel_batch = 2")
    table.run("DELETE FROM semel_batch WHERE batch_id = 2")
    bench.write("in/c.jsonl", events(20, 30))
    shell.runs(shell.fails("semel run events"))
    shell.runs("semel run events")
    assert landed(table) == ids(0, 30)


def test_a_delta_table_that_was_restored(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The same run ends once a version with the batch's rows is back."""
    place = Delta(bench)
    bench.write("in/0.jsonl", events(20, 21))
    run(ledger, bench.spec(sink=place.declared), "r1")
    ready(bench, ledger, place.declared, "sink.after_delta")
    version = place.table.version()
    place.table.restore(version - 1)
    step = shell.fails("semel run events")
    place.table.restore(version)
    shell.runs(step)


def test_a_load_job_that_failed(
    bench: Workbench, ledger: Ledger, bigquery: FakeBigQuery, shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The same run inserts another one once the table takes the rows."""
    place = BigTable(bench, bigquery, monkeypatch)
    ready(bench, ledger, place.declared)
    bigquery.fails = [("invalid", "the table has another column")]
    step = shell.fails("semel run events")
    bigquery.alter(NAME, {**EVENTS, **OWN})
    shell.runs(step)
    assert [name for _, name in place.rows()] == ids(0, 10)


def test_a_topic_that_takes_smaller_messages(
    bench: Workbench, ledger: Ledger, outlet: Outlet, kafka: Kafka, shell: Shell
) -> None:
    """The same run lands the rows once the limit is raised."""
    outlet.make()
    servers = kafka.broker.bootstrap
    sink = {"type": "kafka", "bootstrap_servers": servers, "topic": outlet.topic, "key": "id"}
    long = {**events(0, 1)[0], "id": "x" * 5000}
    bench.write("in/long.jsonl", [long])
    ready(bench, ledger, sink)
    kafka.configure(outlet.topic, "max.message.bytes", "2000")
    step = shell.fails("semel run events")
    kafka.configure(outlet.topic, "max.message.bytes", "100000")
    shell.runs(step)
    assert outlet.ids == [*ids(0, 10), long["id"]]


def test_an_object_in_the_place_of_a_marker(
    bench: Workbench, ledger: Ledger, s3: S3, shell: Shell
) -> None:
    """The same run puts the copy there once the object is removed."""
    place = Prefix(bench, s3)
    ready(bench, ledger, place.declared)
    key = f"{place.prefix}/{MARKERS}/b00000001.json"
    s3.put(place.bucket, key, b"somebody's")
    step = shell.fails("semel run events")
    s3.delete(place.bucket, key)
    shell.runs(step)
    assert json.loads(s3.get(place.bucket, key))["batch_id"] == 1
