"""Rules that Spark could break: parts of a shuffle lost or doubled, a stage that is run again."""

from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from fixtures.batches.account import ids, run, settled
from fixtures.batches.workbench import Workbench, events
from semel.errors import RetryableError, TerminalError
from semel.ledger import Ledger
from semel.spark import engine as engine_module
from semel.spark import session as session_module
from semel.spark.engine import SparkEngine
from semel.spark.settings import SETTINGS
from semel_local.stack import spark_server

ONE_TRY = ("spark.stage.maxConsecutiveAttempts", "spark.stage.maxAttempts")


# Attacks S15.
@pytest.mark.parametrize("key", ONE_TRY)
@pytest.mark.parametrize("value", ["4", None])
def test_a_spark_that_runs_a_stage_again_is_refused(
    spark: object, key: str, value: str | None
) -> None:
    """A session of such a Spark gets no engine, and the error says what to set."""

    def get(asked: str, default: object = None) -> object:
        return value if asked == key else spark.conf.get(asked, default)

    says = f"{key}={value}; semel needs {key}=1.* Start Spark with .*--conf {key}=1"
    with pytest.raises(TerminalError, match=says):
        SparkEngine(SimpleNamespace(conf=SimpleNamespace(get=get)))
    SparkEngine(spark)


# Attacks S15.
def test_semels_own_sparks_run_nothing_again() -> None:
    """What semel starts by itself, and what the stack starts, has the settings."""
    for settings in (SETTINGS, spark_server.CONF):
        assert {settings.get(key) for key in ONE_TRY} == {"1"}


@pytest.mark.parametrize("master", ["local[*]", "local[2]"])
def test_a_driver_of_ones_own_is_on_loopback(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    """`semel run --master local` opens no port that another machine reaches, and no web page."""
    given: dict[str, str] = {}

    def started(builder: SparkSession.Builder) -> SimpleNamespace:
        given.update(builder._options)
        return SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=print))

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", started)
    session_module._open_classic(master)
    assert given["spark.master"] == master
    assert given.get("spark.ui.enabled") == "false"
    assert given.get("spark.driver.host") == given.get("spark.driver.bindAddress") == "127.0.0.1"


JOB = SimpleNamespace(attempt_id=1, shards=2, tasks=2, spec=None)
"""All that a task reads of its job before it looks whether its part of the shuffle is whole."""


# Attacks S14.
@pytest.mark.parametrize("tasks", [[0], [0, 0], [0, 1, 1], [0, 1, 2], [1]])
def test_a_shard_needs_each_task_once(tasks: list[int]) -> None:
    """A part of the shuffle that is missing, doubled or foreign fails the task that gets it."""
    rows = [_row(engine_module._READ, 7, task, b"", b"") for task in tasks]
    with pytest.raises(RetryableError, match=r"each task below 2 once.*Run stage again"):
        list(engine_module._classify(JOB)(iter(rows)))


# Attacks S14.
@pytest.mark.parametrize("shards", [[0], [0, 0], [0, 1, 1], [0, 1, 2]])
def test_a_task_needs_each_shard_once(shards: list[int]) -> None:
    """The same behind classify: no drops of a shard may be missing or come twice."""
    rows = [_row(engine_module._CLASSIFIED, 7, 0, shard, b"", b"[]", b"[]") for shard in shards]
    with pytest.raises(RetryableError, match=r"each shard below 2 once.*Run stage again"):
        list(engine_module._write(JOB, True)(iter(rows)))


# Attacks S14.
def test_a_task_has_one_outcome() -> None:
    """A task that was read twice, with two outcomes of which each shard got another, fails."""
    found = [b'[{"n": 0}]', b'[{"n": 1}]']
    kind = engine_module._CLASSIFIED
    rows = [_row(kind, 7, 0, n, b"", reports, b"[]") for n, reports in enumerate(found)]
    with pytest.raises(RetryableError, match="part 0 of the source twice, with two results"):
        list(engine_module._write(JOB, True)(iter(rows)))


def _row(kind: str, *values: object) -> pa.RecordBatch:
    [batch] = engine_module._batches(kind, [values])
    return batch


@given(sizes=st.lists(st.integers(0, 40), max_size=30))
def test_rows_travel_in_batches(sizes: list[int]) -> None:
    """All rows arrive, in their order, in batches that hold no more than a bound and one row."""
    rows = [(b"x" * size,) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "_BATCH_BYTES", 50)
        batches = list(engine_module._batches(engine_module._REPORTS, iter(rows)))
    found = [(row["reports"],) for batch in batches for row in batch.to_pylist()]
    assert found == rows
    for batch in batches:
        *before, _ = map(len, batch.column("reports").to_pylist())
        assert sum(before) < 50


# Attacks S14.
@pytest.mark.parametrize("times", [0, 2])
def test_the_driver_needs_each_report_once(
    bench: Workbench,
    ledger: Ledger,
    spark_engine: SparkEngine,
    monkeypatch: pytest.MonkeyPatch,
    times: int,
) -> None:
    """Reports that are lost or doubled on their way to the driver stage nothing; the rerun does."""
    spec = bench.spec(record_id=None)
    bench.write("in/a.jsonl", events(0, 5))
    real = engine_module._read_only

    def again(job, write):  # noqa: ANN001, ANN202 - as _read_only
        task = real(job, write)

        def tasks(batches):  # noqa: ANN001, ANN202 - as the task
            for batch in task(batches):
                yield from [batch] * times

        return tasks

    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "_read_only", again)
        with pytest.raises(RetryableError, match="each split below 1 once"):
            run(ledger, spec, "r1", engine=spark_engine)
    assert settled(spec).ids == []
    run(ledger, spec, "r1", engine=spark_engine)
    assert settled(spec).ids == ids(0, 5)
