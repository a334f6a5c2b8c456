"""Airflow as a person uses it: its web UI, in a few verbs."""

import re
from collections.abc import Sequence
from datetime import date

from playwright.sync_api import FrameLocator, Locator, Page, expect

LINE = re.compile(r"^\[[\d :-]+\] (\w+) - (.*)$")
"""A line of a task's log as the UI shows it: time, level, text."""

PATIENCE_MS = 120_000
"""Maximum wait for a page and its elements. Of a server that has just started, on a machine at work,
the first page takes half a minute."""

expect.set_options(timeout=PATIENCE_MS)

Line = tuple[str, str]
"""Level and text of a line of a log."""


class Ui:
    """One window of a person who is logged in."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url

    def open(self, dag: str, *, run: str = "", task: str = "") -> None:
        """The page of a DAG, of one of its runs, or of a task of that."""
        path = f"/dags/{dag}" + (f"/runs/{run}" if run else "") + (f"/tasks/{task}" if task else "")
        self.page.goto(self.url + path)

    def see_dag(self, dag: str) -> None:
        """The list of DAGs has this one."""
        self.page.goto(f"{self.url}/dags")
        expect(self.page.get_by_role("link", name=dag, exact=True)).to_be_visible()

    def trigger(self, dag: str, days: tuple[date, date] | None = None) -> str:
        """Trigger a run as the dialog proposes it, or for an interval, the end not included.
        Returns the run that the UI then shows.
        """
        dialog = self._dialog(dag)
        if days:
            dialog.get_by_text("Specify Manually").click()
            self._pick(dialog, "Start", days[0])
            self._pick(dialog, "End", days[1])
        dialog.get_by_role("button", name="Trigger").click()
        self.page.wait_for_url(re.compile("/runs/"))
        run = self.page.url.rpartition("/")[2]
        self._look_away()
        return run

    def backfill(self, dag: str, first: date, last: date, *choices: str) -> int:
        """Fill the dialog for a backfill, both days included, and start it. Returns its id.

        `choices`: what is chosen or ticked, or unticked, besides.
        """
        self.ask_backfill(dag, first, last, *choices)
        with self.page.expect_response(re.compile(r"/api/v2/backfills$")) as answer:
            self.page.get_by_role("button", name="Run Backfill").click()
        assert answer.value.ok, answer.value.text()
        made = answer.value.json()["id"]
        self._look_away()
        return made

    def ask_backfill(self, dag: str, first: date, last: date, *choices: str) -> Locator:
        """Fill the dialog, which then says how many runs it would make."""
        dialog = self._dialog(dag)
        dialog.get_by_text("Backfill", exact=True).click()
        self._pick(dialog, "From", first)
        self._pick(dialog, "To", last)
        for choice in choices:
            dialog.get_by_text(choice, exact=True).click()
        count = (last - first).days + 1
        said = f"{count} runs will be triggered." if count > 1 else "1 run will be triggered."
        expect(dialog.get_by_text(said)).to_be_visible()
        return dialog

    def clear(self, dag: str, run: str) -> None:
        """Clear all tasks of a run."""
        self.open(dag, run=run)
        self.page.get_by_role("button", name="Press shift+c to clear").click()
        dialog = self.page.get_by_role("dialog").filter(has_text="Clear Dag Run")
        expect(dialog.get_by_text("Affected Tasks: 4")).to_be_visible()
        self._confirm(dialog)

    def tasks(self, dag: str, run: str) -> dict[str, str]:
        """The tasks of a run, each with the state that its table shows."""
        self.open(dag, run=run)
        rows = self.page.locator("tbody tr").filter(has=self.page.get_by_role("link"))
        expect(rows).to_have_count(4)
        cells: Sequence[list[str]] = [row.locator("td").all_inner_texts() for row in rows.all()]
        words = [[text.strip() for text in row if text.strip()] for row in cells]
        return {row[0]: row[1].lower().replace(" ", "_") for row in words}

    def log(self, dag: str, run: str, task: str) -> list[Line]:
        """What the task itself has said on its last try, as the UI shows it."""
        self.open(dag, run=run, task=task)
        shown = self.page.get_by_test_id("virtualized-list")
        expect(shown.get_by_text("Post Execute")).to_be_visible()
        found = [LINE.match(line) for line in shown.inner_text().splitlines()]
        return [(line[1], line[2]) for line in found if line]

    def days(self, dag: str) -> FrameLocator:
        """semel's page of days, by the DAG's tab."""
        self.open(dag)
        self.page.get_by_role("link", name="Days", exact=True).click()
        frame = self.page.frame_locator("iframe")
        expect(frame.locator(".calendar")).to_be_visible()
        return frame

    def _dialog(self, dag: str) -> Locator:
        self.open(dag)
        self.page.get_by_role("button", name="Trigger Dag").click()
        return self.page.get_by_role("dialog").filter(has_text="Single Run")

    def _pick(self, dialog: Locator, label: str, day: date) -> None:
        """Type midnight of a day into a field for a time."""
        field = dialog.get_by_role("group").filter(has=self.page.get_by_text(label, exact=True))
        field.get_by_test_id("datetime-input").click()
        opened = self.page.locator("[data-scope=popover][data-part=content][data-state=open]")
        opened.get_by_placeholder("YYYY/MM/DD").fill(f"{day:%Y/%m/%d}")
        opened.get_by_placeholder("HH:mm").fill("00:00")
        self.page.keyboard.press("Escape")
        expect(opened).to_have_count(0)

    def _confirm(self, dialog: Locator) -> None:
        dialog.get_by_role("button", name="Confirm").click()
        expect(dialog).to_have_count(0)
        self._look_away()

    def _look_away(self) -> None:
        """While runs work, a page of theirs takes a third of a core to show it."""
        self.page.goto("about:blank")
