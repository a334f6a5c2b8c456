"""semel's pages: records are shown to who may read the DAG's task logs, and to nobody else."""

import pytest

from fixtures.airflow.pages import Pages
from fixtures.batches.account import quiet
from fixtures.batches.workbench import Workbench, events
from fixtures.spark.local import LocalEngine
from semel.errors import SemelError
from semel.ledger import Ledger
from semel.plan import plan
from semel.stage import stage

BATCH = "/semel/dags/events/batches/1"
RECORD = b'{"id": "x1", "n": "4111-1111-1111-1111"}'


def test_a_record_in_an_attempts_reason(pages: Pages, bench: Workbench, ledger: Ledger) -> None:
    """What ended an attempt names a record in full; a viewer without the logs learns where it is
    told, and no more.
    """
    spec = bench.spec(limits={"quarantine_ratio_max": 0.0})
    bench.write("in/a.jsonl", [*events(0, 10), RECORD])
    plan(ledger, spec, "airflow:events:manual__1")
    with pytest.raises(SemelError, match="4111-1111"):
        stage(ledger, spec, 1, LocalEngine(), log=quiet)
    assert "4111-1111" in pages.get(BATCH, "viewer").text
    page = pages.get(BATCH, "nologs").text
    assert "4111-1111" not in page and "the log of its task has the reason" in page


def test_a_record_in_the_place_of_a_header(
    pages: Pages, bench: Workbench, ledger: Ledger
) -> None:
    """A CSV file without a header is refused with its first line, which is a record."""
    schema = {"id": "string", "card": "string"}
    bench.spec(source={"path": "in/*.csv", "format": "csv", "schema": schema})
    bench.write("in/a.csv", [b"x1,4111-1111-1111-1111"])
    where = "/semel/dags/events/refused"
    assert "4111-1111" in pages.get(where, "viewer").text
    page = pages.get(where, "nologs").text
    assert "4111-1111" not in page and "not the header that the schema names" in page
