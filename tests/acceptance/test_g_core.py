"""semel's wheel without an extra: an executor of Spark, and a shell, without Airflow and pyspark."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fix_wheel import Installed
from fixtures.batches.workbench import Workbench, events
from fixtures.objects.s3 import CONNECTION, S3
from fixtures.postgres.server import database
from semel.ledger.migrate import migrate
from semel.settings import connection_variable

pytestmark = pytest.mark.rest
REFUSE_SECONDS = 20

TRANSFORM = """
from pyspark.sql import DataFrame

def add_python(records: DataFrame) -> DataFrame:
    def task(batches):
        import sys
        import pyarrow as pa
        for batch in batches:
            places = pa.array([sys.prefix] * batch.num_rows, pa.string())
            yield pa.RecordBatch.from_arrays([*batch.columns[:2], places], ["id", "n", "python"])
    return records.mapInArrow(task, "id string, n bigint, python string")
"""

SPEC = """
name: shop
source: {{type: {type}, {at}, format: jsonl, schema: {{id: string, n: bigint, at: timestamp}}}}
record_id: [id]
transforms: {transforms}
sink: {{type: files, path: out/shop, format: parquet}}
notify: [ops]
"""

HAS = """
import sys
from importlib.util import find_spec
print(*(name for name in ("airflow", "pyspark", "obstore", "confluent_kafka") if find_spec(name)))
"""

READ = """
import sys
from semel.reader import dataset
rows = dataset(sys.argv[1]).to_table(["n", "python"]).to_pydict()
print(sorted(rows["n"]) == list(range(1100)), *set(rows["python"]))
"""


@pytest.fixture
def project(tmp_path: Path) -> Workbench:
    """A project with one pipeline that reads a file of records, of which some repeat."""
    made = Workbench(tmp_path / "project")
    (made.folder / "dags").mkdir()
    made.pipelines = made.pipelines.rename(made.folder / "dags" / "pipelines")
    made.transforms = made.transforms.rename(made.folder / "spark_jobs")
    (made.transforms / "shop.py").write_text(TRANSFORM)
    declare(made, "files", "path: in/*.jsonl", "['shop:add_python']")
    made.write("in/a.jsonl", [*events(0, 1000), *events(900, 1100)])
    return made


def declare(project: Workbench, kind: str, at: str, transforms: str = "[]") -> None:
    """Write the pipeline's file."""
    text = SPEC.format(type=kind, at=at, transforms=transforms)
    (project.pipelines / "shop.yaml").write_text(text)


Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def call(project: Workbench, postgres: str) -> Iterator[Call]:
    """Run a program of an environment in the project's folder, with a ledger of the project's."""
    with database(postgres) as dsn:
        migrate(dsn)
        variables = {"SEMEL_LEDGER_DSN": dsn, "SEMEL_CACHE_DIR": str(project.folder / "cache")}

        def run(
            where: Installed, *words: str, **more: str
        ) -> subprocess.CompletedProcess[str]:
            return where.call(*words, folder=project.folder, **variables | more)

        yield run


def run_on(call: Call, driver: Installed, python: Path | str, **more: str) -> str:
    """The error of a batch that Spark's executors run with this Python. It has failed."""
    words = ("semel", "run", "shop", "--spark", "local[2]")
    done = call(driver, *words, PYSPARK_PYTHON=str(python), **more)
    assert done.returncode == 1, done.stdout + done.stderr
    _, mark, said = done.stderr.rpartition("\nsemel: ")  # Before it is Spark's own log.
    assert mark and "Traceback" not in said, done.stderr
    return said


def test_executors_and_shells_need_no_extra(
    core: Installed, installed: Installed, project: Workbench, call: Call
) -> None:
    """Executors with the core alone read, classify and write, exactly; a transform's function runs
    there too. In such an environment each command that needs neither Spark nor Airflow works.
    """
    assert call(core, "python", "-c", HAS).stdout.split() == []
    assert json.loads(call(core, "semel", "migrate", "--json").stdout)["answer"]["revision"]
    words = ("semel", "run", "shop", "--spark", "local[2]", "--json")
    done = call(installed, *words, PYSPARK_PYTHON=core.python)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["answer"]["counts"]["survivors"] == 1100
    read = call(core, "python", "-c", READ, str(project.data / "out" / "shop"))
    assert read.stdout.split() == ["True", str(core.bin.parent)], read.stderr
    for words in (
        ["validate"], ["batches"], ["batches", "shop"], ["show", "1"], ["find", "shop", "e000950"],
        ["letters", "shop"], ["gaps", "shop"], ["audit", "shop"], ["collect", "shop"],
        ["new", "other", "data/in/a.jsonl", "--yes"], ["--help"], ["run", "--help"],
    ):  # fmt: skip
        done = call(core, "semel", *words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"


LACKS_SPARK = [["run", "shop"], ["check"], ["explain", "shop"], ["compare", "shop"]]


def test_a_command_says_which_extra_it_needs(core: Installed, call: Call) -> None:
    """Without pyspark, and without Airflow: one sentence within seconds, with the command to paste.
    """
    for words in LACKS_SPARK:
        began = time.monotonic()
        done = call(core, "semel", *words)
        assert time.monotonic() - began < REFUSE_SECONDS
        assert done.returncode == 1 and done.stdout == "", words
        first, last = done.stderr.splitlines()
        assert first.startswith("semel: semel.spark: this Python has no pyspark."), words
        assert last == "next: pip install 'semel[spark]'"
    done = call(core, "python", "-c", "import semel.airflow")
    assert done.stderr.splitlines()[-1] == (
        "semel.errors.MissingPackageError: semel.airflow: this Python has no Airflow. Install "
        "semel[airflow]"
    )


def test_executors_without_the_wheel(
    without_semel: Path, installed: Installed, call: Call
) -> None:
    """The task's log says that semel is missing there, and which version the driver has."""
    text = run_on(call, installed, without_semel)
    assert "an executor cannot import semel 0.1.0. Nothing was committed. Install its" in text, text


@pytest.mark.proof
def test_executors_without_the_extra_of_the_source(
    core: Installed, installed: Installed, project: Workbench, s3: S3, call: Call
) -> None:
    """The driver has the client of the source, and the executors do not: the task's log names the
    extra and the machine.
    """
    bucket = s3.bucket()
    s3.put(bucket, "in/a.jsonl", (project.data / "in" / "a.jsonl").read_bytes())
    declare(project, "objects", f"url: s3://{bucket}/in, connection: {CONNECTION}")
    connection = {connection_variable(CONNECTION): s3.connection()}
    text = run_on(call, installed, core.python, **connection)
    assert "lacks (No module named 'obstore'). Install semel[objects] there" in text, text
