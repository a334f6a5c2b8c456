"""semel from its wheel, on the command line, outside of any checkout."""

import json
from pathlib import Path

import pytest

from fix_wheel import Installed
from fixtures.batches.workbench import Workbench, events
from fixtures.postgres.server import database

TRANSFORM = """
from pyspark.sql import DataFrame, functions as f

def tenfold(records: DataFrame) -> DataFrame:
    return records.select("id", (f.col("n") * 10).alias("n"), "at")
"""

MIGRATIONS = Path(__file__).resolve().parents[2] / "sql" / "migrations"

WHERE = """
import semel
from semel_local.demo import queue
from semel_local.demo.stream import FILES
from semel_local.stack.kafka_server import POM
print(semel.__file__, POM, *FILES, queue.FILE)
"""

FILES_OF = """
import json
from importlib.metadata import files
for package in ("semel", "semel-local"):
    print(json.dumps([str(path) for path in files(package)]))
"""

READ = """
import sys
from semel.reader import dataset
print(sorted(dataset(sys.argv[1]).to_table(["n"])["n"].to_pylist()))
"""


@pytest.fixture
def project(tmp_path: Path) -> Workbench:
    """A project's folder with one pipeline, its transform, and records of which some repeat."""
    made = Workbench(tmp_path / "project")
    made.folder.joinpath("dags").mkdir()
    made.pipelines.rename(made.folder / "dags" / "pipelines")
    made.pipelines = made.folder / "dags" / "pipelines"
    made.transforms.rename(made.folder / "spark_jobs")
    (made.folder / "spark_jobs" / "shop.py").write_text(TRANSFORM)
    (made.pipelines / "shop.yaml").write_text(
        "name: shop\n"
        "source:\n"
        "  {type: files, path: in/*.jsonl, format: jsonl,\n"
        "   schema: {id: string, n: bigint, at: timestamp}}\n"
        "record_id: [id]\n"
        "transforms: ['shop:tenfold']\n"
        "sink: {type: files, path: out/shop, format: parquet}\n"
    )
    made.write("in/a.jsonl", [*events(0, 1000), *events(900, 1100)])
    return made


def test_semel_s_wheel_has_no_local_stack(installed: Installed) -> None:
    """Whoever has an own Airflow installs the library alone: no server's program and no demo.

    Its local stack is a wheel of its own, and adds four commands.
    """
    listed = installed.call("python", "-c", FILES_OF, folder=Path("/"))
    library, local = map(json.loads, listed.stdout.splitlines())
    tops = {name.split("/")[0] for name in library if not name.startswith((".", "semel-"))}
    assert tops == {"semel"} and "semel/sql/schema.sql" in library
    assert {name.split("/")[0] for name in local if "dist-info" not in name} == {"semel_local"}
    shown = installed.call("semel", "up", "--help", folder=Path("/"))
    assert "Start PostgreSQL, Spark and Airflow" in shown.stdout, shown.stderr


@pytest.mark.rest
def test_the_wheel_is_all_that_is_needed(
    installed: Installed, project: Workbench, postgres: str
) -> None:
    """Migrate, validate, run and audit: exact output, in a folder that is no checkout.

    The ledger's schema and the queries come from the wheel, and none of it from the checkout.
    """
    top = Path("/")
    where = installed.call("python", "-c", WHERE, folder=top)
    for path in map(Path, where.stdout.split()):
        assert path.is_file() and path.is_relative_to(installed.bin.parent), where.stderr
    assert "plan, stage, commit, finalize" in installed.call("semel", "--help", folder=top).stdout
    with database(postgres) as dsn:
        variables = {"SEMEL_LEDGER_DSN": dsn, "SEMEL_CACHE_DIR": str(project.folder / "cache")}

        def semel(*words: str) -> dict:
            done = installed.call("semel", *words, "--json", folder=project.folder, **variables)
            assert done.returncode == 0, done.stdout + done.stderr
            return json.loads(done.stdout)["answer"]

        newest = max(path.stem for path in MIGRATIONS.glob("*.sql"))
        assert semel("migrate")["revision"] == newest.partition("_")[0]
        assert semel("validate")["ok"]
        assert semel("run", "shop", "--spark", "local[2]")["counts"]["survivors"] == 1100
        assert semel("audit", "shop")["ok"]
    sink = str(project.data / "out" / "shop")
    read = installed.call("python", "-c", READ, sink, folder=project.folder)
    assert json.loads(read.stdout) == [10 * n for n in range(1100)]
