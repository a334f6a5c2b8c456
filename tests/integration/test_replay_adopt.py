"""A lost ledger of a pipeline with replays and admissions is made again from markers alone."""

import json
from contextlib import suppress
from typing import Any

import pytest

from fix_account import ids, quiet, settled
from fix_engine import LocalEngine
from fix_pipelines import Workbench, events
from fix_postgres import lose
from fix_replay import allow, as_float, aside, replayed, rows, run, sql, two_batches
from semel import faults, replay, requarantine
from semel.adopt import adopt
from semel.audit import audit
from semel.collect import collect
from semel.errors import CorruptionError, TerminalError
from semel.ledger import Ledger
from semel.manifest import Kind
from semel.plan import plan
from semel.reader import markers
from semel.run import run_batch
from semel.sinks import archive
from semel.spark.engine import SparkEngine
from semel.spec.pipeline import Spec

BAD = b'{"id": "x1", "n": 1.5, "at": "2026-01-01T00:00:00Z"}'
KINDS: dict[str, dict[str, Any]] = {
    "id": {},
    "kept": {"dedup": {"keep_ids": True}},
    "position": {"record_id": None, "sink": {"position_columns": True}},
    "bucket": {"record_time": "at", "dedup": {"scope": "bucket", "horizon": "3650d"}},
    "jsonl": {"sink": {"format": "jsonl"}},
}
TOLD = (
    "SELECT b.batch_id, b.request_key, b.ordinal, b.status, b.generation, b.replays, "
    "b.replaced_by, b.commit_seq, b.batch_time, b.admits, b.admission, b.spec_digest, "
    "CASE WHEN b.generation > 1 THEN a.ended_at END, a.fence, a.input_digest, a.sink_schema, "
    "a.records_read, a.survivors, a.quarantined, a.rows_written, a.bytes_read, "
    "(SELECT array_agg(final_path ORDER BY final_path) FROM semel.manifest_file AS m "
    "WHERE m.attempt_id = a.attempt_id), "
    "(SELECT count(*) FROM semel.claim AS c WHERE c.batch_id = b.batch_id) "
    "FROM semel.batch AS b JOIN semel.attempt AS a ON a.batch_id = b.batch_id "
    "AND a.status = 'won' ORDER BY b.batch_id"
)


def told(ledger: Ledger) -> list[tuple]:
    """What a ledger says of its batches, but for what adopt cannot know."""
    with ledger.transaction() as connection:
        return [tuple(r) for r in connection.exec_driver_sql(TOLD)]


def proven(spec: Spec) -> None:
    verdict = audit(spec)
    assert verdict.ok, [check.offenders for check in verdict.checks if not check.ok]


def late(ledger: Ledger) -> None:
    """Replays were finalized long ago."""
    sql(ledger, "UPDATE semel.batch SET finalized_at = finalized_at - interval '2 hours'")


# Attacks D2, D3, D4, D7.
@pytest.mark.parametrize("kind", KINDS)
def test_replays_survive_their_ledger(bench: Workbench, ledger: Ledger, kind: str) -> None:
    """Each generation is a batch again, as it was; what was replaced goes in time, not before.

    A further replay is of the next generation, with a number that nobody had, and an id that comes
    again is a duplicate.
    """
    spec = two_batches(bench, ledger, **KINDS[kind])
    for key in ("again", "once more"):
        replayed(ledger, spec, 1, key)
    replayed(ledger, spec, 2, "again")
    before, output = told(ledger), rows(spec) if kind != "jsonl" else []
    lose(ledger)
    adopted = adopt(ledger, spec, log=quiet)
    assert (adopted.batches, adopted.replays) == (2, 3)
    assert (adopted.strays, adopted.staging, adopted.commits_lost) == ((), (), ())
    survivors = sum(marker.counts.survivors for marker in markers(spec.sink_path()))
    assert adopted.ids == (0 if spec.by_position else survivors)
    assert told(ledger) == before
    assert adopt(ledger, spec, log=quiet).found
    assert told(ledger) == before
    proven(spec)
    assert collect(ledger, spec, quiet).replaced_removed == 0  # Somebody may be reading it.
    assert replay.look(ledger, spec, 1, "fourth").why is None
    done = replayed(ledger, spec, 1, "fourth")
    assert (done.batch.batch_id, done.batch.generation) == (6, 4)
    late(ledger)
    gone = collect(ledger, spec, quiet)
    assert (gone.replaced_removed, gone.damaged) == (4, ())
    bench.write("in/c.jsonl", events(60, 75))
    run(ledger, spec, "r3")
    proven(spec)
    if kind != "jsonl":
        assert output == rows(spec)[: len(output)] or spec.by_position
    if not spec.by_position:
        assert settled(spec).ids == ids(0, 75)


