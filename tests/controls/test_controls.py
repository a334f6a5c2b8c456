"""Negative controls: with one guard taken out, the tests that are named for it turn red.

A test that passes with and without its guard proves nothing. Each case runs pytest in a process
whose semel lacks one guard (guards.py), and requires failed tests there, not broken ones.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from guards import GUARDS
from guards_of_kafka import OF_KAFKA
from guards_of_replay import OF_REPLAY
from guards_of_topics import OF_TOPICS
from tiers import SAMPLED, SEED

_LONG = (*OF_REPLAY, *OF_TOPICS, *OF_KAFKA)
"""What `make proof` alone takes out, for each of these needs many seconds; and of the others all
but one in EACH, drawn by the seed."""

EACH = 8

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PAGES = [ROOT / "docs" / name for name in ("protocol.md", "postgres.md", "kafka.md")]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=pytest.mark.proof if (at - SEED) % EACH or guard in _LONG else ()
        )
        for at, (name, guard) in enumerate(GUARDS.items())
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
        [sys.executable, "-m", "pytest", *options, *GUARDS[name].tests],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    red = set(re.findall(r"^FAILED ([^\[\s]+)", done.stdout, re.MULTILINE))
    assert red == {test.partition("[")[0] for test in GUARDS[name].tests}, done.stdout
    assert not re.search(r"^ERROR ", done.stdout, re.MULTILINE), done.stdout
    green = re.findall(r"^PASSED (.+)$", done.stdout, re.MULTILINE)
    assert not [test for test in green if test.startswith(SAMPLED)], done.stdout


def test_the_document_has_the_table() -> None:
    """The pages of rules list each guard, its rules, and the tests that notice its absence."""
    text = "".join(page.read_text() for page in PAGES)
    rows = re.findall(r"^\| ([^|]+) \| ([A-Z0-9 ]+) \| (.*`tests/.*) \|$", text, re.M)
    found = {name: (rules, tests) for name, rules, tests in rows}
    wanted = {g.name: (g.rules, ", ".join(f"`{t}`" for t in g.tests)) for g in GUARDS.values()}
    assert found == wanted
