"""The Spark job of stage: read, classify and write, in three stages of Spark, or all in one task if
the batch is small. Spark shuffles neither rows nor ids, but where the ids lie, and which rows are
dropped.

This module decides nothing: the tasks call semel.stage, and the driver gets their reports.
Known limitation: transforms run in a second job, on the survivors that the first job stored.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import chain
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from semel import __version__, errors
from semel.declare.parts import twice
from semel.declare.yaml import key_of
from semel.errors import MissingPackageError, RetryableError, SemelError, TerminalError
from semel.formats.table import sink_format
from semel.model.manifest import (
    SplitReport,
    pack_files,
    pack_reports,
    unpack_files,
    unpack_reports,
)
from semel.spark import versions
from semel.spark.partitions import partition_key
from semel.spark.settings import SETTINGS
from semel.spark.transforms import Transform, load_transforms
from semel.stage.classify import pack_dropped, unpack_dropped
from semel.stage.job import (
    OFFSET_COLUMN,
    SOURCE_COLUMN,
    Outcome,
    StageJob,
    columns_of,
    written_of,
)
from semel.stage.read import read_task
from semel.stage.shard import classify_shard
from semel.stage.task_ids import IdsPlace
from semel.stage.write import survivors, write_rows, write_task

try:
    from py4j.protocol import Py4JJavaError
except ImportError:  # pyspark-client brings Connect alone.
    Py4JJavaError = PySparkException

_READ = "key int, task int, ids binary, reports binary"
_CLASSIFIED = "key int, task int, shard int, dropped binary, reports binary, files binary"
_REPORTS = "reports binary"
_WRITTEN = "files binary"
_ARROW = {
    _READ: [
        ("key", pa.int32()),
        ("task", pa.int32()),
        ("ids", pa.binary()),
        ("reports", pa.binary()),
    ],
    _CLASSIFIED: [
        ("key", pa.int32()),
        ("task", pa.int32()),
        ("shard", pa.int32()),
        ("dropped", pa.binary()),
        ("reports", pa.binary()),
        ("files", pa.binary()),
    ],
    _REPORTS: [("reports", pa.binary())],
    _WRITTEN: [("files", pa.binary())],
}
# Keeps S15.
_REQUIRED = {"spark.stage.maxConsecutiveAttempts": "1", "spark.stage.maxAttempts": "1"}
# Adaptive execution runs each shuffle as a separate job, and Spark counts a stage's attempts only
# within one job. If an executor died between two jobs, Spark would compute part of a stage again.
# Keeps S15.
_ADAPTIVE = "spark.sql.adaptive.enabled"
_BATCH_BYTES = 1 << 20
JOB_FAILURES = (PySparkException, Py4JJavaError)
"""Spark's errors of a failed job. A driver's own JVM raises the second one for failures outside of
a task's Python code: a dead executor, a Python that does not start."""
_MEANINGS = {
    "maximum allowable number of times": (
        "an executor died, and semel never runs part of a stage again"
    ),
    "Python worker exited unexpectedly": (
        "a Python worker ended before its task did. A user killed it, the machine ran out of "
        "memory, or a record crashes its reader; the third attempt looks for such a record"
    ),
    "RESPONSE_ALREADY_RECEIVED": "Spark was restarted while it ran the job",
}
"""Clear texts for Spark's obscure messages, by a part of each message."""

_FAULT_NAME = re.compile(r"^\(?([\w.]*(?:Error|Exception)\b|\[[A-Z][A-Z0-9_.]+\])")
_SQL_LINE = re.compile(r"\bline (\d+),? (?:pos|position) \d+\b")
_NO_SEMEL = re.compile(r"No module named '?semel'?(?![\w.])")
_SEMEL_ERROR = re.compile(r"semel\.errors\.(\w+Error): (.*)")


