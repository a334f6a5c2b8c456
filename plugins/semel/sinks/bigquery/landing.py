"""Publish a batch: join its files into one Parquet file, which one load job appends as a whole.

1. Finalize gets the batch's jobs by id: `semel-<pipeline>-<batch>-<digest>-<n>`, n from 0. The last
   job is running, has landed or has failed, or no job exists.
2. If there is no job, or a retry may succeed, finalize inserts job n + 1. If that id exists, or the
   answer is lost, it gets that job: whoever inserted it, it loads the same rows.
3. Finalize waits for the job.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
from google.api_core.exceptions import Conflict, NotFound
from google.cloud import bigquery
from google.cloud.bigquery import DecimalTargetType, LoadJob, LoadJobConfig

from semel import failpoints
from semel.errors import AGAIN, CorruptionError, RetryableError, TerminalError
from semel.formats.parquetsink import ROW_GROUP_BYTES
from semel.formats.pieces import gather
from semel.sinks import CommittedBatch, Presence
from semel.sinks.bigquery.facts import SEMEL_COLUMNS, count
from semel.sinks.bigquery.target import ERRORS, REQUEST_SECONDS, BigQueryTarget
from semel.sinks.staged import check_count, staged
from semel.storage import at, folder_for_copies

JOBS_MAX = 1_000
"""Maximum failed load jobs of one batch, as each publish gets them all. BigQuery allows 1,500 jobs
a day for a table."""

LOAD_SECONDS = 3_600
"""How long one publish waits for a job. BigQuery ends a job after 6 hours."""

UPLOAD_RETRIES = 3
"""Retries of one upload request, after pauses of 1, 2 and 4 seconds."""

_POLL_SECONDS = (0.2, 5.0)
"""Pauses between polls of a job: the first, and the longest."""

_TRANSIENT = (
    "backendError", "internalError", "jobBackendError", "jobInternalError", "jobRateLimitExceeded",
    "quotaExceeded", "rateLimitExceeded", "resourceInUse", "stopped", "tableUnavailable", "timeout",
)  # fmt: skip
"""Reasons after which a retry may succeed. The others concern the rows, the table or rights, and
somebody has to change something."""


# Keeps BQ1.
def job_id(won: CommittedBatch, n: int) -> str:
    """The id of a batch's load job, the same in each process."""
    return f"semel-{won.pipeline}-{won.batch_id}-{won.digest[:12]}-{n}"


def presence(client: bigquery.Client, target: BigQueryTarget, won: CommittedBatch) -> Presence:
    """The state of a batch in the table, by its job and its rows."""
    expected = sum(file.records for file in won.files)
    for _ in range(2):  # The job may finish between the two requests.
        _, job = _last_job(client, target, won)
        rows = count(client, target, won.batch_id)
        if job is not None and _has_landed(job):
            return Presence.RIGHT if rows == expected else Presence.WRONG
        if not rows:
            return Presence.ABSENT
    return Presence.WRONG


def land(client: bigquery.Client, target: BigQueryTarget, won: CommittedBatch) -> None:
    """Load a batch, unless the table already has rows with its number.

    Raises RetryableError if the job is unfinished or a retry may succeed, TerminalError if it has
    failed for good.
    """
    n, job = _last_job(client, target, won)
    if job is None or (_has_failed(job) and _may_retry(client, target, job)):
        if count(client, target, won.batch_id):
            return  # The next `presence` judges these rows.
        with _as_one_file(won) as file:
            failpoints.point("sink.before_load")
            job = _insert_job(client, target, won, n if job is None else n + 1, file)
        failpoints.point("sink.after_load")
    _check_job(target, won, _wait_for_job(client, target, won, job))


def _last_job(
    client: bigquery.Client, target: BigQueryTarget, won: CommittedBatch
) -> tuple[int, LoadJob | None]:
    """The batch's last job and its number, or (0, None) if no job exists."""
    last = 0, None
    for n in range(JOBS_MAX):
        job = _get_job(client, target, job_id(won, n))
        if job is None:
            return last
        if not _has_failed(job):
            return n, job
        last = n, job
    raise TerminalError(
        f"batch {won.batch_id}: {JOBS_MAX} load jobs into {target.address} have failed, the last "
        f"one with {last[1].error_result}. The batch stays committed. Read BigQuery's error: bq "
        f"show -j --location={target.location} {last[1].job_id}"
    )


