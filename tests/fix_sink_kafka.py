"""Topics that rows go to, for the contract of sinks and for what Kafka's alone has to keep."""

import json
import re
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from fix_kafka import Kafka, Read, Record
from fix_pipelines import Workbench
from fix_sinks import Place, won_of
from semel import failpoints
from semel.archive.marker import Marker
from semel.clients.kafka.cluster import Cluster
from semel.errors import RetryableError
from semel.sinks import Presence, Won
from semel.sinks.kafka.sink import KafkaSink
from semel.sinks.kafka.target import KafkaTarget

CONTROL = {"cleanup.policy": "compact"}

_BATCH = re.compile(rb'"_semel_batch":(\d+),"_semel_seq":\d+}$')


class Topic(Place):
    """A topic with two partitions, and its control topic, read by the fixture's own consumer."""

    half = "sink.before_cut"

    def __init__(self, bench: Workbench, kafka: Kafka, patch: pytest.MonkeyPatch) -> None:
        super().__init__(bench)
        self.kafka = kafka
        self.topic = kafka.topic(f"events.{secrets.token_hex(4)}", partitions=2)
        self.control = kafka.topic(f"_semel_{self.topic}", config=CONTROL)
        plain = {"bootstrap.servers": kafka.broker.bootstrap}
        patch.setenv(
            "AIRFLOW_CONN_BROKER", json.dumps({"conn_type": "kafka", "extra": json.dumps(plain)})
        )

    @property
    def declared(self) -> dict[str, Any]:
        return {"type": "kafka", "connection": "broker", "topic": self.topic, "key": "id"}

    @property
    def harms(self) -> dict[str, Callable[[], object]]:
        first = next(read for read in self.read() if read.partition == 0)
        other = (first.value or b"").replace(b'"n":', b'"n":9')

        def written(value: bytes | None) -> None:
            record = Record(value=value, key=first.key, partition=first.partition)
            self.kafka.produce(self.topic, [record])

        def removed() -> None:
            self.kafka.delete_records(self.topic, {first.partition: first.offset + 1})

        return {
            "removed": removed,
            "doubled": lambda: written(first.value),
            "changed": lambda: (removed(), written(other)),
            "gone": lambda: self.kafka.delete(self.topic),
        }

    def spellings(self) -> list[dict[str, Any]]:
        servers = self.kafka.broker.bootstrap
        same = [{**self.declared, "connection": None, "bootstrap_servers": servers}]
        return [self.declared, *same, {**self.declared, "topic": f"{self.topic}.other"}]

    def read(self) -> list[Read]:
        """All committed messages."""
        return self.kafka.drain(self.topic)

    def rows(self) -> list[tuple[int, str]]:
        return sorted(
            (int(_BATCH.search(read.value)[1]), json.loads(read.value)["id"])
            for read in self.read()
        )

    def unfit(self, patch: pytest.MonkeyPatch) -> str:  # noqa: ARG002 - the suite's
        self.kafka.delete(self.control)
        return "has no topic _semel_events"

    def mended(self) -> None:
        self.kafka.topic(self.control, config=CONTROL)


class Outlet:
    """A topic with its control topic, and batches that have committed, by hand."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka, self.folder = kafka, folder
        self.topic = f"rows-{secrets.token_hex(6)}"
        self.control = f"_semel_{self.topic}"

    def make(self, *, partitions: int = 2, **config: str) -> "Outlet":
        """Make both topics. `config` of the first one, with `_` for each `.`."""
        own = {name.replace("_", "."): value for name, value in config.items()}
        self.kafka.topic(self.topic, partitions=partitions, config=own)
        self.kafka.topic(self.control, config=CONTROL)
        return self

    def sink(self, **declared: Any) -> KafkaSink:
        cluster = Cluster(servers=self.kafka.broker.bootstrap)
        declared = {"cluster": cluster, "topic": self.topic, "key": "id", **declared}
        return KafkaSink(KafkaTarget(**declared), "events")

    def won(self, *tables: pa.Table, batch_id: int = 1) -> Won:
        """A committed batch whose files hold these tables, a file each."""
        return won_of(self.folder, lambda *_: "somewhere", tables, batch_id=batch_id)

    def finalize(self, won: Won, sink: KafkaSink | None = None) -> None:
        """What finalize does with the output, again and again as a scheduler would."""
        sink = sink or self.sink()
        for _ in range(20):
            try:
                states = sink.look(won)
                missing = [f for f, p in zip(won.files, states, strict=True) if p == "absent"]
                sink.publish(won, missing)
                if not missing:
                    return
            except RetryableError:
                time.sleep(0.2)
        assert set(sink.look(won)) == {Presence.RIGHT}

    def read(self) -> list[dict]:
        """The values of all committed messages."""
        return [json.loads(read.value) for read in self.kafka.drain(self.topic)]

    @property
    def ids(self) -> list[str]:
        """Those of all committed messages, sorted."""
        return sorted(row["id"] for row in self.read())


@pytest.fixture
def outlet(kafka: Kafka, tmp_path: Path) -> Outlet:
    """A topic of this test's own, which is not made yet."""
    return Outlet(kafka, tmp_path)


def marker(won: Won) -> Marker:
    """What the sink asks of a marker."""
    return SimpleNamespace(  # type: ignore[return-value]
        pipeline=won.pipeline, batch_id=won.batch_id, commit_seq=won.commit_seq,
        sink_schema=won.schema, of_kind=lambda _: won.files, committed_at=datetime.now(UTC),
    )  # fmt: skip


def dies() -> None:
    """For `failpoints.armed`: what stands for a death."""
    raise failpoints.FaultError("died here")
