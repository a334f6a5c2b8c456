"""The versions that `make matrix` tries are those of the page and of the library."""

import re
from pathlib import Path

import matrix

from semel.airflow import AIRFLOW_MIN, AIRFLOW_VERSION
from semel.spark import versions

CASE = '<testcase file="{}" name="t">{}</testcase>'


def tried(kind: str) -> list[str]:
    return [one.version for one in matrix.VERSIONS if one.kind == kind]


def test_the_page_has_each_version() -> None:
    """docs/deploy.md has the table that `tests/matrix.py --page` writes."""
    text = matrix.PAGE.read_text(encoding="utf-8")
    assert matrix.with_table(text) == text, "run python tests/matrix.py --page"
    assert all(one.version in matrix.table() for one in matrix.VERSIONS)


def test_each_minor_version_that_semel_supports_is_tried() -> None:
    """From the oldest to the newest, and no other."""
    minors = [versions.minor(version) for version in tried("Spark")]
    oldest, newest = versions.OLDEST, versions.NEWEST
    assert minors == [(oldest[0], n) for n in range(oldest[1], newest[1] + 1)]


def test_each_airflow_is_tried() -> None:
    """From the oldest that semel supports to the one of these tests, and no other."""
    newest = versions.minor(AIRFLOW_VERSION)
    minors = [versions.minor(version) for version in tried("Airflow")]
    assert minors == [(newest[0], n) for n in range(AIRFLOW_MIN[1], newest[1] + 1)]
    assert tried("Airflow")[-1] == AIRFLOW_VERSION and AIRFLOW_MIN[0] == newest[0]


def test_what_a_version_runs_is_there() -> None:
    """Each file of a suite exists, and each test of --quick in one of these files."""
    for one in matrix.VERSIONS:
        files = {test.partition("::")[0] for tests in one.suites.values() for test in tests}
        assert all((matrix.ROOT / file).is_file() for file in files)
        for test in one.quick:
            file, _, name = test.partition("::")
            name = name.partition("[")[0]
            text = (matrix.ROOT / file).read_text(encoding="utf-8")
            assert file in files and re.search(rf"^def {name}\(", text, re.MULTILINE), test


def test_what_came_out(tmp_path: Path) -> None:
    """A suite's line counts its tests: one that fails, in itself or in a fixture, is no pass."""
    suites = {"a": ("t/a.py",), "b": ("t/b.py::test_x",), "c": ("t/c.py",)}
    cases = [
        CASE.format("t/a.py", ""), CASE.format("t/a.py", "<failure/>"),
        CASE.format("t/a.py", "<error/>"), CASE.format("t/b.py", "<skipped/>"),
    ]  # fmt: skip
    report = tmp_path / "junit.xml"
    report.write_text(f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
    assert matrix.outcomes(suites, report) == {"a": "2 failed, 1 passed", "b": "1 skipped"}


def test_a_quick_run_tries_the_ends() -> None:
    """The oldest and the newest Spark that differ from .venv's."""
    versions_tried = [one.version for one in matrix._outermost(list(matrix.VERSIONS))]
    own = matrix.installed_version("pyspark")
    assert versions_tried == [v for v in (tried("Spark")[0], tried("Spark")[-1]) if v != own]
