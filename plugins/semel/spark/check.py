"""check: whether ledger, Spark, its executors and the folders are as semel needs them.

How it works: the driver takes a lock in the ledger, writes a file beside each sink and looks at
each source; a Spark job of more tasks than there are slots looks for all of it, from each executor,
and writes files that the driver then gives second names (semel.spark.probe). Nothing of it stays.
"""

import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

from semel import __version__, settings
from semel.archive import layout, ownership
from semel.errors import AGAIN, ANEW, SemelError, TerminalError, UnavailableError
from semel.ledger import Ledger, row
from semel.ledger.migrate import revisions
from semel.model.batch import Log
from semel.model.windows import zones_version
from semel.pipeline.opening import open_sink, open_source
from semel.pipeline.spec import Spec
from semel.sinks import RemoteSink
from semel.sources import ExecutorCheck
from semel.spark import probe
from semel.spark.engine import JOB_FAILURES, translated
from semel.spark.session import open_engine
from semel.spark.settings import SETTINGS
from semel.stage.job import columns_of
from semel.storage import check_links, check_links_of

CHECK_TASK_SECONDS = 0.5
"""A task of `semel check` takes this long at least, so that the next ones go to other executors."""

CHECK_SLOTS_MAX = 4_096
"""Tasks at once that `semel check` looks for."""

CLOCKS_APART_SECONDS_MAX = 1.0
"""How far clocks may be from the ledger's: record times and files' times are held against it."""

POSTGRES_VERSION_MIN = 14
"""The oldest PostgreSQL that a ledger may be on."""

_REMEDIES = {
    "semel": f"install semel {__version__} into the Python that PYSPARK_PYTHON names there",
    "ledger": f"set {settings.LEDGER_VARIABLE} to the driver's ledger in that executor's "
    "environment, and let it reach that address",
    "folders": "mount the data folder there, under the driver's path, and let that user write to "
    "it: one user for driver and executors, or a common group and umask 002",
    "links": "run executors and driver as one user, or give both a common group and the executors "
    "umask 002",
    "zones": "install one version of the tz database on all machines: the system's package tzdata, "
    "or where it has none Python's",
    "cache": f"name a folder of that user's in {settings.CACHE_VARIABLE} there",
    "clocks": "set the clocks of these machines by NTP (chrony, systemd-timesyncd)",
}


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One thing that was looked at. `remedy`: what to do, empty when it is right."""

    name: str
    detail: str
    remedy: str = ""

    @property
    def ok(self) -> bool:
        return not self.remedy


@dataclass(kw_only=True)
class Checked:
    """All that was looked at, and what each task answered."""

    checks: list[CheckResult] = field(default_factory=list)
    answers: list[probe.ProbeResult] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def add(self, name: str, detail: str, remedy: str = "") -> None:
        self.checks.append(CheckResult(name=name, detail=detail, remedy=remedy))


def check(specs: list[Spec], spark: str | None, log: Log) -> Checked:
    """Look at everything for these pipelines. `spark`: a master or a Connect server's address.

    None: the one that is declared. What is wrong is an answer, and no error.
    """
    found = Checked()
    with ExitStack() as stack:
        log("the ledger")
        ahead, key = _ledger(found, stack)
        log("the folders")
        folders = _folders(found, stack, specs)
        looks = _sources(found, specs, log)
        needed = not specs or any(not spec.by_position for spec in specs)
        _sinks(found, [s for s in specs if not s.sink.in_folder], log)
        asked = probe.Asked(
            key=key if needed else None,
            token=secrets.token_hex(16),
            folders=tuple(map(str, folders)),
            looks=tuple((look.part, look.module, look.values) for look in looks),
            seconds=CHECK_TASK_SECONDS,
        )
        for folder in folders:
            (folder / "driver").write_text(asked.token, encoding="utf-8")
        log("Spark")
        began = time.time()
        if _spark(found, spark, asked, log):
            _executors(found, asked, looks, needed=needed)
            _links(found, folders)
            _clocks(found, ahead, began, time.time())
    return found


def _ledger(found: Checked, stack: ExitStack) -> tuple[float | None, int | None]:
    """How much the driver's clock is surely ahead of the ledger's (seconds), and the lock that is
    held; None of both when it is not reached.
    """
    try:
        ledger = stack.enter_context(Ledger())
        connection = stack.enter_context(ledger.transaction())
    except (SemelError, sa.exc.ArgumentError) as error:
        found.add(
            "ledger", str(error),
            f"start that PostgreSQL, or name another in {settings.LEDGER_VARIABLE}; "
            "`semel up` starts a local one",
        )  # fmt: skip
        return None, None
    row(connection, "check", "wait")
    server = row(connection, "check", "server")
    shown = f"{ledger}, PostgreSQL {server['version']}"
    if server["standby"]:
        found.add("ledger", f"{shown}: a standby", "name its primary, or promote it")
    elif server["version_num"] < POSTGRES_VERSION_MIN * 10_000:
        found.add("ledger", shown, f"take PostgreSQL {POSTGRES_VERSION_MIN} or newer")
    else:
        found.add("ledger", shown)
    _schema(found, ledger)
    key = secrets.randbits(62)
    row(connection, "check", "hold", key=key)
    before = time.time()
    seen = row(connection, "check", "look", key=key)
    return probe.surely_ahead(before, float(seen["now_seconds"]), time.time()), key


def _schema(found: Checked, ledger: Ledger) -> None:
    is_at, known = revisions(ledger)
    detail = f"at revision {is_at or 'none'}, semel {__version__} needs {known[0]}"
    remedy = "" if is_at == known[0] else "semel migrate"
    if is_at and is_at not in known:
        remedy = "install the version of semel that made it, or a newer one"
    found.add("schema", detail, remedy)


def _folders(found: Checked, stack: ExitStack, specs: list[Spec]) -> list[Path]:
    """A folder of the check's own for each sink, gone after it; where files are linked, links."""
    user, made = os.geteuid(), []
    folders = {spec.sink_path() or layout.archive_folder(spec) for spec in specs}
    wanted = folders or set(settings.data_roots())
    for base in sorted({_there(path) for path in wanted}):
        if not base.is_dir():
            found.add("sink", f"{base} is not there", "make or mount it")
            continue
        try:
            folder = stack.enter_context(_own_folder(base))
            check_links(folder, folder / "links")
            made.append(folder)
            found.add("sink", f"user {user} writes and links below {base}")
        except (OSError, TerminalError) as error:
            found.add(
                "sink", f"user {user}, below {base}: {error}",
                "let that user write to it, on a file system of this machine that has hard links",
            )  # fmt: skip
    return made


