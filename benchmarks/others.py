"""What else one could do in Spark's tasks: its own ways of dropping repeats, a row for each id.

Each function reads JSON Lines (the pass-through Parquet and CSV as well) and writes Parquet.
Spark's functions get a session with Spark's own defaults (adaptive execution on) and as many
shuffle partitions as semel has shards. The row per id uses semel's reader and writer, so that only
the catalog differs.
"""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import psycopg
import pyarrow as pa
import xxhash
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from data import DDL, SCHEMA
from semel.declare.ddl import parse
from semel.formats.jsonl import JsonLines
from semel.formats.records import OFFSET, read_split
from semel.sources.files.source import SPLIT_BYTES
from semel.stage.part_files import PartWriter

_HORIZON = "30 days"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SHARDS = 4


def own_session(spark: SparkSession) -> SparkSession:
    """A session of the same Spark that semel has not touched, set up as its manual advises."""
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "true")
    session.conf.set("spark.sql.shuffle.partitions", str(SHARDS))
    store = "spark.sql.streaming.stateStore"
    session.conf.set(f"{store}.providerClass", _ROCKSDB)
    session.conf.set(f"{store}.rocksdb.changelogCheckpointing.enabled", "true")
    return session


def pass_through(spark: SparkSession, source: Path, target: Path) -> None:
    """Reads and writes, and promises nothing."""
    form = source.suffix[1:].removesuffix("l")
    spark.read.schema(DDL).load(str(source), format=form, header=True).write.parquet(str(target))


def transformed(spark: SparkSession, source: Path, target: Path) -> None:
    """The pass-through with the transform of harness.TRANSFORM."""
    frame = spark.read.schema(DDL).json(str(source))
    columns = [f.col(name) for name in frame.columns if name != "amount"]
    gross = (f.col("amount") * 1.19).alias("gross")
    frame.select(*columns, gross).write.parquet(str(target))


def drop_duplicates(spark: SparkSession, source: Path, target: Path) -> None:
    """Drops repeats within the batch, and knows of no other batch."""
    frame = spark.read.schema(DDL).json(str(source))
    frame.dropDuplicates(["id"]).write.parquet(str(target))


def streaming(spark: SparkSession, source: Path, target: Path, checkpoint: Path) -> list[float]:
    """Drops repeats across batches, one file each. Returns the seconds of each batch."""
    frame = spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).json(str(source))
    query = (
        frame.withWatermark("ts", _HORIZON)
        .dropDuplicatesWithinWatermark(["id"])
        .writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .option("path", str(target))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [
        each["durationMs"]["triggerExecution"] / 1000
        for each in query.recentProgress
        if each["numInputRows"]
    ]


def floor(spark: SparkSession, source: Path, target: Path) -> None:
    """semel's reader and writer in Spark's tasks, and nothing else."""

    def task(split: tuple[int, int]) -> None:
        writer = _writer(target)
        for table in _tables(source, *split):
            writer.write(table)
        writer.close()

    target.mkdir(parents=True)
    _in_tasks(spark, source, task)


def row_per_id(spark: SparkSession, source: Path, target: Path, *, dsn: str) -> None:
    """A catalog with a row for each id, asked with INSERT ... ON CONFLICT, once for each split."""

    def task(split: tuple[int, int]) -> None:
        table = pl.from_arrow(pa.concat_tables(_tables(source, *split)))
        table = table.unique(subset="id", keep="first", maintain_order=True)
        with psycopg.connect(dsn) as connection:
            new = _inserted(connection, table.select("id"))
        kept = table.join(new, on="id", how="semi").to_arrow()
        writer = _writer(target)
        writer.write(kept.cast(_schema()))
        writer.close()

    target.mkdir(parents=True)
    _in_tasks(spark, source, task)


def make_rows(dsn: str) -> None:
    """The empty table of `row_per_id`."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS public.seen")
        connection.execute("CREATE TABLE public.seen (id text PRIMARY KEY)")


def _inserted(connection: psycopg.Connection, ids: pl.DataFrame) -> pl.DataFrame:
    """The ids that were not there before."""
    connection.execute("CREATE TEMPORARY TABLE asked (id text) ON COMMIT DROP")
    with connection.cursor() as cursor:
        with cursor.copy("COPY asked FROM STDIN (FORMAT csv)") as copy:
            copy.write(ids.write_csv(include_header=False).encode())
        # In one order, or two tasks with the same ids would wait for each other for ever.
        answer = (
            "COPY (INSERT INTO public.seen SELECT id FROM asked ORDER BY id"
            " ON CONFLICT DO NOTHING RETURNING id) TO STDOUT (FORMAT csv)"
        )
        with cursor.copy(answer) as copy:
            found = b"".join(bytes(part) for part in copy)
    return pl.read_csv(found, has_header=False, new_columns=["id"], schema={"id": pl.String})


def _in_tasks(spark: SparkSession, source: Path, work: Callable[[tuple[int, int]], None]) -> None:
    """Run `work` for each split of a file, in tasks of Spark."""
    size = os.path.getsize(source)
    count = -(-size // SPLIT_BYTES)

    def tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                start = number * SPLIT_BYTES
                work((start, min(size, start + SPLIT_BYTES)))
                yield batch

    done = spark.range(0, count, 1, count).mapInArrow(tasks, "id bigint").collect()
    if len(done) != count:
        raise SystemExit(f"{len(done)} of {count} splits were worked on")


def _tables(source: Path, start: int, end: int) -> Iterator[pa.Table]:
    with open(source, "rb") as file:
        blocks = read_split(
            file,
            start=start,
            end=end,
            range_start=0,
            range_end=os.path.getsize(source),
            schema=_schema(),
            format=JsonLines(),
            digest=xxhash.xxh3_128(),
        )
        for block in blocks:
            yield block.table.drop_columns([OFFSET])


def _schema() -> pa.Schema:
    return pa.schema([pa.field(name, parse(kind).arrow()) for name, kind in SCHEMA.items()])


def _writer(target: Path) -> PartWriter:
    return PartWriter(target, format="parquet", partition_by=(), tag=uuid.uuid4().hex)
