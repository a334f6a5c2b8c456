"""A topic as a test's source: a pipeline over it, events written to it, and runs over it."""

import json
from collections.abc import Iterable
from datetime import datetime

import pytest

from fix_account import settled
from fix_kafka import Kafka, Record
from fix_pipelines import Workbench, events
from semel.ledger import Ledger
from semel.model.batch import Claim
from semel.pipeline import Spec
from semel.repair.accept import accept_file


def messages_of(start: int, stop: int, **beside: object) -> list[Record]:
    """`events(start, stop)`, each as the value of a message."""
    return [Record(value=json.dumps(e).encode(), **beside) for e in events(start, stop)]


def stamp(when: datetime) -> int:
    """A time as a message has it."""
    return round(when.timestamp() * 1000)


def in_output(spec: Spec) -> list[str]:
    """The ids in the output, sorted. Without an audit: the topic may be another one by now."""
    return settled(spec, audited=False).ids


def claimed(ledger: Ledger, batch_id: int) -> list[Claim]:
    """What a batch has claimed."""
    return [Claim.from_row(r) for r in ledger.rows("plan", "claims", batch_id=batch_id)]


def everything(ledger: Ledger, known: str = '"events"') -> str:
    """Each row of each of the ledger's tables, as JSON; `known` is in one of them."""
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'semel'"
    with ledger.engine.connect() as connection:
        found = [
            row
            for table in connection.exec_driver_sql(tables).scalars().all()
            for row in connection.exec_driver_sql(
                f'SELECT row_to_json(t)::text FROM semel."{table}" AS t'
            ).scalars()
        ]
    assert any(known in row for row in found)
    return "\n".join(found)


class Topic:
    """A topic of one or more partitions, and pipelines that read it."""

    by_interval = {"select": "interval"}

    def __init__(self, bench: Workbench, kafka: Kafka, **made: object) -> None:
        """`made`: how `Kafka.topic` makes it."""
        self.bench, self.kafka = bench, kafka
        self.name = kafka.topic(**made)

    def spec(self, **changes: object) -> Spec:
        """A pipeline by position over the topic: a record that is read twice shows."""
        source = {
            "type": "kafka",
            "bootstrap_servers": self.kafka.broker.bootstrap,
            "topics": [self.name],
            "value": "json",
            "schema": {"id": "string", "n": "bigint", "at": "timestamp"},
        }
        source |= changes.pop("source", {})
        source = {key: value for key, value in source.items() if value is not None}
        return self.bench.spec(**{"record_id": None, "source": source, **changes})

    def append(self, start: int, stop: int, *, partition: int = 0, **beside: object) -> None:
        """Produce `events(start, stop)`."""
        self.put(messages_of(start, stop, partition=partition, **beside))

    def put(self, records: Iterable[Record | bytes]) -> None:
        """Produce records; bytes are a value."""
        made = (Record(value=r) if isinstance(r, bytes) else r for r in records)
        self.kafka.produce(self.name, made)

    def at(self, partition: int = 0) -> str:
        """What semel calls a partition of it."""
        return f"{self.name}/{partition}"

    # Of one partition, what the contract of sources does: see Place in fix_sources.

    @property
    def called(self) -> str:
        return self.at()

    def holds(self, start: int, end: int) -> list[bytes]:
        return [r.value for r in self.kafka.drain(self.name) if start <= r.offset < end]

    def change(self) -> None:
        self.kafka.recreate(self.name)
        self.append(900, 950)

    def told(self, batch: int) -> str:
        return f"batch {batch} .*made anew"

    def take_change(self, ledger: Ledger, spec: Spec) -> None:
        accept_file(ledger, spec, self.called, same=False)

    def lose(self) -> None:
        [(_, end)] = self.kafka.ends(self.name).values()
        self.kafka.delete_records(self.name, {0: end})


@pytest.fixture
def topic(bench: Workbench, kafka: Kafka) -> Topic:
    return Topic(bench, kafka)
