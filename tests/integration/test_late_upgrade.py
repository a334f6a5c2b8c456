"""Ledgers that called all before a watermark late: after `semel migrate` only what was forgotten is."""

import pytest

from fixtures.batches.account import quiet
from fixtures.batches.workbench import Workbench
from fixtures.postgres.server import lose
from fixtures.spark.local import LocalEngine
from semel.collect import collect
from semel.commit import commit
from semel.ledger import Ledger
from semel.ledger.migrate import migrate
from semel.plan import plan
from semel.repair.adopt import adopt
from semel.stage import stage
from test_late import Days, of_days

AS_REVISION_11 = """
    ALTER TABLE semel.pipeline
        ADD COLUMN gc_floor bigint NOT NULL DEFAULT -9223372036854775808;
    UPDATE semel.pipeline SET gc_floor =
        floor((extract(epoch FROM clock_timestamp()) - 7 * 86400) / bucket_seconds);
    ALTER TABLE semel.attempt
        ADD COLUMN gc_floor bigint NOT NULL DEFAULT -9223372036854775808,
        ADD COLUMN bucket_min bigint;
    UPDATE semel.attempt SET bucket_min = lower(buckets);
    ALTER TABLE semel.id_run ADD COLUMN bucket_start bigint, ADD COLUMN bucket_end bigint;
    UPDATE semel.id_run SET bucket_start = lower(buckets), bucket_end = upper(buckets);
    ALTER TABLE semel.pipeline DROP COLUMN forgotten;
    ALTER TABLE semel.attempt DROP COLUMN forgotten, DROP COLUMN buckets;
    ALTER TABLE semel.id_run DROP COLUMN buckets;
    CREATE TABLE semel_alembic (version_num varchar(32) PRIMARY KEY);
    INSERT INTO semel_alembic VALUES ('0011');
"""


@pytest.fixture
def days(bench: Workbench, ledger: Ledger) -> Days:
    return Days(bench, ledger)


def upgraded(days: Days) -> None:
    with days.ledger.transaction() as connection:
        connection.exec_driver_sql(AS_REVISION_11)
    assert migrate(days.ledger.dsn) == "0012"


# Attacks G1, C5.
def test_what_was_never_read_is_open_again(days: Days) -> None:
    """Only buckets of runs that were retired are late, and staged batches of them do not win."""
    days.read(of_days(0, 10, 30))
    days.bench.write("in/twin.jsonl", of_days(40, 50, 30))
    batch = plan(days.ledger, days.spec, "twin").batch.batch_id
    stage(days.ledger, days.spec, batch, LocalEngine(), quiet)
    days.read(of_days(10, 20, 0))
    upgraded(days)
    assert days.forgotten() == "{}"
    assert days.read(of_days(20, 30, 365)).survivors == 10
    days.expire(1)

    def restage() -> None:
        stage(days.ledger, days.spec, batch, LocalEngine(), quiet)

    assert commit(days.ledger, days.spec, batch, restage, quiet).losses == 1


# Attacks G1.
def test_what_was_retired_stays_late(days: Days) -> None:
    """The buckets of retired runs are forgotten, and none beside them."""
    days.read(of_days(0, 10, 30))
    days.expire()
    before = days.forgotten()
    upgraded(days)
    assert days.forgotten() == before
    assert days.read(of_days(0, 10, 30)).late == 10
    assert days.read(of_days(20, 40, 40, 20)).survivors == 20


# Attacks D8.
def test_what_was_adopted_is_late_up_to_the_watermark(days: Days) -> None:
    """Of a pipeline that was adopted no run tells what had been forgotten before."""
    days.read(of_days(0, 10, 0))
    lose(days.ledger)
    adopt(days.ledger, days.spec, log=quiet)
    upgraded(days)
    assert days.read(of_days(20, 30, 30)).late == 10
    collect(days.ledger, days.spec, quiet)
    assert days.read(of_days(30, 40, 3)).survivors == 10
