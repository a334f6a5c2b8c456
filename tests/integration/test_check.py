"""`semel check`: what is wrong is found, and each remedy is one. With a real Spark on this machine.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from fix_account import quiet
from fix_pipelines import Workbench, events
from fix_postgres import database, point_executors
from semel import __version__, limits, settings
from semel.cli import main
from semel.ledger.migrate import migrate
from semel.spark import check as module
from semel.spark.check import Check, Checked, check
from semel.spark.engine import SparkEngine
from semel.spark.probe import Answer
from semel.spec.pipeline import Spec
from test_bad_disks import ordinary_user, shared  # noqa: F401

NOWHERE = "sc://127.0.0.1:1"


class Machine:
    """A driver and executors that are right, and what a test does to them."""

    def __init__(
        self, patch: pytest.MonkeyPatch, context: object, bench: Workbench, dsn: str, state: Path
    ) -> None:
        self.patch, self.context, self.bench = patch, context, bench
        self.dsn, self.state = dsn, state
        self.spec = bench.spec()
        bench.write("in/a.jsonl", events(0, 5))
        self.workers = 0

    def look(self, spark: str | None = "local") -> Checked:
        return check([self.spec], spark, quiet)

    def in_workers(self, name: str, value: str) -> None:
        """Set a variable of executors' environment; new workers are started with it."""
        self.patch.setitem(self.context.environment, name, value)

    def code_in_workers(self, text: str) -> None:
        """Let Python workers run a text when they start."""
        self.workers += 1
        folder = self.bench.folder / f"workers{self.workers}"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(text)
        self.in_workers("PYTHONPATH", str(folder))


@pytest.fixture
def machine(
    bench: Workbench, spark: object, postgres: str, executors_state: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Machine]:  # fmt: skip
    @contextmanager
    def own(where: str, *_: object) -> Iterator[SparkEngine]:
        """The session that all tests share: another one would end it."""
        yield SparkEngine(spark)

    real = module.open_engine
    monkeypatch.setattr(
        module, "open_engine", lambda where, log: (own if where == "local" else real)(where, log)
    )
    monkeypatch.setenv("SEMEL_STATE_DIR", str(bench.folder / "no-stack"))
    monkeypatch.setenv(settings.SPARK_VARIABLE, "local")
    with database(postgres, "template1") as dsn:
        migrate(dsn)
        monkeypatch.setenv(settings.LEDGER_VARIABLE, dsn)
        point_executors(executors_state, dsn)
        yield Machine(monkeypatch, spark.sparkContext, bench, dsn, executors_state)


def wrong(found: Checked) -> list[Check]:
    return [one for one in found.checks if not one.ok]


def test_all_is_right(machine: Machine) -> None:
    """Each part is named, and nothing of the check stays: a plan would not take its first batch."""
    found = machine.look()
    assert found.ok, wrong(found)
    assert [one.name for one in found.checks] == [
        "ledger", "schema", "sink", "source", "Spark", "executors", "semel on executors",
        "ledger from executors", "sink from executors", "source from executors",
        "cache of executors", "links", "clocks",
    ]  # fmt: skip
    assert {answer.semel for answer in found.answers} == {__version__}
    assert machine.dsn not in repr(found)
    assert sa.make_url(machine.dsn).password not in repr(found)
    assert not list(machine.bench.folder.rglob(".semel-check*"))
    assert not machine.spec.sink_path().exists()


Wrong = Callable[[Machine], Callable[[], object]]
"""Does harm, and returns what does the remedy."""


def no_address(m: Machine) -> Callable[[], object]:
    m.patch.delenv(settings.LEDGER_VARIABLE)
    return lambda: m.patch.setenv(settings.LEDGER_VARIABLE, m.dsn)


def no_ledger(m: Machine) -> Callable[[], object]:
    m.patch.setenv(settings.LEDGER_VARIABLE, "postgresql://semel:hidden@127.0.0.1:1/semel")
    return lambda: m.patch.setenv(settings.LEDGER_VARIABLE, m.dsn)