# Attacks D4, RP7.
def test_a_replay_counts_as_finalized_by_adopt(bench: Workbench, ledger: Ledger) -> None:
    """Nobody knows when it was: it may have committed long before, and be read since just now."""
    spec = two_batches(bench, ledger)
    replayed(ledger, spec, 1, "again")
    path = archive.marker(archive.of(spec), 1)
    content = json.loads(path.read_bytes())
    content["replay"]["committed_at"] = "2024-01-01T00:00:00+00:00"
    path.write_text(json.dumps(content))
    lose(ledger)
    adopt(ledger, spec, log=quiet)
    assert collect(ledger, spec, quiet).replaced_removed == 0
    late(ledger)
    assert collect(ledger, spec, quiet).replaced_removed == 1


# Attacks D4, C13.
def test_the_newest_columns(bench: Workbench, ledger: Ledger) -> None:
    """The pipeline's columns are those of what committed last: a replay of an earlier batch."""
    two_batches(bench, ledger)
    spec = as_float(bench)
    allow(ledger, spec)
    replayed(ledger, spec, 1, "again")
    lose(ledger)
    adopt(ledger, spec, log=quiet)
    bench.write("in/c.jsonl", events(70, 75))
    run(ledger, spec, "r3")
    assert replayed(ledger, spec, 2, "again").batch.generation == 2
    proven(spec)


# Attacks D7.
@pytest.mark.parametrize("gone", ["newest", "all", "source"])
def test_ids_from_any_output(bench: Workbench, ledger: Ledger, gone: str) -> None:
    """The newest output gives them, or one that was replaced and is there still, or the source."""
    spec = two_batches(bench, ledger)
    replayed(ledger, spec, 1, "again")
    if gone in ("newest", "all"):
        marker = markers(spec.sink_path())[0]
        [path] = [marker.path_of(file) for file in marker.of_kind(Kind.DATA)]
        path.write_bytes(path.read_bytes()[:-1])
    if gone in ("all", "source"):
        late(ledger)
        assert collect(ledger, spec, quiet).replaced_removed == 1
    if gone != "all":
        (bench.data / "in" / "a.jsonl").unlink()
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).ids == 70


# Attacks D7.
@pytest.mark.rest
def test_ids_behind_a_transform_that_came_with_the_replay(
    bench: Workbench, ledger: Ledger, spark_engine: SparkEngine
) -> None:
    """A replay may drop the ids from the output: they come from the one before, or the source."""
    spec = two_batches(bench, ledger)
    (bench.transforms / "none.sql").write_text("SELECT n FROM records WHERE n < 0")
    spec = bench.spec(transforms=["none.sql"])
    allow(ledger, spec)
    replay.run(ledger, spec, "again", 1, spark_engine, log=quiet)
    assert markers(spec.sink_path())[0].counts.rows_written == 0
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).ids == 70
    late(ledger)
    assert collect(ledger, spec, quiet).replaced_removed == 1
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).ids == 70
    bench.write("in/c.jsonl", events(0, 75))
    run_batch(ledger, spec, "r3", spark_engine, log=quiet)
    assert markers(spec.sink_path())[-1].counts.survivors == 5


# Attacks D5.
def test_numbers_pass_those_of_replays(bench: Workbench, ledger: Ledger) -> None:
    """Also one whose number no file has, and of pipelines that are adopted later."""
    spec, other = two_batches(bench, ledger), bench.spec("visits")
    run(ledger, other, "r1")
    sql(ledger, "ALTER SEQUENCE semel.batch_batch_id_seq RESTART WITH 40")
    replayed(ledger, other, 3, "again")
    replayed(ledger, spec, 1, "again")
    for path in other.sink_path().glob("*b00000040*"):
        path.unlink()
    lose(ledger)
    adopt(ledger, spec, [other], log=quiet)
    bench.write("in/c.jsonl", events(70, 75))
    assert plan(ledger, spec, "r3").batch.batch_id == 42
    lose(ledger)
    sql(ledger, "ALTER SEQUENCE semel.batch_batch_id_seq RESTART WITH 41")
    run(ledger, bench.spec("third"), "r1")
    with pytest.raises(TerminalError, match="batch 41 to 'third'"):
        adopt(ledger, spec, log=quiet)


# Attacks D2.
def test_a_marker_that_was_kept_aside(bench: Workbench, ledger: Ledger) -> None:
    """Without it nobody knows what the batch itself was: adopt says so, and writes nothing."""
    spec = two_batches(bench, ledger)
    replayed(ledger, spec, 1, "again")
    lose(ledger)
    path = aside(spec, 1, 1)
    text = path.read_bytes()
    for broken in (None, b"{", json.dumps(json.loads(text) | {"input_digest": "1"}).encode()):
        path.unlink(missing_ok=True)
        if broken is not None:
            path.write_bytes(broken)
        with pytest.raises(CorruptionError, match="b00000001-g0001.json"):
            adopt(ledger, spec, log=quiet)
        assert not told(ledger)
    marker = archive.marker(archive.of(spec), 1)
    marker.rename(marker.with_name(".aside"))
    adopted = adopt(ledger, spec, log=quiet)
    assert adopted.batches == 1 and str(path) in adopted.strays
    path.unlink()
    lose(ledger)
    path.write_bytes(text)
    marker.with_name(".aside").rename(marker)
    assert adopt(ledger, spec, log=quiet).replays == 1


