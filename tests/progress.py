"""What `make test` shows while it runs: how much is done, how long it takes, and what is at work.

Only with `--tier`. On a terminal it is one line that changes, elsewhere a line each EACH_SECONDS.
"""

import sys
import time

import pytest

from costs import cost

EACH_SECONDS = 15

CORES = 2

SHARE_MIN = 0.1
"""From here on the time left is told from what is done; before, from costs.txt."""


def pytest_configure(config: pytest.Config) -> None:
    tier = config.getoption("tier")
    if tier and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(), "semel-progress")
        config.option.durations, config.option.durations_min = 10, 1.0


class Progress:
    """Counts the tests that have ended, by weight."""

    def __init__(self) -> None:
        self.total = self.ended = self.red = 0
        self.done = self.all = self.expected = 0.0
        self.began = self.said = time.monotonic()
        self.live = sys.stdout.isatty()
        self.at_work: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._all([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._all(ids)

    def _all(self, ids: list[str]) -> None:
        if ids and not self.total:
            self.total, self.all = len(ids), sum(map(cost, ids))
            self.began, self.expected = time.monotonic(), self.all / CORES
            told = f"{self.total:,} tests, about {_span(self.expected)} on {CORES} cores"
            print(told, flush=True)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.at_work.append(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.red += 1
            self._show(f"FAILED {report.nodeid}", "\n")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.at_work.remove(nodeid)
        self.ended += 1
        self.done += cost(nodeid)
        now = time.monotonic()
        if self.live or now - self.said > EACH_SECONDS:
            self.said = now
            self._show(self._line(now - self.began), "" if self.live else "\n")

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No dots: the line says it. What failed is told whole in the end, as always."""
        if report.when != "call":
            return None
        return report.outcome, "", "" if report.passed else report.outcome.upper()

    def pytest_sessionfinish(self) -> None:
        if self.live:
            self._show("", "")

    def _line(self, passed: float) -> str:
        share = self.done / self.all
        left = passed / share - passed if share > SHARE_MIN else self.expected - passed
        red = f", {self.red} FAILED" if self.red else ""
        names = ", ".join(name.rpartition("/")[2] for name in self.at_work)
        return (
            f"{share:4.0%}, {self.ended:,} of {self.total:,}{red}, {_span(passed)}, "
            f"some {_span(max(left, 0))} left: {names}"
        )

    def _show(self, text: str, end: str) -> None:
        if self.live:
            text = f"\r\x1b[K{text[:150]}"
        print(text, end=end, flush=True)


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s"
