"""What each run asks of the ledger must not read all that ever was: an index leads to it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from fixtures.batches.account import lines, run
from fixtures.batches.workbench import Workbench, events
from fixtures.files.rotation import position
from semel.clients.sql import query
from semel.ledger import Ledger
from semel.plan import plan

GROWING = {
    "batch", "claim", "attempt", "manifest_file", "id_run", "segment", "source_partition", "loss",
}  # fmt: skip
"""The tables that only grow, with batches, files and time."""

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
        "pipeline_now", "lock_batch", "lock_attempt", "win_attempt", "take_place", "renew_lease",
        "take_lease",
    ),
    "days": ("batches", "commit", "newest_interval", "newest_commit"),
    "files": ("lengths", "like"),
    "finalize": (
        "won", "manifest", "finalize_batch", "batch_status", "frontier", "frontier_of_intervals",
    ),
    "look": ("open_claims", "batch", "attempts", "files"),
    "page": ("newest", "open", "spec", "claims"),
    "partitions": (
        "settled", "by_id", "state", "holders", "free_ranges", "unaccounted",
        "close", "account", "update", "insert", "restore",
    ),
    "pipelines": ("move_sink",),
    "plan": ("latest_batch", "claims", "covers"),
    "stage": (
        "staged", "latest", "begin_attempt", "sign_of_life", "attempt_status", "seal",
        "other_digest", "lose",
    ),
}  # fmt: skip
"""The statements that a run or a look at it makes of a growing table. What persons gave up is
listed by reading all losses.
"""

_TEXTS = {
    "status", "reason", "driver", "input_digest", "sink_schema", "checksum", "request_key",
    "sink_address", "archive_path", "name",
}  # fmt: skip
_TIMES = {"expires_at", "batch_time", "since", "until"}
_CASTS = {
    "bigint[]": [1, 2], "int[]": [1, 2], "text[]": ["x", "y"], "jsonb": "[]", "text": "x",
    "timestamptz[]": ["2026-01-01T00:00:00Z"], "timestamptz": "2026-01-01T00:00:00Z",
    "int8multirange": "{[0,5)}", "tstzmultirange": "{}", "interval": "1 hour",
    "bigint": 1, "boolean": True,
}  # fmt: skip


def _value(name: str, text: str) -> Any:
    """Some value of a parameter, of the type that the statement casts it to."""
    if cast := re.search(rf"CAST\(:{name} AS ([a-z0-9]+(?:\[\])?)\)", text):
        return _CASTS[cast[1]]
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


def test_no_statement_reads_all_of_a_growing_table(ledger: Ledger) -> None:
    """When Postgres is told not to read a table from end to end, an index serves each statement."""
    linear = {}
    with ledger.engine.connect() as connection:
        for way in ("seqscan", "mergejoin", "hashjoin"):
            connection.exec_driver_sql(f"SET enable_{way} = off")
        connection.exec_driver_sql(
            "CREATE TABLE IF NOT EXISTS semel.ids_1 (id_run_id bigint, piece int, kind smallint,"
            " PRIMARY KEY (id_run_id, kind, piece))"
        )
        for verb, name in [(verb, name) for verb, names in ASKED.items() for name in names]:
            text = query(verb, name).text.replace("{segment_id}", "1")
            values = {n: _value(n, text) for n in re.findall(r"(?<!:):(\w+)", text)}
            explained = connection.execute(sa.text(f"EXPLAIN (FORMAT JSON) {text}"), values)
            [plan] = explained.scalar_one()
            linear[verb, name] = list(_linear(plan["Plan"]))
    assert {asked: scans for asked, scans in linear.items() if scans} == {}


_TWO_PIPELINES = """
INSERT INTO semel.pipeline (name, sink_address, archive_path, identity, shards, bucket_seconds)
VALUES ('quiet', '/quiet', '/q', '{}', 1, 1), ('busy', '/busy', '/b', '{}', 1, 1);
INSERT INTO semel.batch (pipeline_id, request_key, ordinal, spec, spec_digest, split_bytes)
SELECT p.pipeline_id, 'r' || n, 1, '{}', '', 1
FROM semel.pipeline AS p, generate_series(1, CASE p.name WHEN 'quiet' THEN 3 ELSE 5000 END) AS n
ORDER BY p.name = 'busy';
ANALYZE semel.pipeline; ANALYZE semel.batch;
"""


@pytest.mark.parametrize("name", ["quiet", "busy", None])
def test_the_newest_batches_are_found_without_a_walk_over_the_others(
    ledger: Ledger, name: str | None
) -> None:
    """`semel batches` reads as many batches of each pipeline as it shows, and no more."""
    shown = 10
    with ledger.engine.connect() as connection:
        connection.exec_driver_sql(_TWO_PIPELINES)
        asked = {"name": name, "count": shown}
        found = connection.execute(query("look", "batches"), asked).mappings().all()
        numbers = [row["batch_id"] for row in found]
        assert numbers == sorted(numbers, reverse=True)
        assert len(found) == (3 if name == "quiet" else shown)
        assert {row["pipeline"] for row in found} == {name or "busy"}
        explained = sa.text(f"EXPLAIN (ANALYZE, FORMAT JSON) {query('look', 'batches').text}")
        [plan] = connection.execute(explained, asked).scalar_one()
        assert sum(_read(plan["Plan"], "batch")) <= 2 * shown


_ALIKE = """
INSERT INTO semel.pipeline (name, sink_address, archive_path, identity, shards, bucket_seconds)
VALUES ('drops', '/drops', '/d', '{}', 1, 1);
INSERT INTO semel.source_partition (pipeline_id, name, generation, identity, evidence, reached,
                                    seen, closed_at)
