"""The day of an operator, in Airflow's UI on the live stack: a pipeline from files that nobody has
seen, its runs, and the combinations of fix_matrix.py that people meet.

Each test says which they are: how the run is started, what is there, what happens to it.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache

import psycopg
import pytest
from playwright.sync_api import Browser, expect

from airflow_rest import wait_for
from airflow_ui import Ui
from fix_browser import browser, keep, log_in, log_in_as_viewer, picture, window  # noqa: F401
from fix_guide import PICTURE_WIDTH
from fix_stack import Stack
from semel import reader, settings
from semel.ledger import Ledger
from semel.plan import plan
from semel.spec import pipeline

NAME = "orders"
ROWS = 40
LINE_MAX = 110
"""Longer lines cannot be read in the UI, which does not wrap them."""

TASKS = ("plan", "stage", "commit", "finalize")
GREEN = dict.fromkeys(TASKS, "success")
NOTHING = {**dict.fromkeys(TASKS, "skipped"), "plan": "success"}
FAILED = {**dict.fromkeys(TASKS, "upstream_failed"), "plan": "failed"}

ONE = timedelta(days=1)

# A minute of a core for each test; test_b_matrix.py has most of the pairs, without a browser.
pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]


@cache
def today() -> date:
    """When the first test begins: collecting may be before midnight."""
    return datetime.now(UTC).date()


def ago(days: int) -> date:
    return today() - days * ONE


def whole(day: date) -> tuple[date, date]:
    """The interval of a day."""
    return day, day + ONE


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


def ended(stack: Stack, run: str) -> dict[str, str | None]:
    """The states of a run's tasks, once it has ended."""
    stack.airflow.ended(NAME, run)
    return {task: found.state for task, found in stack.airflow.tasks(NAME, run).items()}


def of_backfills(stack: Stack, *days: date) -> list[str]:
    """The runs of backfills for these days, once all of them are there."""

    def run_of(day: date) -> str | None:
        start = datetime(day.year, day.month, day.day, tzinfo=UTC)
        return stack.airflow.run_of(NAME, "backfill", start)

    return [wait_for(lambda day=day: run_of(day), f"the run of {day}", 60) for day in days]


def read(ui: Ui, run: str, task: str) -> list[str]:
    """The lines of a task's log. They are short, no warning, and no trace of a stack."""
    lines = ui.log(NAME, run, task)
    for level, text in lines:
        assert level in ("INFO", "ERROR"), (level, text)
        assert len(text) <= LINE_MAX, text
        assert not text.startswith(("Traceback", '  File "')), lines
    return [text for _, text in lines]


@pytest.fixture(scope="module")
def ui(_running_stack: Stack, browser: Browser) -> Iterator[Ui]:  # noqa: F811
    """A window of the stack's user, who has logged in by the form."""
    with window(browser, width=PICTURE_WIDTH) as context:
        log_in(context, _running_stack)
        yield Ui(context.new_page(), _running_stack.airflow.url)


def test_the_whole_day(stack: Stack, ui: Ui) -> None:
    """From CSV files that nobody has seen to a calendar that is full. In fix_matrix.py: a manual
    run with an interval, the scheduled one, and five of a backfill, first time, succeed; one is
    cleared.

    The log of each task is a summary that can be read; the cleared run is four times green again.
    """
    for days in range(1, 8):
        land(stack, ago(days))
    samples = sorted(str(path) for path in (stack.data / NAME).iterdir())
    code, answer, said = stack.call("new", NAME, *samples, "--yes")
    assert code == 0 and answer["records"] == 7 * ROWS, said
    wait_for(lambda: NAME in stack.airflow.dags(), "its DAG")
    ui.see_dag(NAME)

    run = ui.trigger(NAME, whole(ago(7)))
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
    runs = of_backfills(stack, *(ago(days) for days in range(2, 7)))
    for one in runs:
        stack.airflow.succeeded(NAME, one)
    assert ui.tasks(NAME, runs[0]) == GREEN
    stack.airflow.end_backfill(backfill)
    frame = ui.days(NAME)
    for days in range(1, 8):  # The first of them is the schedule's own: the trigger unpaused it.
        row = frame.locator(f"#d{ago(days):%Y%m%d}")
        expect(row.locator(".chip")).to_have_text("✓ complete")
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


