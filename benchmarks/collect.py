"""B5: collect merges small id runs, and drops a catalog whose horizon is over.

    python benchmarks/collect.py
    python benchmarks/collect.py --smallest

The catalog is filled with batches of `--batch` ids and not merged meanwhile. The first collect
merges. Then the ledger's clock is turned on: all runs have expired and their span is over. What
happens in that time anyway is done: the tables are vacuumed (an autovacuum at work holds DROP TABLE
up for a second, Postgres' deadlock_timeout), and what Postgres wrote reaches the disk. The second
collect drops. A catalog of a hundredth of the size goes first, to warm up; the run whose drop takes
the median counts.
"""

import os
from argparse import Namespace
from typing import Any

import harness
from grow import Grown
from harness import Clock, Place, WatchedLedger
from semel.collect import Collected, collect


def main() -> None:
    parser = harness.options_of(__doc__, runs=3, default=100_000_000, help="ids to drop")
    parser.add_argument("--batch", type=int, default=1_000_000, help="ids of a batch")
    options = harness.parsed(parser, records=20_000, batch=500)
    with harness.open_place() as place, WatchedLedger(place.dsn) as ledger:
        report = _measure(place, ledger, options)
    harness.save("collect", options, report)


def _measure(place: Place, ledger: WatchedLedger, options: Namespace) -> dict[str, Any]:
    _round(place, ledger, "warm", max(1, options.records // 100), max(1, options.batch // 100))
    found = [
        _round(place, ledger, f"r{number}", options.records, options.batch)
        for number in range(options.runs)
    ]
    middle = sorted(found, key=lambda each: each["drop"])[len(found) // 2]
    headline = {
        "merge_ids_per_second": round(middle["merged"] / middle["merge"]),
        "collect_s": round(middle["drop"], 3),
    }
    if options.smallest or options.records == 100_000_000:
        headline["collect_100m_s"] = headline["collect_s"]
    names = {
        "merge": f"first collect: merging {middle['merged']:,} ids",
        "merge_alone": "of it: the merges",
        "merge_delete": "of it: deleting the payload of what was merged",
        "drop": f"second collect: dropping {options.records:,} ids",
        "drop_delete": "of it: deleting payload row by row",
        "drop_alone": "of it: DROP TABLE",
        "drop_rows": "rows of payload that were deleted and not dropped (a number)",
    }
    rows = [[name, round(middle[key], 3)] for key, name in names.items()]
    table = {
        "title": f"{options.records:,} ids in batches of {options.batch:,}",
        "columns": ["step", "seconds"],
        "rows": rows,
    }
    title = "B5: collect"
    return {"title": title, "headline": headline, "tables": [table]}


def _round(
    place: Place, ledger: WatchedLedger, name: str, records: int, batch: int
) -> dict[str, float]:
    grown = Grown(place, ledger, place.spec(name, record_id=["id"]))
    for first in range(0, records, batch):
        grown.commit(grown.add_random(min(batch, records - first)))
    harness.tell(f"{records} ids in {len(grown.live())} runs")
    before = {run.id_run_id for run in grown.live()}
    merge, merge_seconds = _collected(grown)
    merged = sum(run.ids for run in grown.live() if run.id_run_id not in before)
    found = {
        "merged": merged,
        "merge": merge_seconds,
        "merge_alone": ledger.seconds_of("SET ids = "),
        "merge_delete": ledger.seconds_of("DELETE FROM semel.ids_"),
    }
    _turn_clock_on(grown)
    dropped, drop_seconds = _collected(grown)
    harness.check("segments dropped", dropped.segments_dropped, 1)
    harness.check("live runs after it", len(grown.live()), 0)
    harness.tell(f"merged {merge.runs_merged} runs in {merge_seconds:.2f} s; {drop_seconds:.2f} s")
    return {
        **found,
        "drop": drop_seconds,
        "drop_rows": dropped.payloads_deleted,
        "drop_delete": ledger.seconds_of("DELETE FROM semel.ids_"),
        "drop_alone": ledger.seconds_of("DROP TABLE"),
    }


def _collected(grown: Grown) -> tuple[Collected, float]:
    grown.ledger.transactions.clear()
    with (clock := Clock()):
        done = collect(grown.ledger, grown.spec, harness.quiet)
    return done, clock.seconds


def _turn_clock_on(grown: Grown) -> None:
    """Move the catalog into the past: every run has expired, and its span is over."""
    horizon = grown.spec.dedup.horizon
    with grown.ledger.engine.begin() as connection:
        for table, columns in {
            "id_run": ("expires_at",),
            "segment": ("span_start", "span_end"),
        }.items():
            sets = ", ".join(f"{column} = {column} - %(by)s" for column in columns)
            whose = "(SELECT pipeline_id FROM semel.pipeline WHERE name = %(name)s)"
            connection.exec_driver_sql(
                f"UPDATE semel.{table} SET {sets} WHERE pipeline_id = {whose}",
                {"by": 2 * horizon, "name": grown.spec.name},
            )
    with grown.ledger.engine.connect() as connection:
        at_once = connection.execution_options(isolation_level="AUTOCOMMIT")
        at_once.exec_driver_sql("VACUUM")
        at_once.exec_driver_sql("CHECKPOINT")
    os.sync()


if __name__ == "__main__":
    main()
