"""A Python that lacks what an extra brings, or is too old: one sentence, and the remedy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from semel.clients.connection import require_package
from semel.errors import MissingPackageError, TerminalError
from semel.spark.engine import translate_error

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"

OLD_PYTHON = """
import sys
sys.version_info = (3, 10, 12, "final", 0)
sys.version = "3.10.12 (main)"
import semel.airflow
"""

AIRFLOWS = """
import importlib.metadata as metadata, json, sys

def version(name):
    if installed is None or (installed[0] < "3" and name != "apache-airflow"):
        raise metadata.PackageNotFoundError(name)
    return installed

class Report(list):
    def add(self, *row):
        self.append(row)

metadata.version = version
from semel.cli import check
found = {}
for installed in (None, "2.11.2", "3.0.6", "3.1.0rc1", "3.10.2"):
    for name in [name for name in sys.modules if name.startswith("semel.airflow")]:
        del sys.modules[name]
    report = Report()
    check._airflow(report)
    found[str(installed)] = report
installed = None
del sys.modules["semel.airflow"]
found["notify"] = check.describe_notify(["ops"])
print(json.dumps(found))
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, whose semel is this checkout's."""
    return subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(PLUGINS)}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_python_that_is_too_old() -> None:
    """A DAG file or a plugin that imports semel ends with one sentence."""
    assert run(OLD_PYTHON).stderr.splitlines()[-1] == (
        "ImportError: semel needs Python 3.11 or newer, and this is Python 3.10.12: run it with a "
        "newer one"
    )


def test_check_shows_airflow() -> None:
    """Its version, or that it is too old; nothing where there is none, and no fault of `notify`."""
    done = run(AIRFLOWS)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.pop("None") == []
    [[name, text, remedy]] = found.pop("notify")
    assert (name, remedy) == ("ops", "") and "not checked: semel.airflow: this Python has no" in text
    for version in ("2.11.2", "3.0.6"):
        [[name, text, remedy]] = found.pop(version)
        assert name == "Airflow" and remedy.startswith("pip install 'apache-airflow>=3.1")
        assert f"this Python has Airflow {version}, and semel needs Airflow 3.1 or newer" in text
    assert found == {name: [["Airflow", f"version {name}"]] for name in ("3.1.0rc1", "3.10.2")}


def test_an_inner_package_keeps_its_extra() -> None:
    """A sink of one extra that opens a client of another names the one that is missing."""
    with (
        pytest.raises(MissingPackageError, match=r"Install semel\[objects\] there") as caught,
        require_package("sink.type: delta", "delta"),
        require_package("an object store", "objects"),
    ):
        raise ModuleNotFoundError("No module named 'obstore'")
    assert caught.value.next == "pip install 'semel[objects]'"


NO_CLIENT = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times:
semel.errors.MissingPackageError: an object store needs a package that node7 lacks (No module named \
'obstore'). Install semel[objects] there

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(PythonRunner.scala:550)"""

NO_DAEMON = """org.apache.spark.SparkException:
Error from python worker:
  /usr/bin/python3: Error while finding module specification for 'semel.spark.daemon' \
(ModuleNotFoundError: No module named 'semel')
PYTHONPATH was:
  /opt/spark/python/lib/pyspark.zip
org.apache.spark.SparkException: EOFException occurred while reading the port number"""

NO_SEMEL = "ModuleNotFoundError: No module named 'semel'"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NO_CLIENT, "an object store needs a package that node7 lacks (No module named 'obstore')"),
        (NO_DAEMON, "Spark: an executor cannot import semel 0.1.0. Nothing was committed"),
        (NO_SEMEL, "Spark: an executor cannot import semel 0.1.0. Nothing was committed"),
    ],
)
@pytest.mark.parametrize("samples", [True, False])
def test_an_executor_lacks_a_package(text: str, words: str, samples: bool) -> None:
    """The error names the executor's fault, and Airflow does not try the task again."""
    error = translate_error(Exception(text), samples=samples)
    assert isinstance(error, TerminalError) and isinstance(error, MissingPackageError)
    assert str(error).startswith(words) and len(str(error).splitlines()) == 1


def test_a_module_with_a_similar_name() -> None:
    """A transform that imports something of its own is not semel's fault."""
    error = translate_error(Exception("ModuleNotFoundError: No module named 'semel_extra'"))
    assert not isinstance(error, MissingPackageError)
