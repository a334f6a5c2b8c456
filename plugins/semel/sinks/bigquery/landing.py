"""How a batch lands: its files become one of Parquet, which one load job appends, or nothing.

1. Its jobs are asked for, by their ids: `semel-<pipeline>-<batch>-<digest>-<n>`, n from 0. The last
   one is running, has landed, or has failed; or there is none.
2. Where there is none, or another try may end better, the next n is inserted. Who finds the id
   taken, or gets no answer, asks for that job: it loads the same rows, whoever inserted it.
3. It is waited for.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
from google.api_core.exceptions import Conflict, NotFound
from google.cloud import bigquery
from google.cloud.bigquery import DecimalTargetType, LoadJob, LoadJobConfig

from semel import failpoints
from semel.errors import AGAIN, CorruptionError, RetryableError, TerminalError
from semel.formats.parquetsink import ROW_GROUP_BYTES
from semel.formats.pieces import gathered
from semel.sinks import CommittedBatch, Presence
from semel.sinks.bigquery.facts import OWN, count
from semel.sinks.bigquery.target import ERRORS, REQUEST_SECONDS, BigQueryTarget
from semel.sinks.staged import check_count, staged

JOBS_MAX = 1_000
"""Load jobs of one batch that may fail: each is asked for again. A table takes 1,500 a day."""

LOAD_SECONDS = 3_600
"""How long a publish waits for a job; the next one waits on. BigQuery ends it after 6 hours."""

UPLOAD_RETRIES = 3
"""How often a request of an upload is sent again, with pauses of 1, 2 and 4 seconds."""

_LOOK_SECONDS = (0.2, 5.0)
"""Pauses between looks at a job: the first, and the longest."""

_PASSING = (
    "backendError", "internalError", "jobBackendError", "jobInternalError", "jobRateLimitExceeded",
    "quotaExceeded", "rateLimitExceeded", "resourceInUse", "stopped", "tableUnavailable", "timeout",
)  # fmt: skip
"""Why a job has failed that another one need not fail for. All else is of rows, of the table or of
rights: somebody has to change something."""


# Keeps BQ1.
def job_id(won: CommittedBatch, n: int) -> str:
    """The id of a batch's load job, the same in each process."""
    return f"semel-{won.pipeline}-{won.batch_id}-{won.digest[:12]}-{n}"


def presence(client: bigquery.Client, target: BigQueryTarget, won: CommittedBatch) -> Presence:
    """What is in the table of a batch, by its job and its rows."""
    wanted = sum(file.records for file in won.files)
    for _ in range(2):  # It may land between the two questions.
        _, job = _last(client, target, won)
        found = count(client, target, won.batch_id)
        if job is not None and _has_landed(job):
            return Presence.RIGHT if found == wanted else Presence.WRONG
        if not found:
            return Presence.ABSENT
    return Presence.WRONG


def land(client: bigquery.Client, target: BigQueryTarget, won: CommittedBatch) -> None:
    """Let a batch land, unless it has, or rows of its number are there.

    RetryableError: nobody knows yet, or another try may succeed. TerminalError: its job has failed.
    """
    n, job = _last(client, target, won)
    if job is None or (_has_failed(job) and _may_be_cured(client, target, job)):
        if count(client, target, won.batch_id):
            return  # The next look tells what they are.
        with _joined(won) as file:
            failpoints.point("sink.before_load")
            job = _inserted(client, target, won, n if job is None else n + 1, file)
        failpoints.point("sink.after_load")
    _check(target, won, _waited(client, target, won, job))


def _last(
    client: bigquery.Client, target: BigQueryTarget, won: CommittedBatch
) -> tuple[int, LoadJob | None]:
    """The batch's last job, and its number; (0, None): there was none."""
    last = 0, None
    for n in range(JOBS_MAX):
        job = _found(client, target, job_id(won, n))
        if job is None:
            return last
        if not _has_failed(job):
            return n, job
        last = n, job
    raise TerminalError(
        f"batch {won.batch_id}: {JOBS_MAX} load jobs into {target.address} have failed, the last "
        f"one because of {last[1].error_result}. It has committed and stays so; find out why"
    )


def _found(client: bigquery.Client, target: BigQueryTarget, name: str) -> LoadJob | None:
    with target.answers():
        try:
            return client.get_job(name, location=target.location, **target.patience)
        except NotFound:
            return None


def _has_failed(job: LoadJob) -> bool:
    return job.state == "DONE" and bool(job.error_result)


