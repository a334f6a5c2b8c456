"""The day of an operator, in Airflow's UI on the live stack: a pipeline from files that nobody has
seen, its runs, and the calendar that they fill.

What else happens to runs has test_b_matrix.py, without a browser; what else semel's pages show have
test_c_pages.py and tests/integration/airflow/test_pages.py.
"""

from datetime import UTC, date, datetime, timedelta
from functools import cache

import pytest
from playwright.sync_api import expect

from airflow_ui import Ui
from fix_browser import picture
from fix_stack import Stack
from fixtures.wait import wait_for
from semel import pipeline, reader

NAME = "orders"
ROWS = 40
LINE_MAX = 110
"""Longer lines cannot be read in the UI, which does not wrap them."""

GREEN = dict.fromkeys(("plan", "stage", "commit", "finalize"), "success")
ONE = timedelta(days=1)

# A minute of a core, and more where it is busy.
pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]


@cache
def today() -> date:
    """When the first test begins: collecting may be before midnight."""
    return datetime.now(UTC).date()


def ago(days: int) -> date:
    return today() - days * ONE


def midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def land(stack: Stack, day: date, rows: int = ROWS) -> None:
    """A day's orders as some shop writes them; no other day has one of their numbers."""
    lines = ["Order ID;Customer;Amount;Placed at;Gift"]
    for n in range(rows):
        number, gift = day.toordinal() * 1000 + n, "true" if n % 3 else "false"
        lines.append(f"{number};{17 + n % 9};{n}.50;{day}T{n % 24:02d}:15:00Z;{gift}")
    path = stack.data / NAME / f"orders_{day}.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([*lines, ""]))


def output() -> dict[date, int]:
    """How many orders of each day readers see; none of them twice."""
    dataset = reader.dataset(pipeline.find(NAME).sink_path())
    found = dataset.to_table(["Order ID"])["Order ID"].to_pylist()
    assert len(found) == len(set(found))
    days = [date.fromordinal(number // 1000) for number in found]
    return {day: days.count(day) for day in days}


def read(ui: Ui, run: str, task: str) -> list[str]:
    """The lines of a task's log. They are short, no warning, and no trace of a stack."""
    lines = ui.log(NAME, run, task)
    for level, text in lines:
        assert level in ("INFO", "ERROR"), (level, text)
        assert len(text) <= LINE_MAX, text
        assert not text.startswith(("Traceback", '  File "')), lines
    return [text for _, text in lines]


def test_the_whole_day(stack: Stack, ui: Ui) -> None:
    """From CSV files that nobody has seen to a calendar that is full: by a manual run with an
    interval, the scheduled one, and five of a backfill; one is cleared.

    The log of each task is a summary that can be read; the cleared run is four times green again.
    """
    for days in range(1, 8):
        land(stack, ago(days))
    samples = sorted(str(path) for path in (stack.data / NAME).iterdir())
    code, answer, said = stack.call("new", NAME, *samples, "--yes")
    assert code == 0 and answer["records"] == 7 * ROWS, said
    wait_for(lambda: NAME in stack.airflow.dags(), "its DAG")
    ui.see_dag(NAME)

    run = ui.trigger(NAME, (ago(7), ago(6)))
    stack.airflow.succeeded(NAME, run)
    assert output()[ago(7)] == ROWS
    assert ui.tasks(NAME, run) == GREEN
    for task in ("plan", "commit", "finalize", "stage"):
        said = read(ui, run, task)
    picture(ui.page, "log")
    assert said[-1] == "next: commit"
    summary = said[-8:-2]
    assert summary[0].startswith(f"read {ROWS} records, ")
    assert summary[1].split()[:2] == ["new", f"{ROWS}"]

    ui.ask_backfill(NAME, ago(6), ago(2))
    picture(ui.page, "backfill")
    backfill = ui.backfill(NAME, ago(6), ago(2))
    runs = stack.airflow.backfilled(NAME, *(midnight(ago(days)) for days in range(2, 7)))
    for one in runs:
        stack.airflow.succeeded(NAME, one)
    assert ui.tasks(NAME, runs[0]) == GREEN
    stack.airflow.end_backfill(backfill)
    frame = ui.days(NAME)
    for days in range(1, 8):  # The first of them is the schedule's own: the trigger unpaused it.
        row = frame.locator(f"#d{ago(days):%Y%m%d}")
        expect(row.locator(".chip")).to_have_text("✓ finalized")
        expect(row.locator("td.n").first).to_have_text(f"{ROWS}")
    picture(ui.page, "days")
    assert output() == dict.fromkeys((ago(days) for days in range(1, 8)), ROWS)

    before = stack.batches(NAME)
    ui.clear(NAME, run)
    stack.airflow.succeeded(NAME, run)
    assert ui.tasks(NAME, run) == GREEN
    assert all(task.tries == 2 for task in stack.airflow.tasks(NAME, run).values())
    assert [line for line in read(ui, run, "finalize") if line in summary] == summary
    assert stack.batches(NAME) == before
