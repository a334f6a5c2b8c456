"""The counterexamples of tests/model/ on the real verbs: each interleaving is forced, and is exact.

tests/model/model_guards.py says for each guard which test replays it; those that were there before
stand in other modules. `python tests/model/explore.py --without GUARD` prints the interleaving.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from fix_scene import Scene, attempts, committed, finalized, staged, staged_folders, statements
from fixtures.batches.account import quiet, run, settled, sql
from fixtures.batches.faults import collecting
from fixtures.batches.workbench import Workbench, events
from fixtures.postgres.wire import Wire
from fixtures.spark.local import LocalEngine, read_all
from schedule import Played, every_order
from semel import collect as collect_module
from semel import failpoints
from semel.archive import layout
from semel.collect import collect
from semel.commit import commit
from semel.errors import (
    AttemptLostError,
    CorruptionError,
    OutcomeUnknownError,
    RetryableError,
    StateError,
    TerminalError,
)
from semel.ledger import Ledger
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.stage import stage
from semel.stage.job import StageJob
from semel.stage.shard import classify_shard


def planning(request: str) -> Callable[[Scene], object]:
    return lambda there: plan(there.ledger, there.spec, request).batch


def staging(batch_id: int) -> Callable[[Scene], object]:
    return lambda there: stage(there.ledger, there.spec, batch_id, LocalEngine(), quiet)


def errors(played: Played) -> list[BaseException]:
    return [actor.error for actor in played.actors.values() if actor.error is not None]


# Attacks P2, P3, P5.
@pytest.mark.parametrize("other", ["r1", "r2"])
def test_a_planner_waits_for_one_that_writes(scene: Scene, other: str) -> None:
    """Who comes while another writes its claims plans what is left, or finds the same batch."""

    def after(there: Scene, played: Played) -> None:
        batches = {batch.batch_id for batch in played.values()}
        assert len(batches) == (1 if other == "r1" else 2)
        there.finish("r1", "r2")

    points = ("plan.before_write",)
    found = every_order(scene, points, after, A=planning("r1"), B=planning(other))
    assert any(turn.blocked for played in found for turn in played.turns), "nobody waited"


# Attacks S1, A2.
def test_stage_and_abandon(scene: Scene) -> None:
    """No attempt is open when its batch was abandoned, though it began at the same time."""
    batch_id = plan(scene.ledger, scene.spec, "r1").batch.batch_id

    def after(there: Scene, played: Played) -> None:
        assert all(isinstance(error, (AttemptLostError, StateError)) for error in errors(played))
        assert played.actors["B"].error is None
        assert set(attempts(there.ledger, batch_id)) <= {"lost"}
        there.finish("r1", "r2")

    def give_up(there: Scene) -> None:
        abandon(there.ledger, batch_id, "given up by the test")

    points = ("stage.before_begin", "abandon.before_release")
    every_order(scene, points, after, A=staging(batch_id), B=give_up)


# Attacks S1.
def test_two_attempts_begin(scene: Scene) -> None:
    """Two drivers that begin at once get two fences, and neither is refused."""
    batch_id = plan(scene.ledger, scene.spec, "r1").batch.batch_id

    def after(there: Scene, played: Played) -> None:
        played.values()
        assert set(attempts(there.ledger, batch_id)) == {"staged"}
        there.finish("r1", "r2")

    act = staging(batch_id)
    every_order(scene, ("stage.before_begin",), after, A=act, B=act)


class Remembers(LocalEngine):
    """Keeps what was in a file when each attempt read it."""

    def __init__(self, path: Path, kept: dict[int, bytes]) -> None:
        super().__init__()
        self.path, self.kept = path, kept

    def run(self, job):  # noqa: ANN001, ANN201 - as LocalEngine
        self.kept[job.fence] = self.path.read_bytes()
        return super().run(job)


# Attacks S13.
def test_twins_that_read_other_bytes(scene: Scene) -> None:
    """Of two attempts between which the source was edited one is staged, whoever seals first."""
    path = scene.add("d.jsonl", events(200, 600))
    scene.spec = scene.declare(limits={})
    batch_id = plan(scene.ledger, scene.spec, "r1").batch.batch_id
    before = path.read_bytes()
    kept: dict[int, bytes] = {}
    refused = []

    def act(there: Scene) -> None:
        stage(there.ledger, there.spec, batch_id, Remembers(path, kept), quiet)

    def edit_first(there: Scene) -> None:
        path.write_bytes(before.replace(b'"n": 400', b'"n": 401'))
        act(there)

    def after(there: Scene, played: Played) -> None:
        told = errors(played)
        assert all(isinstance(error, TerminalError) for error in told), told
        refused.extend(told)
        states = attempts(there.ledger, batch_id)
        read = {kept[fence] for fence, state in enumerate(states, 1) if state == "staged"}
        assert len(read) == 1 and len(told) == states.count("lost")
        path.write_bytes(read.pop())  # The source as the batch has it.
        there.finish("r1")
        path.write_bytes(before)
        kept.clear()

    every_order(scene, ("stage.before_seal",), after, A=act, B=edit_first)
    assert refused and all("read other bytes" in str(error) for error in refused)


# Attacks C11, G6.
def test_a_commit_on_its_way_keeps_its_files(
    scene: Scene, wire: Wire, ledger_behind: Ledger
) -> None:
    """While a COMMIT is on its way everybody reads `staged`; its files are no garbage, and the
    caller that got no reply finds its batch committed.
    """
    batch_id = staged(scene, "r1")
    folders = staged_folders(scene.spec)
    seen = []

    def meanwhile() -> None:
        seen.extend(attempts(scene.ledger, batch_id))
        removed = collect_module._remove_staged(scene.ledger, 1, scene.spec.sink_path())
        assert removed == (0, 0) and staged_folders(scene.spec) == folders
        wire.cut("reply")

    with failpoints.armed("commit.before_win", meanwhile), pytest.raises(OutcomeUnknownError):
        commit(ledger_behind, scene.spec, batch_id, lambda: None, quiet)
    assert (seen, wire.cuts) == (["staged"], 1)
    collecting(scene.ledger, scene.spec)
    assert committed(scene, batch_id).found
    finalized(scene, batch_id)
    scene.finish("r1", "r2")


# Attacks S2, G2, G3, G4.
def test_an_attempt_begins_beside_collect(bench: Workbench, ledger: Ledger) -> None:
    """An attempt pins runs that it can read to its end, and misses none, whenever a merge comes."""
    scene = Scene(bench, ledger, dedup={"shards": 1})
    scene.run("r2")
    batch_id = plan(scene.ledger, scene.spec, "r1").batch.batch_id

    def after(there: Scene, played: Played) -> None:
        played.values()
        assert committed(there, batch_id).losses == 0
        finalized(there, batch_id)
        there.check()

    points = ("stage.before_begin", "collect.before_merged", "collect.before_delete")
    acts = {"A": staging(batch_id), "B": lambda there: collecting(there.ledger, there.spec)}
    found = every_order(scene, points, after, **acts)
    assert any(turn.blocked for played in found for turn in played.turns), "nobody waited"


# Attacks S2, S3, S9.
def test_a_copy_of_a_task_sees_what_the_first_saw(scene: Scene) -> None:
    """A speculative copy of a task finds the same new ids after another batch has committed."""
    other = staged(scene, "r2")
    batch_id = plan(scene.ledger, scene.spec, "r1").batch.batch_id
    dropped = []

    def classified(job: StageJob) -> list[dict]:
        done = read_all(job)
        reports = [report for task in done for report in task.reports]
        shards = zip(*(task.ids for task in done), strict=True)
        return [classify_shard(job, list(places), reports)[0] for places in shards]

    def meanwhile(job: StageJob) -> None:
        dropped.append(str(classified(job)))
        committed(scene, other)
        collecting(scene.ledger, scene.spec)
        dropped.append(str(classified(job)))

    stage(scene.ledger, scene.spec, batch_id, LocalEngine(before_write=meanwhile), quiet)
    assert dropped[0] == dropped[1]
    assert committed(scene, batch_id).losses == 1
    finalized(scene, batch_id)
    scene.finish("r1", "r2")


# Attacks G1, C5.
@pytest.mark.parametrize("point", ["collect.after_floor", "collect.after_retire"])
def test_a_late_copy_beside_a_retirement(bench: Workbench, ledger: Ledger, point: str) -> None:
    """A copy of an id whose run is being forgotten is late, before and after the run has gone."""
    old = datetime.now(UTC) - timedelta(days=500)
    for name in ("a", "b"):
        rows = [{**event, "at": old.isoformat()} for event in events(0, 6)]
        path = bench.write(f"in/{name}.jsonl", rows)
    timed = {"record_time": "at", "limits": {"bytes_per_batch_max": path.stat().st_size}}
    spec = bench.spec(dedup={"shards": 1, "scope": "bucket", "horizon": "3650 d"}, **timed)
    run(ledger, spec, "r1")
    sql(ledger, "UPDATE semel.id_run SET expires_at = now() WHERE seq_min IS NOT NULL")

    def meanwhile() -> None:
        run(ledger, spec, "r2")

    with failpoints.armed(point, meanwhile) as fault:
        assert collect(ledger, spec, quiet).runs_retired == 1
    assert fault.hit
    run(ledger, spec, "r1")
    found = settled(spec)
    assert found.ids == [event["id"] for event in events(0, 6)]
    assert found.reasons == {"late": 6}


@contextmanager
def before_statement(part: str, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` once, before the first statement that holds a text is sent."""
    left = [act]

    def told(_connection: sa.Connection, text: str, _values: dict) -> None:
        if left and part in text:
            left.pop()()

    with statements(told):
        yield
    assert not left, f"no statement with {part!r}"


