"""`semel check`: what is wrong is found, and each remedy is one. With a real Spark on this machine
where executors look; what the driver sees by itself is told whether Spark answers or not.
"""

import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from zoneinfo import TZPATH

import psycopg
import pyspark
import pytest
import sqlalchemy as sa
import xxhash

from fixtures.batches.account import quiet
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell, answer_in
from fixtures.files.users import ordinary_user
from fixtures.postgres.server import database, point_executors
from fixtures.spark.session import blind_python
from semel import __version__, settings
from semel.cli import main
from semel.errors import UnavailableError
from semel.ledger.migrate import migrate
from semel.model.windows import zones_version
from semel.spark import check as module
from semel.spark.check import CheckReport, CheckResult, check
from semel.spark.engine import SparkEngine
from semel.spark.probe import ProbeResult

NOWHERE = "sc://127.0.0.1:1"
DSN = settings.LEDGER_VARIABLE
HIDDEN = "postgresql://semel:hidden@127.0.0.1:1/semel"


def wrong(found: CheckReport) -> list[CheckResult]:
    return [one for one in found.checks if not one.ok]


@contextmanager
def migrated(postgres: str, patch: pytest.MonkeyPatch) -> Iterator[str]:
    """The ledger that `semel migrate` makes. Its DSN."""
    with database(postgres, "template1") as dsn:
        migrate(dsn)
        patch.setenv(DSN, dsn)
        yield dsn


Look = Callable[[], list[CheckResult]]


@pytest.fixture
def driver(
    bench: Workbench, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Look]:
    """Looks where no Spark answers. Returns what else is wrong."""

    def no_spark(*_: object) -> None:
        raise UnavailableError("Spark does not answer")

    monkeypatch.setattr(module, "open_engine", no_spark)
    monkeypatch.setenv("SEMEL_STATE_DIR", str(bench.folder / "no-stack"))
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 5))
    with migrated(postgres, monkeypatch) as dsn:

        def look() -> list[CheckResult]:
            found = check([spec], NOWHERE, quiet)
            assert "hidden" not in repr(found) and sa.make_url(dsn).password not in repr(found)
            return [one for one in wrong(found) if one.name != "Spark"]

        assert look() == []
        yield look


