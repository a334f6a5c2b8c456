"""classify, as a task: judge one shard by the pinned runs, and store its new id run."""

import socket
import uuid
from functools import cache, partial
from pathlib import Path

from semel import settings
from semel.catalog import sortedids
from semel.catalog.payload import FilterCache, FilterTally, contains, store_run
from semel.errors import TerminalError, UnavailableError
from semel.ledger import Ledger
from semel.model.buckets import union
from semel.model.manifest import SplitReport, StagedFile
from semel.stage.classify import Dropped, classify
from semel.stage.ids_file import Shard, read_known, write_ids
from semel.stage.job import StageJob
from semel.stage.task_ids import IdsPlace, read_task_ids

LEDGER_REMEDY = (
    f"Set {settings.LEDGER_VARIABLE} to the driver's ledger in the environment of each executor "
    "(docs/operations.md), then run stage again. `semel check` reports the ledger of each executor"
)


def ledger_of(job: StageJob) -> Ledger:
    """The ledger in this executor's environment.

    Raises TerminalError if it is missing, or not the driver's ledger.
    """
    try:
        ledger = ledger_at(settings.ledger_dsn())
    except UnavailableError as error:
        raise TerminalError(
            f"an executor on {socket.gethostname()} does not know the ledger: {error}. "
            f"{LEDGER_REMEDY}"
        ) from error
    attempts = ledger.rows("stage", "began", attempt_id=job.attempt_id)
    # Keeps S23.
    if [row["started_at"] for row in attempts] != [job.began_at]:
        raise TerminalError(
            f"an executor on {socket.gethostname()} uses {ledger}, which is not the driver's "
            f"ledger: it lacks attempt {job.attempt_id}, begun at {job.began_at}. {LEDGER_REMEDY}"
        )
    return ledger


@cache
def ledger_at(dsn: str) -> Ledger:
    """Cached, so that the tasks of a process share the ledger's connection."""
    return Ledger(dsn)


@cache
def filters_in(folder: Path) -> FilterCache:
    """The open filters of this worker process."""
    return FilterCache(folder)


def classify_shard(
    job: StageJob, places: list[IdsPlace], reports: list[SplitReport]
) -> tuple[dict[int, Dropped], tuple[StagedFile, ...]]:
    """Decide which records of one shard are dropped, and store the ids of the others.

    `places`: of the shard's ids, one per task, in source order. Returns each task's dropped rows,
    and the file of ids if the pipeline keeps ids. A pure function of the ids and the pinned list,
    except for that file's name. Storing the same run again changes nothing. If the job has known
    ids instead of the catalog, stores nothing.
    """
    if not any(place.count for place in places):
        return {}, ()  # No ids to look up.
    job.check_folder()
    shard, parts = places[0].shard, [read_task_ids(job, place) for place in places]
    if job.known is not None:
        ids = read_known(job.known, shard)
        return classify(parts, partial(sortedids.contains, *ids)).dropped, ()
    buckets = union(report.buckets for report in reports)
    runs = [run for run in job.runs if run.may_hold(shard, buckets)]
    filters, tally = filters_in(settings.cache_dir()), FilterTally()
    ledger = ledger_of(job)
    verdict = classify(parts, lambda h1, h2: contains(ledger, filters, runs, h1, h2, tally))
    if len(verdict.h1):
        store_run(
            ledger,
            pipeline_id=job.pipeline_id,
            attempt_id=job.attempt_id,
            shard=shard,
            segment_id=job.segment_id,
            buckets=buckets,
            h1=verdict.h1,
            h2=verdict.h2,
            tally=tally,
        )
    files: tuple[StagedFile, ...] = ()
    if job.spec.keeps_ids and len(verdict.h1):
        path = job.data_dir / f"c{shard:05d}-ids-{uuid.uuid4().hex}"
        of = Shard(shard=shard, shards=job.shards, buckets=buckets)
        files = (write_ids(path, of, verdict.h1, verdict.h2),)
    return verdict.dropped, files