SELECT pipeline_id, 'a', n, '1:7', '{"head_length": 100, "head_hash": "same"}', 100, 100,
       clock_timestamp()
FROM semel.pipeline, generate_series(1, 5000) AS n;
ANALYZE semel.pipeline; ANALYZE semel.source_partition;
"""


def test_of_files_that_are_all_alike_only_the_last_are_read(ledger: Ledger) -> None:
    """A path, an inode and a beginning that 5,000 files had one after the other: a new file is held
    against as many of them as it is to be, and no others are looked at.
    """
    count = 10
    with ledger.engine.connect() as connection:
        connection.exec_driver_sql(_ALIKE)
        newest = connection.exec_driver_sql(
            "SELECT max(source_partition_id) FROM semel.source_partition"
        ).scalar_one()
        pipeline_id = connection.exec_driver_sql(
            "SELECT pipeline_id FROM semel.pipeline WHERE name = 'drops'"
        ).scalar_one()
        asked = {
            "pipeline_id": pipeline_id, "heads": '[{"head_length": 100, "head_hash": "same"}]',
            "inodes": ["7"], "names": ["a"], "count": count,
        }  # fmt: skip
        found = connection.execute(query("files", "like"), asked).mappings().all()
        numbers = [row["source_partition_id"] for row in found]
        assert numbers == list(range(newest - count + 1, newest + 1))
        explained = sa.text(f"EXPLAIN (ANALYZE, FORMAT JSON) {query('files', 'like').text}")
        [plan] = connection.execute(explained, asked).scalar_one()
        assert sum(_read(plan["Plan"], "source_partition")) <= 3 * count


_MANY = """
INSERT INTO semel.pipeline (name, sink_address, archive_path, identity, shards, bucket_seconds)
VALUES ('many', '/many', '/m', '{}', 1, 1);
INSERT INTO semel.batch (pipeline_id, request_key, ordinal, spec, spec_digest, split_bytes)
SELECT pipeline_id, 'r1', 1, '{}', '', 1 FROM semel.pipeline WHERE name = 'many';
INSERT INTO semel.source_partition
    (pipeline_id, name, generation, identity, evidence, reached, seen)
SELECT pipeline_id, 'f' || n, 1, n::text, '{}', 100, 100
FROM semel.pipeline, generate_series(1, 20000) AS n WHERE name = 'many';
INSERT INTO semel.claim (batch_id, ordinal, source_partition_id, span, evidence)
SELECT batch_id, row_number() OVER (), source_partition_id, '[0,100)',
       jsonb_build_object('head', repeat('x', 400))
FROM semel.batch JOIN semel.source_partition USING (pipeline_id);
"""


def test_a_batch_of_many_files_is_looked_at_once(ledger: Ledger) -> None:
    """A plan that takes 20,000 files does not look at all claims of its batch for each of them, as
    Postgres would where it takes the batch for the better index."""
    with ledger.engine.connect() as connection:
        connection.exec_driver_sql(_MANY)
        found = connection.exec_driver_sql("SELECT source_partition_id FROM semel.claim").scalars()
        partitions = list(found)
        text = query("partitions", "raise_floor").text
        explained = sa.text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}")
        [plan] = connection.execute(explained, {"partitions": partitions}).scalar_one()
        assert plan["Plan"]["Shared Hit Blocks"] < 20 * len(partitions)


def test_a_new_file_is_held_against_files_with_its_first_record(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many lengths the known files have: no beginning is asked for that cannot be known."""
    spec = position(bench, "in/*.jsonl")
    for count in range(1, 31):
        bench.write(f"in/{count}.jsonl", events(100 * count, 101 * count))
    run(ledger, spec, "r1")
    for count in range(1, 31):
        bench.write(f"in/new-{count}.jsonl", events(5_000 + 100 * count, 5_000 + 101 * count))
    (bench.data / "in/20.jsonl").unlink()
    bench.write("in/20.jsonl.copy.jsonl", events(2_000, 2_030))
    asked, rows = [], Ledger.rows

    def note(self: Ledger, verb: str, name: str, /, **values: object) -> list:
        if name == "like":
            asked.extend(head["head_length"] for head in json.loads(values["heads"]))
        return rows(self, verb, name, **values)

    monkeypatch.setattr(Ledger, "rows", note)
    planned = plan(ledger, spec, "r2")
    assert asked == [len(lines(2_000, 2_020))]
    assert [Path(refused.name).name for refused in planned.refusals] == ["20.jsonl.copy.jsonl"]


def _read(node: dict[str, Any], table: str) -> Iterator[float]:
    """The rows that each scan of a table looked at."""
    if node.get("Relation Name") == table:
        rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
        yield rows * node["Actual Loops"]
    for inner in node.get("Plans", ()):
        yield from _read(inner, table)
