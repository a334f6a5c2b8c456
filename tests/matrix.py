"""Run the suites of Spark and of Airflow on each version that semel supports.

    python tests/matrix.py                          # each version, each suite
    python tests/matrix.py --quick                  # the oldest and the newest, a few cases
    python tests/matrix.py --versions 4.0.5 4.3.0
    python tests/matrix.py --page                   # write the table "tried with" of docs/deploy.md

A Spark is an overlay: uv installs its packages alone into .semel/matrix/, once, and PYTHONPATH puts
them before those of .venv. An Airflow has an environment of its own, because it pins hundreds of
packages. A version that .venv has itself needs neither.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fixtures.airflow import versions as airflow_versions
from fixtures.environment import package_alone

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "deploy.md"
HEADING = "### Tried with\n"

_IGNORED = {"Spark": "ignore::ResourceWarning", "Airflow": "ignore"}
"""Warnings that are not semel's: Spark before 4.2 leaves sockets to the garbage collector, and an
older Airflow uses what newer packages of its own deprecate."""

Suites = Mapping[str, tuple[str, ...]]
"""Names of suites, and the tests of each: files, or tests of files."""

_RUNS = "tests/integration/runs"
_CLUSTER = "tests/acceptance/test_f_cluster.py"
SPARK: Suites = {
    "by id, by position": (f"{_RUNS}/test_spark.py", f"{_RUNS}/test_rules_spark.py"),
    "columns of all types": (f"{_RUNS}/test_types_spark.py",),
    "transforms that fail": (f"{_RUNS}/test_bad_transforms.py",),
    "Connect": (f"{_RUNS}/test_sql_connect.py",),
    "spark-submit": (f"{_RUNS}/test_submitted.py",),
    "explain": (f"{_RUNS}/test_explain.py",),
    "versions that do not fit": (f"{_RUNS}/test_versions.py",),
    "check, kills": (_CLUSTER,),
}
SPARK_QUICK = (
    f"{_RUNS}/test_spark.py::test_spark_gives_what_the_steps_give",
    f"{_RUNS}/test_types_spark.py::test_spark_writes_each_of_its_types",
    f"{_RUNS}/test_submitted.py::test_a_batch_under_spark_submit",
)
"""Of these suites, what --quick runs. One that is gone fails the run."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """A version to try. `quick`: the tests of --quick, if any."""

    kind: str
    package: str
    version: str
    suites: Suites
    quick: tuple[str, ...] = ()

    @property
    def is_own(self) -> bool:
        """Whether .venv has this version."""
        return installed_version(self.package) == self.version

    def install(self) -> tuple[str, dict[str, str]]:
        """Install this version, if it is not there. Returns a Python and variables for it."""
        if self.is_own:
            return sys.executable, {}
        if self.kind == "Airflow":
            return str(airflow_versions.airflow_environment(self.version)), {}
        folder = package_alone("matrix", self.package, self.version)
        return sys.executable, {"PYTHONPATH": str(folder)}


def _spark(version: str) -> Version:
    return Version(
        kind="Spark", package="pyspark", version=version, suites=SPARK, quick=SPARK_QUICK
    )


def _airflow(version: str) -> Version:
    return Version(
        kind="Airflow", package="apache-airflow", version=version, suites=airflow_versions.SUITES
    )


VERSIONS = (
    *map(_spark, ("4.0.5", "4.1.4", "4.2.0", "4.3.0")),
    *map(_airflow, (*airflow_versions.VERSIONS, "3.3.2")),
)
"""From old to new within a kind. docs/deploy.md has the table of this, by --page."""


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 if all tests passed. A version is skipped where no package index answers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="oldest and newest, a few cases")
    parser.add_argument("--versions", nargs="+", default=[], help="only these, such as 4.0.5")
    parser.add_argument("--page", action="store_true", help="write the table of docs/deploy.md")
    options = parser.parse_args(arguments)
    if options.page:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    chosen = [one for one in VERSIONS if one.version in (options.versions or [one.version])]
    if missing := {*options.versions} - {one.version for one in chosen}:
        parser.error(f"not a version of the matrix: {', '.join(sorted(missing))}")
    if options.quick and not options.versions:
        chosen = list(_outermost(chosen))
    began = time.monotonic()
    with ThreadPoolExecutor(len(chosen) if options.quick else 1) as pool:
        ended = list(pool.map(lambda one: tried(one, quick=options.quick), chosen))
    rows: list[str] = []
    for one, (_, seconds, cells) in zip(chosen, ended, strict=True):
        rows += [f"{one.kind} {one.version}, {seconds:.0f} s"]
        rows += [f"  {name:26} {cell}" for name, cell in cells.items()]
    print("\n".join(["", *rows, f"{(time.monotonic() - began) / 60:.1f} minutes"]), flush=True)
    return max(code for code, _, _ in ended)


def _outermost(versions: list[Version]) -> Iterator[Version]:
    """The oldest and the newest of each kind, without .venv's own, on which all tests run."""
    for kind in sorted({one.kind for one in versions if one.quick}):
        of_kind = [one for one in versions if one.kind == kind]
        yield from (of_kind[n] for n in sorted({0, len(of_kind) - 1}) if not of_kind[n].is_own)


