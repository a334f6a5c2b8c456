"""The scene of the chaos tests: what was there before, and two files with common ids."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from checker import Found, assert_exact
from fix_account import quiet
from fix_engine import LocalEngine
from fix_pipelines import Workbench, events
from semel.archive import layout
from semel.ledger import Ledger
from semel.pipeline import Spec
from semel.runs.run import run_batch

_TABLE = {"type": "postgres", "connection": "warehouse", "table": "events", "create": True}

SINKS = {
    "files": {},
    "append": _TABLE,
    "upsert": {**_TABLE, "mode": "upsert", "key": ["id"]},
    "topic": {"type": "kafka", "connection": "broker", "topic": "events", "key": "id"},
}
"""The sinks of the scene. Tables need the fixture `table`, the topic needs `events_topic`."""


class Scene:
    """A pipeline with one finalized batch (r0), and two files that r1 and r2 will take.

    Each has repeats within itself, repeats of r0, ids that the other has too, and bad lines.
    """

    def __init__(
        self, bench: Workbench, ledger: Ledger, sink: str = "files", **changes: object
    ) -> None:
        self.bench, self.ledger, self.sink = bench, ledger, sink
        first = bench.write("in/a.jsonl", events(0, 40))
        self.sources = [first]
        self.spec = self.declare(**changes)
        run_batch(ledger, self.spec, "r0", LocalEngine(), log=quiet)
        bad = [b"{not json", b'{"id": null, "n": 1}']
        self.add("b.jsonl", [*events(30, 80), *events(50, 55), *bad])
        self.add("c.jsonl", [*events(60, 110), *events(70, 75), *bad])

    @classmethod
    def empty(cls, bench: Workbench, ledger: Ledger, **changes: object) -> "Scene":
        """Without a batch, and without a source yet."""
        made = cls.__new__(cls)
        made.bench, made.ledger, made.sink, made.sources = bench, ledger, "files", []
        made.spec = made.declare(**changes)
        return made

    def declare(self, **changes: object) -> Spec:
        parts = {
            "dedup": {"shards": 2},
            "sink": {"position_columns": True, **SINKS[self.sink]},
            # Room for one of the files, so that each plan takes one.
            "limits": {"bytes_per_batch_max": 4000},
        }
        return self.bench.spec(**{**parts, **changes})

    def add(self, name: str, records: list) -> Path:
        path = self.bench.write(f"in/{name}", records)
        self.sources.append(path)
        return path

    def run(self, *requests: str) -> None:
        for request in requests:
            run_batch(self.ledger, self.spec, request, LocalEngine(), log=quiet)

    def finish(self, *requests: str) -> Found:
        """Run the same requests again and one more, as a scheduler would; then all is exact."""
        self.run(*requests, "last", "last")
        return self.check()

    def check(self) -> Found:
        return assert_exact(self.spec, self.sources)


@pytest.fixture
def scene(bench: Workbench, ledger: Ledger) -> Scene:
    return Scene(bench, ledger)


def sql(ledger: Ledger, text: str, **values: object) -> list:
    """The rows of a statement that a test makes up."""
    with ledger.transaction() as connection:
        done = connection.execute(sa.text(text), values)
        return list(done.mappings()) if done.returns_rows else []


def time_passes(ledger: Ledger, *, segments: bool = False, runs: bool = False) -> None:
    """Close the drop span that is open, or end the horizon of what lies in closed ones."""
    if segments:
        sql(
            ledger,
            "UPDATE semel.segment SET span_start = now() - interval '2 hours', "
            "span_end = now() - interval '1 hour'",
        )
    if runs:
        sql(
            ledger,
            "UPDATE semel.id_run SET expires_at = now() FROM semel.segment AS s "
            "WHERE id_run.segment_id = s.segment_id AND s.span_end < now()",
        )


def payload_tables(ledger: Ledger) -> list[str]:
    found = sql(ledger, "SELECT tablename FROM pg_tables WHERE tablename LIKE 'ids\\_%'")
    return [row["tablename"] for row in found]


def live_runs(ledger: Ledger) -> dict[int, int]:
    """How many live runs each shard has."""
    found = sql(
        ledger,
        "SELECT shard, count(*) AS runs FROM semel.id_run "
        "WHERE seq_min IS NOT NULL AND retired_at IS NULL GROUP BY shard",
    )
    return {row["shard"]: row["runs"] for row in found}


def attempts(ledger: Ledger, batch_id: int) -> list[str]:
    """The states of a batch's attempts, by fence."""
    text = "SELECT status FROM semel.attempt WHERE batch_id = :batch ORDER BY fence"
    return [row["status"] for row in sql(ledger, text, batch=batch_id)]


def staged_folders(spec: Spec) -> list[Path]:
    return sorted(layout.staging(layout.of(spec)).glob("b*/f*"))