def test_an_id_is_found(stack: Stack, ui: Ui) -> None:
    """From the DAG's tab: the batch and the file that have it; of another, that it is nowhere."""
    number = ago(4).toordinal() * 1000
    frame = ui.days(NAME)
    frame.get_by_role("link", name="Find an id").click()
    frame.get_by_label("Order ID").fill(f"{number + 7}")
    frame.get_by_role("button", name="Find").click()
    found = frame.locator("tbody tr")
    expect(found).to_have_count(1)
    [run] = of_backfills(stack, ago(4))
    [(batch,)] = _planned(stack, run)
    expect(found.locator("td").first).to_have_text(f"{batch}")
    frame.get_by_label("Order ID").fill(f"{number + ROWS}")
    frame.get_by_role("button", name="Find").click()
    expect(frame.get_by_text("Not in any of")).to_be_visible()
    keep(ui.page, "find")


def test_nobody_without_a_login_and_no_viewer_changes_anything(
    stack: Stack, browser: Browser  # noqa: F811
) -> None:
    """Without a login semel's pages and Airflow's API answer 401. A viewer sees the days, and the
    trigger's dialog is refused: no run is made."""
    known = stack.airflow.runs(NAME)
    paths = ("/semel/", f"/semel/dags/{NAME}", "/api/v2/dags")
    with window(browser) as context:
        page = context.new_page()
        for path in paths:
            answer = page.goto(stack.airflow.url + path)
            assert answer and answer.status == 401 and NAME not in page.content(), path
    with window(browser) as context:
        log_in_as_viewer(context, stack)
        page = context.new_page()
        for path in paths:
            answer = page.goto(stack.airflow.url + path)
            assert answer and answer.status == 200 and NAME in page.content(), path
        page.goto(f"{stack.airflow.url}/dags/{NAME}")
        page.get_by_role("button", name="Trigger Dag").click()
        dialog = page.get_by_role("dialog").filter(has_text="Single Run")
        dialog.get_by_role("button", name="Trigger").click()
        expect(dialog.get_by_text("403 Forbidden")).to_be_visible()
        keep(page, "viewer")
    assert stack.airflow.runs(NAME) == known


def test_a_day_that_is_done(stack: Stack, ui: Ui) -> None:
    """manual, done, succeeds: green and skipped, plan names the batch and its run.
    backfill reprocess, done, succeeds: the same run again, four times green. No further batch."""
    before, known = stack.batches(NAME), stack.airflow.runs(NAME)
    run = ui.trigger(NAME)
    stack.airflow.succeeded(NAME, run)
    assert ui.tasks(NAME, run) == NOTHING
    said = "\n".join(read(ui, run, "plan"))
    assert f"scheduled__{today()}" in said and "finalized" in said
    backfill = ui.backfill(NAME, ago(6), ago(6), "All Runs")
    [again] = of_backfills(stack, ago(6))
    wait_for(lambda: stack.airflow.tasks(NAME, again)["finalize"].tries == 2, "it again", 60)
    assert ended(stack, again) == GREEN
    stack.airflow.end_backfill(backfill)
    assert (stack.batches(NAME), stack.airflow.runs(NAME)) == (before, known | {run})


def test_a_day_that_is_done_in_part(stack: Stack, ui: Ui) -> None:
    """manual with interval, partly done, succeeds: the rest of the day, as one more batch."""
    land(stack, ago(2), ROWS + 5)
    assert ui.state_of(NAME, ago(2)) == "partly"
    assert ended(stack, ui.trigger(NAME, whole(ago(2)))) == GREEN
    assert output()[ago(2)] == ROWS + 5
    assert ui.state_of(NAME, ago(2)) == "complete"


def test_a_day_in_work_elsewhere(stack: Stack, ui: Ui) -> None:
    """manual with interval, in work elsewhere, succeeds: nothing is taken, plan names who is at
    work."""
    land(stack, ago(8))
    start, end = (datetime(d.year, d.month, d.day, tzinfo=UTC) for d in whole(ago(8)))
    with Ledger(settings.ledger_dsn()) as ledger:
        plan(ledger, pipeline.find(NAME), "elsewhere", (start, end))
    assert ui.state_of(NAME, ago(8)) == "in work"
    before = stack.batches(NAME)
    run = ui.trigger(NAME, whole(ago(8)))
    assert ended(stack, run) == NOTHING
    assert "elsewhere" in "\n".join(read(ui, run, "plan"))
    assert stack.batches(NAME) == before


