"""What OpenLineage's provider gets of a finalize task, for a folder and for a table as the sink.

What then arrives at a receiver: tests/acceptance/test_h_own_airflow.py.
"""

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fixtures.airflow.tasks import Tasks
from fixtures.batches.account import committed
from fixtures.batches.workbench import Workbench, events
from fixtures.kafka.topics import Topic
from fixtures.postgres.warehouse import Warehouse
from semel.ledger import Ledger

KEY = "airflow:events:r1"
COLUMNS = [("id", "string"), ("n", "bigint"), ("at", "timestamp")]


def fields(dataset: Any) -> list[tuple[str, str]]:
    return [(field.name, field.type) for field in dataset.facets["schema"].fields]


def test_a_folder(bench: Workbench, ledger: Ledger, tasks: Tasks) -> None:
    """From the source's folder to the sink's: columns, rows, bytes, files, and the batch."""
    spec = bench.spec()
    bench.write("in/a.jsonl", [*events(0, 10), *events(0, 3), b"{broken"])
    batch = committed(ledger, spec, KEY)
    told = tasks.run("Finalize").get_openlineage_facets_on_complete(None)
    [source], [sink] = told.inputs, told.outputs
    assert (source.namespace, source.name) == ("file", str(bench.data / "in"))
    assert fields(source) == COLUMNS
    read = source.inputFacets["inputStatistics"]
    assert (read.rowCount, read.size) == (14, (bench.data / "in" / "a.jsonl").stat().st_size)
    assert (sink.namespace, sink.name) == ("file", str(bench.data / "out" / "events"))
    assert [name for name, _ in fields(sink)] == ["id", "n", "at"]
    files = [path for path in (bench.data / "out" / "events").rglob("*.parquet")]
    written = sink.outputFacets["outputStatistics"]
    assert (written.rowCount, written.fileCount) == (10, len(files))
    assert written.size == sum(path.stat().st_size for path in files)
    facet = told.run_facets["semel_batch"]
    assert (facet.batchId, facet.commitSeq, facet.requestKey) == (batch, 1, KEY)
    assert Path(facet.marker).is_file()
    assert facet.url.endswith(f"/semel/dags/events/batches/{batch}")


def test_a_table(
    bench: Workbench, ledger: Ledger, tasks: Tasks, warehouse: Warehouse,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It is named as OpenLineage names tables, without user and password; it has no files."""
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", warehouse.dsn)
    sink = {"type": "postgres", "connection": "warehouse", "table": "Öl.b", "create": True}
    warehouse.run('CREATE SCHEMA "Öl"')
    spec = bench.spec(sink=sink)
    bench.write("in/a.jsonl", events(0, 10))
    committed(ledger, spec, KEY)
    told = tasks.run("Finalize").get_openlineage_facets_on_complete(None)
    url = sa.make_url(warehouse.dsn)
    [out] = told.outputs
    assert out.namespace == f"postgres://{url.host}:{url.port}"
    assert out.name == f"{url.database}.Öl.b"
    written = out.outputFacets["outputStatistics"]
    assert (written.rowCount, written.size, written.fileCount) == (10, None, None)


@pytest.mark.parametrize("by", ["topics", "pattern"])
def test_topics(topic: Topic, ledger: Ledger, tasks: Tasks, by: str) -> None:
    """They are named as OpenLineage names topics: the cluster's address, and the topic's name. Both
    of a source and of a sink."""
    out, servers = topic.kafka.topic(), topic.kafka.broker.bootstrap
    topic.append(0, 10)
    source = {"topics": [topic.name]} if by == "topics" else {"topics": None, "pattern": topic.name}
    sink = {"type": "kafka", "bootstrap_servers": servers, "topic": out, "value": "json"}
    sink |= {"create": True}
    committed(ledger, topic.spec(source=source, sink=sink), KEY)
    told = tasks.run("Finalize").get_openlineage_facets_on_complete(None)
    [read], [written] = told.inputs, told.outputs
    assert (read.namespace, read.name) == (f"kafka://{servers}", topic.name)
    assert fields(read) == COLUMNS and read.inputFacets["inputStatistics"].rowCount == 10
    assert (written.namespace, written.name) == (f"kafka://{servers}", out)
    assert written.outputFacets["outputStatistics"].rowCount == 10


def test_several_topics(topic: Topic, ledger: Ledger, tasks: Tasks) -> None:
    """Each is named; what was read of all together is told of none."""
    other = topic.kafka.topic()
    topic.append(0, 10)
    committed(ledger, topic.spec(source={"topics": [topic.name, other]}), KEY)
    told = tasks.run("Finalize").get_openlineage_facets_on_complete(None)
    assert {one.name for one in told.inputs} == {topic.name, other}
    assert all(one.inputFacets == {} for one in told.inputs)


def test_what_was_told_is_not_counted_again(
    bench: Workbench, ledger: Ledger, tasks: Tasks
) -> None:
    """A cleared run tells from where to where, without numbers that would be added up again."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    committed(ledger, spec, KEY)
    tasks.run("Finalize")
    told = tasks.run("Finalize").get_openlineage_facets_on_complete(None)
    assert told.inputs[0].inputFacets == told.outputs[0].outputFacets == {}
    assert told.outputs[0].name == str(bench.data / "out" / "events")


def test_a_task_that_failed_tells_nothing(bench: Workbench, tasks: Tasks) -> None:
    """Airflow's provider asks for the same when a task has failed: nothing was written."""
    from semel.airflow.operators import FinalizeOperator

    bench.spec()
    task = FinalizeOperator(task_id="finalize", pipeline="events")
    assert task.get_openlineage_facets_on_complete(None) is None and tasks.events == []
