"""The demo's pipelines as they are declared: its numbers, and its table in a real Postgres,
with a file that comes late.
"""

from datetime import UTC, date, datetime
from pathlib import Path

import pytest
import yaml

from fixtures.batches.account import run
from fixtures.batches.workbench import Workbench
from fixtures.postgres.warehouse import Warehouse
from semel.audit import audit
from semel.errors import TerminalError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel_local.demo import by_day, exact, flights, week

ROOT = Path(__file__).parents[3]
LATE = date(2013, 1, 3)


@pytest.fixture
def dated(bench: Workbench, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Spec:
    """The demo's pipeline, whose files belong to the days in their names."""
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", warehouse.dsn)
    document = yaml.safe_load((ROOT / "dags/pipelines/flights_by_day.yaml").read_text())
    document["source"] |= {"select": "interval", "interval_from": "flights-%Y-%m-%d.jsonl"}
    names = ("source", "record_id", "record_time", "window", "aggregate", "sink")
    return bench.spec(document["name"], **{name: document[name] for name in names})


@pytest.mark.rest
def test_a_late_file_is_backfilled(bench: Workbench, ledger: Ledger, dated: Spec) -> None:
    """Its interval once more: further partial rows, and the rows of the days are the known truth.

    They were not before, and nothing that was counted is counted again.
    """
    late, aside = dated.source_root() / flights.file_name(LATE), bench.folder / "late.jsonl"
    flights.write_week(dated.source_root(), 1)
    late.rename(aside)
    week = (datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 8, tzinfo=UTC))
    run(ledger, dated, "week", week)
    before = by_day.compare(dated, 1)
    # A few flights of that day, which were sent again, came with the next day's file.
    assert {day.day for day in set(before.sums) ^ set(before.truth)} == {date(2013, 1, 2), LATE}
    # The days before it, at which its files are expected by their time in UTC, are no holes.
    assert list(before.final.values()) == [True] * 6 + [False]

    aside.rename(late)
    day = (datetime(2013, 1, 3, tzinfo=UTC), datetime(2013, 1, 4, tzinfo=UTC))
    run(ledger, dated, "backfill", day)
    compared = by_day.compare(dated, 1)
    assert compared.ok, compared
    again = run(ledger, dated, "backfill again", day)
    assert again.plan.batch is None
    verdict = audit(dated)
    assert verdict.ok and verdict.batches == 2, verdict


def test_the_numbers_of_a_batch_are_found(bench: Workbench, ledger: Ledger) -> None:
    """Each week's batch is found by its run, and its numbers, and those of all weeks, are the known
    truth; a run without a batch is told."""
    document = yaml.safe_load((ROOT / "dags/pipelines/flights.yaml").read_text())
    parts = {name: document[name] for name in ("source", "record_id", "sink")}
    spec = bench.spec(document["name"], **parts)
    for number in (1, 2):
        truth = flights.write_week(spec.source_root(), number)
        run(ledger, spec, f"week {number}")
        found = exact.batch_numbers(week._marker(spec, f"week {number}"))
        assert found == exact.week_truth(truth)
        assert found["rows_finalized"] == truth.counts.survivors
    rows = exact.rows_of_files(spec)
    assert exact.pipeline_numbers(spec, rows, exact.true_rows(2)) == exact.weeks_truth(2)
    with pytest.raises(TerminalError, match="planned no batch"):
        week._marker(spec, "week 3")
