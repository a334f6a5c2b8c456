"""Catalogs of any size through the product's own write path, without parsing a record for each id.

plan, stage and commit run as always; only the engine is another one: in place of reading records it
takes ids from a generator, and stores them with `store_run` as a task of stage does. Such batches
are never finalized, because they have no files.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from data import ids_of, seconds_of
from harness import Place, quiet
from semel import settings
from semel.catalog.ids import hash_ids
from semel.catalog.payload import FilterCache, store_run
from semel.catalog.runs import IdRun, delete_payload, snapshot
from semel.catalog.sortedids import order_of
from semel.collect.merge import merge, merge_candidates
from semel.commit import commit
from semel.ledger import Ledger, pipelines
from semel.model.batch import Counts
from semel.model.buckets import Buckets
from semel.model.manifest import Kind, SplitReport, StagedFile
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.spark.engine import Outcome, schema_of
from semel.stage import stage
from semel.stage.job import StageJob

_RECORDS_PER_FILE = 200_000  # about what a split of 32 MiB holds

Shard = tuple[np.ndarray, np.ndarray]
"""h1 and h2 of the ids of one shard, sorted by h1."""


def random_shard(count: int, seed: list[int]) -> Shard:
    """Ids that are hashes of nothing: as good as others wherever no record is read."""
    random = np.random.default_rng(seed)
    h1 = random.integers(0, 1 << 64, count, dtype=np.uint64)
    h1.sort()
    return h1, random.integers(0, 1 << 32, count, dtype=np.uint32)


def hashed_shards(numbers: np.ndarray, job: StageJob) -> Iterator[tuple[int, Shard]]:
    """The ids of records that data.py makes, by shard."""
    table = pa.table({"id": ids_of(numbers).to_arrow()})
    bucket = _buckets(numbers, job)
    hashed = hash_ids(table, job.spec.record_id, shards=job.shards, bucket=bucket)
    for shard in range(job.shards):
        own = hashed.shard == shard
        h1, h2 = hashed.h1[own], hashed.h2[own]
        order = order_of(h1)
        yield shard, (h1[order], h2[order])


def _buckets(numbers: np.ndarray, job: StageJob) -> np.ndarray | None:
    if job.spec.dedup.scope != "bucket":
        return None
    return seconds_of(numbers) // job.bucket_seconds


@dataclass(kw_only=True)
class IdsEngine:
    """Stores ids as the tasks of a stage job do. `store` returns how many there were."""

    store: Callable[[StageJob], int]
    buckets: Callable[[StageJob], Buckets | None] = field(default=lambda _: None)

    def run(self, job: StageJob) -> Outcome:
        """See semel.stage.job.JobEngine."""
        records = self.store(job)
        whole, rest = divmod(records, _RECORDS_PER_FILE)
        sizes = [_RECORDS_PER_FILE] * whole + ([rest] if rest else [])
        counts = Counts(records_read=records, survivors=records, rows_written=records, bytes_read=1)
        report = SplitReport(
            split=0,
            digest="",
            counts=counts,
            files=tuple(_file(job, number, size) for number, size in enumerate(sizes)),
            buckets=self.buckets(job),
        )
        return Outcome(reports=[report], files=(), sink_schema=schema_of(job.output_schema()))


def _file(job: StageJob, number: int, records: int) -> StagedFile:
    path = job.data_dir / f"{number}"
    path.write_bytes(b"\n")  # Stage looks whether it can be given a name.
    return StagedFile(
        kind=Kind.DATA,
        path=str(path),
        folder="",
        suffix=".parquet",
        records=records,
        bytes=1,
        checksum="",
    )


class Grown:
    """A pipeline whose catalog is filled batch by batch. One line of source stands for a batch."""

    def __init__(self, place: Place, ledger: Ledger, spec: Spec) -> None:
        self.ledger, self.spec = ledger, spec
        self._source = place.data / spec.name / "grow.jsonl"
        self._source.parent.mkdir(parents=True, exist_ok=True)
        self._batches = 0

    def staged(self, engine: IdsEngine) -> int:
        """Plan and stage the next batch. Returns its id."""
        self._batches += 1
        with self._source.open("a", encoding="utf-8") as file:
            file.write(f'{{"id": "{self._batches:020d}"}}\n')
        planned = plan(self.ledger, self.spec, f"grow-{self._batches}")
        stage(self.ledger, self.spec, planned.batch.batch_id, engine, quiet)
        return planned.batch.batch_id

    def commit(self, batch_id: int) -> None:
        """Commit a staged batch."""
        commit(self.ledger, self.spec, batch_id, _never, quiet)

    def add_random(self, ids: int) -> int:
        """A staged batch of random ids, equally many in each shard. Returns its id."""
        number = self._batches

        def store(job: StageJob) -> int:
            for shard in range(job.shards):
                count = (ids + shard) // job.shards
                if count:
                    store_shard(self.ledger, job, shard, random_shard(count, [number, shard, ids]))
            return ids

        return self.staged(IdsEngine(store=store))

    def add_records(self, numbers: np.ndarray) -> int:
        """A staged batch of the ids of records that data.py makes. Returns its id."""

        def buckets(job: StageJob) -> Buckets | None:
            found = _buckets(numbers, job)
            return None if found is None else Buckets.of(found)

        def store(job: StageJob) -> int:
            for shard, found in hashed_shards(numbers, job):
                if len(found[0]):
                    store_shard(self.ledger, job, shard, found, buckets(job))
            return len(numbers)

        return self.staged(IdsEngine(store=store, buckets=buckets))

    def live(self) -> tuple[IdRun, ...]:
        """The visible runs."""
        pipeline_id = self.pipeline_id()
        with self.ledger.transaction() as connection:
            return snapshot(connection, pipeline_id).runs

    def merge(self) -> int:
        """Merge as collect does, and delete what was merged. Returns the ids of the new runs."""
        merged, cache = 0, FilterCache(settings.cache_dir())
        horizon = int(self.spec.dedup.horizon.total_seconds())
        while groups := merge_candidates(self.live(), horizon_seconds=horizon):
            merged += sum(merge(self.ledger, cache, group).ids for group in groups)
        if merged:
            delete_payload(self.ledger, self.pipeline_id())
        return merged

    def pipeline_id(self) -> int:
        """The pipeline's id in the ledger."""
        with self.ledger.transaction() as connection:
            return pipelines.find(connection, self.spec.name).pipeline_id


def store_shard(
    ledger: Ledger, job: StageJob, shard: int, ids: Shard, buckets: Buckets | None = None
) -> IdRun:
    """Store one shard's new ids, as semel.stage.shard does."""
    return store_run(
        ledger,
        pipeline_id=job.pipeline_id,
        attempt_id=job.attempt_id,
        shard=shard,
        segment_id=job.segment_id,
        buckets=buckets,
        h1=ids[0],
        h2=ids[1],
    )


def size_of(ledger: Ledger) -> tuple[int, int]:
    """Bytes that the catalog takes on disk (indexes, TOAST and headers too), and its live ids."""
    with ledger.engine.connect() as connection:
        size = connection.exec_driver_sql(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class AS c"
            " JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname = 'semel' AND c.relkind = 'r'"
            " AND (c.relname LIKE 'ids_%%' OR c.relname = 'id_run')"
        ).scalar_one()
        ids = connection.exec_driver_sql(
            "SELECT sum(ids) FROM semel.id_run WHERE seq_min IS NOT NULL AND retired_at IS NULL"
        ).scalar_one()
    return int(size), int(ids)


def _never() -> None:
    raise SystemExit("a batch of the generator was beaten by another; nobody else commits here")