def tried(one: Version, *, quick: bool) -> tuple[int, float, dict[str, str]]:
    """Run the tests on a version. Returns an exit code, the seconds, and a line for each suite.

    With `quick`, versions run at once, so the output of each waits for its end.
    """
    began = time.monotonic()
    try:
        python, variables = one.install()
    except (subprocess.SubprocessError, AssertionError, pytest.skip.Exception) as error:
        away = isinstance(error, pytest.skip.Exception) and not os.environ.get("SEMEL_NO_SKIPS")
        line = {"SKIPPED" if away else "FAILED": str(error).strip().splitlines()[0]}
        return int(not away), time.monotonic() - began, line
    tests = one.quick if quick else tuple(test for part in one.suites.values() for test in part)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        command = [
            python, "-m", "pytest", "-q", "-m", "not soak and not icu",
            "--timeout", "900", f"--junit-xml={report}", "-o", "junit_family=xunit1",
            "-W", _IGNORED[one.kind], *tests,
        ]  # fmt: skip
        environment = os.environ | variables
        done = subprocess.run(
            command, cwd=ROOT, env=environment, check=False, text=True,
            stdout=subprocess.PIPE if quick else None, stderr=subprocess.STDOUT if quick else None,
        )  # fmt: skip
        cells = outcomes(one.suites, report) if report.exists() else {}
    print(f"{one.kind} {one.version}:", done.stdout or "", sep="\n", flush=True)
    return done.returncode, time.monotonic() - began, cells


def outcomes(suites: Suites, report: Path) -> dict[str, str]:
    """By suite, how many tests of pytest's report came out how: `1 failed, 11 passed`."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in suites}
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.get("file", "")
        name = next(n for n, tests in suites.items() if any(t.startswith(file) for t in tests))
        tags = {child.tag for child in case}
        skipped = "skipped" if "skipped" in tags else "passed"
        counts[name]["failed" if tags & {"failure", "error"} else skipped] += 1
    return {
        name: ", ".join(f"{many} {kind}" for kind, many in sorted(count.items()))
        for name, count in counts.items()
        if count
    }


def with_table(text: str) -> str:
    """The page, with the table below HEADING made again."""
    pattern = re.compile(rf"(?<={re.escape(HEADING)}\n)(\|.*\n)*")
    assert pattern.search(text), f"{PAGE} has no {HEADING!r}"
    return pattern.sub(lambda _: table(), text)


def table() -> str:
    """A row for each kind of version: the versions, and the suites that run on them."""
    lines = ["| | versions | suites, by `make matrix` |", "|---|---|---|"]
    for kind in dict.fromkeys(one.kind for one in VERSIONS):
        of_kind = [one for one in VERSIONS if one.kind == kind]
        versions = ", ".join(one.version for one in of_kind)
        lines.append(f"| {kind} | {versions} | {'; '.join(of_kind[0].suites)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