def no_dsn(m: Machine) -> Callable[[], object]:
    m.patch.setenv(settings.LEDGER_VARIABLE, "semel:hidden")
    return lambda: m.patch.setenv(settings.LEDGER_VARIABLE, m.dsn)


def not_migrated(m: Machine) -> Callable[[], object]:
    with psycopg.connect(m.dsn) as connection:
        connection.execute("DROP SCHEMA semel CASCADE; DROP TABLE semel_alembic")
    return lambda: main(["migrate"])


def too_new(m: Machine) -> Callable[[], object]:
    with psycopg.connect(m.dsn) as connection:
        found = connection.execute("SELECT version_num FROM semel_alembic").fetchone()[0]
        connection.execute("UPDATE semel_alembic SET version_num = '9999'")

    def other_version() -> None:
        with psycopg.connect(m.dsn) as connection:
            connection.execute("UPDATE semel_alembic SET version_num = %s", (found,))

    return other_version


def no_address_there(m: Machine) -> Callable[[], object]:
    point_executors(m.state, "")
    return lambda: m.in_workers(settings.LEDGER_VARIABLE, m.dsn)


def another_ledger_there(m: Machine) -> Callable[[], object]:
    url = sa.make_url(m.dsn).set(database="postgres", drivername="postgresql")
    m.in_workers(settings.LEDGER_VARIABLE, url.render_as_string(hide_password=False))
    return lambda: m.in_workers(settings.LEDGER_VARIABLE, m.dsn)


def no_semel_there(m: Machine) -> Callable[[], object]:
    m.code_in_workers(
        "import sys\n"
        "class Without:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'semel':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}')\n"
        "sys.meta_path.insert(0, Without())\n"
    )
    return lambda: m.code_in_workers("")


def another_version_there(m: Machine) -> Callable[[], object]:
    m.code_in_workers("import semel\nsemel.__version__ = '0.0.9'\n")
    return lambda: m.code_in_workers("")


def a_clock_that_is_fast(m: Machine) -> Callable[[], object]:
    m.code_in_workers("import time\nreal = time.time\ntime.time = lambda: real() + 5\n")
    return lambda: m.code_in_workers("")


def an_open_cache_there(m: Machine) -> Callable[[], object]:
    folder = m.bench.folder / "open"
    folder.mkdir()
    folder.chmod(0o777)
    m.in_workers(settings.CACHE_VARIABLE, str(folder))
    return lambda: m.in_workers(settings.CACHE_VARIABLE, str(m.bench.folder / "own"))


