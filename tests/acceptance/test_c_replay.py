"""A replay by a person, in Airflow's UI on the live stack: a transform that was wrong for three
days, its correction, the page's button, and what readers see meanwhile.
"""

import re
import threading
import time
from collections import Counter
from datetime import UTC, date, datetime, timedelta

import pytest
from playwright.sync_api import FrameLocator, expect

from airflow_ui import Ui
from fix_browser import picture
from fix_stack import Stack
from fixtures.wait import wait_for
from semel import pipeline, reader

NAME = "sales"
ROWS = 50
ONE = timedelta(days=1)
NET = "-- What a sale is without tax.\nSELECT id, day, gross {} 1.25 AS net FROM records\n"
DECLARED = {
    "source": {
        "path": f"{NAME}/*.jsonl", "select": "interval", "interval_from": "%Y-%m-%d.jsonl",
        "schema": {"id": "string", "day": "date", "gross": "double"},
    },
    "schedule": "@daily",
    "transforms": [f"{NAME}.sql"],
}  # fmt: skip


def ago(days: int) -> date:
    return datetime.now(UTC).date() - days * ONE


def midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def land(stack: Stack, day: date) -> None:
    """A day's sales, with one that comes twice and one that is broken."""
    sales = [{"id": f"{day}-{n}", "day": f"{day}", "gross": 125.0 * (n + 1)} for n in range(ROWS)]
    stack.write(f"{NAME}/{day}.jsonl", [*sales, sales[0], b"{broken"])


def output() -> dict[tuple[str, date], float]:
    """What readers see: the amount by id and day; nothing twice."""
    rows = reader.dataset(pipeline.find(NAME).sink_path()).to_table().to_pylist()
    found = {(row["id"], row["day"]): row["net"] for row in rows}
    assert len(found) == len(rows)
    return found


def told(stack: Stack) -> list[tuple[int, int]]:
    """The events of the asset that Airflow has: of which batch, of which generation."""
    found = stack.airflow.call("GET", "/api/v2/assets/events?limit=100")["asset_events"]
    mine = [one["extra"] for one in found if one["extra"].get("pipeline") == NAME]
    of = [(one["generation"], one["batch_id"]) for one in mine if "batch_id" in one]
    return [(batch, generation) for generation, batch in sorted(of)]


class Reader(threading.Thread):
    """Reads the output again and again. `seen`: how many rows by day and by whether they are right,
    of each time.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: list[Counter] = []
        self.error: Exception | None = None
        self.ends = threading.Event()

    def run(self) -> None:
        while not self.ends.is_set():
            try:
                found = output()
            except Exception as error:  # A thread's own would be lost.
                self.error = error
                return
            right = {n: 100.0 * (n + 1) for n in range(ROWS)}
            count = Counter(
                (day, net == right[int(key.rpartition("-")[2])])
                for (key, day), net in found.items()
            )
            self.seen.append(count)
            time.sleep(0.05)


def confirm(frame: FrameLocator) -> None:
    """Load the page that asks until it has looked at the batches."""
    again = frame.get_by_role("link", name="Load this page again")
    button = frame.get_by_role("button", name="Replay", exact=True)
    for _ in range(20):
        expect(again.or_(button)).to_be_visible()
        if button.is_visible():
            return
        again.click()
    expect(button).to_be_visible()


def twice(events: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Each batch that is told of, with generation 1 and then with generation 2."""
    numbers = sorted({batch for batch, _ in events})
    return [(number, generation) for generation in (1, 2) for number in numbers]


@pytest.fixture
def sold(stack: Stack) -> list[date]:
    """Three days that a backfill has read, by the transform that is wrong, or by its correction."""
    days = [ago(n) for n in (4, 3, 2)]
    if NAME in stack.airflow.dags():
        return days
    (stack.transforms / f"{NAME}.sql").write_text(NET.format("*"))
    for day in days:
        land(stack, day)
    stack.spec(NAME, **DECLARED)
    wait_for(lambda: NAME in stack.airflow.dags(), "its DAG")
    stack.airflow.pause(NAME, paused=False)
    backfill = stack.airflow.backfill(NAME, midnight(days[0]), midnight(days[-1]))
    for run in stack.airflow.backfilled(NAME, *map(midnight, days)):
        stack.airflow.succeeded(NAME, run)
    stack.airflow.end_backfill(backfill)
    return days


