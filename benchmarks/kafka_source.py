"""B11: a topic read by semel, beside Spark's own Kafka connector.

    python benchmarks/kafka_source.py                    # 4 million records
    python benchmarks/kafka_source.py --records 400000 --runs 2

One broker on this machine's own cores, a topic of four partitions, records of 160 bytes of JSON; in
another one the same records as Avro. All sides end in Parquet files: Spark's connector with
from_json; semel by position and by record id (plan, stage, commit and finalize), of JSON and of
Avro; Structured Streaming that drops repeats. `draining` only takes the messages from the broker,
in one process. The registry is a server that answers at once. Spark's from_avro is not beside it:
the package that it needs is not published for Spark 4.2.0.
"""

import io
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypedDict

import confluent_kafka as kafka
import fastavro
import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import harness
import others
from data import DDL, SCHEMA, Shape, made
from fixtures.kafka.broker import FETCHED
from fixtures.kafka.registry import answering
from fixtures.kafka.server import Broker
from harness import Clock, Side, check, in_turn, ratio, table
from semel.ledger import Ledger
from semel.runs.run import run_batch
from semel.spark.engine import SparkEngine
from semel_local.stack import maven
from semel_local.stack.kafka_server import jars

_POM = Path(__file__).with_name("spark-kafka-pom.xml")
_PARTITIONS = 4
_HEAD = b"\0\0\0\0\1"
"""What a value of Avro begins with: the byte 0, and the schema's id."""

_AVRO = {
    "string": "string",
    "bigint": "long",
    "double": "double",
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
}
_FIELDS = [{"name": name, "type": _AVRO[kind]} for name, kind in SCHEMA.items()]
_RECORD = {"type": "record", "name": "Record", "fields": _FIELDS}
_NAMES = {
    "connector": "Spark's Kafka connector, from_json",
    "position": "semel, by position",
    "id": "semel, by record id",
    "avro_position": "semel, Avro, by position",
    "avro_id": "semel, Avro, by record id",
    "streaming": "Structured Streaming, dropDuplicatesWithinWatermark",
    "draining": "draining only, one process",
}


def main() -> None:
    parser = harness.options_of(__doc__, runs=5, default=4_000_000, help="default 4 million")
    options = harness.parsed(parser, records=4_000)
    own = maven.fetch(_POM, FETCHED, "Spark's Kafka connector")
    with harness.open_place() as place:
        broker = Broker(place.folder / "broker", jars=jars(FETCHED))
        broker.start()
        try:
            with (
                harness.open_spark(place, jars=own) as spark,
                Ledger(place.dsn) as ledger,
                answering() as registry,
            ):
                registry.status = 200
                registry.body = json.dumps({"schema": json.dumps(_RECORD)}).encode()
                bench = _Bench(place, spark, ledger, broker.bootstrap, registry.url)
                report = bench.measure(options)
        finally:
            broker.stop()
    harness.save("kafka_source", options, report)


