"""How Airflow names the runs of a schedule, as docs/guide/trigger-backfill-clear.md says."""

import re
from datetime import UTC, datetime

import pendulum
import pytest
from airflow.models.dagrun import DagRun
from airflow.timetables.base import TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable
from airflow.utils.types import DagRunType

from fixtures.commands.guide import FOLDER

DAY = pendulum.instance(datetime(2026, 3, 2, tzinfo=UTC))


@pytest.mark.parametrize("kind", [DagRunType.BACKFILL_JOB, DagRunType.SCHEDULED])
def test_a_run_is_named_after_the_end_of_its_interval(kind: DagRunType) -> None:
    """The run of 2 March has 3 March in its id, and 2 March as its logical date."""
    timetable = CronDataIntervalTimetable("@daily", timezone="UTC")
    info = timetable.next_dagrun_info(
        last_automated_data_interval=None,
        restriction=TimeRestriction(earliest=DAY, latest=None, catchup=True),
    )
    name = DagRun.generate_run_id(
        run_type=kind, logical_date=info.logical_date, run_after=info.run_after
    )
    assert info.logical_date == DAY
    text = (FOLDER / "trigger-backfill-clear.md").read_text(encoding="utf-8")
    prefix = re.escape(kind.value.removesuffix("_job"))
    assert name in re.findall(rf"`({prefix}__[^`]+)`", text)