def _sources(found: Checked, specs: list[Spec], log: Log) -> list[ExecutorCheck]:
    """What executors are to look at of the sources that the driver can read."""
    looks = []
    for spec in specs:
        log(f"the source of {spec.name}")
        try:
            source = open_source(spec)
            told, look = source.probe()
            found.add("source", told)
            looks += [look] if look else []
            if service := source.check_service(spec.dedup.horizon):
                found.add("source", f"{spec.name}: {service}")
        except SemelError as error:
            found.add("source", f"{spec.name}: {error}", _remedy(error, spec.source.page))
    return looks


def _sinks(found: Checked, specs: list[Spec], log: Log) -> None:
    """The tables and topics that rows go to: the driver alone writes there."""
    for spec in specs:
        log(f"the sink of {spec.name}")
        try:
            sink: RemoteSink = open_sink(spec)
            told = sink.describe(None if spec.transforms else columns_of(spec))
            ownership.check_markers(spec, sink)
        except SemelError as error:
            found.add("sink", f"{spec.name}: {error}", _remedy(error, spec.sink.type))
        else:
            found.add("sink", f"{spec.name}: {told}")


def _remedy(error: SemelError, page: str) -> str:
    """What to do about a source or a sink. `page`: the document of its kind."""
    again = f"do that, and run this again; docs/{page}.md has what is needed"
    return again if error.next in ("", AGAIN, ANEW) else error.next


def _there(path: Path) -> Path:
    """The folder, or the first one above it that is there, up to its data root."""
    root = next(root for root in settings.data_roots() if path.is_relative_to(root))
    while path != root and not path.is_dir():
        path = path.parent
    return path


@contextmanager
def _own_folder(base: Path) -> Iterator[Path]:
    folder = base / f".semel-check-{secrets.token_hex(8)}"
    (folder / "links").mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _spark(found: Checked, spark: str | None, asked: probe.Asked, log: Log) -> bool:
    """Run the tasks. Whether they answered."""
    try:
        with open_engine(spark or settings.spark_remote(), log) as engine:
            session = engine.session
            found.add("Spark", f"version {session.version} answers, and has the settings")
            found.answers += _asked(session, asked)
    except JOB_FAILURES as error:
        found.add("executors", str(translated(error)), _job_remedy(str(error)))
    except UnavailableError as error:
        found.add(
            "Spark", str(error),
            f"start it, or name another in {settings.SPARK_VARIABLE} or with --spark; `semel up` "
            "starts a local one",
        )  # fmt: skip
    except TerminalError as error:
        conf = " ".join(f"--conf {name}={value}" for name, value in SETTINGS.items())
        found.add("Spark", str(error), f"start it with {conf}")
    return bool(found.answers)


