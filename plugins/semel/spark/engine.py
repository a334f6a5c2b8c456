"""The Spark job of stage: read, classify, write, as one job of three stages. Ids travel, rows stay.

What it does not do: decide anything. The tasks call semel.stage, and the driver gets their reports.
Known limitation: transforms run in a second job, on the rows that the first one kept.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, QueryContextType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from semel import errors
from semel.declare.parts import twice
from semel.declare.yaml import key_of
from semel.errors import RetryableError, SemelError, TerminalError
from semel.formats.table import sink_format
from semel.model.manifest import SplitReport, pack_files, unpack_files
from semel.spark.transforms import Transform, load_transforms
from semel.stage.classify import pack_dropped, pack_ids, unpack_dropped, unpack_ids
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
from semel.stage.write import survivors, write_rows, write_task

_READ = "shard int, split int, ids binary, report binary"
_CLASSIFIED = "task int, split int, shard int, dropped binary, report binary, files binary"
_REPORTS = "split int, report binary"
_WRITTEN = "files binary"
_ARROW = {
    _READ: [
        ("shard", pa.int32()),
        ("split", pa.int32()),
        ("ids", pa.binary()),
        ("report", pa.binary()),
    ],
    _CLASSIFIED: [
        ("task", pa.int32()),
        ("split", pa.int32()),
        ("shard", pa.int32()),
        ("dropped", pa.binary()),
        ("report", pa.binary()),
        ("files", pa.binary()),
    ],
    _REPORTS: [("split", pa.int32()), ("report", pa.binary())],
    _WRITTEN: [("files", pa.binary())],
}
# Keeps S15.
_REQUIRED = {"spark.stage.maxConsecutiveAttempts": "1", "spark.stage.maxAttempts": "1"}
# Adaptive execution makes each shuffle a job of its own, and Spark counts the tries of a stage
# within one job. So what is lost with an executor between two jobs is computed again, in part.
# Keeps S15.
_ADAPTIVE = "spark.sql.adaptive.enabled"
_BATCH_BYTES = 1 << 20
JOB_FAILURES = (PySparkException, Py4JJavaError)
"""What Spark raises when a job failed; the second one in a driver's own JVM, for what no task's
Python raised: an executor that died, a Python that does not start."""
_MEANINGS = {
    "maximum allowable number of times": (
        "an executor died, and a stage is never run again in part"
    ),
    "Python worker exited unexpectedly": (
        "a Python worker ended before its task did: somebody killed it, the machine had no memory "
        "left, or a record ends who reads it, which the third attempt looks for"
    ),
    "RESPONSE_ALREADY_RECEIVED": "Spark was started again while it ran the job",
}
"""What Spark says of some failures in words that tell its user nothing."""

_FAULT_NAME = re.compile(r"^\(?([\w.]*(?:Error|Exception)\b|\[[A-Z][A-Z0-9_.]+\])")
_SQL_LINE = re.compile(r"\bline (\d+),? (?:pos|position) \d+\b")
_OURS = re.compile(r"semel\.errors\.(\w+Error): (.*)")


class PlanNode(StrEnum):
    """What Spark's plans call the functions of semel. No function of a transform can be so."""

    read_ids = "semel.read_ids"
    read_keep = "semel.read_keep"
    read_write = "semel.read_write"
    classify = "semel.classify"
    mark_kept = "semel.mark_kept"
    write_kept = "semel.write_kept"
    survivors = "semel.survivors"
    write_rows = "semel.write_rows"


Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What a task makes of the rows that come to it."""


class SparkEngine:
    """Runs stage jobs in a Spark session, over Connect or in the driver's own process."""

    def __init__(self, session: SparkSession) -> None:
        """TerminalError when the session's Spark would mix two tries of a stage in one attempt."""
        self.session = session
        for key, value in _REQUIRED.items():
            found = session.conf.get(key, None)
            if found != value:
                raise TerminalError(
                    f"this Spark was started with {key}={found}; semel needs {key}={value}, so "
                    "that a lost executor fails the attempt instead of mixing two outcomes of a "
                    "transform"
                )
        session.conf.set(_ADAPTIVE, "false")

    def run(self, job: StageJob) -> Outcome:
        """Run a job. RetryableError: Spark failed; errors that tasks raised keep their class."""
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
            raise translated(error, samples=samples) from (error if samples else None)

    def judged(self, job: StageJob, *, write: bool) -> DataFrame:
        """The first query of a job: a report of each split. With `write` it writes the rows."""
        tasks = self.session.range(0, job.tasks, 1, job.tasks)
        if not job.judges:
            return tasks.mapInArrow(_read_only(job, write), _REPORTS)
        return (
            tasks.mapInArrow(_read(job), _READ)
            .repartitionById(job.shards, "shard")
            .mapInArrow(_classify(job), _CLASSIFIED)
            .repartitionById(job.tasks, "task")
            .mapInArrow(_write(job, write), _REPORTS)
        )

    def transformed(
        self, job: StageJob, survivors: Task, transforms: list[Transform]
    ) -> list[DataFrame]:
        """What `survivors` gives in each task, and what each transform made of it, in order.

        TerminalError: a transform raised.
        """
        tasks = self.session.range(0, job.tasks, 1, job.tasks)
        survivors.__name__ = PlanNode.survivors.value
        frames = [tasks.mapInArrow(survivors, from_arrow_schema(job.output_schema()))]
        for transform in transforms:
            frames.append(_applied(transform, frames[-1]))
        return frames

    def written(
        self, job: StageJob, transforms: list[Transform], frame: DataFrame
    ) -> tuple[DataFrame, pa.Schema]:
        """The second query of a job: writes what the last transform gave. With its columns.

        TerminalError: they cannot be written.
        """
        schema = _output_schema(job, transforms, frame)
        return frame.mapInArrow(_write_rows(job, schema), _WRITTEN), schema

    def _reports(self, job: StageJob, *, write: bool) -> list[SplitReport]:
        done = self.judged(job, write=write)
        reports = [SplitReport.from_bytes(bytes(row["report"])) for row in done.collect()]
        reports.sort(key=lambda report: report.split)
        _each_once("split", [report.split for report in reports], len(job.splits), job)
        return reports

    def _transform(
        self, job: StageJob, reports: list[SplitReport], transforms: list[Transform]
    ) -> Outcome:
        frames = self.transformed(job, _survivors(job, reports), transforms)
        query, schema = self.written(job, transforms, frames[-1])
        try:
            written = query.collect()
        except JOB_FAILURES as error:
            samples = job.spec.limits.log_samples
            blamed = _blamed(error, transforms, samples=samples)
            raise blamed from (error if samples else None)
        files = tuple(file for row in written for file in unpack_files(bytes(row["files"])))
        written = schema_of(written_of(job.spec, schema))
        return Outcome(reports=reports, files=files, sink_schema=written)


