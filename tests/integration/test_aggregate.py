"""Aggregates: the rows of a window are those of all committed survivors of that window."""

import json
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from psycopg.rows import dict_row

from fixtures.batches.account import run, settled
from fixtures.batches.workbench import Workbench
from fixtures.postgres.warehouse import TABLE, Warehouse
from semel import reader
from semel.audit import audit
from semel.ledger import Ledger
from semel.pipeline.spec import Spec

SCHEMA = {"id": "string", "user": "string", "n": "bigint", "at": "timestamp"}
COLUMNS = {"events": "count()", "spent": "sum(n)", "first": "min(at)", "users": "distinct(user)"}


def clicks(start: int, stop: int, *, users: int = 5, step: int = 600) -> list[dict]:
    """Events of some users, one each ten minutes, from the eve of a change of Berlin's clock."""
    begin = datetime(2013, 10, 26, 12, tzinfo=UTC)
    return [
        {
            "id": f"e{i:06d}", "user": f"u{i % users}", "n": i,
            "at": (begin + timedelta(seconds=step * i)).isoformat(),
        }
        for i in range(start, stop)
    ]  # fmt: skip


def counting(bench: Workbench, *, name: str = "counts", **changes: Any) -> Spec:
    """Events per user and in all, by hour in Berlin."""
    changes = {
        "source": {"schema": SCHEMA},
        "record_time": "at",
        "window": {"size": "1 hour", "zone": "Europe/Berlin"},
        "aggregate": {"by": [["user"], []], "columns": COLUMNS},
        **changes,
    }
    return bench.spec(name, **changes)


def expected(records: list[dict], *, hours: int = 1, zone: str = "Europe/Berlin") -> dict:
    """Windows of some hours, one each hour, counted one record after the other."""
    found: dict[tuple, list[dict]] = defaultdict(list)
    for record in records:
        begin = datetime.fromisoformat(record["at"]).replace(minute=0, second=0)
        for back in range(hours):
            for user in (record["user"], None):
                found[begin - timedelta(hours=back), user].append(record)
    return {
        key: (
            len(of), Decimal(sum(r["n"] for r in of)),
            min(datetime.fromisoformat(r["at"]) for r in of), len({r["user"] for r in of}),
        )
        for key, of in found.items()
    }  # fmt: skip


def in_utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def merged(spec: Spec, warehouse: Warehouse | None = None) -> dict:
    """What readers see: of each window and user (None: in all) the columns."""
    if warehouse is None:
        rows = reader.windows(spec.sink_path()).to_pylist()
    else:
        with psycopg.connect(warehouse.dsn, row_factory=dict_row) as connection:
            rows = connection.execute(f"SELECT * FROM {spec.sink.table}").fetchall()
    found = {}
    for row in rows:
        assert row["_semel_level"] == (row["user"] is None)
        key = in_utc(row["window_start"]), row["user"]
        assert key not in found
        found[key] = row["events"], row["spent"], in_utc(row["first"]), row["users"]
    return found


@pytest.mark.parametrize("window", [{}, {"every": "1 hour", "size": "3 hours"}])
@pytest.mark.parametrize("kind", ["files", "postgres"])
def test_the_rows_of_a_window(
    bench: Workbench, ledger: Ledger, table: Warehouse, window: dict[str, str], kind: str
) -> None:
    """Per user and in all, also where windows overlap and over midnight. Records that repeat count
    once, and rows of one hour come from many batches.
    """
    sink = {"sink": TABLE} if kind == "postgres" else {}
    spec = counting(bench, window={"size": "1 hour", "zone": "Europe/Berlin"} | window, **sink)
    for at in range(5):
        bench.write(f"in/{at}.jsonl", clicks(at * 20, at * 20 + 30))
        run(ledger, spec, f"r{at}")
    found = merged(spec, table if sink else None)
    assert found == expected(clicks(0, 110), hours=3 if window else 1)
    verdict = audit(spec)
    assert verdict.ok, [c for c in verdict.checks if not c.ok]
    assert verdict.proved_by == "windows, counted again"
