"""Changes of a database, as Debezium sends them to a topic: what docs/kafka.md says of deletes."""

import json
import re

import pytest

from fixtures.batches.account import run
from fixtures.commands.documents import ROOT
from fixtures.kafka.broker import Record
from fixtures.kafka.topics import Topic
from fixtures.postgres.warehouse import TABLE, Warehouse
from semel.ledger import Ledger
from semel.spark.engine import SparkEngine

UPSERT = {**TABLE, "mode": "upsert", "key": ["id"]}
ROW = {"id": 2, "city": "Bonn"}
TOMBSTONE = Record(value=None, key=b'{"id":2}')


def change(row: dict, **more: str) -> Record:
    """A row as the transform ExtractNewRecordState unwraps it."""
    return Record(value=json.dumps(row | more).encode(), key=json.dumps({"id": row["id"]}).encode())


def event(op: str, before: dict | None, after: dict | None) -> Record:
    """The whole envelope, without its schema."""
    source = {"connector": "postgresql", "lsn": 7, "table": "cities"}
    value = {"before": before, "after": after, "op": op, "ts_ms": 1767225600000, "source": source}
    return Record(value=json.dumps(value).encode(), key=json.dumps({"id": 2}).encode())


def test_a_tombstone_deletes_nothing(topic: Topic, ledger: Ledger, table: Warehouse) -> None:
    """The row stays in a table in mode upsert; the tombstone is counted, and is no record."""
    spec = topic.spec(sink=UPSERT, source={"schema": {"id": "bigint", "city": "string"}})
    topic.put([change({"id": 1, "city": "Oslo"}), change(ROW)])
    run(ledger, spec, "r1")
    topic.put([TOMBSTONE, change({"id": 3, "city": "Rome"})])
    done = run(ledger, spec, "r2")
    assert done.staged.ignored.tombstones == 1 and done.staged.counts.records_read == 1
    rows = table.run("SELECT id, city FROM events ORDER BY id")
    assert rows == [(1, "Oslo"), (2, "Bonn"), (3, "Rome")]


def test_a_delete_that_is_rewritten_marks_its_row(
    topic: Topic, ledger: Ledger, table: Warehouse
) -> None:
    """The column `__deleted` says so, and the view of the page shows the rows that are left."""
    schema = {"id": "bigint", "city": "string", "__deleted": "string"}
    spec = topic.spec(sink=UPSERT, source={"schema": schema})
    topic.put([change({"id": 1, "city": "Oslo"}, __deleted="false"), change(ROW, __deleted="false")])
    run(ledger, spec, "r1")
    topic.put([change(ROW, __deleted="true"), TOMBSTONE])
    run(ledger, spec, "r2")
    rows = table.run("SELECT id, city, __deleted FROM events ORDER BY id")
    assert rows == [(1, "Oslo", "false"), (2, "Bonn", "true")]
    [view] = re.findall(r"CREATE VIEW current .*", (ROOT / "docs/kafka.md").read_text())
    table.run(view)
    assert table.run("SELECT id FROM current") == [(1,)]


@pytest.mark.rest
def test_a_delete_in_its_envelope(
    topic: Topic, ledger: Ledger, table: Warehouse, spark_engine: SparkEngine
) -> None:
    """The transform that unwraps the envelope chooses: it leaves the row as it was, or marks it."""
    written = topic.bench.transforms / "unwrap.sql"
    written.write_text(
        "SELECT coalesce(after.id, before.id) AS id, coalesce(after.city, before.city) AS city,\n"
        "       op = 'd' AS deleted FROM records"
    )
    row = "struct<id: bigint, city: string>"
    schema = {"before": row, "after": row, "op": "string"}
    spec = topic.spec(sink=UPSERT, source={"schema": schema}, transforms=["unwrap.sql"])
    topic.put([event("c", None, ROW)])
    run(ledger, spec, "r1", engine=spark_engine)
    assert table.run("SELECT id, city, deleted FROM events") == [(2, "Bonn", False)]
    topic.put([event("d", ROW, None), TOMBSTONE])
    run(ledger, spec, "r2", engine=spark_engine)
    assert table.run("SELECT id, city, deleted FROM events") == [(2, "Bonn", True)]
