"""What each run asks of the ledger must not read all that ever was: an index leads to it."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from semel.ledger import Ledger, query

GROWING = {"batch", "claim", "attempt", "manifest_file", "id_run", "segment"}
"""The tables that only grow, with batches and time."""

ASKED = {
    "abandon": ("batch", "lock_batch", "abandon_batch", "lose_attempts", "release_claims"),
    "batch": ("batch",),
    "catalog": (
        "snapshot", "own_runs", "own_run", "publish_runs", "current_segment", "share_attempt",
        "seal_run", "retire_merged", "retire_expired", "live_segments", "deletable_runs",
        "droppable_segments", "lock_segment", "mark_dropped",
    ),
    "collect": ("unfinished", "attempt_ends"),
    "commit": (
        "pipeline_now", "lock_batch", "lock_attempt", "win_attempt", "lose_siblings",
        "commit_batch", "renew_lease", "take_lease",
    ),
    "finalize": ("won", "manifest", "finalize_batch", "batch_status"),
    "look": ("open_claims", "batch", "attempts", "files"),
    "stage": (
        "staged", "begin_attempt", "sign_of_life", "attempt_status", "seal", "other_digest", "lose",
    ),
}  # fmt: skip
"""All statements of these verbs that read a growing table; `look batches` is ended by a LIMIT."""

_TEXTS = {"status", "reason", "driver", "input_digest", "sink_schema", "checksum"}
_TIMES = {"expires_at", "batch_time"}


def _value(name: str) -> Any:
    if name == "parts":
        return [1, 2]
    if name in _TIMES:
        return "2026-01-01T00:00:00Z"
    return "x" if name in _TEXTS else 1


def _linear(node: dict[str, Any]) -> Iterator[str]:
    """The scans of growing tables that no condition on an index narrows."""
    table = node.get("Relation Name")
    narrowed = "Index Cond" in node or node["Node Type"] == "Bitmap Heap Scan"
    if table in GROWING and "Scan" in node["Node Type"] and not narrowed:
        yield f"{node['Node Type']} of {table}"
    for inner in node.get("Plans", ()):
        yield from _linear(inner)


@pytest.mark.parametrize(("verb", "name"), [(v, n) for v, names in ASKED.items() for n in names])
def test_no_statement_reads_all_of_a_growing_table(ledger: Ledger, verb: str, name: str) -> None:
    """When Postgres is told not to read a table from end to end, an index serves it."""
    text = query(verb, name).text.replace("{segment_id}", "1")
    names = set(re.findall(r"(?<!:):(\w+)", text))
    with ledger.engine.connect() as connection:
        connection.exec_driver_sql("SET enable_seqscan = off")
        connection.exec_driver_sql(
            "CREATE TABLE IF NOT EXISTS semel.ids_1 (id_run_id bigint, piece int, kind smallint,"
            " PRIMARY KEY (id_run_id, kind, piece))"
        )
        explained = sa.text(f"EXPLAIN (FORMAT JSON) {text}")
        [plan] = connection.execute(explained, {n: _value(n) for n in names}).scalar_one()
        assert list(_linear(plan["Plan"])) == []