def schema_of(schema: pa.Schema) -> list[list[str]]:
    """An Arrow schema as the ledger keeps it: pairs of name and type."""
    return [[field.name, str(field.type)] for field in schema]


def translated(error: Exception, *, samples: bool = True) -> SemelError:
    """The error that a task raised, or that Spark has, in semel's words.

    Without `samples` nothing of Spark's own message is shown, which may hold values of records.
    """
    text = str(error)
    if found := _OURS.findall(text):
        name, message = found[-1]
        kind = getattr(errors, name, RetryableError)
        return kind(message.strip())
    shown = _cause(text, samples=samples) or type(error).__name__
    shown = next((meaning for sign, meaning in _MEANINGS.items() if sign in text), shown)
    return RetryableError(f"the Spark job failed: {shown}; the whole trace is in Spark's own log")


def _cause(text: str, *, samples: bool) -> str:
    """The line of a trace that says what went wrong; without `samples` its first word."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if re.match(r"^\(?[\w.]*(Error|Exception)\b", line)]
    causes = (
        [line for line in causes if " " in line]  # A class alone says nothing.
        or [line for line in lines if re.match(r"^\[[A-Z][A-Z0-9_.]+\] ", line)]
        or [rest for line in lines if (rest := line.removeprefix("Caused by: ")) != line]
        or causes
        or lines
    )
    cause = causes[-1][:500] if causes else ""
    return cause if samples else " ".join(_FAULT_NAME.findall(cause)[:1])


def _applied(transform: Transform, frame: DataFrame) -> DataFrame:
    try:
        made = transform.apply(frame)
        made.schema  # noqa: B018 - Connect analyses only when it is asked.
    except Exception as error:
        shown = str(error)
        if transform.query:  # Below the first line are plans and traces.
            shown = next((line for line in shown.splitlines() if line.strip()), "")
        raise TerminalError(
            f"transform {_placed(transform, str(error))} raised {type(error).__name__}: {shown}"
        ) from error
    return made


def _placed(transform: Transform, text: str) -> str:
    """A transform's name; with the line of its SQL that Spark's message names."""
    found = _SQL_LINE.search(text) if transform.query else None
    return f"{transform.name}, line {found[1]}," if found else transform.name


def _output_schema(
    job: StageJob, transforms: list[Transform], frame: DataFrame
) -> pa.Schema:
    """The columns that the transforms gave. TerminalError when no file can hold them."""
    last, names = transforms[-1].name, frame.schema.names
    try:
        schema = to_arrow_schema(frame.schema, timezone="UTC")
    except PySparkException as error:
        raise TerminalError(
            f"transform {last} gave {frame.schema.simpleString()}, of which no file can hold a "
            f"column ({error}); cast it in the last transform's select"
        ) from error
    if name := twice(tuple(names)):
        raise TerminalError(
            f"transform {last} gave a column {name!r} twice (upper and lower case are alike): "
            f"{names}; rename one in the last transform's select"
        )
    _check_counted(job, schema, last)
    written = written_of(job.spec, schema)
    sink = job.spec.sink
    missing = [c for c in sink.partition_by if isinstance(c, str) and c not in written.names]
    if missing:
        raise TerminalError(
            f"sink.partition_by {missing}: the transforms gave only {names}; add the columns to "
            "the last transform's select, or change partition_by"
        )
    kinds = {field.name: _kind(field.type) for field in written}
    for key, why in sink.window_problems(kinds) if sink.windows else ():
        raise TerminalError(f"sink.{key_of(key)}: {why}; so transform {last} gave it")
    positions = {SOURCE_COLUMN: "int64", OFFSET_COLUMN: "int64"}
    if sink.shards > 1 and {name: kinds.get(name) for name in positions} != positions:
        raise TerminalError(
            f"sink.shards goes by a record's position, and transform {last} gave only {names}; add "
            f"{' and '.join(positions)} to its select, or leave shards out"
        )
    sink_format(sink.format).check(written, sink.folders)
    return schema


# Keeps AG1, AG3.
def _check_counted(job: StageJob, schema: pa.Schema, last: str) -> None:
    """TerminalError: what the transforms gave cannot be counted as declared."""
    spec = job.spec
    if spec.aggregate is None:
        return
    found = spec.aggregate.problems(schema)
    wrong = [f"{key_of(('aggregate', *key))}: {why}" for key, why in found]
    kind = schema.field(spec.record_time).type if spec.record_time in schema.names else None
    if kind is None or not (pa.types.is_timestamp(kind) or pa.types.is_date32(kind)):
        wrong.append(f"record_time: {spec.record_time!r} is no column of times")
    if wrong:
        raise TerminalError(
            f"transform {last} gave columns that cannot be counted ({'; '.join(wrong)}); change its "
            "select, or the declaration"
        )


def _kind(kind: pa.DataType) -> str:
    """A type as a declaration calls it, if it is one of a moment or of days."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return "timestamp"
    return "date" if pa.types.is_date(kind) else str(kind)


