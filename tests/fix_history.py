"""A ledger that has many batches: copies of the rows of a real one, by benchmarks/history.sql."""

from pathlib import Path

import psycopg

from semel.ledger import Ledger
from semel.model.batch import Batch

_SQL = Path(__file__).parents[1] / "benchmarks" / "history.sql"
FIRST = 1_000
"""The number of the first of them."""


def add_history(ledger: Ledger, batch: Batch, batches: int) -> None:
    """Copies of a finalized batch, whose file is gone: one each five minutes, the
    last one now. The real one is the oldest: batch times grow with commit sequences."""
    values = {
        "batch": batch.batch_id, "pipeline": batch.pipeline_id, "first": FIRST,
        "batches": batches, "claims": batches, "files": batches, "segments": 10,
    }  # fmt: skip
    dsn = ledger.dsn.replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(dsn) as connection:
        connection.execute(_SQL.read_text(encoding="utf-8").format(**values))
        times = {"real": batch.batch_id, "first": FIRST, "last": FIRST + batches}
        connection.execute(_TIMES, times)
        connection.execute("ANALYZE")


_TIMES = """
UPDATE semel.batch
SET batch_time = t.at, committed_at = t.at, finalized_at = t.at, seen_at = t.at, planned_at = t.at,
    interval_start = CASE WHEN interval_start IS NOT NULL THEN t.at - interval '5 minutes' END,
    interval_end = CASE WHEN interval_start IS NOT NULL THEN t.at END
FROM (SELECT n, transaction_timestamp() - (%(last)s - n) * interval '5 minutes' AS at
      FROM generate_series(%(first)s - 1, %(last)s - 1) AS n) AS t
WHERE batch_id = CASE WHEN t.n < %(first)s THEN %(real)s ELSE t.n END
"""