def _asked(session: SparkSession, asked: probe.Asked) -> list[probe.ProbeResult]:
    """Let more tasks look than there are slots, so that some come to each executor."""
    cloudpickle.register_pickle_by_value(probe)
    for _ in range(2):  # The first job may run before all executors have come.
        numbers = session.range(CHECK_SLOTS_MAX).select(spark_partition_id()).collect()
        tasks = 2 * len({number for (number,) in numbers})
    rows = session.range(0, tasks, 1, tasks).mapInArrow(probe.probe(asked), probe.ANSWER).collect()
    return [probe.ProbeResult.of(each["answer"]) for each in rows]


def _job_remedy(text: str) -> str:
    """What is to be done when no task could begin."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if "PYTHON_VERSION_MISMATCH" in text:
        return f"let PYSPARK_PYTHON name a Python {python} on each executor"
    if "Cannot run program" in text:
        return "let PYSPARK_PYTHON name a Python that is there on each executor"
    if "semel.spark.daemon" in text or "No module named" in text:
        return _REMEDIES["semel"]
    return "see Spark's own log of that executor, then run this again"


def _executors(
    found: Checked, asked: probe.Asked, looks: list[ExecutorCheck], *, needed: bool
) -> None:
    """What is wrong with each part, and where."""
    hosts = sorted({answer.host for answer in found.answers})
    pythons = sorted({answer.python for answer in found.answers})
    processes = len({(answer.host, answer.process) for answer in found.answers})
    found.add("executors", f"{processes} on {', '.join(hosts)}; Python {', '.join(pythons)}")
    ledger = "the driver's" if asked.key is not None else "not asked"
    folders = f"{len(asked.folders)} folders, written and read both ways"
    rights: dict[str, dict[str, None]] = {}
    for look in looks:  # Of several pipelines, each thing once.
        rights.setdefault(look.part, {})[look.success] = None
    parts = {
        "semel on executors": ("semel", f"version {__version__}"),
        "ledger from executors": (
            "ledger", ledger if needed else "not needed: identity by position"
        ),
        "sink from executors": ("folders", folders),
        **{f"{part} from executors": (part, "; ".join(told)) for part, told in rights.items()},
        "zones of executors": ("zones", f"tz database {zones_version() or '(no version)'}"),
        "cache of executors": ("cache", ", ".join(sorted({a.cache for a in found.answers}))),
    }  # fmt: skip
    remedies = _REMEDIES | {look.part: look.remedy for look in looks}
    for name, (part, right) in parts.items():
        where: dict[str, set[str]] = {}
        for answer in found.answers:
            if trouble := _trouble(answer, part):
                where.setdefault(trouble, set()).add(f"{answer.host} (user {answer.user})")
        for trouble, places in where.items():
            found.add(name, f"{', '.join(sorted(places))}: {trouble}", remedies[part])
        if not where:
            found.add(name, right)


def _trouble(answer: probe.ProbeResult, part: str) -> str:
    trouble = answer.troubles.get(part, "")
    if part == "semel" and not trouble and answer.semel != __version__:
        return f"semel {answer.semel}, and the driver has {__version__}"
    known = zones_version()
    if part == "zones" and not trouble and answer.zones != known:
        there, here = answer.zones or "of no version", known or "one of no version"
        return f"tz database {there}, and the driver has {here}: windows may begin at other times"
    return trouble


def _links(found: Checked, folders: list[Path]) -> None:
    """Whether the driver can give names to what tasks wrote, as finalize does."""
    made = [Path(path) for answer in found.answers for path in answer.made]
    for folder in folders:
        paths = [path for path in made if path.parent == folder]
        try:
            check_links_of(paths, folder / "links")
            found.add("links", f"of {len(paths)} files that tasks made below {folder.parent}")
        except (OSError, TerminalError) as error:
            found.add("links", str(error), _REMEDIES["links"])


def _clocks(found: Checked, ahead: float | None, began: float, ended: float) -> None:
    """Clocks beside the ledger's; where that was not reached, beside the driver's."""
    apart = {"driver": ahead or 0.0}
    for answer in found.answers:
        seconds = answer.ahead_seconds
        if seconds is None:  # Known is only that its task ran meanwhile.
            seconds = apart["driver"] - probe.surely_ahead(began, answer.time_seconds, ended)
        apart[answer.host] = max(seconds, apart.get(answer.host, 0.0), key=abs)
    shown = ", ".join(f"{where} {seconds:+.2f} s" for where, seconds in apart.items())
    whose = "ledger" if ahead is not None else "driver"
    far = any(abs(seconds) > CLOCKS_APART_SECONDS_MAX for seconds in apart.values())
    found.add("clocks", f"ahead of the {whose}'s: {shown}", _REMEDIES["clocks"] if far else "")
