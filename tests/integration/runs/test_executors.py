"""What a task has from its own process: the ledger's address and the cache, never from the job."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import pytest
import sqlalchemy as sa
from pyspark import cloudpickle

from fixtures.batches.account import ids, quiet, run, settled
from fixtures.batches.compares import batch, compared
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.files.users import first_run, ordinary_user
from fixtures.postgres.server import database, point_executors
from fixtures.spark.local import LocalEngine
from fixtures.spark.session import blind_python
from semel import settings
from semel.archive import layout
from semel.errors import Doing, RetryableError, TerminalError
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.spark import check
from semel.spark.engine import Outcome, SparkEngine
from semel.stage import stage
from semel.stage.job import StageJob
from workers import NEEDS_SPARK

REMEDY = f"Set {settings.LEDGER_VARIABLE} to the driver's ledger in the environment of each"

Point = Callable[[str], None]


@pytest.fixture
def point(monkeypatch: pytest.MonkeyPatch, executors_state: Path, tmp_path: Path) -> Point:
    """Point tasks to a ledger, in this process and in Spark's; to none with an empty address."""

    def to(dsn: str) -> None:
        monkeypatch.setenv("SEMEL_STATE_DIR", str(tmp_path / "no-stack"))
        monkeypatch.setenv(settings.LEDGER_VARIABLE, dsn)
        point_executors(executors_state, dsn)

    return to


@pytest.fixture
def other(postgres: str, template: str) -> Iterator[Ledger]:
    """Another ledger on the same server."""
    with database(postgres, template) as dsn, Ledger(dsn) as made:
        yield made


@pytest.fixture(params=["steps", pytest.param("spark", marks=NEEDS_SPARK)])
def any_engine(request: pytest.FixtureRequest) -> LocalEngine | SparkEngine:
    return LocalEngine() if request.param == "steps" else request.getfixturevalue("spark_engine")


def stored(ledger: Ledger) -> list[tuple]:
    """Each id run that a ledger has, and each attempt's state."""
    text = """
        SELECT 'run', id_run_id, attempt_id::text FROM semel.id_run
        UNION ALL SELECT 'attempt', attempt_id, status FROM semel.attempt ORDER BY 1, 2
    """
    with ledger.engine.connect() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(text)]


def filled(bench: Workbench, ledger: Ledger, name: str = "events", **changes: None) -> Spec:
    """A pipeline with one planned batch, that of e0 to e4."""
    spec = bench.spec(name, **changes)
    bench.write("in/a.jsonl", events(0, 5))
    plan(ledger, spec, "r1")
    return spec


# Attacks S23.
def test_a_job_holds_no_secret(bench: Workbench, ledger: Ledger, engine: LocalEngine) -> None:
    """What Spark ships, shows and logs as a plan has neither the ledger's password nor its place.
    """
    run(ledger, filled(bench, ledger), "r1", engine=engine)
    (job,) = engine.jobs
    shipped = cloudpickle.dumps(job)
    url = sa.make_url(ledger.dsn)
    for secret in (url.password, url.database, f"{url.host}:{url.port}"):
        assert secret.encode() not in shipped
        assert secret not in repr(job)
    assert settings.cache_dir().name.encode() not in shipped


# Attacks S23.
def test_an_executor_that_knows_no_ledger(
    bench: Workbench, ledger: Ledger, point: Point, any_engine: LocalEngine | SparkEngine
) -> None:
    """The attempt is lost with a message that says what to set; set, the same batch goes on."""
    spec = filled(bench, ledger)
    point("")
    with pytest.raises(TerminalError, match=f"does not know the ledger: .*{REMEDY}"):
        run(ledger, spec, "r1", engine=any_engine)
    point(ledger.dsn)
    run(ledger, spec, "r1", engine=any_engine)
    assert settled(spec).ids == ids(0, 5)


# Attacks S23.
def test_an_executor_that_is_pointed_to_another_ledger(
    bench: Workbench, ledger: Ledger, other: Ledger, point: Point,
    any_engine: LocalEngine | SparkEngine,
) -> None:  # fmt: skip
    """Although that one has a running attempt of the same numbers, nothing is read or stored there.
    """
    twin, spec = filled(bench, other, "twin"), filled(bench, ledger)
    point(other.dsn)

    class Meanwhile:
        def run(self, job: StageJob) -> NoReturn:
            before = stored(other)
            assert before == [("attempt", job.attempt_id, "running")]
            with pytest.raises(TerminalError, match=f"is not the driver's ledger: .*{REMEDY}"):
                stage(ledger, spec, job.batch_id, any_engine, quiet)
            assert stored(ledger) == [("attempt", job.attempt_id, "lost")]
            assert stored(other) == before
            raise RetryableError("this was all that the twin is for")

    with pytest.raises(RetryableError, match="all that the twin is for"):
        stage(other, twin, 1, Meanwhile(), quiet)
    point(ledger.dsn)
    run(ledger, spec, "r1", engine=any_engine)
    assert settled(spec).ids == ids(0, 5)