class PlanNode(StrEnum):
    """The names of semel's functions in Spark's plans. A transform's function cannot have a dot."""

    read_ids = "semel.read_ids"
    read_keep = "semel.read_keep"
    read_write = "semel.read_write"
    classify = "semel.classify"
    mark_kept = "semel.mark_kept"
    write_kept = "semel.write_kept"
    read_to_write = "semel.read_to_write"
    survivors = "semel.survivors"
    write_rows = "semel.write_rows"


Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A task's function from its input rows to its output rows."""


class SparkEngine:
    """Runs stage jobs in a Spark session, over Connect or in the driver's own process."""

    def __init__(self, session: SparkSession) -> None:
        """Raises TerminalError if Spark could mix two tries of a stage in one attempt."""
        self.session = session
        for key, value in _REQUIRED.items():
            actual = session.conf.get(key, None)
            if actual != value:
                options = " ".join(f"--conf {name}={text}" for name, text in SETTINGS.items())
                raise TerminalError(
                    f"this Spark was started with {key}={actual}; semel needs {key}={value}, so "
                    "that a lost executor fails the attempt instead of mixing two results of a "
                    f"transform. Start Spark with {options}"
                )
        session.conf.set(_ADAPTIVE, "false")

    def run(self, job: StageJob) -> Outcome:
        """Run a job. Raises RetryableError if Spark fails; errors of tasks keep their class."""
        samples = job.spec.limits.log_samples
        try:
            transforms = load_transforms(job.spec.transforms, job.code)
            reports = self._reports(job, write=not transforms)
            if not transforms:
                return Outcome(
                    reports=reports, files=(), sink_schema=schema_of(columns_of(job.spec))
                )
            return self._transform(job, reports, transforms)
        except JOB_FAILURES as error:
            raise translate_error(error, samples=samples) from (error if samples else None)

    def report_query(self, job: StageJob, *, write: bool) -> DataFrame:
        """The first query of a job: a report of each split. With `write` it writes rows too."""
        tasks = self.session.range(0, job.tasks, 1, job.tasks)
        if not job.judges:
            return tasks.mapInArrow(_read_only(job, write), _REPORTS)
        if job.is_small:
            return tasks.mapInArrow(_read_to_write(job, write), _REPORTS)
        return (
            tasks.mapInArrow(_read(job), _READ)
            .repartition(job.shards, "key")
            .mapInArrow(_classify(job), _CLASSIFIED)
            .repartition(job.tasks, "key")
            .mapInArrow(_write(job, write), _REPORTS)
        )

    def transform_frames(
        self, job: StageJob, survivors: Task, transforms: list[Transform]
    ) -> list[DataFrame]:
        """The frame of survivors, then the frame that each transform returned, in order.

        Raises TerminalError if a transform raises.
        """
        tasks = self.session.range(0, job.tasks, 1, job.tasks)
        survivors.__name__ = PlanNode.survivors.value
        frames = [tasks.mapInArrow(survivors, from_arrow_schema(job.output_schema()))]
        for transform in transforms:
            frames.append(_apply(transform, frames[-1]))
        return frames

    def write_query(
        self, job: StageJob, transforms: list[Transform], frame: DataFrame
    ) -> tuple[DataFrame, pa.Schema]:
        """The second query of a job, which writes the last transform's rows, and their columns.

        Raises TerminalError if the sink's format cannot store the columns.
        """
        schema = _output_schema(job, transforms, frame)
        return frame.mapInArrow(_write_rows(job, schema), _WRITTEN), schema

    def _reports(self, job: StageJob, *, write: bool) -> list[SplitReport]:
        query = self.report_query(job, write=write)
        reports = [one for row in query.collect() for one in unpack_reports(bytes(row["reports"]))]
        reports.sort(key=lambda report: report.split)
        _check_each_once("split", [report.split for report in reports], len(job.splits), job)
        return reports

    def _transform(
        self, job: StageJob, reports: list[SplitReport], transforms: list[Transform]
    ) -> Outcome:
        frames = self.transform_frames(job, _survivors(job, reports), transforms)
        query, schema = self.write_query(job, transforms, frames[-1])
        try:
            written = query.collect()
        except JOB_FAILURES as error:
            samples = job.spec.limits.log_samples
            failure = _transform_error(error, transforms, samples=samples)
            raise failure from (error if samples else None)
        files = tuple(file for row in written for file in unpack_files(bytes(row["files"])))
        written = schema_of(written_of(job.spec, schema))
        return Outcome(reports=reports, files=files, sink_schema=written)


