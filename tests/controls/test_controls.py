"""Negative controls: with one guard taken out, the tests that are named for it turn red.

A test that passes with and without its guard proves nothing. Each case runs pytest in a process
whose semel lacks one guard (removals.py), and requires failed tests there, not broken ones.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from removals import OF_MINUTES, REMOVALS
from tiers import PAGES, SAMPLED, SEED

EACH = 8
"""Of those that take seconds the seed draws one in so many; `make proof` takes out all."""

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TEXT = "".join(page.read_text(encoding="utf-8") for page in PAGES)
ROWS = re.findall(r"^\| ([^|]+) \| ([A-Z0-9 ]+) \| (.*`tests/.*) \|$", TEXT, re.MULTILINE)
"""Of the tables "Guards": guard, rules, tests."""
TESTS = {name: re.findall(r"`([^`]+)`", tests) for name, _, tests in ROWS}


APPLY = """
import os
import semel.sinks.bigquery.sink  # Google's client takes a second to import.
from removals import REMOVALS
for name, remove in REMOVALS.items():
    if not (child := os.fork()):
        try:
            remove()
        except BaseException as error:
            print(f"{name}: {error}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_each_guard_is_where_its_removal_looks() -> None:
    """A guard that was written anew is missed at once, and not when a seed draws its control. It
    takes some 5 s: it imports all modules that have guards, and applies each removal apart.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE.parent), str(HERE)))}
    done = subprocess.run(
        [sys.executable, "-c", APPLY],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert not done.stdout, done.stdout


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.proof if (at - SEED) % EACH or name in OF_MINUTES else ()
        )
        for at, name in enumerate(REMOVALS)
    ],
)
def test_without_a_guard_the_suite_turns_red(name: str, postgres: str) -> None:
    """Each of the guard's tests fails without it; where `make test` draws one of a test's cases,
    each case does.
    """
    environment = {
        **os.environ,
        "SEMEL_TEST_WITHOUT": name,
        "SEMEL_TEST_POSTGRES_DSN": postgres,
        "PYTHONPATH": os.pathsep.join((str(HERE.parent), str(HERE))),
    }
    options = ["-q", "-p", "without", "-p", "no:cacheprovider", "--tb=line", "-rfEp", "-m", ""]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *TESTS[name]],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    red = set(re.findall(r"^FAILED ([^\[\s]+)", done.stdout, re.MULTILINE))
    assert red == {test.partition("[")[0] for test in TESTS[name]}, done.stdout
    assert not re.search(r"^ERROR ", done.stdout, re.MULTILINE), done.stdout
    green = re.findall(r"^PASSED (.+)$", done.stdout, re.MULTILINE)
    assert not [test for test in green if test.startswith(SAMPLED)], done.stdout


def test_each_guard_of_the_documents_is_taken_out() -> None:
    """The tables "Guards" name the guards that are taken out here, once each, and known rules."""
    assert sorted(name for name, *_ in ROWS) == sorted(REMOVALS)
    rules = {rule for _, rules, _ in ROWS for rule in rules.split()}
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert rules <= set(re.findall(r"^- \*\*([A-Z]+\d+)\*\* ", pages, re.MULTILINE))