def nothing_mounted_there(m: Machine, folder: str) -> Callable[[], object]:
    """Executors see an empty folder in its place."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    python = m.bench.folder / "python"
    mounts = f"mount -t tmpfs none '{m.bench.data / folder}'"
    python.write_text(
        f"#!/bin/sh\nexec unshare -m sh -c \"{mounts} && exec '{sys.executable}' \\\"\\$@\\\"\""
        ' python "$@"\n'
    )
    python.chmod(0o755)
    before = m.context.pythonExec
    m.patch.setattr(m.context, "pythonExec", str(python))
    return lambda: m.patch.setattr(m.context, "pythonExec", before)


def no_sink_there(m: Machine) -> Callable[[], object]:
    m.spec.sink_path().mkdir(parents=True)
    return nothing_mounted_there(m, "out")


def no_source_there(m: Machine) -> Callable[[], object]:
    return nothing_mounted_there(m, "in")


def no_python_there(m: Machine) -> Callable[[], object]:
    before = m.context.pythonExec
    m.patch.setattr(m.context, "pythonExec", "/nowhere/python")
    return lambda: m.patch.setattr(m.context, "pythonExec", before)


def another_python_there(m: Machine) -> Callable[[], object]:
    before = m.context.pythonVer
    m.patch.setattr(m.context, "pythonVer", "3.9")
    return lambda: m.patch.setattr(m.context, "pythonVer", before)


@pytest.mark.parametrize(
    ("harm", "name", "remedy"),
    [
        (no_address, "ledger", f"name another in {settings.LEDGER_VARIABLE}"),
        (no_ledger, "ledger", "start that PostgreSQL"),
        (no_dsn, "ledger", f"name another in {settings.LEDGER_VARIABLE}"),
        (not_migrated, "schema", "semel migrate"),
        (too_new, "schema", "install the version of semel that made it"),
        (no_address_there, "ledger from executors", f"set {settings.LEDGER_VARIABLE}"),
        (another_ledger_there, "ledger from executors", f"set {settings.LEDGER_VARIABLE}"),
        (no_semel_there, "executors", f"install semel {__version__}"),
        (another_version_there, "semel on executors", f"install semel {__version__}"),
        (a_clock_that_is_fast, "clocks", "by NTP"),
        (an_open_cache_there, "cache of executors", f"in {settings.CACHE_VARIABLE}"),
        (no_sink_there, "sink from executors", "mount the data folder"),
        (no_source_there, "source from executors", "mount the source's folder"),
        (no_python_there, "executors", "name a Python that is there"),
        (another_python_there, "executors", "name a Python 3."),
    ],
)
def test_what_is_wrong_and_its_remedy(
    machine: Machine, harm: Wrong, name: str, remedy: str
) -> None:
    """It is found under its name, with no password in what is said; after the remedy all is right.
    """
    mend = harm(machine)
    found = machine.look()
    assert {one.name for one in wrong(found)} == {name}, wrong(found)
    assert all(remedy in one.remedy for one in wrong(found)), wrong(found)
    assert "hidden" not in repr(found) and sa.make_url(machine.dsn).password not in repr(found)
    mend()
    assert machine.look().ok
    assert not list(machine.bench.folder.rglob(".semel-check*"))


def test_a_spark_that_lacks_a_setting(machine: Machine) -> None:
    """The setting is named, with what Spark is to be started with; ledger and folders are told."""

    class Unset:
        """A session that stands for another Spark's: this one's settings cannot be taken back."""

        def __init__(self) -> None:
            self.conf = {"spark.stage.maxConsecutiveAttempts": "4"}

    @contextmanager
    def other(*_: object) -> Iterator[SparkEngine]:
        yield SparkEngine(Unset())

    with machine.patch.context() as patch:
        patch.setattr(module, "open_engine", other)
        found = machine.look()
    (one,) = wrong(found)
    assert one.name == "Spark" and "spark.stage.maxConsecutiveAttempts=4" in one.detail
    assert "--conf spark.stage.maxConsecutiveAttempts=1" in one.remedy
    assert {"ledger", "schema", "sink", "source"} < {each.name for each in found.checks}
    assert machine.look().ok


def test_a_spark_that_is_away(machine: Machine) -> None:
    """It is said within seconds; and what an unset address is."""
    (one,) = wrong(machine.look(NOWHERE))
    assert one.name == "Spark" and f"start it, or name another in {settings.SPARK_VARIABLE}" in (
        one.remedy
    )
    machine.patch.delenv(settings.SPARK_VARIABLE)
    (one,) = wrong(machine.look(None))
    assert one.name == "Spark" and f"{settings.SPARK_VARIABLE} is not set" in one.detail
    assert machine.look("local").ok


@pytest.mark.rest
def test_by_position_executors_need_no_ledger(machine: Machine) -> None:
    """So they are not asked for it, and their clocks are held against the driver's."""
    machine.spec = machine.bench.spec(record_id=None)
    point_executors(machine.state, "")
    found = machine.look()
    assert found.ok, wrong(found)
    assert {answer.ahead_seconds for answer in found.answers} == {None}
    machine.code_in_workers("import time\nreal = time.time\ntime.time = lambda: real() - 90\n")
    assert [one.name for one in wrong(machine.look())] == ["clocks"]


