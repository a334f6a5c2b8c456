"""The end of a horizon, and tasks that run again: what was decided stays decided."""

from fix_account import ids, quiet, settled
from fix_engine import LocalEngine, read_all
from fix_faults import collecting
from fix_pipelines import Workbench, events
from fix_scene import Scene, live_runs, payload_tables, time_passes
from semel.ledger import Ledger
from semel.plan import plan
from semel.run import run_batch
from semel.spark.engine import Outcome
from semel.stage import stage
from semel.steps import shard
from semel.steps.classify import pack_ids, unpack_ids
from semel.steps.job import StageJob


# Attacks G1.
def test_what_a_bucket_forgot_is_late(bench: Workbench, ledger: Ledger) -> None:
    """A copy that comes when the ids of its bucket are gone is set aside as late, never new."""
    spec = bench.spec(record_time="at", dedup={"shards": 2, "scope": "bucket", "horizon": "30d"})
    bench.write("in/a.jsonl", events(0, 40))
    run_batch(ledger, spec, "r1", LocalEngine(), log=quiet)
    time_passes(ledger, segments=True, runs=True)
    collecting(ledger, spec)
    assert live_runs(ledger) == {} and payload_tables(ledger) == []
    bench.write("in/b.jsonl", events(0, 50))
    run_batch(ledger, spec, "r2", LocalEngine(), log=quiet)
    found = settled(spec)
    assert found.ids == ids(0, 40)
    assert found.reasons == {"late": 50}


class Speculative(LocalEngine):
    """Classifies each shard twice, as Spark may; `between` is called in between."""

    def run(self, job: StageJob) -> Outcome:
        done = read_all(job, write=True)
        for number in range(job.shards):
            parts = [unpack_ids(pack_ids(d.ids[number])) for d in done]
            shard.classify_shard(job, number, parts, [d.report for d in done])
        self.before_write(job)
        return LocalEngine().run(job)


# Attacks S2, S9.
def test_a_speculative_task_sees_what_the_first_one_saw(scene: Scene) -> None:
    """A commit between two tries of a task changes nothing for the second one."""
    batch_id = plan(scene.ledger, scene.spec, "r1").batch.batch_id
    rival = Speculative(before_write=lambda _: scene.run("r2"))
    stage(scene.ledger, scene.spec, batch_id, rival, quiet)
    scene.finish("r1", "r2")