# By its button on a live stack: test_page_replay.py and test_airflow_replay.py have its parts.
@pytest.mark.rest
def test_a_wrong_transform_is_corrected(stack: Stack, sold: list[date], ui: Ui) -> None:
    """The page says by which code the days were made and by which they would be; its button replays
    them; a reader sees of each day the old output or the new one, whole; the audit passes; and the
    same run, cleared, changes nothing.
    """
    days = sold
    assert len(output()) == 3 * ROWS and output()[f"{days[0]}-0", days[0]] == 156.25

    (stack.transforms / f"{NAME}.sql").write_text(NET.format("/"))
    watching = Reader()
    watching.start()
    frame = ui.days(NAME)
    frame.get_by_label("from").fill(f"{days[0]}")
    frame.get_by_label("to").fill(f"{days[-1]}")
    frame.get_by_role("button", name="Show").click()
    expect(frame.locator("tbody tr[id]")).to_have_count(3)
    frame.get_by_role("link", name="replay these days").click()
    confirm(frame)
    rows = frame.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("yes")
    expect(frame.get_by_text("the current code and declaration")).to_have_count(0)
    picture(ui.page, "replay")
    known = stack.airflow.runs(NAME)
    frame.get_by_role("button", name="Replay", exact=True).click()
    expect(frame.get_by_role("heading", level=1)).to_have_text(
        f"{NAME}: the replay has started"
    )
    [run] = stack.airflow.runs(NAME) - known
    stack.airflow.succeeded(NAME, run)
    watching.ends.set()
    watching.join()

    assert watching.error is None, watching.error
    assert all(set(count.values()) == {ROWS} and len(count) == 3 for count in watching.seen)
    assert watching.seen[0].keys() == {(day, False) for day in days}
    right = {(f"{day}-{n}", day): 100.0 * (n + 1) for day in days for n in range(ROWS)}
    assert output() == right
    frame = ui.days(NAME)
    frame.get_by_label("from").fill(f"{days[0]}")
    frame.get_by_label("to").fill(f"{days[-1]}")
    frame.get_by_role("button", name="Show").click()
    for day in days:
        row = frame.locator(f"#d{day:%Y%m%d}")
        expect(row.locator(".chip")).to_have_text("✓ finalized")
        expect(row).to_contain_text(re.compile(r"generation 2, by batch \d+, on \d{4}"))
        expect(row.locator("td.n").nth(1)).to_have_text(f"{ROWS}")
    picture(ui.page, "replayed")
    code, answer, error = stack.call("audit", NAME)
    assert code == 0, ([one for one in answer["checks"] if one["broken"]], error)

    before, events = stack.batches(NAME), told(stack)
    assert len(events) == 6 and events == twice(events)
    ui.clear(NAME, run)
    stack.airflow.succeeded(NAME, run)
    assert stack.batches(NAME) == before and output() == right
    assert told(stack) == events


@pytest.mark.proof
def test_a_backfill_that_replays(stack: Stack, sold: list[date]) -> None:
    """Airflow clears the runs that made the days, and gives them the configuration: each replays
    its day. The next backfill has to give them another one, or they would replay for ever.
    """
    first, last = midnight(sold[0]), midnight(sold[-1])
    runs = [stack.airflow.run_of(NAME, "backfill", midnight(day)) for day in sold]
    before, events = output(), told(stack)
    for conf, made in (({"replay": True}, 3), ({}, 0)):
        known = stack.batches(NAME)
        how = {"reprocess_behavior": "completed", "dag_run_conf": conf}
        tries = {run: stack.airflow.tasks(NAME, run)["finalize"].tries for run in runs}
        number = stack.airflow.backfill(NAME, first, last, **how)
        for run in runs:
            again = tries[run] + 1
            wait_for(
                lambda r=run, n=again: stack.airflow.tasks(NAME, r)["finalize"].tries == n, run, 120
            )
            stack.airflow.succeeded(NAME, run)
        stack.airflow.end_backfill(number)
        assert stack.batches(NAME) == known + made and output() == before
    numbers, last_one = sorted({batch for batch, _ in events}), max(n for _, n in events)
    assert told(stack) == [*events, *((number, last_one + 1) for number in numbers)]
