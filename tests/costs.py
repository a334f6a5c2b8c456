"""How many CPU seconds a test costs, with all processes that work for it.

`--costs` measures, and refreshes costs.txt: each worker sums its own time and that of the processes
that have its name in their environment, also of those that left their parents (servers). The start
of a server that tests share is no test's.
"""

import os
import re
import time
from collections import defaultdict
from collections.abc import Generator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from statistics import mean, median

import pytest

ROOT = Path(__file__).resolve().parent.parent
KEPT = Path(__file__).with_suffix(".txt")
"""A function of tests a line, if its median case takes SHOWN seconds or more; and a folder of tests,
with the mean of all others in it."""

SHOWN = 0.5
UNKNOWN = 1.0
"""Of a folder that no run has measured."""

_TICKS = os.sysconf("SC_CLK_TCK")
_WORKER = "PYTEST_XDIST_WORKER"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", action="store_true", help="refresh costs.txt (tests/costs.py)")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("costs"):
        worker = getattr(config, "workerinput", {}).get("workerid")
        config.pluginmanager.register(Measured(worker) if worker else Kept(), "semel-costs")


@cache
def known() -> dict[str, float]:
    """What costs.txt says."""
    lines = KEPT.read_text(encoding="utf-8").splitlines() if KEPT.exists() else ()
    return {name: float(seconds) for seconds, name in (line.split(maxsplit=1) for line in lines)}


def cost(nodeid: str) -> float:
    """The CPU seconds of a test."""
    name = nodeid.partition("[")[0]
    return known().get(name, known().get(folder(name), UNKNOWN))


def folder(name: str) -> str:
    """`tests/unit`, for one."""
    return "/".join(name.split("/")[:2])


def refreshed(
    before: Mapping[str, float], measured: Mapping[str, float], there: Mapping[str, str]
) -> dict[str, float]:
    """The lines of costs.txt, by name. `measured`: seconds by node id; `there`: the text of each
    file of tests: a function that is in none of them has no line.
    """
    cases: dict[str, list[float]] = defaultdict(list)
    for nodeid, seconds in measured.items():
        cases[nodeid.partition("[")[0]].append(seconds)
    found = {name: median(some) for name, some in cases.items()}
    cheap: dict[str, list[float]] = defaultdict(list)
    for name, seconds in found.items():
        if seconds < SHOWN:
            cheap[folder(name)].append(seconds)
    lines = {name: seconds for name, seconds in before.items() if name not in found}
    lines |= {name: seconds for name, seconds in found.items() if seconds >= SHOWN}
    lines |= {name: mean(some) for name, some in cheap.items()}
    return {name: lines[name] for name in sorted(lines) if _is_there(name, there)}


def _is_there(name: str, there: Mapping[str, str]) -> bool:
    path, _, function = name.partition("::")
    text = there.get(path, "")
    return not function or bool(re.search(rf"\bdef {re.escape(function)}\(", text))


class Measured:
    """In a worker: the cost of each test goes with its last report."""

    def __init__(self, worker: str) -> None:
        self._mark = f"{_WORKER}={worker}".encode()
        self._ours: dict[str, bool] = {}
        self._spent: dict[str, tuple[float, str]] = {}
        self._before = 0.0

    def pytest_collection_finish(self) -> None:
        self._before = self._seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef) -> Generator[None, object, object]:
        shared = fixturedef.scope == "session"
        began = self._seconds() if shared else 0.0
        try:
            return (yield)
        finally:
            if shared:
                self._before += self._seconds() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            began = time.process_time()
            now = self._seconds()
            report.user_properties.append(("cpu", now - self._before))
            self._before = now + time.process_time() - began  # To look costs no test anything.
        return report

    def _seconds(self) -> float:
        """Of all processes, since they started; one that ended counts in who waited for it, or with
        what was last seen.
        """
        there = {*filter(str.isdecimal, os.listdir("/proc"))}
        for pid in there:
            with suppress(OSError):
                if self._is_ours(pid):
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    self._spent[pid] = sum(map(int, fields[11:15])) / _TICKS, fields[1]
        for pid in self._spent.keys() - there:
            if self._ours.get(self._spent[pid][1]):
                del self._spent[pid]
        return sum(seconds for seconds, _ in self._spent.values())

    def _is_ours(self, pid: str) -> bool:
        if pid not in self._ours:
            self._ours[pid] = pid == str(os.getpid()) or (
                self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            )
        return self._ours[pid]


class Kept:
    """Where the reports arrive."""

    def __init__(self) -> None:
        self._measured: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed and (seconds := dict(report.user_properties).get("cpu")) is not None:
            self._measured[report.nodeid] = max(0.0, seconds)

    def pytest_sessionfinish(self) -> None:
        paths = (ROOT / "tests").rglob("test_*.py")
        there = {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in paths}
        lines = refreshed(known(), self._measured, there)
        text = "".join(f"{seconds:.2f} {name}\n" for name, seconds in lines.items())
        KEPT.write_text(text, encoding="utf-8")