def test_folders_of_the_driver(shared: Workbench, ledger: object) -> None:  # noqa: F811
    """A sink that it may not write to, a source that it may not read; mended, both are right."""
    spec = shared.spec()
    shared.write("in/a.jsonl", events(0, 5))
    closed = {spec.sink_path(): 0o555, shared.data / "in": 0o000}
    with ordinary_user():
        spec.sink_path().mkdir(parents=True)
        assert {"sink", "source"} <= of_driver(spec)
    for path, mode in closed.items():
        path.chmod(mode)
    with ordinary_user():
        found = check([spec], NOWHERE, quiet)
        told = {one.name: one for one in wrong(found)}
        assert "let that user write to it" in told["sink"].remedy
        assert f"make or mount {spec.source_root()}, and let" in told["source"].remedy
    for path in closed:
        path.chmod(0o777)
    with ordinary_user():
        assert {"sink", "source"} <= of_driver(spec)


@pytest.mark.rest
def test_folders_that_are_not_there(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A data folder that is not mounted is said, and nothing is written above it; so is a source.
    """
    monkeypatch.setenv("SEMEL_DATA_ROOTS", str(tmp_path / "away"))
    found = machine.look()
    told = {one.name: one.remedy for one in wrong(found)}
    assert told == {
        "sink": "make or mount it",
        "source": f"make or mount {tmp_path / 'away' / 'in'}, and let user {os.geteuid()} read all "
        "below it",
    }
    assert not (tmp_path / "away").exists()
    (tmp_path / "away" / "in").mkdir(parents=True)
    assert machine.look().ok


def of_driver(spec: Spec) -> set[str]:
    return {one.name for one in check([spec], NOWHERE, quiet).checks if one.ok}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users")
def test_files_of_other_users(shared: Workbench) -> None:  # noqa: F811
    """What tasks of another user made and the driver cannot link is found, and umask 002 helps."""
    folder = shared.data / "probe"
    (folder / "links").mkdir(parents=True)
    (folder / "links").chmod(0o777)
    shared.folder.parent.chmod(0o755)
    path = folder / "task-1"
    path.touch()
    os.chown(path, 1, 1)
    answer = Answer(
        host="h", process=1, user=1, python="3", semel="0", time_seconds=0.0, ahead_seconds=None,
        cache="", made=[str(path)], troubles={},
    )  # fmt: skip

    def links() -> Check:
        found = Checked(answers=[answer])
        with ordinary_user():
            module._links(found, [folder])
        (one,) = found.checks
        return one

    path.chmod(0o644)
    assert "umask 002" in links().remedy and "user 1 made" in links().detail
    path.chmod(0o666)
    assert links().ok
    assert list((folder / "links").iterdir()) == []


def test_the_command(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """A table or one JSON object, exit code 0 or 1; all pipelines when none is named."""
    code, (out, err) = main(["check", "events"]), capsys.readouterr()
    assert code == 0, out
    assert "all is right" in out and "WRONG" not in out and "the ledger" in err
    (machine.bench.pipelines / "bad.yaml").write_text("name: bad\n")
    assert main(["check", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    (one,) = [each for each in told["checks"] if not each["ok"]]
    assert one["name"] == "pipelines" and one["remedy"] == "semel validate"
    assert told["ok"] is False and told["executors"][0]["semel"] == __version__
    (machine.bench.pipelines / "bad.yaml").unlink()
    machine.in_workers(settings.LEDGER_VARIABLE, "postgresql://semel:hidden@127.0.0.1:1/semel")
    assert main(["check"]) == 1
    out, _ = capsys.readouterr()
    assert "WRONG ledger from executors" in out and f"-> set {settings.LEDGER_VARIABLE}" in out
    assert "hidden" not in out
    assert main(["check", "nobody"]) == 2


@pytest.mark.rest
def test_the_command_starts_spark(machine: Machine) -> None:
    """As it stands, in a process of its own, on a Spark that it starts: `--spark local[2]`."""
    done = subprocess.run(
        [Path(sys.executable).with_name("semel"), "check", "events", "--spark=local[2]", "--json"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    told = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and told["ok"], told
    assert limits.CHECK_TASK_SECONDS > 0 and len(told["executors"]) == 4
