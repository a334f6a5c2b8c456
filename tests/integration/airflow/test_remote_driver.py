"""A driver on another machine: deploy mode cluster, and any operator that runs stage_batch.py.

In the place of spark-submit stands a program that runs the batch in a process of its own, with the
local engine, and returns nothing but an exit code: the answer is the ledger's alone.
"""

import gc
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.airflow.tasks import Tasks
from fixtures.batches.account import ids, quiet, run, settled
from fixtures.batches.workbench import Workbench, events
from semel.errors import ChangedError, RetryableError, SemelError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan

# Airflow's hook leaves the pipe of spark-submit to Python's garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

TESTS = Path(__file__).parents[2]

PROGRAM = """\
import os, sys
from contextlib import nullcontext
from pathlib import Path
sys.path.insert(0, {tests!r})
Path({arguments!r}).write_text("\\n".join(sys.argv[1:]))
if {fault!r} == "never starts":
    sys.exit(1)
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.spark.submitted import stage_batch
if {fault!r} == "dies":
    failpoints.arm("stage.after_folders", lambda: os._exit(9))
stage_batch.open_engine = lambda *_: nullcontext(LocalEngine())
program = next(at for at, word in enumerate(sys.argv) if word.endswith("stage_batch.py"))
sys.stdout = sys.stderr = open(os.devnull, "w")
sys.exit(stage_batch.main(sys.argv[program + 1:]))
"""


@pytest.fixture(autouse=True)
def no_open_pipes() -> Iterator[None]:
    """A pipe of this test's hooks does not fail a later test, which has no filter."""
    yield
    gc.collect()


@pytest.fixture
def cluster_mode(
    bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Path]:
    """Puts the stand-in in place, with a fault. Returns the file of the arguments that it got."""
    extra = {
        "deploy-mode": "cluster", "spark-binary": "spark3-submit",
        "semel_program": "local:///opt/semel/stage_batch.py",
    }  # fmt: skip
    connection = {"conn_type": "spark", "host": "yarn", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SEMEL_SPARK", json.dumps(connection))
    monkeypatch.setenv("SEMEL_TRANSFORMS_DIR", str(bench.transforms))
    binaries = tmp_path / "bin"
    binaries.mkdir()
    monkeypatch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")

    def put(fault: str = "") -> Path:
        path, arguments = binaries / "spark3-submit", tmp_path / "arguments"
        program = tmp_path / "stand_in.py"
        program.write_text(PROGRAM.format(tests=str(TESTS), arguments=str(arguments), fault=fault))
        command = shlex.join([sys.executable, str(program)])
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        path.chmod(0o755)
        return arguments

    return put


def planned(bench: Workbench, ledger: Ledger) -> Spec:
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 5))
    plan(ledger, spec, "r1")
    return spec


def staged(ledger: Ledger, spec: Spec) -> str:
    """What the task stage logs."""
    from semel.airflow.spark import Stager

    with Stager(ledger, spec, quiet) as stager:
        return stager.stage(1)


@pytest.mark.usefixtures("airflow")
def test_the_answer_of_a_driver_is_in_the_ledger(
    bench: Workbench, ledger: Ledger, cluster_mode: Callable[[str], Path]
) -> None:
    """spark-submit gets the program's path there, pipeline and batch, and no address of the ledger;
    the summary is that of the attempt.
    """
    arguments = cluster_mode()
    spec = planned(bench, ledger)
    assert "read 5 records" in staged(ledger, spec)
    words = arguments.read_text().splitlines()
    assert words[-3:] == ["local:///opt/semel/stage_batch.py", "events", "1"]
    assert words[words.index("--deploy-mode") + 1] == "cluster"
    assert not any(ledger.engine.url.password in word for word in words)
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 5)


@pytest.mark.usefixtures("airflow")
@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("", ChangedError, "is no longer what batch 1 planned"),
        ("never starts", RetryableError, "ended before its attempt began"),
        ("dies", RetryableError, "the driver of attempt 1 ended without an answer"),
    ],
    ids=["fails", "never starts", "dies"],
)
def test_a_driver_that_fails(
    bench: Workbench, ledger: Ledger, cluster_mode: Callable[[str], Path], fault: str,
    kind: type[SemelError], message: str,
) -> None:  # fmt: skip
    """The task ends with the attempt's own error, or says how far the driver came. The next try
    goes on.
    """
    spec = planned(bench, ledger)
    if not fault:
        bench.write("in/a.jsonl", events(50, 55))
    cluster_mode(fault)
    with pytest.raises(kind, match=message) as caught:
        staged(ledger, spec)
    assert type(caught.value) is kind
    if not fault:
        bench.write("in/a.jsonl", events(0, 5))
    cluster_mode()
    assert "read 5 records" in staged(ledger, spec)


def test_an_operator_that_reads_the_answer(
    bench: Workbench, ledger: Ledger, tasks: Tasks
) -> None:
    """After any operator that ran stage_batch.py: it fails with the attempt's error and names the
    task to clear, and succeeds with the summary once the batch is staged.
    """
    from fixtures.spark.local import LocalEngine
    from semel.stage import stage

    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 5))
    tasks.run("Plan")
    step = "next: clear the run's task that runs stage_batch.py"
    with pytest.raises(BaseException, match="ended before its attempt began") as caught:
        tasks.run("StageAnswer")
    assert str(caught.value).endswith(step)
    stage(ledger, spec, 1, LocalEngine(), quiet)
    tasks.run("StageAnswer")
