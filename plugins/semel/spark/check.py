"""check: test whether the ledger, Spark, its executors and the folders fit semel's needs.

How it works: the driver takes a lock in the ledger, writes a file next to each sink and queries
each source. A Spark job with more tasks than slots then looks for all of this from each executor,
and writes files to which the driver makes hard links (semel.spark.probe). Check removes everything.
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
from semel.errors import AGAIN, ANEW, NO_STEP, SemelError, TerminalError, UnavailableError
from semel.ledger import Ledger, row
from semel.ledger.migrate import revisions
from semel.model.batch import Log
from semel.model.windows import zones_version
from semel.pipeline.opening import open_sink, open_source
from semel.pipeline.spec import Spec
from semel.sinks import RemoteSink
from semel.sources import ExecutorCheck
from semel.spark import probe, versions
from semel.spark.engine import JOB_FAILURES, translate_error
from semel.spark.session import open_engine
from semel.stage.job import columns_of
from semel.storage import StorePath, check_links, check_links_of
from semel.storage import probe as archives

CHECK_TASK_SECONDS = 0.5
"""Minimum duration of a task of `semel check`, so that further tasks go to other executors."""

CHECK_SLOTS_MAX = 4_096
"""Maximum Spark slots that `semel check` counts."""

CLOCKS_APART_SECONDS_MAX = 1.0
"""Maximum difference to the ledger's clock, which semel compares with records' and files' times."""

POSTGRES_VERSION_MIN = 14
"""The oldest PostgreSQL version for a ledger."""

_REMEDIES = {
    "Spark": "use one version of Spark for the driver and its executors",
    "semel": f"install semel {__version__} into the Python that PYSPARK_PYTHON names there",
    "ledger": f"set {settings.LEDGER_VARIABLE} to the driver's ledger in that executor's "
    "environment, and let it reach that address",
    "folders": "mount the data folder there, under the driver's path, and let that user write to "
    "it: one user for driver and executors, or a common group and umask 002",
    "links": "run executors and driver as one user, or give both a common group and the executors "
    "umask 002",
    "zones": "install one version of the tz database on all machines: the system's package tzdata "
    "or, on a system without it, Python's",
    "cache": f"set {settings.CACHE_VARIABLE} there to a folder that only this user can write to",
    "clocks": "set the clocks of these machines by NTP (chrony, systemd-timesyncd)",
}


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of one check. `remedy`: the operator's next action; empty if nothing is wrong."""

    name: str
    detail: str
    remedy: str = ""

    @property
    def ok(self) -> bool:
        return not self.remedy


@dataclass(kw_only=True)
class CheckReport:
    """The results of all checks, and the probe of each task. `spark`: the driver's version.
    `folders`: the number of folders of sinks and archives.
    """

    spark: str = ""
    checks: list[CheckResult] = field(default_factory=list)
    answers: list[probe.ProbeResult] = field(default_factory=list)
    folders: int = 0

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def executors(self) -> list[probe.ProbeResult]:
        """A probe of each executor: the one with most faults."""
        by_faults = sorted(self.answers, key=lambda answer: len(answer.troubles))
        return [*{(answer.host, answer.process): answer for answer in by_faults}.values()]

    def add(self, name: str, detail: str, remedy: str = "") -> None:
        self.checks.append(CheckResult(name=name, detail=detail, remedy=remedy))


def check(specs: list[Spec], spark: str | None, log: Log) -> CheckReport:
    """Check everything for these pipelines. Faults are results, not errors.

    `spark`: a master or a Connect server's address; None for the configured one.
    """
    report = CheckReport()
    with ExitStack() as stack:
        log("the ledger")
        ahead, key = _ledger(report, stack)
        log("the folders")
        folders = _folders(report, stack, specs)
        report.folders = len(folders)
        checks = [*_sources(report, specs, log), *_stored_archives(report, specs, log)]
        needed = not specs or any(not spec.by_position for spec in specs)
        _sinks(report, [s for s in specs if not s.sink.in_folder], log)
        request = probe.ProbeRequest(
            key=key if needed else None,
            token=secrets.token_hex(16),
            folders=tuple(map(str, folders)),
            calls=tuple((check.part, check.module, check.values) for check in checks),
            seconds=CHECK_TASK_SECONDS,
        )
        for folder in folders:
            (folder / "driver").write_text(request.token, encoding="utf-8")
        log("Spark")
        began = time.time()
        if _spark(report, spark, request, log):
            _executors(report, request, checks, needed=needed)
            _links(report, folders)
            _clocks(report, ahead, began, time.time())
    return report


