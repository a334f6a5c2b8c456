"""What the database refuses, whatever our own code does."""

import pytest
import sqlalchemy as sa

from fixtures.batches.account import run
from fixtures.batches.workbench import Workbench, events
from semel.errors import StateError
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.plan.abandon import abandon

CLAIM = (
    "INSERT INTO semel.claim (batch_id, ordinal, source_partition_id, span)"
    " SELECT batch_id, 99, source_partition_id, {span} FROM semel.claim LIMIT 1"
)


def refused(ledger: Ledger, statement: str, constraint: str) -> None:
    """The statement fails by the constraint of this name."""
    with ledger.engine.connect() as connection:
        with pytest.raises(sa.exc.IntegrityError, match=constraint):
            connection.exec_driver_sql(statement)


# Attacks P4.
@pytest.mark.parametrize("span", ["'empty'::int8range", "'[5,)'::int8range", "'(,5)'::int8range"])
def test_a_claim_is_bounded(bench: Workbench, ledger: Ledger, span: str) -> None:
    """An empty or unbounded range is no claim."""
    bench.write("in/a.jsonl", events(0, 5))
    run(ledger, bench.spec(), "r1")
    refused(ledger, CLAIM.format(span=span), "claim_bounded|claim_disjoint")


# Attacks P3.
@pytest.mark.parametrize("span", ["'[0,1)'::int8range", "span", "'[3,2000)'::int8range"])
def test_a_position_is_claimed_once(bench: Workbench, ledger: Ledger, span: str) -> None:
    """A claim that overlaps with another one of its source partition is refused."""
    bench.write("in/a.jsonl", events(0, 5))
    run(ledger, bench.spec(), "r1")
    refused(ledger, CLAIM.format(span=span), "claim_disjoint")


# Attacks S12.
def test_an_attempt_that_lost_a_record_cannot_be_staged(bench: Workbench, ledger: Ledger) -> None:
    """Read is the sum of what became of the records, or the attempt stays unstaged."""
    bench.write("in/a.jsonl", events(0, 5))
    run(ledger, bench.spec(), "r1")
    refused(ledger, "UPDATE semel.attempt SET survivors = survivors - 1", "attempt_accounted")


# Attacks S18.
def test_a_final_name_belongs_to_one_batch(bench: Workbench, ledger: Ledger) -> None:
    """No manifest of another batch can hold a name that a batch has."""
    spec = bench.spec()
    for name, start in (("a", 0), ("b", 5)):
        bench.write(f"in/{name}.jsonl", events(start, start + 5))
        run(ledger, spec, name)
    statement = (
        "UPDATE semel.manifest_file SET final_path = (SELECT final_path FROM semel.manifest_file"
        " WHERE batch_id = 1 LIMIT 1) WHERE batch_id = 2"
    )
    refused(ledger, statement, "manifest_file_final_owned")


# Attacks C10.
def test_a_commit_waits_for_the_disk(ledger: Ledger) -> None:
    """Also where the database's own default is not to wait."""
    with ledger.engine.connect() as connection:
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        name = connection.exec_driver_sql("SELECT current_database()").scalar_one()
        connection.exec_driver_sql(f"ALTER DATABASE {name} SET synchronous_commit = off")
    with Ledger(ledger.dsn) as other:
        with other.engine.connect() as plain:
            assert plain.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "off"
        with other.transaction() as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"


# Attacks A1, F7.
def test_a_finalized_batch_is_never_given_up(bench: Workbench, ledger: Ledger) -> None:
    """Abandon is refused, and finalize answers from the ledger when retention took the files."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 5))
    done = run(ledger, spec, "r1").finalized
    with pytest.raises(StateError, match="finalized, not planned"):
        abandon(ledger, done.batch.batch_id, "by mistake")
    for file in spec.sink_path().glob("*.parquet"):
        file.unlink()
    again = finalize(ledger, spec, done.batch.batch_id)
    assert again.found and again.counts == done.counts