class _Bench:
    def __init__(
        self,
        place: harness.Place,
        spark: SparkSession,
        ledger: Ledger,
        servers: str,
        registry: str,
    ) -> None:
        self._place, self._ledger, self._servers = place, ledger, servers
        self._registry = registry
        self._engine, self._spark = SparkEngine(spark), others.own_session(spark)
        self._names = 0

    def measure(self, options: Any) -> dict[str, Any]:
        """All sides, as harness.save takes them."""
        shape = Shape(records=options.records)
        lines = made(shape)
        with lines.open("rb") as file:
            _fill(self._servers, "records", (line.rstrip() for line in file))
        with lines.open("rb") as file:
            _fill(self._servers, "avro", _as_avro(file))
        sides: dict[str, Side] = {
            "connector": self._peer(self._connector, shape.records),
            "position": self._semel([], shape.records),
            "id": self._semel(["id"], shape.new),
            "avro_position": self._semel([], shape.records, avro=True),
            "avro_id": self._semel(["id"], shape.new, avro=True),
            "streaming": self._peer(self._streaming, shape.new),
            "draining": self._draining(shape),
        }
        found = in_turn(sides, options.runs, both_ways=True)
        named = ("position", "id", "avro_position", "avro_id")
        headline = {f"ratio_kafka_{name}": ratio(found, name) for name in named}
        title = f"A topic of {shape.records:,} records of 160 bytes, and the same as Avro"
        return {
            "title": "B11: a topic beside Spark's own connector",
            "headline": headline,
            "tables": [table(title, found, _NAMES)],
        }

    def _semel(self, record_id: list[str], expected: int, *, avro: bool = False) -> Side:
        value = {"value": "avro", "registry": self._registry} if avro else {"value": "json"}

        def side(_: int, clock: Clock) -> None:
            self._names += 1
            spec = self._place.spec(
                f"kafka_{self._names}",
                source={
                    "type": "kafka",
                    "bootstrap_servers": self._servers,
                    "topics": ["avro" if avro else "records"],
                    "schema": SCHEMA,
                    **value,
                },
                **({"record_id": record_id} if record_id else {}),
            )
            with clock:
                done = run_batch(self._ledger, spec, "r1", self._engine, log=harness.quiet)
            harness.tell(f"    {done.seconds}")
            check(spec.name, done.finalized.counts.survivors, expected)

        return side

    def _peer(self, call: Callable[[Path], None], expected: int) -> Side:
        def side(_: int, clock: Clock) -> None:
            self._names += 1
            target = self._place.data / f"peer_{self._names}"
            with clock:
                call(target)
            check(call.__name__, self._spark.read.parquet(str(target)).count(), expected)

        return side

    def _parsed(self, frame: DataFrame) -> DataFrame:
        return frame.select(f.from_json(frame.value.cast("string"), DDL).alias("r")).select("r.*")

    def _connector(self, target: Path) -> None:
        frame = self._spark.read.format("kafka").options(**self._options()).load()
        self._parsed(frame).write.parquet(str(target))

    def _streaming(self, target: Path) -> None:
        frame = self._spark.readStream.format("kafka").options(**self._options()).load()
        query = (
            self._parsed(frame)
            .withWatermark("ts", "30 days")
            .dropDuplicatesWithinWatermark(["id"])
            .writeStream.format("parquet")
            .option("checkpointLocation", f"{target}-checkpoint")
            .option("path", str(target))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def _options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self._servers,
            "subscribe": "records",
            "startingOffsets": "earliest",
        }

    def _draining(self, shape: Shape) -> Side:
        def side(_: int, clock: Clock) -> None:
            settings = {"bootstrap.servers": self._servers, "group.id": "drain"}
            settings |= {"fetch.queue.backoff.ms": 10}
            consumer = kafka.Consumer(settings | {"enable.auto.commit": False})
            parts = [kafka.TopicPartition("records", n, 0) for n in range(_PARTITIONS)]
            with clock:
                consumer.assign(parts)
                count = 0
                while count < shape.records:
                    count += len(consumer.consume(10_000, timeout=1))
            consumer.close()
            check("draining", count, shape.records)

        return side


_Row = TypedDict("_Row", {name: datetime if kind == "timestamp" else Any
                           for name, kind in SCHEMA.items()})  # fmt: skip


def _as_avro(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Records as Confluent's serializers write them, of their lines of JSON."""
    schema, read = fastavro.parse_schema(_RECORD), msgspec.json.Decoder(_Row).decode
    for line in lines:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, schema, read(line))
        yield _HEAD + stream.getvalue()


def _fill(servers: str, topic: str, values: Iterable[bytes]) -> None:
    """Produce values, spread over the partitions of a new topic."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, _PARTITIONS)])[topic].result()
    producer = kafka.Producer({"bootstrap.servers": servers, "linger.ms": 50})
    for at, value in enumerate(values):
        while True:
            try:
                producer.produce(topic, value, partition=at % _PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


if __name__ == "__main__":
    main()