def _blamed(
    error: Exception, transforms: list[Transform], *, samples: bool
) -> SemelError:
    """The error of the transforms' job: of the user's code, when the trace shows it, or Spark's."""
    text = str(error)
    if _OURS.search(text):
        return translated(error, samples=samples)
    blamed = [transform for transform in transforms if transform.path in text]
    if not blamed and "SQLSTATE: 22" in text:  # Data exceptions: a division by zero, a wrong cast.
        blamed = _quoted(error, transforms) or transforms
    if not blamed:
        return translated(error, samples=samples)
    shown = ", ".join(_placed(transform, text) for transform in blamed)
    return TerminalError(
        f"transform {shown} raised {_cause(text, samples=samples)}; nothing was "
        "committed. Fix it, then run stage again"
    )


def _quoted(error: PySparkException, transforms: list[Transform]) -> list[Transform]:
    """The SQL transforms that hold what Spark's message quotes of a query."""
    contexts = error.getQueryContext() or []
    quoted = [c.fragment() for c in contexts if c.contextType() is QueryContextType.SQL]
    return [t for t in transforms if t.query and any(part in t.query for part in quoted)]


def _read(job: StageJob) -> Task:
    def rows(number: int) -> Iterator[tuple]:
        for done in read_task(job, number, write=False):
            report = done.report.to_bytes()
            for shard, ids in done.ids.items():
                yield shard, done.report.split, pack_ids(ids), report

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _tasks(batches):
            yield from _batches(_READ, rows(number))

    task.__name__ = PlanNode.read_ids.value
    return task


