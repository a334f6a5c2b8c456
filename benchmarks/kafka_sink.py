"""B12: a batch published to a Kafka topic, beside a plain producer of the same bytes.

    python benchmarks/kafka_sink.py                      # 500,000 rows
    python benchmarks/kafka_sink.py --records 50000 --runs 1

One broker on this machine's own cores, topics of four partitions. The plain side is a producer of
confluent-kafka with the same compression, without a transaction and without idempotence, of three
kinds: `plain` has bytes that were made before its clock starts; `rows` makes these bytes of the
staged rows, as publish makes them; `dumps` with json.dumps of each row. publish begins with the
staged Parquet files, and ends when the batch is visible: it fences, asks the control topic, makes
JSON of the rows, and writes them with their note in one transaction. Beside it: with a header for
each message, and look. The control topic has notes of 100,000 earlier batches.

The goal of 1.2 is against `rows`: a producer has to make its messages of something, and what is
left is what the transaction, the fencing and the note cost. Against `plain` it shows what making
the bytes costs, too. The second table has the processor time of this process, librdkafka's threads
included and the broker not: on a busy machine it says more than the seconds.
"""

import json
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

import harness
from fixtures.kafka.broker import FETCHED
from fixtures.kafka.server import Broker
from harness import Clock, Place, check, in_turn, ratio, table
from postgres_sink import staged_batch
from semel.clients.kafka.cluster import Cluster
from semel.sinks import CommittedBatch
from semel.sinks.kafka import control
from semel.sinks.kafka.control import ControlNote
from semel.sinks.kafka.encode import EncodedMessages, encode_messages
from semel.sinks.kafka.sink import KafkaSink
from semel.sinks.kafka.target import KafkaTarget
from semel.sinks.staged import staged
from semel_local.stack.kafka_server import jars

_NOTES = 100_000
"""Batches that have landed before, of which the control topic has a note each."""

_NAMES = {
    "plain": "a plain producer, of bytes that were made before",
    "rows": "a plain producer that makes these bytes of the staged rows",
    "dumps": "a plain producer with json.dumps of each row",
    "publish": "publish, in one transaction",
    "headers": "publish, with a header of each row's own",
    "look": f"look: has the batch landed? Beside {_NOTES:,} others",
}


def main() -> None:
    parser = harness.options_of(__doc__, runs=5, default=500_000, help="rows")
    options = harness.parsed(parser, records=4_000)
    with harness.open_place() as place:
        settings = {"num.partitions": "4"}
        broker = Broker(place.folder / "broker", jars=jars(FETCHED), settings=settings)
        broker.start()
        try:
            report = _measure(place, broker.bootstrap, options)
        finally:
            broker.stop()
    harness.save("kafka_sink", options, report)


def _measure(place: Place, servers: str, options: Namespace) -> dict[str, Any]:
    won = staged_batch(place, options.records, "rows")
    target = KafkaTarget(cluster=Cluster(servers=servers), topic="rows", key="id", create=True)
    sink = KafkaSink(target, "bench")
    folder = Path(won.files[0].staged_path).parent
    sink.check(won.schema, folder)  # Makes the topics.
    (folder / "_control.json").unlink()
    _fill(servers, target, won)
    sink.check(won.schema, folder)
    headed = KafkaSink(replace(target, headers=(("kind", "kind"),)), "bench")
    made = [encode_messages(target, won, rows) for rows in staged(won)]
    size = sum(some.size for some in made)
    sides = {
        "plain": _plain(servers, lambda: made),
        "rows": _plain(servers, lambda: (encode_messages(target, won, rows) for rows in staged(won))),
        "dumps": _plain(servers, lambda: _dumped(won)),
        "publish": _publish(sink, won, 1),
        "headers": _publish(headed, won, 1_000),
        "look": _look(sink, won),
    }
    spent: dict[str, list[float]] = {name: [] for name in sides}
    found = in_turn({name: _spending(side, spent[name]) for name, side in sides.items()},
                    options.runs)  # fmt: skip
    return {
        "title": "B12: a batch to a Kafka topic",
        "headline": {
            "kafka_sink_ratio": ratio(found, "publish"),
            "kafka_sink_ratio_rows": ratio(found, "publish", "rows"),
            "kafka_sink_cpu_ratio": ratio(spent, "publish"),
            "kafka_sink_cpu_ratio_rows": ratio(spent, "publish", "rows"),
            "kafka_sink_ratio_dumps": ratio(found, "publish", "dumps"),
            "kafka_sink_headers": ratio(found, "headers", "publish"),
            "kafka_sink_bytes_a_row": round(size / options.records),
        },
        "tables": [
            table(f"{options.records:,} rows", found, _NAMES),
            table("processor time of the client", spent, _NAMES),
        ],
    }


def _fill(servers: str, target: KafkaTarget, won: CommittedBatch) -> None:
    """Write the notes of earlier batches."""
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 0})
    for number in range(_NOTES):
        # Another pipeline's: they share the topic.
        note = replace(ControlNote.of(won), pipeline="before", batch_id=number, rows=1_000)
        producer.produce(target.control, note.to_bytes(), note.key)
    check("notes", producer.flush(60), 0)


def _spending(side: harness.Side, spent: list[float]) -> harness.Side:
    """The side, with the processor time of each counted run (seconds) put into `spent`."""

    def run(number: int, clock: Clock) -> None:
        began = time.process_time()
        side(number, clock)
        if number:
            spent.append(time.process_time() - began)

    return run


def _dumped(won: CommittedBatch) -> Iterator[EncodedMessages]:
    """What most people write: each row by itself."""
    for rows in staged(won):
        plain = rows.to_pylist()
        yield EncodedMessages(
            values=[json.dumps(row, default=str).encode() for row in plain],
            keys=[row["id"].encode() for row in plain],
            headers=[],
            size=0,
        )


def _plain(servers: str, made: Callable[[], Iterable[EncodedMessages]]) -> harness.Side:
    settings = {
        "bootstrap.servers": servers, "compression.type": "lz4", "linger.ms": 20,
        "partitioner": "murmur2_random", "queue.buffering.max.messages": 0,
        "delivery.report.only.error": True,
    }  # fmt: skip
    failed: list[Any] = []

    def side(_: int, clock: Clock) -> None:
        producer = Producer(settings)
        with clock:
            for some in made():
                for value, key in zip(some.values, some.keys, strict=True):
                    while True:
                        try:
                            producer.produce("rows", value, key)
                            break
                        except BufferError:
                            producer.poll(0.1)
            check("plain", (producer.flush(60), failed), (0, []))

    return side


def _publish(sink: KafkaSink, won: CommittedBatch, first: int) -> harness.Side:
    def side(run: int, clock: Clock) -> None:
        fresh = replace(won, batch_id=first + run + 1)
        with clock:
            sink.publish(fresh, fresh.files)
        note = control.batch_note(sink._target.cluster, sink._target.control, fresh, 10)
        check("publish", (note.rows, note.landed), (sum(f.records for f in won.files), True))

    return side


def _look(sink: KafkaSink, won: CommittedBatch) -> harness.Side:
    def side(run: int, clock: Clock) -> None:
        fresh = replace(won, batch_id=run + 2)
        with clock:
            found = sink.query_presence(fresh)
        check("look", {str(state) for state in found}, {"right"})

    return side


if __name__ == "__main__":
    main()
