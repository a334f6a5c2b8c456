"""B17: what the pages in Airflow ask of a large ledger.

    python benchmarks/pages.py
    python benchmarks/pages.py --records 1000000 --batches 1000 --runs 3

A pipeline by day has `--batches` days, another `--records` ids in its catalog. Each page is read
`--runs` times, without its look at the source; `slowest_ms` is the longest that the ledger needed
for one of a page's transactions, in the median of the runs.
"""

import os
import shutil
import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

import harness
from data import SCHEMA, Shape, made
from fixtures.spark.local import LocalEngine
from grow import Grown
from harness import Place, WatchedLedger, quiet
from history import fill
from semel.airflow.page import content
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.reports.days import days
from semel.runs.run import run_batch

_FIRST = 100_000
_DAYS = """
UPDATE semel.batch SET interval_start = day, interval_end = day + interval '1 day',
       planned_at = day, seen_at = day, committed_at = day, batch_time = day, finalized_at = day
FROM (SELECT batch_id AS id, date_trunc('day', now()) - interval '1 day' * (
          row_number() OVER (ORDER BY batch_id DESC)) AS day
      FROM semel.batch JOIN semel.pipeline USING (pipeline_id) WHERE name = 'daily') AS days
WHERE batch_id = id
"""


def main() -> None:
    parser = harness.options_of(__doc__, runs=21, default=100_000_000, help="ids in the catalog")
    parser.add_argument("--batches", type=int, default=10_000, help="of the pipeline by day")
    parser.add_argument("--batch", type=int, default=1_000_000, help="ids of a batch")
    options = harness.parsed(parser, records=20_000, batch=5_000, batches=200)
    with harness.open_place() as place, WatchedLedger(place.dsn) as ledger:
        report = _measure(place, ledger, options)
    harness.save("pages", options, report)


def _measure(place: Place, ledger: WatchedLedger, options: Namespace) -> dict[str, Any]:
    grown = Grown(place, ledger, place.spec("grown", record_id=["id"]))
    for _ in range(-(-options.records // options.batch)):
        grown.commit(grown.add_random(options.batch))
    grown.merge()
    daily = _daily(place, ledger, options.batches)
    rows = []
    for name, page in _pages(place, ledger, daily, grown.spec).items():
        found = [_timed(ledger, page) for _ in range(options.runs + 1)][1:]
        whole, slowest = (round(1000 * statistics.median(each), 1) for each in zip(*found))
        harness.tell(f"  {name}: {whole} ms, slowest transaction {slowest} ms")
        rows.append([name, whole, slowest])
    return {
        "title": "B17: pages",
        "headline": {
            "page_ms_max": max(whole for _, whole, _ in rows),
            "page_transaction_ms_max": max(slowest for _, _, slowest in rows),
        },
        "tables": [
            {
                "title": f"{options.batches:,} batches of a day, {options.records:,} ids",
                "columns": ["page", "ms", "its slowest transaction, ms"],
                "rows": rows,
            }
        ],
    }


def _pages(
    place: Place, ledger: WatchedLedger, daily: Spec, grown: Spec
) -> dict[str, Callable[[], object]]:
    now = datetime.now(UTC)
    old = (now - timedelta(days=1000)).date()
    until = old + timedelta(days=99)
    declared = content.DeclaredPipelines(
        names=frozenset({daily.name, grown.name}), specs={s.name: s for s in (daily, grown)}
    )
    os.environ["AIRFLOW_HOME"] = str(place.folder)  # Whose parts the routes import.
    from semel.airflow.page.catalog import catalog_of

    return {
        "Pipelines": lambda: content.overviews(ledger, {daily.name, grown.name}, declared, now),
        "Days, the newest": lambda: days(ledger, daily, None, now=now),
        "Days, of long ago": lambda: days(ledger, daily, None, now=now, since=old, until=until),
        "Days, by commit": lambda: days(ledger, grown, None, now=now),
        "Batch": lambda: content.batch_of(ledger, daily.name, _FIRST),
        "Batch of a run": lambda: content.batch_of_run(ledger, daily.name, f"old-{_FIRST}"),
        "Catalog, of many batches": lambda: catalog_of(ledger, daily.name),
        "Catalog, of many ids": lambda: catalog_of(ledger, grown.name),
        "Refused files": lambda: content.refusals_of(ledger, daily.name),
        "The metric semel.lag": lambda: ledger.rows("metrics", "lag", pipeline=daily.name),
    }


def _timed(ledger: WatchedLedger, page: Callable[[], object]) -> tuple[float, float]:
    """The seconds of a page, and of its slowest transaction."""
    ledger.transactions.clear()
    started = time.perf_counter()
    page()
    whole = time.perf_counter() - started
    return whole, max(each.seconds for each in ledger.transactions)


def _daily(place: Place, ledger: WatchedLedger, batches: int) -> Spec:
    """A pipeline by day with a history, whose newest day is yesterday."""
    source = {"type": "files", "path": "daily/*.jsonl", "format": "jsonl", "schema": SCHEMA}
    by_day = {"select": "interval", "interval_from": "%Y-%m-%d.jsonl"}
    spec = place.spec("daily", source=source | by_day, record_id=["id"], schedule="@daily")
    folder = place.data / "daily"
    folder.mkdir()
    shutil.copyfile(made(Shape(records=100, repeats=0)), folder / "2020-01-01.jsonl")
    first, second, third = (datetime(2020, 1, day, tzinfo=UTC) for day in (1, 2, 3))
    run_batch(ledger, spec, "mould", LocalEngine(), (first, second), log=quiet)
    (folder / "2020-01-01.jsonl").unlink()
    harness.check("a plan of nothing", plan(ledger, spec, "gone", (second, third)).batch, None)
    fill(place.dsn, spec.name, batches, first=_FIRST)
    with psycopg.connect(place.dsn) as connection:
        connection.execute(_DAYS)
    return spec


if __name__ == "__main__":
    main()