def _ledger(report: CheckReport, stack: ExitStack) -> tuple[float | None, int | None]:
    """Check the ledger. Returns how far the driver's clock is at least ahead of the ledger's
    (seconds), and the key of its lock; (None, None) if the ledger does not answer.
    """
    try:
        ledger = stack.enter_context(Ledger())
        connection = stack.enter_context(ledger.transaction())
    except (SemelError, sa.exc.ArgumentError) as error:
        report.add(
            "ledger", str(error),
            f"start that PostgreSQL, or name another in {settings.LEDGER_VARIABLE}; "
            "`semel up` starts a local one",
        )  # fmt: skip
        return None, None
    row(connection, "check", "wait")
    server = row(connection, "check", "server")
    version = f"{ledger}, PostgreSQL {server['version']}"
    if server["standby"]:
        report.add("ledger", f"{version}: a standby", "name its primary, or promote it")
    elif server["version_num"] < POSTGRES_VERSION_MIN * 10_000:
        report.add("ledger", version, f"upgrade to PostgreSQL {POSTGRES_VERSION_MIN} or newer")
    else:
        report.add("ledger", version)
    _schema(report, ledger)
    key = secrets.randbits(62)
    row(connection, "check", "hold", key=key)
    sent = time.time()
    answer = row(connection, "check", "look", key=key)
    return probe.seconds_ahead(sent, float(answer["now_seconds"]), time.time()), key


def _schema(report: CheckReport, ledger: Ledger) -> None:
    is_at, supported = revisions(ledger)
    detail = f"at revision {is_at or 'none'}, semel {__version__} needs {supported[0]}"
    remedy = "" if is_at == supported[0] else "semel migrate"
    if is_at and is_at not in supported:
        remedy = "install the version of semel that migrated it, or a newer one"
    report.add("schema", detail, remedy)


def _folders(report: CheckReport, stack: ExitStack, specs: list[Spec]) -> list[Path]:
    """Create a temporary folder for each sink and archive, and test hard links in it. Returns the
    folders.
    """
    user, folders = os.geteuid(), []
    places = [path for spec in specs for path in (spec.sink_path(), layout.archive_folder(spec))]
    wanted = {path for path in places if isinstance(path, Path)}
    wanted = wanted if places else set(settings.data_roots())
    for base in sorted({_existing_folder(path) for path in wanted}):
        if not base.is_dir():
            report.add("sink", f"the folder {base} does not exist", "create or mount it")
            continue
        try:
            folder = stack.enter_context(_check_folder(base))
            check_links(folder, folder / "links")
            folders.append(folder)
            report.add("sink", f"user {user} writes and links below {base}")
        except (OSError, TerminalError) as error:
            report.add(
                "sink", f"user {user}, below {base}: {error}",
                "let that user write to it, on a file system of this machine that has hard links",
            )  # fmt: skip
    return folders


def _stored_archives(report: CheckReport, specs: list[Spec], log: Log) -> list[ExecutorCheck]:
    """Check the archives in stores from the driver. Returns checks for executors."""
    checks = []
    for archive in dict.fromkeys(map(layout.archive_folder, specs)):
        if not isinstance(archive, StorePath):
            continue
        log(f"the archive {archive}")
        try:
            report.add("archive", archives.describe(archive))
        except (SemelError, PermissionError) as error:
            report.add("archive", f"{archive}: {error}", archives.REMEDY)
        values = str(archive), archive.connection
        right = f"{archive}, from which each puts, lists, reads and deletes"
        checks.append(ExecutorCheck("archive", archives.__name__, values, right, archives.REMEDY))
    return checks