@pytest.mark.parametrize(
    ("address", "remedy"),
    [("", f"name another in {DSN}"), (HIDDEN, "start that PostgreSQL"), ("semel:hidden", "start")],
    ids=["unset", "away", "no address"],
)
def test_a_ledger_that_is_not_reached(
    driver: Look, address: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found, with no password in what is said."""
    if address:
        monkeypatch.setenv(DSN, address)
    else:
        monkeypatch.delenv(DSN)
    [one] = driver()
    assert one.name == "ledger" and remedy in one.remedy


@pytest.mark.parametrize(
    ("harm", "remedy"),
    [
        ("DROP SCHEMA semel CASCADE; DROP TABLE semel_alembic", "semel migrate"),
        ("UPDATE semel_alembic SET version_num = '9999'", "install the version of semel that migrated"),
    ],
    ids=["not migrated", "too new"],
)
def test_a_schema_of_another_version(driver: Look, harm: str, remedy: str) -> None:
    """It is found, and told apart: `semel migrate` makes an older one right."""
    with psycopg.connect(os.environ[DSN]) as connection:
        connection.execute(harm)
    [one] = driver()
    assert one.name == "schema" and remedy in one.remedy
    if remedy == "semel migrate":
        assert main(remedy.split()[1:]) == 0
        assert driver() == []


def test_folders_that_are_not_there(
    driver: Look, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A data folder that is not mounted is said, and nothing is written above it; so is a source.
    """
    away = tmp_path / "away"
    monkeypatch.setenv("SEMEL_DATA_ROOTS", str(away))
    [sink, source] = driver()
    assert (sink.name, sink.remedy) == ("sink", "create or mount it")
    user = f"let user {os.geteuid()} read all below it"
    assert source.detail.endswith(f"; make or mount {away / 'in'}, and {user}")
    assert source.remedy == "do that, then run this again; docs/files.md lists the requirements"
    assert not away.exists()
    (away / "in").mkdir(parents=True)
    assert driver() == []


@pytest.mark.usefixtures("ledger")
def test_folders_of_the_driver(
    driver: Look, shared: Workbench, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:
    """A sink that it may not write to, a source that it may not read; mended, both are right."""
    spec = shared.spec()
    shared.write("in/a.jsonl", events(0, 5))
    closed = {spec.sink_path(): 0o555, shared.data / "in": 0o000}

    def look() -> dict[str, str]:
        with ordinary_user():
            found = check([spec], NOWHERE, quiet)
        checks = [one for one in found.checks if one.name in ("sink", "source")]
        return {one.name: one.remedy and f"{one.detail}; {one.remedy}" for one in checks}

    with ordinary_user():
        spec.sink_path().mkdir(parents=True)
    assert look() == {"sink": "", "source": ""}
    for path, mode in closed.items():
        path.chmod(mode)
    told = look()
    assert "let that user write to it" in told["sink"]
    assert f"make or mount {spec.source_root()}, and let" in told["source"]
    for path in closed:
        path.chmod(0o777)
    assert look() == {"sink": "", "source": ""}


def test_a_spark_that_lacks_a_setting(driver: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the setting and the options that Spark needs; ledger and folders are told."""

    class Unset:
        conf = {"spark.stage.maxConsecutiveAttempts": "4"}

    @contextmanager
    def other(*_: object) -> Iterator[SparkEngine]:
        yield SparkEngine(Unset())

    monkeypatch.setattr(module, "open_engine", other)
    found = check([], NOWHERE, quiet)
    (one,) = wrong(found)
    assert one.name == "Spark" and "spark.stage.maxConsecutiveAttempts=4" in one.detail
    assert "--conf spark.stage.maxConsecutiveAttempts=1" in one.detail
    assert one.remedy == "do that, then run this again; docs/deploy.md lists the requirements"
    assert {"ledger", "schema", "sink"} < {each.name for each in found.checks}
    assert driver() == []


@pytest.mark.usefixtures("ledger")
def test_a_spark_that_is_away(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said within seconds; and what an unset address is."""
    monkeypatch.setenv("SEMEL_STATE_DIR", str(bench.folder / "no-stack"))
    monkeypatch.delenv(settings.SPARK_VARIABLE, raising=False)
    for address, said in ((NOWHERE, "does not answer"), (None, "SPARK_REMOTE is not set")):
        [one] = [each for each in wrong(check([], address, quiet)) if each.name == "Spark"]
        assert said in one.detail, one
        assert f"start it, or name another in {settings.SPARK_VARIABLE}" in one.remedy


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two other users")
def test_files_of_other_users(shared: Workbench) -> None:
    """What tasks of another user made and the driver cannot link is found, and umask 002 helps."""
    folder = shared.data / "probe"
    (folder / "links").mkdir(parents=True)
    (folder / "links").chmod(0o777)
    shared.folder.parent.chmod(0o755)
    path = folder / "task-1"
    path.touch()
    os.chown(path, 1, 1)
    answer = ProbeResult(
        host="h", process=1, user=1, python="3", semel="0", time_seconds=0.0, ahead_seconds=None,
        cache="", made=[str(path)], troubles={},
    )  # fmt: skip

    def links() -> CheckResult:
        found = CheckReport(answers=[answer])
        with ordinary_user():
            module._links(found, [folder])
        (one,) = found.checks
        return one

    path.chmod(0o644)
    assert "umask 002" in links().remedy and "files of user 1" in links().detail
    path.chmod(0o666)
    assert links().ok
    assert list((folder / "links").iterdir()) == []


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

    def look(self, spark: str | None = "local") -> CheckReport:
        return check([self.spec], spark, quiet)

    def in_workers(self, name: str, value: str) -> None:
        """Set a variable of executors' environment; new workers are started with it."""
        self.patch.setitem(self.context.environment, name, value)

    def zones(self, version: str) -> str:
        """A time zone database of a version, which has UTC alone."""
        folder = Path(self.folder(f"zones-{version}", 0o755))
        real = next((path for each in TZPATH if (path := Path(each, "UTC")).exists()), None)
        (folder / "UTC").write_bytes(real.read_bytes() if real else b"")
        (folder / "tzdata.zi").write_text(f"# version {version}\n")
        return str(folder)

    def code_in_workers(self, text: str) -> None:
        """Let Python workers run a text when they start."""
        self.workers += 1
        folder = self.bench.folder / f"workers{self.workers}"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(text)
        self.in_workers("PYTHONPATH", str(folder))

    def folder(self, name: str, mode: int) -> str:
        """A folder of this mode."""
        made = self.bench.folder / name
        made.mkdir()
        made.chmod(mode)
        return str(made)

    def nothing_mounted(self, folder: Path) -> None:
        """Let executors see an empty folder in its place."""
        python = blind_python(self.bench.folder / "python", folder)
        self.patch.setattr(self.context, "pythonExec", python)


@pytest.fixture
def machine(
    bench: Workbench, spark: object, postgres: str, executors_state: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Machine]:  # fmt: skip
    @contextmanager
    def own(where: str, *_: object) -> Iterator[SparkEngine]:
        """The session that all tests share: another one would end it."""
        yield SparkEngine(spark)

    monkeypatch.setattr(module, "open_engine", own)
    monkeypatch.setenv("SEMEL_STATE_DIR", str(bench.folder / "no-stack"))
    monkeypatch.setenv(settings.SPARK_VARIABLE, "local")
    with migrated(postgres, monkeypatch) as dsn:
        point_executors(executors_state, dsn)
        yield Machine(monkeypatch, spark.sparkContext, bench, dsn, executors_state)


def test_all_is_right(machine: Machine) -> None:
    """Each part is named, and nothing of the check stays: a plan would not take its first batch."""
    found = machine.look()
    assert found.ok, wrong(found)
    assert [one.name for one in found.checks] == [
        "ledger", "schema", "sink", "source", "Spark", "executors", "Spark on executors",
        "semel on executors", "ledger from executors", "sink from executors",
        "source from executors", "zones of executors", "cache of executors", "links", "clocks",
    ]  # fmt: skip
    assert {answer.semel for answer in found.answers} == {__version__}
    assert machine.dsn not in repr(found)
    assert sa.make_url(machine.dsn).password not in repr(found)
    assert not list(machine.bench.folder.rglob(".semel-check*"))
    assert not machine.spec.sink_path().exists()


NO_SEMEL = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] == 'semel':
            raise ModuleNotFoundError(f'No module named {name!r}')
sys.meta_path.insert(0, Without())
"""
OTHER_PACKAGE = """
from importlib import metadata
version = metadata.version
metadata.version = lambda name: "0.0.1" if name == "xxhash" else version(name)
"""
NEVER = "only undone: then it is as in test_all_is_right"

Step = Callable[[Machine], object]
HARMS: dict[str, tuple[Step, Step | str, str, str]] = {
    "no address": (
        lambda m: point_executors(m.state, ""), lambda m: m.in_workers(DSN, m.dsn),
        "ledger from executors", f"set {DSN}",
    ),
    "another ledger": (
        lambda m: m.in_workers(DSN, m.dsn.replace(sa.make_url(m.dsn).database, "postgres")),
        lambda m: m.in_workers(DSN, m.dsn), "ledger from executors", f"set {DSN}",
    ),
    "an open cache": (
        lambda m: m.in_workers(settings.CACHE_VARIABLE, m.folder("open", 0o777)),
        lambda m: m.in_workers(settings.CACHE_VARIABLE, m.folder("own", 0o700)),
        "cache of executors", f"set {settings.CACHE_VARIABLE} there to a folder",
    ),
    "other zones": (
        lambda m: m.in_workers("PYTHONTZPATH", m.zones("1999a")),
        lambda m: m.in_workers("PYTHONTZPATH", m.zones(zones_version())),
        "zones of executors", "install one version of the tz database",
    ),
    "no semel": (
        lambda m: m.code_in_workers(NO_SEMEL), NEVER, "executors", f"install semel {__version__}",
    ),
    "another version": (
        lambda m: m.code_in_workers("import semel\nsemel.__version__ = '0.0.9'\n"), NEVER,
        "semel on executors", f"install semel {__version__}",
    ),
    "another Spark": (
        lambda m: m.code_in_workers("import pyspark\npyspark.__version__ = '3.5.1'\n"), NEVER,
        "Spark on executors", "one version of Spark",
    ),
    "a fast clock": (
        lambda m: m.code_in_workers(
            "import time\nreal = time.time\ntime.time = lambda: real() + 5\n"
        ),
        NEVER, "clocks", "by NTP",
    ),
    "no sink": (
        lambda m: m.nothing_mounted(m.spec.sink_path()), NEVER,
        "sink from executors", "mount the data folder",
    ),
    "no source": (
        lambda m: m.nothing_mounted(m.bench.data / "in"), NEVER,
        "source from executors", "mount the source's folder",
    ),
    "no Python": (
        lambda m: m.patch.setattr(m.context, "pythonExec", "/nowhere/python"), NEVER,
        "executors", "set PYSPARK_PYTHON to a Python that exists",
    ),
    "another Python": (
        lambda m: m.patch.setattr(m.context, "pythonVer", "3.9"), NEVER,
        "executors", "set PYSPARK_PYTHON to a Python 3.",
    ),
}  # fmt: skip
"""What does harm, what does the remedy, the name of the check, and what the remedy says."""


@pytest.mark.parametrize("case", HARMS)
def test_what_is_wrong_and_its_remedy(machine: Machine, case: str) -> None:
    """It is found under its name, with no password in what is said; after the remedy all is right.

    Each case starts Python workers anew, as only those have another environment.
    """
    harm, mend, name, remedy = HARMS[case]
    harm(machine)
    found = machine.look()
    assert {one.name for one in wrong(found)} == {name}, wrong(found)
    assert all(remedy in one.remedy for one in wrong(found)), wrong(found)
    assert sa.make_url(machine.dsn).password not in repr(found)
    assert not list(machine.bench.folder.rglob(".semel-check*"))
    if mend is not NEVER:
        mend(machine)
        assert machine.look().ok


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


def test_the_command(machine: Machine, shell: Shell) -> None:
    """A table or one JSON object, exit code 0 or 1; all pipelines when none is named. A second
    table has a line for each executor, with the packages that differ from the driver's.
    """
    machine.code_in_workers(OTHER_PACKAGE)
    out = shell.runs("semel check events")
    assert "all is right" in out and "WRONG" not in out and "the ledger" in shell.err
    [line] = re.findall(rf"^{re.escape(socket.gethostname())}:\d+ .*$", out, re.MULTILINE)
    url = sa.make_url(machine.dsn)
    assert line.split()[1:] == [
        pyspark.__version__, platform.python_version(), __version__,
        f"{url.username}@{url.database}", "1", "of", "1", "+0.00", "s",
        "xxhash", "0.0.1,", "here", xxhash.VERSION,
    ]  # fmt: skip
    (machine.bench.pipelines / "bad.yaml").write_text("name: bad\n")
    told = shell.answers("semel check", code=1)
    (one,) = [each for each in told["checks"] if not each["ok"]]
    assert one["name"] == "pipelines" and one["remedy"] == "semel validate"
    assert told["ok"] is False and told["executors"][0]["semel"] == __version__
    shell.runs("semel check nobody", code=2)


def test_the_command_where_something_is_wrong(
    driver: Look, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has the remedy behind what is wrong, and no password."""
    monkeypatch.setenv(DSN, HIDDEN)
    out = shell.runs("semel check", code=1)
    assert "WRONG ledger" in out and "-> start that PostgreSQL" in out and "hidden" not in out


@pytest.mark.rest
def test_the_command_starts_spark(machine: Machine) -> None:
    """As it stands, in a process of its own, on a Spark that it starts: `--spark local[2]`."""
    done = subprocess.run(
        [Path(sys.executable).with_name("semel"), "check", "events", "--spark=local[2]", "--json"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    told = answer_in(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and told["ok"], told
    [executor] = told["executors"]  # One line for all of its tasks.
    assert executor["spark"] == pyspark.__version__ and len(executor["made"]) == 1
