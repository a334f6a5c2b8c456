"""semel in an Airflow that it did not start, from its wheel: LocalExecutor, then Celery."""

import json

import sqlalchemy as sa

from airflow_rest import Airflow, wait_for
from fix_own_airflow import OwnAirflow
from fix_pipelines import events

DAGS = {"shop", "semel_collect", "clicks_and_more"}

READ = """
import json, sys
from semel.reader import dataset
print(json.dumps(sorted(dataset(sys.argv[1]).to_table(["n"])["n"].to_pylist())))
"""


def output(own: OwnAirflow) -> list[int]:
    """The column n of what readers see, sorted."""
    sink = str(own.bench.data / "out" / "shop")
    done = own.installed.call("python", "-c", READ, sink, folder=own.bench.folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tell(airflow: Airflow, own: OwnAirflow) -> None:
    """Make the connections and Variables, as one does in the UI."""
    ledger = sa.make_url(own.bench.ledger)
    connections = [
        {
            "connection_id": "semel_ledger", "conn_type": "postgres", "host": ledger.host,
            "port": ledger.port, "login": ledger.username, "password": ledger.password,
            "schema": ledger.database,
        },
        {"connection_id": "spark_default", "conn_type": "spark", "host": "local[2]"},
    ]  # fmt: skip
    for connection in connections:
        airflow.call("POST", "/api/v2/connections", connection)
    variable = {"key": "semel_data_roots", "value": str(own.bench.data)}
    airflow.call("POST", "/api/v2/variables", variable)


def declare(own: OwnAirflow) -> None:
    (own.bench.pipelines / "shop.yaml").write_text(
        "name: shop\n"
        "source:\n"
        "  {type: files, path: in/*.jsonl, format: jsonl,\n"
        "   schema: {id: string, n: bigint, at: timestamp}}\n"
        "record_id: [id]\n"
        "sink: {type: files, path: out/shop, format: parquet}\n"
    )


def test_local_executor(own_airflow: OwnAirflow) -> None:
    """A DAG file of two lines, connections and a Variable: a triggered run is exact."""
    own = own_airflow
    declare(own)
    own.bench.write("in/a.jsonl", [*events(0, 1000), *events(900, 1100)])
    airflow = own.client()
    tell(airflow, own)
    own.start("dag-processor", "dag-processor")
    own.start(
        "scheduler", "scheduler", "--skip-serve-logs", AIRFLOW__CORE__EXECUTOR="LocalExecutor"
    )
    wait_for(lambda: own.alive() or airflow.dags() >= DAGS, "the DAGs")
    assert airflow.import_errors() == {}
    airflow.run("shop")
    assert output(own) == list(range(1100))
    own.stop("scheduler")


def test_celery_executor(own_airflow: OwnAirflow) -> None:
    """The DAG by hand of the documents, in a Celery worker with Postgres as its broker: exact.

    It goes on where LocalExecutor ended: the other DAG's records are not read again.
    """
    own = own_airflow
    airflow = own.client()
    own.bench.write("in/b.jsonl", [*events(1000, 2000)])
    own.start(
        "worker", "celery", "worker", "--skip-serve-logs", "--without-mingle", "--without-gossip",
        AIRFLOW__CORE__EXECUTOR="CeleryExecutor",
    )  # fmt: skip
    own.start(
        "scheduler", "scheduler", "--skip-serve-logs", AIRFLOW__CORE__EXECUTOR="CeleryExecutor"
    )
    wait_for(lambda: own.alive() or " ready." in own.log("worker"), "the worker")
    airflow.call("PATCH", "/api/v2/dags/clicks_and_more", {"is_paused": False})
    airflow.run("clicks_and_more")
    assert output(own) == list(range(2000))
    # The four tasks ran in the worker, which says so of the last one a little after Airflow does.
    wait_for(lambda: own.log("worker").count("succeeded in") == 4, "four tasks in the worker")
