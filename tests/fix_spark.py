"""One Spark of the tests' own, in this process, started as semel needs it."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.spark.engine import SparkEngine
from semel.spark.settings import settings_for


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, executors_state: Path
) -> Iterator[object]:
    from pyspark.sql import SparkSession

    folder: Path = tmp_path_factory.mktemp("spark")
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("semel-tests")
        .config(map=settings_for("local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.executorEnv.SEMEL_STATE_DIR", str(executors_state))
        .config("spark.executorEnv.SEMEL_LEDGER_DSN", "")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        session = builder.getOrCreate()
    # It still speaks when the interpreter ends, and pytest's streams are closed by then.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    yield session
    session.stop()


@pytest.fixture
def spark_engine(spark: object) -> SparkEngine:
    return SparkEngine(spark)
