"""`semel check` and an outside Spark: a Connect server and two workers that have nothing of the
driver's environment.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from fix_account import quiet
from fix_cluster import Cluster, _cluster, cluster  # noqa: F401
from fix_pipelines import Workbench, events
from fix_postgres import database, point_executors
from semel import settings
from semel.collect import collect
from semel.errors import TerminalError
from semel.ledger import Ledger
from semel.ledger.migrate import migrate
from semel.reader import dataset
from semel.run import run_batch
from semel.spark.check import check
from semel.spark.session import open_engine

# Its cluster takes 20 s to start on two cores.
pytestmark = pytest.mark.proof


@pytest.fixture
def migrated(
    postgres: str, executors_state: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ledger]:
    """A ledger that executors find in their own environment, and the driver in its."""
    with database(postgres, "template1") as dsn, Ledger(dsn) as ledger:
        migrate(dsn)
        monkeypatch.setenv(settings.LEDGER_VARIABLE, dsn)
        point_executors(executors_state, dsn)
        yield ledger


def test_both_executors_answer(
    cluster: Cluster,  # noqa: F811
    bench: Workbench,
    migrated: Ledger,
    executors_state: Path,
) -> None:
    """Each is right; what only executors lack is found there, and is what a batch fails of."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 200))
    found = check([spec], cluster.remote, quiet)
    assert found.ok, [one for one in found.checks if not one.ok]
    assert len({answer.process for answer in found.answers}) == 2, found.answers
    point_executors(executors_state, "")
    found = check([spec], cluster.remote, quiet)
    assert {one.name for one in found.checks if not one.ok} == {"ledger from executors"}
    with open_engine(cluster.remote, quiet) as engine:
        with pytest.raises(TerminalError, match=r"does not know the ledger.*Set SEMEL_LEDGER_DSN"):
            run_batch(migrated, spec, "r1", engine, log=quiet)
        point_executors(executors_state, migrated.dsn)
        run_batch(migrated, spec, "r1", engine, log=quiet)
    collect(migrated, spec, quiet)
    assert dataset(spec.sink_path()).count_rows() == 200


def test_what_spark_keeps_of_a_job(
    cluster: Cluster,  # noqa: F811
    bench: Workbench,
    migrated: Ledger,
) -> None:
    """Neither logs nor work folders of master, workers, executors and server hold the password."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 200))
    with open_engine(cluster.remote, quiet) as engine:
        run_batch(migrated, spec, "r1", engine, log=quiet)
    secret = sa.make_url(migrated.dsn).password.encode()
    looked = 0
    for path in cluster.folder.rglob("*"):
        if path.is_file():
            looked += 1
            assert secret not in path.read_bytes(), path
    assert looked >= 4