# Attacks G5.
def test_a_span_ends_while_an_attempt_begins(bench: Workbench, ledger: Ledger) -> None:
    """The table that an attempt will store its ids in stays, though its span is over."""
    spec = bench.spec(dedup={"shards": 1}, sink={"position_columns": True})
    bench.write("in/a.jsonl", events(0, 10))

    def fails(_: StageJob) -> None:
        raise RetryableError("the engine failed")

    with pytest.raises(RetryableError):  # It leaves a segment without a live run.
        run(ledger, spec, "r1", engine=LocalEngine(before_write=fails))

    def span_ends() -> None:
        text = "UPDATE semel.segment SET span_start = now() - interval '2 hours', span_end = now()"
        with Ledger(ledger.dsn) as other:
            sql(other, text)

    with (
        before_statement("INSERT INTO semel.attempt", span_ends),
        failpoints.armed("stage.after_begin", lambda: collect(ledger, spec, quiet)),
    ):
        run(ledger, spec, "r1")
    assert settled(spec).ids == [event["id"] for event in events(0, 10)]


# Attacks F2, F3, F4, F9.
def test_a_name_is_taken_before_the_link(scene: Scene) -> None:
    """A file that appears under a final name after finalize looked stays as it is, and stops it."""
    batch_id = staged(scene, "r1")
    committed(scene, batch_id)
    text = (
        "SELECT final_path FROM semel.manifest_file WHERE batch_id = :batch AND kind = 'data'"
        " ORDER BY ordinal"
    )
    [first, *_] = [Path(row["final_path"]) for row in sql(scene.ledger, text, batch=batch_id)]
    marker = layout.archive_folder(scene.spec) / "markers" / f"b{batch_id:08d}.json"
    with (
        failpoints.armed("storage.before_link", lambda: first.write_bytes(b"not ours")) as fault,
        pytest.raises(CorruptionError, match="final file wrong"),
    ):
        finalized(scene, batch_id)
    assert fault.hit and first.read_bytes() == b"not ours" and not marker.exists()
    first.unlink()
    finalized(scene, batch_id)
    scene.finish("r1", "r2")
