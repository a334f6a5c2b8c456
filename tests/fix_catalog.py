"""A pipeline whose catalog a test fills, with ids as sets of (h1, h2)."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from semel.catalog import payload
from semel.catalog import runs as catalog
from semel.catalog.payload import FilterCache
from semel.catalog.runs import Run
from semel.ledger import Ledger

HORIZON = 40 * 86_400
Ids = set[tuple[int, int]]


def columns(ids: Ids) -> tuple[np.ndarray, np.ndarray]:
    ordered = sorted(ids)
    return (
        np.array([h1 for h1, _ in ordered], np.uint64),
        np.array([h2 for _, h2 in ordered], np.uint32),
    )


def random_ids(count: int, seed: int) -> Ids:
    values = np.random.default_rng(seed).integers(0, 2**64, (2, count), dtype=np.uint64)
    return set(zip(values[0].tolist(), (values[1] >> np.uint64(32)).tolist(), strict=True))


class Catalog:
    """A pipeline whose catalog a test fills: `store` and `publish` do what stage and commit do."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        self.folder = folder
        self.cache = FilterCache(folder)
        self.pipeline_id = self.sql(
            "INSERT INTO semel.pipeline (name, sink_address, archive_path, identity, shards, "
            "bucket_seconds) VALUES ('p', '/p', '/a', 'id', 4, 86400) RETURNING pipeline_id"
        )
        with ledger.transaction() as connection:
            self.segment_id = catalog.ensure_segment(connection, self.pipeline_id, HORIZON)
        self.seq = 0

    def sql(self, statement: str, **values):
        with self.ledger.transaction() as connection:
            result = connection.execute(sa.text(statement), values)
            return result.scalar() if result.returns_rows else result.rowcount

    def attempt(self) -> int:
        """A running attempt of a new batch."""
        return self.sql(
            "WITH b AS (INSERT INTO semel.batch (pipeline_id, request_key, ordinal, spec,"
            " spec_digest, split_bytes)"
            " SELECT :p, 'r', count(*) + 1, '{}', '', 1 FROM semel.batch RETURNING batch_id) "
            "INSERT INTO semel.attempt (batch_id, fence, snapshot_seq, forgotten, driver) "
            "SELECT batch_id, 1, 0, '{}', 'd' FROM b RETURNING attempt_id",
            p=self.pipeline_id,
        )

    def lose(self, attempt_id: int) -> None:
        self.sql("UPDATE semel.attempt SET status = 'lost' WHERE attempt_id = :a", a=attempt_id)

    def win(self, attempt_id: int, age: timedelta = timedelta()) -> None:
        """Publish an attempt's runs as if it had committed `age` ago."""
        self.seq += 1
        expires_at = datetime.now(UTC) - age + timedelta(seconds=HORIZON)
        with self.ledger.transaction() as connection:
            catalog.publish_runs(connection, attempt_id, seq=self.seq, expires_at=expires_at)
        self.sql(
            "UPDATE semel.attempt SET status = 'won', records_read = 0, survivors = 0,"
            " duplicates_batch = 0, duplicates_catalog = 0, quarantined = 0, late = 0,"
            " input_digest = '', sink_schema = '', rows_written = 0, bytes_read = 0,"
            " staged_at = now() WHERE attempt_id = :a",
            a=attempt_id,
        )
        self.sql("UPDATE semel.pipeline SET commit_seq = :s", s=self.seq)

    def store(self, ids: Ids, *, attempt_id: int | None = None, shard: int = 0, **bucket) -> Run:
        h1, h2 = columns(ids)
        return payload.store_run(
            self.ledger,
            pipeline_id=self.pipeline_id,
            attempt_id=attempt_id or self.attempt(),
            shard=shard,
            segment_id=self.segment_id,
            buckets=bucket.get("buckets"),
            h1=h1,
            h2=h2,
        )

    def publish(self, ids: Ids, *, age: timedelta = timedelta(), **options) -> Run:
        run = self.store(ids, **options)
        self.win(run.attempt_id, age)
        return next(each for each in self.live() if each.id_run_id == run.id_run_id)

    def live(self) -> tuple[Run, ...]:
        with self.ledger.transaction() as connection:
            return catalog.snapshot(connection, self.pipeline_id).runs

    def known(self, asked: Ids, runs=None, cache: FilterCache | None = None) -> Ids:
        h1, h2 = columns(asked)
        runs = self.live() if runs is None else runs
        mask = payload.contains(self.ledger, cache or self.cache, runs, h1, h2)
        return {pair for pair, found in zip(sorted(asked), mask, strict=True) if found}

    def pieces(self, run: Run, kind: payload.Stream) -> int:
        return self.sql(
            f"SELECT count(*) FROM semel.ids_{run.segment_id} WHERE id_run_id = :r AND kind = :k",
            r=run.id_run_id, k=kind,
        )  # fmt: skip

    def fresh_cache(self) -> FilterCache:
        """A machine that has fetched nothing yet."""
        return FilterCache(self.folder / f"machine-{np.random.default_rng().integers(2**60)}")