def _get_job(client: bigquery.Client, target: BigQueryTarget, name: str) -> LoadJob | None:
    with target.translate_errors():
        try:
            return client.get_job(name, location=target.location, **target.read_timeouts)
        except NotFound:
            return None


def _has_failed(job: LoadJob) -> bool:
    return job.state == "DONE" and bool(job.error_result)


# Keeps BQ2.
def _has_landed(job: LoadJob) -> bool:
    return job.state == "DONE" and not job.error_result


# Keeps BQ3.
def _may_retry(client: bigquery.Client, target: BigQueryTarget, job: LoadJob) -> bool:
    """True if a retry of a failed job may succeed: its reason was transient, or somebody has
    changed the table since.
    """
    if job.error_result.get("reason") in _TRANSIENT:
        return True
    with target.translate_errors():
        return client.get_table(target.name, **target.read_timeouts).modified > job.ended


def _insert_job(
    client: bigquery.Client, target: BigQueryTarget, won: CommittedBatch, n: int, file: IO[bytes]
) -> LoadJob:
    """Insert the batch's job n. Returns the job, even if another process has inserted it."""
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
        failed = error  # The answer may be lost, and the job may exist.
    job = _get_job(client, target, job_id(won, n))
    if job is not None:
        return job
    if failed is None or isinstance(failed, Conflict):
        raise RetryableError(f"load job {job_id(won, n)} is not visible yet; run finalize again")
    raise target.translate_error(failed) from failed


def _wait_for_job(
    client: bigquery.Client, target: BigQueryTarget, won: CommittedBatch, job: LoadJob
) -> LoadJob:
    """The finished job. Raises RetryableError after LOAD_SECONDS."""
    pause, most = _POLL_SECONDS
    end = time.monotonic() + LOAD_SECONDS
    while job.state != "DONE":
        if time.monotonic() > end:
            raise RetryableError(
                f"batch {won.batch_id}: load job {job.job_id} is still {job.state} after "
                f"{LOAD_SECONDS} s. Run finalize again to wait for it"
            )
        time.sleep(pause)
        pause = min(1.5 * pause, most)
        job = _get_job(client, target, job.job_id) or job
    return job


def _check_job(target: BigQueryTarget, won: CommittedBatch, job: LoadJob) -> None:
    """Raises TerminalError or RetryableError if the job has failed, CorruptionError if it has
    loaded other rows or into another table.
    """
    name = f"batch {won.batch_id}: load job {job.job_id}"
    if not job.error_result:
        expected, where = sum(file.records for file in won.files), str(job.destination)
        if (job.output_rows or 0, where) != (expected, target.name):
            raise CorruptionError(
                f"{name} has loaded {job.output_rows} rows into {where}, and its manifest lists "
                f"{expected} for {target.name}"
            )
        return
    reason, why = (job.error_result.get(key) for key in ("reason", "message"))
    failure = f"{name} into {target.address} has failed ({reason}: {why}). No row is visible"
    if reason in _TRANSIENT:
        raise RetryableError(f"{failure}. Run finalize again; it inserts another job")
    raise TerminalError(
        f"{failure}. The batch stays committed. Change the table so that it accepts these rows, "
        "and run finalize again",
        next=AGAIN,
    )


# Keeps BQ6.
@contextmanager
def _as_one_file(won: CommittedBatch) -> Iterator[IO[bytes]]:
    """The batch's rows with semel's columns as one Parquet file, as an upload takes one file.

    The file is nameless, so the system frees it when the process ends.
    """
    semel_fields = [pa.field(name, pa.int64()) for name in SEMEL_COLUMNS]
    schema, rows = pa.schema([*won.schema, *semel_fields]), 0
    pieces = (pa.Table.from_batches([rows]) for rows in staged(won))
    with tempfile.TemporaryFile(dir=folder_for_copies(at(won.files[0].staged_path))) as file:
        with pq.ParquetWriter(file, schema, compression="zstd", store_schema=False) as writer:
            for table in gather(pieces, ROW_GROUP_BYTES):
                for name, number in zip(SEMEL_COLUMNS, (won.batch_id, won.commit_seq), strict=True):
                    number = pa.repeat(pa.scalar(number, pa.int64()), table.num_rows)
                    table = table.append_column(name, number)
                writer.write_table(table.cast(schema))
                rows += table.num_rows
        check_count(won, rows)
        yield file