def test_no_executor_needs_the_ledger_by_position(
    bench: Workbench, ledger: Ledger, point: Point
) -> None:
    """Without record ids tasks read and write files alone, so they may know no ledger at all."""
    spec = bench.spec(record_id=None)
    bench.write("in/a.jsonl", events(0, 5))
    point("")
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 5)


def test_no_executor_needs_the_ledger_for_a_compare(
    bench: Workbench, ledger: Ledger, point: Point, any_engine: LocalEngine | SparkEngine
) -> None:
    """The ids that a compare knows are in files of its own."""
    spec = bench.spec()
    for n in range(2):
        bench.write(f"in/{n}.jsonl", events(n * 3, n * 3 + 5))
        batch(ledger, spec)
    point("")
    found = compared(ledger, spec, 2, engine=any_engine)
    assert found.equal and (found.known, found.rows_other) == (2, 3)


def test_executors_without_python(
    bench: Workbench, ledger: Ledger, spark: object, spark_engine: SparkEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """What no task could raise, because none began, is Spark's failure too, which is retried."""
    spec = filled(bench, ledger)
    with monkeypatch.context() as patch:
        patch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python")
        with pytest.raises(RetryableError, match="the Spark job failed: .*No such file"):
            run(ledger, spec, "r1", engine=spark_engine)
    run(ledger, spec, "r1", engine=spark_engine)
    assert settled(spec).ids == ids(0, 5)


# Attacks S5.
@pytest.mark.parametrize("changes", [{}, {"record_id": None}], ids=["by id", "by position"])
def test_executors_that_do_not_see_the_archive(
    bench: Workbench, ledger: Ledger, spark: object, spark_engine: SparkEngine, shell: Shell,
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, None],
) -> None:  # fmt: skip
    """A task without the folder of its attempt ends the attempt for good, and says what to mount;
    `semel check` finds the same. Once executors see the folder, the same batch goes on.
    """
    spec = filled(bench, ledger, **changes)
    archive = layout.archive_folder(spec)
    monkeypatch.setattr(check, "open_engine", lambda *_: nullcontext(spark_engine))
    with monkeypatch.context() as patch:
        python = blind_python(bench.folder / "python", bench.data / "out")
        patch.setattr(spark.sparkContext, "pythonExec", python)
        message = rf"does not see the archive: .*{archive}"
        with pytest.raises(TerminalError, match=message) as caught:
            stage(ledger, spec, 1, spark_engine, quiet)
        step = caught.value.next_step(Doing(again="", anew="", pipeline="events"))
        assert "sink from executors" in shell.runs(step, code=1)
    assert not list(archive.rglob("*.parquet"))
    run(ledger, spec, "r1", engine=spark_engine)
    assert settled(spec).ids == ids(0, 5)


class OtherUser(LocalEngine):
    """An engine whose tasks run as another user than the driver, with a umask of their own."""

    def __init__(self, umask: int) -> None:
        super().__init__()
        self.umask = umask

    def run(self, job: StageJob) -> Outcome:
        before = os.umask(self.umask)
        try:
            with ordinary_user("daemon"):
                return super().run(job)
        finally:
            os.umask(before)


# Attacks S24.
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become two other users")
@pytest.mark.parametrize("record_id", [["id"], None])
def test_executors_of_another_user(
    shared: Workbench,
    ledger: Ledger,
    record_id: list[str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With fs.protected_hardlinks the driver cannot name their files: said before commit, with a
    way out; with that, the same batch goes on.
    """
    if Path("/proc/sys/fs/protected_hardlinks").read_text().strip() != "1":
        pytest.skip("this machine lets everybody link everything")
    shared.folder.parent.chmod(0o755)
    temporary = shared.folder.parent / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    monkeypatch.delenv(settings.CACHE_VARIABLE)
    monkeypatch.setenv("SEMEL_STATE_DIR", str(shared.folder / "none"))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before = os.umask(0)  # So that executors may write into the folders that the driver makes.
    try:
        spec = first_run(shared, ledger, record_id=record_id)
        with ordinary_user():
            shared.write("in/b.jsonl", events(5, 10))
            with pytest.raises(TerminalError, match="files of user 1 .*umask 002") as raised:
                run(ledger, spec, "r2", engine=OtherUser(0o022))
            assert "protected_hardlinks" in str(raised.value)
            assert ("attempt", 2, "lost") in stored(ledger)
            assert not list(spec.sink_path().rglob(".link-*"))
            assert run(ledger, spec, "r2", engine=OtherUser(0)).committed.fence == 2
            assert settled(spec).ids == ids(0, 10)
    finally:
        os.umask(before)