# Attacks D3.
def test_a_ledger_without_the_replay(bench: Workbench, ledger: Ledger) -> None:
    """One that was restored to the time before the replay is no ledger of this sink."""
    spec = two_batches(bench, ledger)
    replayed(ledger, spec, 1, "again")
    assert adopt(ledger, spec, log=quiet).found
    sql(
        ledger,
        "UPDATE semel.batch SET replaced_by = NULL; "
        "DELETE FROM semel.manifest_file WHERE batch_id = 3; "
        "DELETE FROM semel.attempt WHERE batch_id = 3; "
        "DELETE FROM semel.batch WHERE batch_id = 3",
    )
    with pytest.raises(TerminalError, match="and not batches 1 whose markers lie in"):
        adopt(ledger, spec, log=quiet)


# Attacks D1.
def test_a_marker_that_was_kept_aside_is_a_trace(bench: Workbench, ledger: Ledger) -> None:
    """Nothing else may be left of a sink: its pipeline is not new."""
    spec = bench.spec()
    path = aside(spec, 7, 1)
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    bench.write("in/a.jsonl", events(0, 5))
    with pytest.raises(TerminalError, match=r"replaced/b00000007-g0001\.json"):
        plan(ledger, spec, "r1")


# Attacks D4.
@pytest.mark.parametrize("point", ["finalize.before_rename", "finalize.after_rename"])
def test_a_replay_that_was_being_finalized(
    bench: Workbench, ledger: Ledger, point: str
) -> None:
    """Without its marker it never was: its files are left over, and it can be asked for again."""
    spec = two_batches(bench, ledger)

    def die() -> None:
        raise faults.FaultError("died here")

    with faults.armed(point, die), suppress(faults.FaultError):
        replayed(ledger, spec, 1, "again")
    lose(ledger)
    adopted = adopt(ledger, spec, log=quiet)
    there = point == "finalize.after_rename"
    assert adopted.replays == there
    output = str(spec.sink_path() / "events-b00000003-00000.parquet")
    assert adopted.strays == (() if there else (output,))
    assert adopted.staging == (() if there else ("b00000003/f0001",))
    (spec.sink_path() / output).unlink(missing_ok=not there) if not there else None
    done = replayed(ledger, spec, 1, "again")
    assert (done.batch.generation, done.found) == (2, there)
    assert done.batch.batch_id == (3 if there else 4)
    collect(ledger, spec, quiet)
    proven(spec)


def admitted(bench: Workbench, ledger: Ledger, **changes: Any) -> Spec:
    """A batch with two dead letters, one of which its admission 2 took; 3 replays that one."""
    spec = bench.spec(**changes)
    bench.write("in/a.jsonl", [*events(0, 20), BAD, b"{bad", *events(15, 30), BAD])
    run(ledger, spec, "r1")
    spec = as_float(bench, **changes)
    allow(ledger, spec)
    requarantine.run(ledger, spec, "q", 1, LocalEngine(), log=quiet)
    replayed(ledger, spec, 2, "again")
    return spec


# Attacks D2, D4, D7.
@pytest.mark.parametrize("gone", ["", "output"])
@pytest.mark.parametrize("kind", ["id", "position", "bucket"])
def test_admissions_survive_their_ledger(
    bench: Workbench, ledger: Ledger, kind: str, gone: str
) -> None:
    """They are of the same batch again, what they admitted stays known, and the next one takes what
    they left."""
    spec = admitted(bench, ledger, **KINDS[kind])
    before = told(ledger)
    found = markers(spec.sink_path())[1]
    if gone:
        late(ledger)
        collect(ledger, spec, quiet)
        [path] = [found.path_of(file) for file in found.of_kind(Kind.DATA)]
        text = path.read_bytes()
        path.write_bytes(text[:-1])
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).ids == (0 if spec.by_position else 31)
    if gone:
        path.write_bytes(text)
    assert told(ledger) == before
    again = requarantine.run(ledger, spec, "q2", 1, LocalEngine(), log=quiet)
    assert again.batch.admission == 2 and again.finalized.counts.records_read == 1
    bench.write("in/b.jsonl", [BAD, *events(28, 32)])
    run(ledger, spec, "r2")
    survivors = markers(spec.sink_path())[-1].counts.survivors
    assert survivors == (5 if spec.by_position else 2)
    proven(spec)


# Attacks D2.
@pytest.mark.parametrize("number", [1, 2])
def test_an_admission_without_its_batch(bench: Workbench, ledger: Ledger, number: int) -> None:
    """Where the dead letters of an admission were, nobody knows then: it is not taken over."""
    spec = admitted(bench, ledger)
    requarantine.run(ledger, spec, "q2", 1, LocalEngine(), log=quiet)
    lose(ledger)
    path = archive.marker(archive.of(spec), number)
    path.rename(path.with_name(".aside"))
    with pytest.raises(CorruptionError, match="whose dead letters it judged again"):
        adopt(ledger, spec, log=quiet)
    assert not told(ledger)
