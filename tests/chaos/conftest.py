"""Fixtures of the chaos tests. One database has the tables of all of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_receive import heard, line  # noqa: F401
from fix_scene import scene, scene_of  # noqa: F401
from fixtures.batches.faults import children, forks  # noqa: F401
from fixtures.postgres.server import database
from fixtures.postgres.warehouse import Warehouse
from fixtures.postgres.wire import Wire, ledger_behind, wire  # noqa: F401
from semel.collect.merge import merge_candidates


@pytest.fixture(scope="session")
def shared_warehouse(postgres: str) -> Iterator[str]:
    """The database of the chaos tests' tables."""
    with database(postgres) as dsn:
        yield dsn


@pytest.fixture
def table(
    shared_warehouse: str,
    wire: Wire,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Warehouse:
    """An empty database as the Airflow connection `warehouse`, which goes through the wire."""
    made = Warehouse(dsn=shared_warehouse, folder=tmp_path)
    made.run("DROP TABLE IF EXISTS events, semel_batch")
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", wire.behind(shared_warehouse))
    return made


@pytest.fixture
def merge_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two live id runs of a shard are reason enough for collect to merge them."""
    monkeypatch.setitem(merge_candidates.__kwdefaults__, "live_max", 1)