def schema_of(schema: pa.Schema) -> list[list[str]]:
    """An Arrow schema in the ledger's form: pairs of name and type."""
    return [[field.name, str(field.type)] for field in schema]


def translate_error(error: Exception, *, samples: bool = True) -> SemelError:
    """Convert Spark's error to semel's: the error that a task raised, a MissingPackageError if an
    executor lacks semel, or a RetryableError.

    Without `samples` the message leaves out Spark's text, which may contain values of records.
    """
    text = str(error)
    if raised := _SEMEL_ERROR.findall(text):
        name, message = raised[-1]
        kind = getattr(errors, name, RetryableError)
        return kind(message.strip())
    if _NO_SEMEL.search(text):
        return MissingPackageError(
            f"Spark: an executor cannot import semel {__version__}. Nothing was committed. Install "
            "its wheel into the Python that PYSPARK_PYTHON names there"
        )
    cause = _cause(text, samples=samples) or type(error).__name__
    cause = next((meaning for sign, meaning in _MEANINGS.items() if sign in text), cause)
    return RetryableError(f"the Spark job failed: {cause}; the whole trace is in Spark's own log")


def _cause(text: str, *, samples: bool) -> str:
    """The line of a trace with the cause; without `samples` only its first word."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if re.match(r"^\(?[\w.]*(Error|Exception)\b", line)]
    causes = (
        [line for line in causes if " " in line]  # Not only the name of a class.
        or [line for line in lines if re.match(r"^\[[A-Z][A-Z0-9_.]+\] ", line)]
        or [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
        or causes
        or lines
    )
    cause = causes[-1][:500] if causes else ""
    return cause if samples else " ".join(_FAULT_NAME.findall(cause)[:1])


def _apply(transform: Transform, frame: DataFrame) -> DataFrame:
    try:
        result = transform.apply(frame)
        result.schema  # noqa: B018 - Connect analyses a query only when its schema is read.
    except Exception as error:
        text = str(error)
        place = _transform_place(transform, text)
        if transform.query:  # The further lines are plans and traces.
            text = next((line for line in text.splitlines() if line.strip()), "")
        raise TerminalError(f"transform {place} raised {type(error).__name__}: {text}") from error
    return result


def _transform_place(transform: Transform, text: str) -> str:
    """A transform's name and, if Spark's message has it, the line of its SQL."""
    match = _SQL_LINE.search(text) if transform.query else None
    return f"{transform.name}, line {match[1]}," if match else transform.name


def _output_schema(
    job: StageJob, transforms: list[Transform], frame: DataFrame
) -> pa.Schema:
    """The columns of the transforms' result. Raises TerminalError if files cannot store them."""
    last, names = transforms[-1].name, frame.schema.names
    try:
        schema = versions.arrow_schema(frame.schema)
    except PySparkException as error:
        raise TerminalError(
            f"transform {last} returned {frame.schema.simpleString()}, which has a column that "
            f"files cannot store ({error}). Cast it in the last transform's select"
        ) from error
    if name := twice(tuple(names)):
        raise TerminalError(
            f"transform {last} returned a column {name!r} twice (upper and lower case are alike): "
            f"{names}. Rename one in the last transform's select"
        )
    _check_aggregate(job, schema, last)
    written = written_of(job.spec, schema)
    sink = job.spec.sink
    missing = [c for c in sink.partition_by if isinstance(c, str) and c not in written.names]
    if missing:
        raise TerminalError(
            f"sink.partition_by {missing}: the transforms returned only {names}. Add the columns "
            "to the last transform's select, or change partition_by"
        )
    kinds = {field.name: _kind(field.type) for field in written}
    for key, why in sink.window_problems(kinds) if sink.windows else ():
        raise TerminalError(f"sink.{key_of(key)}: {why}, in the result of transform {last}")
    positions = {SOURCE_COLUMN: "int64", OFFSET_COLUMN: "int64"}
    if sink.shards > 1 and {name: kinds.get(name) for name in positions} != positions:
        raise TerminalError(
            f"sink.shards needs a record's position, and transform {last} returned only {names}. "
            f"Add {' and '.join(positions)} to its select, or remove shards"
        )
    sink_format(sink.format).check(written, sink.folders)
    return schema


