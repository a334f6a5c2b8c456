"""An engine without Spark: the same steps, one after the other in this process.

It covers what the tasks do and how the driver uses their reports. It does not cover Spark: no
shuffle, no serialisation, no retries, no speculation, and no transforms. Those are tested on Spark.
"""

from collections.abc import Callable

import pytest

from semel.model.manifest import pack_files, unpack_files
from semel.spark.engine import Outcome, schema_of
from semel.stage.classify import pack_dropped, pack_ids, unpack_dropped, unpack_ids
from semel.stage.job import StageJob
from semel.stage.read import Read, read_task
from semel.stage.shard import classify_shard
from semel.stage.write import write_task


class LocalEngine:
    """Runs a stage job in this process. `before_write` is called between classify and write.

    `transforms`: takes a job that has some, which change nothing here.
    """

    def __init__(
        self,
        before_write: Callable[[StageJob], None] | None = None,
        *,
        transforms: bool = False,
    ) -> None:
        self.before_write, self.transforms = before_write, transforms
        self.jobs: list[StageJob] = []

    def run(self, job: StageJob) -> Outcome:
        assert self.transforms or not job.spec.transforms, "the local engine runs no transforms"
        self.jobs.append(job)
        done = read_all(job, write=not job.judges)
        reports = [d.report for d in done]
        if job.judges:
            dropped, files = [[] for _ in done], ()
            for shard in range(job.shards):
                parts = [unpack_ids(pack_ids(d.ids[shard])) for d in done]
                of_shard, made = classify_shard(job, shard, parts, reports)
                files += unpack_files(pack_files(made))
                for split, found in of_shard.items():
                    dropped[split].append(unpack_dropped(pack_dropped(found)))
            if self.before_write:
                self.before_write(job)
            reports = [
                report
                for task in range(job.tasks)
                for report in write_task(
                    job,
                    task,
                    [(reports[s.number], dropped[s.number]) for s in job.splits_of_task(task)],
                    write=True,
                    files=() if task else files,
                )
            ]
        return Outcome(reports=reports, files=(), sink_schema=schema_of(job.output_schema()))


def read_all(job: StageJob, *, write: bool = False) -> list[Read]:
    """What the read tasks of a job make, in source order."""
    return [done for task in range(job.tasks) for done in read_task(job, task, write=write)]


@pytest.fixture
def engine() -> LocalEngine:
    return LocalEngine()
