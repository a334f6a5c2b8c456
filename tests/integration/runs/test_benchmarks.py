"""Each benchmark still runs, in its smallest form: its figures mean nothing then."""

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from fixtures.wait import wait_for

pytestmark = pytest.mark.proof

ROOT = Path(__file__).resolve().parents[3]
TRACKED = ROOT / "benchmarks" / "results"
TEXTS = {path.stem: path.read_text() for path in (ROOT / "benchmarks").glob("*.py")}
BENCHMARKS = sorted(name for name, text in TEXTS.items() if "harness.save(" in text)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_gives_its_figures(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    """It prints the figures that RESULTS.md shows of it, and its tables and plots can be drawn."""
    if "semel_local.stack.kafka" in TEXTS[name]:
        request.getfixturevalue("kafka_jars")
    before = {path: path.read_bytes() for path in TRACKED.iterdir()}
    results = tmp_path / "results"
    said = _run("all.py", "--smallest", name, "--results", str(results))
    written = (tmp_path / "RESULTS.md").read_text()
    report = json.loads((results / f"{name}.json").read_text())
    assert report["headline"] and json.dumps(report["headline"]) in said
    assert f"## {report['title']}\n" in written
    shown = json.loads(before.get(TRACKED / f"{name}.json", b'{"headline": {}}'))["headline"]
    assert set(shown) <= set(report["headline"])
    assert {path: path.read_bytes() for path in TRACKED.iterdir()} == before


def test_a_smallest_run_leaves_the_results_alone() -> None:
    """Where nobody says otherwise, its figures go to a folder that is not tracked."""
    asked = "import harness; print(harness.parsed(harness.options_of('', runs=5)).results)"
    found = [_run("-c", asked, *more).strip() for more in ([], ["--smallest"])]
    assert found == [str(TRACKED), str(ROOT / "build" / "bench" / "results")]


def test_a_benchmark_that_is_terminated_ends_its_servers(tmp_path: Path) -> None:
    """`timeout` sends SIGTERM: no server of a benchmark runs on after that."""
    words = ["receive.py", "--services", "nats", "--runs", "50", "--results", str(tmp_path)]
    benchmark = psutil.Popen(
        [sys.executable, *words], cwd=ROOT / "benchmarks", stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    servers: list[psutil.Process] = []

    def serves() -> bool:
        servers[:] = benchmark.children(recursive=True)
        return bool(servers)

    try:
        wait_for(serves, "the server of the benchmark", 60, 0.05)
        benchmark.terminate()
        assert benchmark.wait(60) != 0
        _, alive = psutil.wait_procs(servers, 10)
        assert not alive
    finally:
        for process in (benchmark, *servers):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        benchmark.wait(60)


def _run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT / "benchmarks", capture_output=True, text=True,
        env={k: v for k, v in os.environ.items() if not re.match("SEMEL_|AIRFLOW", k)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