def test_a_refused_file(stack: Stack, ui: Ui, browser: Browser) -> None:  # noqa: F811
    """manual with interval, refused file, succeeds: plan fails once, in short lines, the last of
    which says what to do. A viewer sees the file and cannot accept it; the user accepts it on the
    page, and the cleared run ends well: what the file repeats is dropped."""
    land(stack, ago(3), ROWS - 1)
    assert ui.state_of(NAME, ago(3)) == "refused"
    run = ui.trigger(NAME, whole(ago(3)))
    assert ended(stack, run) == FAILED
    *said, last = read(ui, run, "plan")
    assert last == "Task exited exit_code=1"  # Airflow's own.
    assert said[-1] == f"next: semel gaps {NAME}"
    with window(browser) as context:
        log_in_as_viewer(context, stack)
        page = context.new_page()
        page.goto(f"{stack.airflow.url}/semel/dags/{NAME}/refused")
        expect(page.get_by_text("needs the permission to edit the DAG")).to_be_visible()
        expect(page.get_by_role("button")).to_have_count(0)

    frame = ui.days(NAME)
    frame.locator(f"#d{ago(3):%Y%m%d}").get_by_role("link", name="refused").click()
    ask = frame.get_by_role("button", name="What would this do?")
    expect(ask).to_be_visible()
    keep(ui.page, "refused")
    ask.click()
    accept = frame.get_by_role("button", name="Accept the file")
    expect(accept).to_be_visible()
    keep(ui.page, "accept")
    accept.click()
    expect(frame.get_by_role("heading", level=1)).to_have_text(f"{NAME}: the file is accepted")
    ui.clear(NAME, run)
    assert ended(stack, run) == GREEN
    assert ui.state_of(NAME, ago(3)) == "complete"
    assert output()[ago(3)] == ROWS


def test_a_task_that_is_marked_failed(stack: Stack, ui: Ui) -> None:
    """manual with interval, first time, marked failed: nothing of it is seen; when the run is
    cleared, the same batch is staged anew and finalized."""
    land(stack, ago(9))
    run = ui.trigger(NAME, whole(ago(9)))
    wait_for(lambda: _planned(stack, run), "its plan", poll=0.02)
    with psycopg.connect(settings.ledger_dsn()) as held:
        # Stage waits for this lock: a stage of a second would be over before one looks.
        held.execute(f"SELECT FROM semel.pipeline WHERE name = '{NAME}' FOR NO KEY UPDATE")
        wait_for(lambda: stack.airflow.tasks(NAME, run)["stage"].state == "running", "its stage")
        ui.mark_failed(NAME, run, "stage")
        assert stack.airflow.ended(NAME, run) == "failed"
    assert ago(9) not in output()
    ui.clear(NAME, run)
    assert ended(stack, run) == GREEN
    assert output()[ago(9)] == ROWS
    assert len(_planned(stack, run)) == 1


def _planned(stack: Stack, run: str) -> list[tuple]:
    return stack.query(
        "SELECT batch_id FROM semel.batch WHERE request_key = %s", f"airflow:{NAME}:{run}"
    )


def test_a_pause_and_a_backfill_that_is_cancelled(stack: Stack, ui: Ui) -> None:
    """backfill up, first time, paused: its runs wait as queued, and go on. backfill down, first
    time, cancelled: they end without a task, and the days are unclaimed."""
    for days in (10, 11, 12, 13):
        land(stack, ago(days))
    ui.pause(NAME)
    backfill = ui.backfill(NAME, ago(11), ago(10), f"Unpause {NAME} on trigger")
    runs = of_backfills(stack, ago(11), ago(10))
    ui.open(NAME, run=runs[0])
    expect(ui.page.get_by_text("Queued", exact=True).first).to_be_visible()
    ui.pause(NAME)
    for run in runs:
        stack.airflow.succeeded(NAME, run)
    stack.airflow.end_backfill(backfill)

    ui.pause(NAME)
    ui.backfill(NAME, ago(13), ago(12), "Run Backwards", f"Unpause {NAME} on trigger")
    runs = of_backfills(stack, ago(13), ago(12))
    ui.cancel_backfill(NAME)
    ui.pause(NAME)
    for run in runs:
        assert stack.airflow.ended(NAME, run) == "failed"
    assert ui.state_of(NAME, ago(13)) == ui.state_of(NAME, ago(12)) == "unclaimed"
    assert output().keys() == {ago(days) for days in (*range(1, 8), 9, 10, 11)}
