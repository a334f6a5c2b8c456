"""Versions of Spark that semel does not support, or that do not fit each other."""

import time
from pathlib import Path
from types import SimpleNamespace

import pyspark
import pytest
from pyspark.sql import functions as F

from fixtures.airflow.tasks import Tasks
from fixtures.batches.account import quiet
from fixtures.batches.workbench import Workbench, events
from semel.airflow.task_failure import TaskFailed
from semel.errors import TerminalError
from semel.ledger import Ledger
from semel.spark import versions
from semel.spark.check import check
from semel.spark.partitions import partition_key
from semel.spark.session import open_engine

SECONDS_MAX = 30
"""Far less than a try of Spark's own client takes, and enough for a busy machine."""

FITTING = [
    ("4.0.5", "4.0.0", True), ("4.2.0", "4.2.1", False), ("4.0.5", "4.3.0", True),
    ("4.0.2", "4.0.2-amzn-0", False), ("4.0.2+amzn.0", "4.0.2-amzn-0", False),
    ("4.1.0", "4.1.0-databricks", True), ("4.4.0", "4.4.0", False),
]  # fmt: skip
REFUSED = [
    ("3.5.1", "4.0.0", True, "this Python's pyspark has version 3.5.1: semel needs Spark 4.0 to"),
    ("4.2.0", "3.5.6-amzn-1", True, "Spark has version 3.5.6-amzn-1: semel needs Spark 4.0 to"),
    ("4.2.0", "5.0.0", True, "Spark has version 5.0.0: semel needs Spark 4.0 to"),
    ("4.2.0", "17.3.x-scala2.13", True, "Spark has version 17.3.x-scala2.13: semel needs"),
    ("4.3.0", "4.2.1", True, r"has pyspark 4.3.0, and Spark has version 4.2.1. .* pyspark 4\.2 "),
    ("4.0.5", "4.2.0", False, r"has pyspark 4.0.5, and Spark has version 4.2.0. .* pyspark 4\.2 "),
]  # fmt: skip
"""The driver's pyspark, Spark's version, whether it is Spark Connect; and the refusal."""


def compare(patch: pytest.MonkeyPatch, client: str, server: str, *, connect: bool) -> str:
    """The note on a version, after all comparisons."""
    patch.setattr(pyspark, "__version__", client)
    versions.check_driver()
    return versions.note(versions.check_session(SimpleNamespace(version=server), connect=connect))


@pytest.mark.parametrize(("client", "server", "connect"), FITTING)
def test_versions_that_fit(
    monkeypatch: pytest.MonkeyPatch, client: str, server: str, connect: bool
) -> None:
    """Only the minor version counts; over Connect an older driver may use a newer Spark. A vendor's
    build and a version that nobody tried are named, and run.
    """
    note = compare(monkeypatch, client, server, connect=connect)
    assert ("vendor's build" in note) == ("-" in server), note
    assert ("newer than" in note) == server.startswith("4.4"), note


@pytest.mark.parametrize(("client", "server", "connect", "refusal"), REFUSED)
def test_versions_that_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, client: str, server: str, connect: bool, refusal: str
) -> None:
    """The error names both versions and the one to install."""
    with pytest.raises(TerminalError, match=refusal):
        compare(monkeypatch, client, server, connect=connect)


def test_a_folder_of_two_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyspark and pyspark-client own one folder; two minor versions of them are refused. A
    pyspark-client elsewhere, which PYTHONPATH hides, does no harm.
    """
    (folder,) = pyspark.__path__

    def of(version: str, place: str) -> SimpleNamespace:
        return SimpleNamespace(version=version, locate_file=lambda _: Path(place))

    packages = {"pyspark": of("4.3.0", folder), "pyspark-client": of("4.2.0", folder)}
    monkeypatch.setattr(versions, "distribution", packages.__getitem__)
    with pytest.raises(TerminalError, match=r"pyspark 4\.3\.0 and pyspark-client 4\.2\.0, which"):
        versions.check_driver()
    for other in (of("4.3.1", folder), of("4.2.0", "elsewhere")):
        packages["pyspark-client"] = other
        versions.check_driver()


def test_an_unsupported_pyspark_is_named_everywhere(
    bench: Workbench, ledger: Ledger, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`semel check`, a run and Airflow's task have one sentence within seconds; no Spark starts."""
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", "spark-connect://127.0.0.1:1")
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 5))
    sentence = "this Python's pyspark has version 3.5.1: semel needs Spark 4.0 to"
    began = time.monotonic()
    (found,) = [one for one in check([spec], "local[1]", quiet).checks if one.name == "Spark"]
    assert sentence in found.detail and "docs/deploy.md" in found.remedy
    with pytest.raises(TerminalError, match=sentence), open_engine("local[1]"):
        pass
    tasks.run("Plan")
    with pytest.raises(TaskFailed, match=sentence):
        tasks.run("Stage")
    assert time.monotonic() - began < SECONDS_MAX


def test_spark_has_the_version_of_the_driver(spark: object) -> None:
    """These tests run on the pyspark that they import, so `make matrix` tries what it says."""
    assert spark.version == pyspark.__version__ == versions.check_session(spark, connect=False)


@pytest.mark.parametrize("partitions", [1, 7, 1000])
def test_a_key_leads_to_its_partition(spark: object, partitions: int) -> None:
    """Spark's hash of a key is the partition's number."""
    keys = [(partition_key(number), number) for number in (*range(partitions), 2**31 - 1)]
    frame = spark.createDataFrame(keys, "key int, number int")
    found = frame.select("number", F.hash("key").alias("hash")).collect()
    assert all(row.hash == row.number for row in found)
    if partitions <= 7:
        shuffled = frame.repartition(partitions, "key").select("number", F.spark_partition_id())
        assert all(number % partitions == place for number, place in shuffled.collect())