def _sources(report: CheckReport, specs: list[Spec], log: Log) -> list[ExecutorCheck]:
    """Check the sources from the driver. Returns the checks of readable ones for executors."""
    checks = []
    for spec in specs:
        log(f"the source of {spec.name}")
        try:
            source = open_source(spec)
            detail, executor_check = source.probe()
            report.add("source", detail)
            checks += [executor_check] if executor_check else []
            if service := source.check_service(spec.dedup.horizon):
                report.add("source", f"{spec.name}: {service}")
        except SemelError as error:
            report.add("source", f"{spec.name}: {error}", _remedy(error, spec.source.page))
    return checks


def _sinks(report: CheckReport, specs: list[Spec], log: Log) -> None:
    """Check tables and topics from the driver, which alone writes to them."""
    for spec in specs:
        log(f"the sink of {spec.name}")
        try:
            sink: RemoteSink = open_sink(spec)
            detail = sink.describe(None if spec.transforms else columns_of(spec))
            ownership.check_markers(spec, sink)
        except SemelError as error:
            report.add("sink", f"{spec.name}: {error}", _remedy(error, spec.sink.type))
        except OSError as error:  # The archive is in a store.
            report.add("sink", f"{spec.name}: {error}", archives.REMEDY)
        else:
            report.add("sink", f"{spec.name}: {detail}")


def _remedy(error: SemelError, page: str) -> str:
    """The operator's next action after an error. `page`: the document with the requirements."""
    again = f"do that, then run this again; docs/{page}.md lists the requirements"
    return again if error.next in ("", AGAIN, ANEW, NO_STEP) else error.next


def _existing_folder(path: Path) -> Path:
    """The folder, or its nearest parent that exists, up to its data root."""
    root = next(root for root in settings.data_roots() if path.is_relative_to(root))
    while path != root and not path.is_dir():
        path = path.parent
    return path


@contextmanager
def _check_folder(base: Path) -> Iterator[Path]:
    folder = base / f".semel-check-{secrets.token_hex(8)}"
    (folder / "links").mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _spark(report: CheckReport, spark: str | None, request: probe.ProbeRequest, log: Log) -> bool:
    """Run the probes. Returns True if they answered."""
    try:
        with open_engine(spark or settings.spark_remote(), log) as engine:
            session = engine.session
            report.spark = session.version
            answers = f"version {report.spark} answers, and has the settings"
            report.add("Spark", "; ".join(filter(None, [answers, versions.note(report.spark)])))
            report.answers += _probe_executors(session, request)
    except JOB_FAILURES as error:
        report.add("executors", str(translate_error(error)), _job_remedy(str(error)))
    except UnavailableError as error:
        report.add(
            "Spark", str(error),
            f"start it, or name another in {settings.SPARK_VARIABLE} or with --spark; `semel up` "
            "starts a local one",
        )  # fmt: skip
    except TerminalError as error:
        report.add("Spark", str(error), _remedy(error, "deploy"))
    return bool(report.answers)


def _probe_executors(session: SparkSession, request: probe.ProbeRequest) -> list[probe.ProbeResult]:
    """Run more tasks than slots, so that each executor gets some."""
    cloudpickle.register_pickle_by_value(probe)
    for _ in range(2):  # The first job may run before all executors have registered.
        numbers = session.range(CHECK_SLOTS_MAX).select(spark_partition_id()).collect()
        tasks = 2 * len({number for (number,) in numbers})
    numbers = session.range(0, tasks, 1, tasks)
    rows = numbers.mapInArrow(probe.probe(request), probe.ANSWER).collect()
    return [probe.ProbeResult.of(each["answer"]) for each in rows]