# Keeps BQ2.
def _has_landed(job: LoadJob) -> bool:
    return job.state == "DONE" and not job.error_result


# Keeps BQ3.
def _may_be_cured(client: bigquery.Client, target: BigQueryTarget, job: LoadJob) -> bool:
    """Whether another job than one that failed may end better: it was no fault of rows or table,
    or the table was changed since.
    """
    if job.error_result.get("reason") in _PASSING:
        return True
    with target.answers():
        return client.get_table(target.name, **target.patience).modified > job.ended


def _inserted(
    client: bigquery.Client, target: BigQueryTarget, won: CommittedBatch, n: int, file: IO[bytes]
) -> LoadJob:
    """The batch's job of this number, whoever inserted it."""
    config = LoadJobConfig(
        source_format=bigquery.SourceFormat.PARQUET,
        write_disposition=bigquery.WriteDisposition.WRITE_APPEND,
        create_disposition=bigquery.CreateDisposition.CREATE_NEVER,
        decimal_target_types=[DecimalTargetType.NUMERIC, DecimalTargetType.BIGNUMERIC],
    )
    failed: Exception | None = None
    try:
        client.load_table_from_file(
            file, target.name, rewind=True, size=file.seek(0, 2), job_id=job_id(won, n),
            location=target.location, job_config=config, num_retries=UPLOAD_RETRIES,
            timeout=REQUEST_SECONDS,
        )  # fmt: skip
    except ERRORS as error:
        failed = error  # Also a lost answer: the job may be there.
    job = _found(client, target, job_id(won, n))
    if job is not None:
        return job
    if failed is None or isinstance(failed, Conflict):
        raise RetryableError(f"load job {job_id(won, n)} does not show yet; run finalize again")
    raise target.told(failed) from failed


def _waited(
    client: bigquery.Client, target: BigQueryTarget, won: CommittedBatch, job: LoadJob
) -> LoadJob:
    """The job once it is done."""
    pause, most = _LOOK_SECONDS
    end = time.monotonic() + LOAD_SECONDS
    while job.state != "DONE":
        if time.monotonic() > end:
            raise RetryableError(
                f"batch {won.batch_id}: load job {job.job_id} is {job.state} for over "
                f"{LOAD_SECONDS} s; run finalize again, which waits for it"
            )
        time.sleep(pause)
        pause = min(1.5 * pause, most)
        job = _found(client, target, job.job_id) or job
    return job


def _check(target: BigQueryTarget, won: CommittedBatch, job: LoadJob) -> None:
    """TerminalError, RetryableError: the job has failed. CorruptionError: it has loaded elsewhere,
    or other rows.
    """
    told = f"batch {won.batch_id}: load job {job.job_id}"
    if not job.error_result:
        wanted, where = sum(file.records for file in won.files), str(job.destination)
        if (job.output_rows or 0, where) != (wanted, target.name):
            raise CorruptionError(
                f"{told} has loaded {job.output_rows} rows into {where}, and its manifest says "
                f"{wanted} for {target.name}"
            )
        return
    reason, why = (job.error_result.get(name) for name in ("reason", "message"))
    told += f" into {target.address} has failed ({reason}: {why}), and none of its rows are visible"
    if reason in _PASSING:
        raise RetryableError(f"{told}; run finalize again, which inserts another one")
    raise TerminalError(
        f"{told}. It has committed and stays so. Change the table, so that it takes these rows, "
        "and run finalize again",
        next=AGAIN,
    )


# Keeps BQ6.
@contextmanager
def _joined(won: CommittedBatch) -> Iterator[IO[bytes]]:
    """The batch's rows as one file of Parquet, with their batch and its place: an upload has one.

    It has no name, so it goes with the process.
    """
    own = [pa.field(name, pa.int64()) for name in OWN]
    schema, done = pa.schema([*won.schema, *own]), 0
    pieces = (pa.Table.from_batches([rows]) for rows in staged(won))
    with tempfile.TemporaryFile(dir=Path(won.files[0].staged_path).parent) as file:
        with pq.ParquetWriter(file, schema, compression="zstd", store_schema=False) as writer:
            for some in gathered(pieces, ROW_GROUP_BYTES):
                for name, number in zip(OWN, (won.batch_id, won.commit_seq), strict=True):
                    number = pa.repeat(pa.scalar(number, pa.int64()), some.num_rows)
                    some = some.append_column(name, number)
                writer.write_table(some.cast(schema))
                done += some.num_rows
        check_count(won, done)
        yield file