# Keeps AG1, AG3.
def _check_aggregate(job: StageJob, schema: pa.Schema, last: str) -> None:
    """Raises TerminalError if `aggregate` cannot use the transforms' columns."""
    spec = job.spec
    if spec.aggregate is None:
        return
    faults = [
        f"{key_of(('aggregate', *key))}: {why}" for key, why in spec.aggregate.problems(schema)
    ]
    kind = schema.field(spec.record_time).type if spec.record_time in schema.names else None
    if kind is None or not (pa.types.is_timestamp(kind) or pa.types.is_date32(kind)):
        faults.append(f"record_time: {spec.record_time!r} is not a column of times")
    if faults:
        raise TerminalError(
            f"transform {last} returned columns that semel cannot aggregate ({'; '.join(faults)}). "
            "Change its select, or the declaration"
        )


def _kind(kind: pa.DataType) -> str:
    """A type's name; in a declaration's words if it is a timestamp or date."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return "timestamp"
    return "date" if pa.types.is_date(kind) else str(kind)


def _transform_error(
    error: Exception, transforms: list[Transform], *, samples: bool
) -> SemelError:
    """The error of the transforms' job: a transform's, if the trace names one, or Spark's."""
    text = str(error)
    if _SEMEL_ERROR.search(text):
        return translate_error(error, samples=samples)
    blamed = [transform for transform in transforms if transform.path in text]
    if not blamed and "SQLSTATE: 22" in text:  # Data exceptions: a division by zero, a wrong cast.
        blamed = _quoted_transforms(error, transforms) or transforms
    if not blamed:
        return translate_error(error, samples=samples)
    places = ", ".join(_transform_place(transform, text) for transform in blamed)
    return TerminalError(
        f"transform {places} raised {_cause(text, samples=samples)}; nothing was "
        "committed. Fix it, then run stage again"
    )


def _quoted_transforms(error: PySparkException, transforms: list[Transform]) -> list[Transform]:
    """The SQL transforms that contain the query text of Spark's message."""
    contexts = error.getQueryContext() or []
    quoted = [c.fragment() for c in contexts if c.contextType().name == "SQL"]
    return [t for t in transforms if t.query and any(part in t.query for part in quoted)]


def _read(job: StageJob) -> Task:
    def rows(number: int) -> Iterator[tuple]:
        result = read_task(job, number, write=job.writes_early)
        reports = pack_reports(result.reports)
        for place in result.ids:
            yield partition_key(place.shard), number, place.to_bytes(), reports

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _tasks(batches):
            yield from _batches(_READ, rows(number))

    task.__name__ = PlanNode.read_ids.value
    return task


def _read_only(job: StageJob, write: bool) -> Task:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _tasks(batches):
            reports = read_task(job, number, write=write).reports
            yield from _batches(_REPORTS, [(pack_reports(reports),)])

    task.__name__ = (PlanNode.read_write if write else PlanNode.read_keep).value
    return task