def _job_remedy(text: str) -> str:
    """The operator's next action if tasks could not begin."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if "PYTHON_VERSION_MISMATCH" in text:
        return f"set PYSPARK_PYTHON to a Python {python} on each executor"
    if "Cannot run program" in text:
        return "set PYSPARK_PYTHON to a Python that exists on each executor"
    if "semel.spark.daemon" in text or "No module named" in text:
        return _REMEDIES["semel"]
    return "read Spark's own log of that executor, then run this again"


def _executors(
    report: CheckReport, request: probe.ProbeRequest, checks: list[ExecutorCheck], *, needed: bool
) -> None:
    """Report each part's faults, with the hosts that have them."""
    hosts = sorted({answer.host for answer in report.answers})
    pythons = sorted({answer.python for answer in report.answers})
    count = len(report.executors)
    report.add("executors", f"{count} on {', '.join(hosts)}; Python {', '.join(pythons)}")
    sparks = ", ".join(sorted({a.spark for a in report.answers}))
    places = ", ".join(sorted({a.place for a in report.answers if a.place}))
    users = ", ".join(sorted({a.ledger for a in report.answers if a.ledger}))
    ledger = f"the driver's, as {users}" if request.key is not None else "not checked"
    folders = f"{len(request.folders)} folders, written and read both ways"
    rights: dict[str, dict[str, None]] = {}
    for check in checks:  # Several pipelines may have the same text.
        rights.setdefault(check.part, {})[check.success] = None
    parts = {
        "Spark on executors": ("Spark", f"version {sparks}"),
        "semel on executors": ("semel", f"version {__version__} in {places}"),
        "ledger from executors": (
            "ledger", ledger if needed else "not needed: identity by position"
        ),
        "sink from executors": ("folders", folders),
        **{f"{part} from executors": (part, "; ".join(texts)) for part, texts in rights.items()},
        "zones of executors": ("zones", f"tz database {zones_version() or '(no version)'}"),
        "cache of executors": ("cache", ", ".join(sorted({a.cache for a in report.answers}))),
    }  # fmt: skip
    remedies = _REMEDIES | {check.part: check.remedy for check in checks}
    for name, (part, right) in parts.items():
        where: dict[str, set[str]] = {}
        for answer in report.answers:
            if trouble := _trouble(answer, part, report.spark):
                where.setdefault(trouble, set()).add(f"{answer.host} (user {answer.user})")
        for trouble, places in where.items():
            report.add(name, f"{', '.join(sorted(places))}: {trouble}", remedies[part])
        if not where:
            report.add(name, right)


def _trouble(answer: probe.ProbeResult, part: str, spark: str) -> str:
    trouble = answer.troubles.get(part, "")
    if part == "Spark" and not versions.same_minor(answer.spark, spark):
        return f"pyspark {answer.spark}, and the driver's Spark is {spark}"
    if part == "semel" and not trouble and answer.semel != __version__:
        return f"semel {answer.semel}, and the driver has {__version__}"
    driver = zones_version()
    if part == "zones" and not trouble and answer.zones != driver:
        here, there = driver or "(no version)", answer.zones or "(no version)"
        return f"tz database {there}, and the driver has {here}: windows may begin at other times"
    return trouble


def _links(report: CheckReport, folders: list[Path]) -> None:
    """Check that the driver can make hard links to the tasks' files, as finalize does."""
    written = [Path(path) for answer in report.answers for path in answer.made]
    for folder in folders:
        paths = [path for path in written if path.parent == folder]
        try:
            check_links_of(folder / "links", paths)
            report.add("links", f"of {len(paths)} files that tasks wrote below {folder.parent}")
        except (OSError, TerminalError) as error:
            report.add("links", str(error), _REMEDIES["links"])


def _clocks(report: CheckReport, ahead: float | None, began: float, ended: float) -> None:
    """Compare clocks with the ledger's or, if the ledger did not answer, with the driver's."""
    apart = {"driver": ahead or 0.0}
    for answer in report.answers:
        seconds = answer.ahead_seconds
        if seconds is None:  # Its task ran between `began` and `ended`; more is not known.
            seconds = apart["driver"] - probe.seconds_ahead(began, answer.time_seconds, ended)
        apart[answer.host] = max(seconds, apart.get(answer.host, 0.0), key=abs)
    clocks = ", ".join(f"{where} {seconds:+.2f} s" for where, seconds in apart.items())
    reference = "ledger" if ahead is not None else "driver"
    far = any(abs(seconds) > CLOCKS_APART_SECONDS_MAX for seconds in apart.values())
    remedy = _REMEDIES["clocks"] if far else ""
    report.add("clocks", f"ahead of the {reference}'s: {clocks}", remedy)
