"""Fixtures of the chaos tests. One database has the tables of all of them."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from fix_receive import heard, line  # noqa: F401
from fix_scene import SINKS, scene  # noqa: F401
from fixtures.batches.faults import children, forks  # noqa: F401
from fixtures.bigquery.outlet import CLUSTERED, EVENTS, NAME, OWN
from fixtures.bigquery.server import FakeBigQuery
from fixtures.kafka.broker import Kafka
from fixtures.kafka.outlet import CONTROL
from fixtures.objects.s3 import S3
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
def events_topic(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> str:
    """A topic for the scene, and its control topic, by the Airflow connection `broker`."""
    name = kafka.topic(f"events-{secrets.token_hex(4)}", partitions=2)
    kafka.topic(f"_semel_{name}", config=CONTROL)
    plain = {"conn_type": "kafka", "extra": json.dumps(kafka.client())}
    monkeypatch.setenv("AIRFLOW_CONN_BROKER", json.dumps(plain))
    monkeypatch.setitem(SINKS, "topic", {**SINKS["topic"], "topic": name})
    return name


@pytest.fixture
def events_loaded(bigquery: FakeBigQuery) -> FakeBigQuery:
    """A table of the fake BigQuery for the scene."""
    places = {"_semel_source": "INT64", "_semel_offset": "INT64"}
    bigquery.make(NAME, {**EVENTS, **places, **OWN}, **CLUSTERED)
    return bigquery


@pytest.fixture
def events_prefix(s3: S3, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of the scene's own, and a prefix in it."""
    url = f"s3://{s3.bucket()}/lake/events"
    monkeypatch.setitem(SINKS, "objects", {**SINKS["objects"], "url": url})
    return url


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
