"""B11: a topic read by semel, beside Spark's own Kafka connector.

    python benchmarks/kafka_source.py                    # 4 million records
    python benchmarks/kafka_source.py --records 400000 --runs 2

One broker on this machine's own cores, one topic of four partitions, records of 160 bytes. All
sides end in Parquet files: Spark's connector with from_json; semel by position and by record id
(plan, stage, commit and finalize); Structured Streaming that drops repeats. `draining` only takes
the messages from the broker, in one process.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
import harness
import peers
from data import DDL, SCHEMA, Shape, made
from harness import Clock, Side, check, in_turn, ratio, table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from semel.ledger import Ledger
from semel.run import run_batch
from semel.spark.engine import SparkEngine
from semel.stack import maven
from semel.stack.kafka import Broker, jars

_POM = Path(__file__).with_name("spark-kafka-pom.xml")
_HOME = harness.ROOT / ".semel" / "maven"
_PARTITIONS = 4
_NAMES = {
    "connector": "Spark's Kafka connector, from_json",
    "position": "semel, by position",
    "id": "semel, by record id",
    "streaming": "Structured Streaming, dropDuplicatesWithinWatermark",
    "draining": "draining only, one process",
}


def main() -> None:
    options = harness.options_of(__doc__, runs=5, default=4_000_000, help="default 4 million")
    options = options.parse_args()
    own = maven.fetched(_POM, _HOME, "Spark's Kafka connector")
    with harness.open_place() as place:
        broker = Broker(place.folder / "broker", jars=jars(_HOME))
        broker.start()
        try:
            with harness.open_spark(place, jars=own) as spark, Ledger(place.dsn) as ledger:
                report = _Bench(place, spark, ledger, broker.bootstrap).measure(options)
        finally:
            broker.stop()
    harness.save("kafka_source", options, report)


class _Bench:
    def __init__(
        self, place: harness.Place, spark: SparkSession, ledger: Ledger, servers: str
    ) -> None:
        self._place, self._ledger, self._servers = place, ledger, servers
        self._engine, self._spark = SparkEngine(spark), peers.own_session(spark)
        self._names = 0

    def measure(self, options: Any) -> dict[str, Any]:
        """All sides, as harness.save takes them."""
        shape = Shape(records=options.records)
        _fill(self._servers, shape)
        sides: dict[str, Side] = {
            "connector": self._peer(self._connector, shape.records),
            "position": self._semel([], shape.records),
            "id": self._semel(["id"], shape.new),
            "streaming": self._peer(self._streaming, shape.new),
            "draining": self._draining(shape),
        }
        found = in_turn(sides, options.runs)
        headline = {f"ratio_kafka_{name}": ratio(found, name) for name in ("position", "id")}
        title = f"A topic of {shape.records:,} records of 160 bytes"
        return {
            "title": "B11: a topic beside Spark's own connector",
            "headline": headline,
            "tables": [table(title, found, _NAMES)],
            "plots": [],
        }

    def _semel(self, record_id: list[str], expected: int) -> Side:
        def side(_: int, clock: Clock) -> None:
            self._names += 1
            spec = self._place.spec(
                f"kafka_{self._names}",
                source={
                    "type": "kafka",
                    "bootstrap_servers": self._servers,
                    "topics": ["records"],
                    "value": "json",
                    "schema": SCHEMA,
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


def _fill(servers: str, shape: Shape) -> None:
    """Produce a shape's records, spread over the partitions."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("records", _PARTITIONS)])["records"].result()
    producer = kafka.Producer({"bootstrap.servers": servers, "linger.ms": 50})
    with made(shape).open("rb") as file:
        for at, line in enumerate(file):
            while True:
                try:
                    producer.produce("records", line.rstrip(), partition=at % _PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.1)
    producer.flush()


if __name__ == "__main__":
    main()