def _read_only(job: StageJob, write: bool) -> Task:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _tasks(batches):
            reports = (done.report for done in read_task(job, number, write=write))
            yield from _batches(_REPORTS, ((r.split, r.to_bytes()) for r in reports))

    task.__name__ = (PlanNode.read_write if write else PlanNode.read_keep).value
    return task


def _classify(job: StageJob) -> Task:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sorted(_rows(batches), key=itemgetter("split"))
        if not rows:
            return
        shard = rows[0]["shard"]
        _each_once("split", [row["split"] for row in rows], len(job.splits), job)
        parts = [unpack_ids(row["ids"]) for row in rows]
        reports = [SplitReport.from_bytes(row["report"]) for row in rows]
        dropped, files = classify_shard(job, shard, parts, reports)

        def judged(row: dict[str, Any]) -> tuple:
            number = row["split"]
            blob = pack_dropped(dropped[number]) if number in dropped else b""
            # What the shard wrote goes with its first split, so that it is named once.
            made = pack_files(files if number == 0 else ())
            return job.splits.task_of(number), number, shard, blob, row["report"], made

        yield from _batches(_CLASSIFIED, map(judged, rows))

    task.__name__ = PlanNode.classify.value
    return task


def _write(job: StageJob, write: bool) -> Task:
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sorted(_rows(batches), key=itemgetter("split"))
        if not rows:
            return
        parts = []
        for number, of_split in groupby(rows, key=itemgetter("split")):
            own = list(of_split)
            _each_once("shard", [row["shard"] for row in own], job.shards, job)
            if len({row["report"] for row in own}) != 1:
                raise RetryableError(
                    f"attempt {job.attempt_id}: split {number} was read twice with two outcomes; "
                    "run stage again"
                )
            report = SplitReport.from_bytes(own[0]["report"])
            dropped = [unpack_dropped(row["dropped"]) for row in own if row["dropped"]]
            parts.append((report, dropped))
        files = tuple(file for row in rows for file in unpack_files(row["files"]))
        done = write_task(job, rows[0]["task"], parts, write=write, files=files)
        yield from _batches(_REPORTS, ((report.split, report.to_bytes()) for report in done))

    task.__name__ = (PlanNode.write_kept if write else PlanNode.mark_kept).value
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
def _each_once(what: str, found: list[int], count: int, job: StageJob) -> None:
    """Nothing of a shuffle may be missing or doubled: it would lose or double records."""
    if sorted(found) != list(range(count)):
        raise RetryableError(
            f"attempt {job.attempt_id}: expected each {what} below {count} once, found "
            f"{len(found)}; Spark lost or repeated part of a shuffle, run stage again"
        )


def _tasks(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """The numbers of tasks that come in."""
    for batch in batches:
        yield from batch.column("id").to_pylist()


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from batch.to_pylist()


def _batches(ddl: str, rows: Iterable[tuple]) -> Iterator[pa.RecordBatch]:
    """Rows as record batches of a bounded size: one for each would cost more than its row."""
    schema = pa.schema(_ARROW[ddl])
    held: list[tuple] = []
    size = 0
    for row in rows:
        held.append(row)
        size += sum(len(value) for value in row if isinstance(value, bytes))
        if size >= _BATCH_BYTES:
            yield _batch(held, schema)
            held, size = [], 0
    if held:
        yield _batch(held, schema)


def _batch(rows: list[tuple], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, f.type) for column, f in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)