def _classify(job: StageJob) -> Task:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sorted(_rows(batches), key=itemgetter("task"))
        if not rows:
            return
        _check_each_once("task", [row["task"] for row in rows], job.tasks, job)
        places = [IdsPlace.from_bytes(row["ids"]) for row in rows]
        reports = [report for row in rows for report in unpack_reports(row["reports"])]
        dropped, files = classify_shard(job, places, reports)

        def judged(row: dict[str, Any]) -> tuple:
            task = row["task"]
            blob = pack_dropped(dropped[task]) if task in dropped else b""
            # The shard's files go with the first task only, so that the reports list them once.
            packed = pack_files(() if task else files)
            return partition_key(task), task, places[0].shard, blob, row["reports"], packed

        yield from _batches(_CLASSIFIED, map(judged, rows))

    task.__name__ = PlanNode.classify.value
    return task


def _write(job: StageJob, write: bool) -> Task:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sorted(_rows(batches), key=itemgetter("shard"))
        if not rows:
            return
        number = rows[0]["task"]
        _check_each_once("shard", [row["shard"] for row in rows], job.shards, job)
        if len({row["reports"] for row in rows}) != 1:
            raise RetryableError(
                f"attempt {job.attempt_id}: Spark read part {number} of the source twice, with two "
                "results. Nothing was committed. Run stage again"
            )
        reports = unpack_reports(rows[0]["reports"])
        dropped = [unpack_dropped(row["dropped"]) for row in rows if row["dropped"]]
        files = tuple(file for row in rows for file in unpack_files(row["files"]))
        reports = write_task(job, number, reports, dropped, write=write, files=files)
        yield from _batches(_REPORTS, [(pack_reports(reports),)])

    task.__name__ = (PlanNode.write_kept if write else PlanNode.mark_kept).value
    return task


def _read_to_write(job: StageJob, write: bool) -> Task:
    """The functions of the three stages, one after the other. A shard is a row of the only task."""
    read, classify, write_kept = _read(job), _classify(job), _write(job, write)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        places = (batch.slice(at, 1) for batch in read(batches) for at in range(batch.num_rows))
        yield from write_kept(chain.from_iterable(classify(iter([place])) for place in places))

    task.__name__ = PlanNode.read_to_write.value
    return task


def _survivors(job: StageJob, reports: list[SplitReport]) -> Task:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _tasks(batches):
            yield from survivors(job, [reports[s.number] for s in job.splits_of_task(number)])

    return task


def _write_rows(job: StageJob, schema: pa.Schema) -> Task:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        files = write_rows(job, TaskContext.get().partitionId(), batches, schema)
        yield from _batches(_WRITTEN, [(pack_files(files),)])

    task.__name__ = PlanNode.write_rows.value
    return task


# Keeps S14.
def _check_each_once(part: str, numbers: list[int], count: int, job: StageJob) -> None:
    """Check a shuffle's completeness: a missing or doubled part would lose or double records."""
    if sorted(numbers) != list(range(count)):
        raise RetryableError(
            f"attempt {job.attempt_id}: Spark lost or repeated a part (expected each {part} below "
            f"{count} once, found {len(numbers)}). Nothing was committed. Run stage again"
        )


def _tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """The task numbers in the input."""
    for batch in batches:
        yield from batch.column("id").to_pylist()


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()


def _batches(ddl: str, rows: Iterable[tuple]) -> Iterator[pa.RecordBatch]:
    """Group rows into record batches of some _BATCH_BYTES: single rows would cost too much."""
    schema = pa.schema(_ARROW[ddl])
    pending: list[tuple] = []
    size = 0
    for row in rows:
        pending.append(row)
        size += sum(len(value) for value in row if isinstance(value, bytes))
        if size >= _BATCH_BYTES:
            yield _batch(pending, schema)
            pending, size = [], 0
    if pending:
        yield _batch(pending, schema)


def _batch(rows: list[tuple], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, f.type) for column, f in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)
