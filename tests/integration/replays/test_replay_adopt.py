"""What replays and admissions made: the audit proves it, and a ledger that is lost is made again
from its markers alone.
"""

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.batches.account import ids, quiet, run, sql
from fixtures.batches.faults import dies_at
from fixtures.batches.replays import (
    BAD,
    admitted,
    allow,
    aside,
    broken,
    hours_pass,
    proven,
    replayed,
    two_batches,
    wider,
    with_letters,
)
from fixtures.batches.workbench import Workbench, events
from fixtures.postgres.server import lose
from fixtures.postgres.warehouse import TABLE
from semel.archive import layout
from semel.archive.marker import markers_of
from semel.audit import audit
from semel.collect import collect
from semel.errors import CorruptionError, TerminalError
from semel.ledger import Ledger
from semel.model.manifest import Kind
from semel.pipeline.opening import open_sink
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.repair.adopt import adopt
from semel.runs import replay
from semel.runs.run import run_batch
from semel.spark.engine import SparkEngine

POSITION = {"record_id": None, "sink": {"position_columns": True}}
KINDS: dict[str, dict[str, Any]] = {
    "id": {},
    "kept": {"dedup": {"keep_ids": True}},
    "position": POSITION,
    "content": {"record_id": None},
    "bucket": {"record_time": "at", "dedup": {"scope": "bucket", "horizon": "3650d"}},
    "jsonl": {"sink": {"format": "jsonl"}},
    "csv": {"sink": {"format": "csv"}},
    "folders": {"sink": {"partition_by": ["id"]}},
    "table": {"sink": TABLE},
}
"""Pipelines whose markers, files and accounts differ."""

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


def output(spec: Spec) -> list[dict]:
    """The rows that the markers list."""
    sink = open_sink(spec)
    tables = (table for marker in markers_of(spec) for table in sink.rows(marker))
    return sorted((row for table in tables for row in table.to_pylist()), key=str)


# Attacks D2, D3, D4, D7, D10, RP1.
@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("kind", KINDS)
def test_replays_survive_their_ledger(bench: Workbench, ledger: Ledger, kind: str) -> None:
    """Each generation is a batch again, as it was; what was replaced goes in time, not before.

    A further replay is of the next generation, with a number that nobody had, and an id that comes
    again is a duplicate. The audit proves all that was made, before and behind.
    """
    spec = two_batches(bench, ledger, **KINDS[kind])
    for key in ("again", "once more"):
        replayed(ledger, spec, 1, key)
        proven(spec, 1)
    replayed(ledger, spec, 2, "again")
    before, there = told(ledger), output(spec)
    lose(ledger)
    adopted = adopt(ledger, spec, log=quiet)
    assert (adopted.batches, adopted.replays) == (2, 3)
    assert (adopted.strays, adopted.staging, adopted.commits_lost) == ((), (), ())
    survivors = sum(marker.counts.survivors for marker in markers_of(spec))
    assert adopted.ids == (0 if spec.by_position else survivors)
    assert told(ledger) == before
    assert adopt(ledger, spec, log=quiet).found
    assert told(ledger) == before
    proven(spec, 2)
    assert collect(ledger, spec, quiet).replaced_removed == 0  # Somebody may be reading it.
    assert replay.check_root(ledger, spec, 1, "fourth").why is None
    done = replayed(ledger, spec, 1, "fourth")
    assert (done.batch.batch_id, done.batch.generation) == (6, 4)
    hours_pass(ledger)
    gone = collect(ledger, spec, quiet)
    assert (gone.replaced_removed, gone.damaged) == (4, ())
    bench.write("in/c.jsonl", events(60, 75))
    run(ledger, spec, "r3")
    proven(spec, 2)
    if not spec.by_position:
        assert output(spec)[: len(there)] == there
        assert [row["id"] for row in output(spec)] == ids(0, 75)


# Attacks D4, RP7.
def test_a_replay_counts_as_finalized_by_adopt(bench: Workbench, ledger: Ledger) -> None:
    """Nobody knows when it was: it may have committed long before, and be read since just now."""
    spec = two_batches(bench, ledger)
    replayed(ledger, spec, 1, "again")
    path = layout.marker(layout.archive_folder(spec), 1)
    content = json.loads(path.read_bytes())
    content["replay"]["committed_at"] = "2024-01-01T00:00:00+00:00"
    path.write_text(json.dumps(content))
    lose(ledger)
    adopt(ledger, spec, log=quiet)
    assert collect(ledger, spec, quiet).replaced_removed == 0
    hours_pass(ledger)
    assert collect(ledger, spec, quiet).replaced_removed == 1


# Attacks D4, C13.
def test_the_newest_columns(bench: Workbench, ledger: Ledger) -> None:
    """The pipeline's columns are those of what committed last: a replay of an earlier batch. The
    audit judges by the declaration of then, and rows by that of now.
    """
    two_batches(bench, ledger)
    spec = wider(bench, ledger)
    replayed(ledger, spec, 1, "again")
    proven(spec, 1)
    lose(ledger)
    adopt(ledger, spec, log=quiet)
    bench.write("in/c.jsonl", [*events(65, 75), b'{"id": "x", "n": 2.5}'])
    run(ledger, spec, "r3")
    proven(spec, 1)
    assert replayed(ledger, spec, 2, "again").batch.generation == 2
    proven(spec, 2)


# Attacks D7.
@pytest.mark.parametrize("gone", ["newest", "all", "source"])
def test_ids_from_any_output(bench: Workbench, ledger: Ledger, gone: str) -> None:
    """The newest output gives them, or one that was replaced and is there still, or the source."""
    spec = two_batches(bench, ledger)
    replayed(ledger, spec, 1, "again")
    if gone in ("newest", "all"):
        marker = markers_of(spec)[0]
        [path] = [marker.path_of(file) for file in marker.of_kind(Kind.DATA)]
        path.write_bytes(path.read_bytes()[:-1])
    if gone in ("all", "source"):
        hours_pass(ledger)
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
    assert markers_of(spec)[0].counts.rows_written == 0
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).ids == 70
    hours_pass(ledger)
    assert collect(ledger, spec, quiet).replaced_removed == 1
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).ids == 70
    bench.write("in/c.jsonl", events(0, 75))
    run_batch(ledger, spec, "r3", spark_engine, log=quiet)
    assert markers_of(spec)[-1].counts.survivors == 5


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
    for damaged in (None, b"{", json.dumps(json.loads(text) | {"input_digest": "1"}).encode()):
        path.unlink(missing_ok=True)
        if damaged is not None:
            path.write_bytes(damaged)
        with pytest.raises(CorruptionError, match="b00000001-g0001.json"):
            adopt(ledger, spec, log=quiet)
        assert not told(ledger)
    marker = layout.marker(layout.archive_folder(spec), 1)
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
    with pytest.raises(
        TerminalError, match="has markers of batch 1 that this ledger does not have"
    ):
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


# Attacks D4, RP5.
@pytest.mark.parametrize("generation", [2, 3])
@pytest.mark.parametrize("point", ["storage.before_swap", "storage.after_swap"])
def test_a_replay_that_was_being_finalized(
    bench: Workbench, ledger: Ledger, point: str, generation: int
) -> None:
    """The output is the one that the marker lists. Before it lists the replay's, the files of that
    one are left over, for the audit too, and it can be asked for again.
    """
    spec = two_batches(bench, ledger)
    if generation == 3:
        replayed(ledger, spec, 1, "before")
    with dies_at(point):
        replayed(ledger, spec, 1, "again")
    there = point == "storage.after_swap"
    seen = generation if there else generation - 1
    stray = spec.sink_path() / f"events-b{generation + 1:08d}-00000.parquet"
    assert markers_of(spec)[0].generation == seen
    assert broken(spec) == (set() if there else {"strays"})
    assert audit(spec).replayed == (seen > 1)
    lose(ledger)
    adopted = adopt(ledger, spec, log=quiet)
    assert adopted.replays == seen - 1
    assert adopted.strays == (() if there else (str(stray),))
    assert adopted.staging == (() if there else (f"b{generation + 1:08d}/f0001",))
    if not there:
        stray.unlink()
    done = replayed(ledger, spec, 1, "again")
    assert (done.batch.generation, done.found) == (generation, there)
    assert done.batch.batch_id == (generation + 1 if there else generation + 2)
    collect(ledger, spec, quiet)
    proven(spec)


# Attacks D2, D4, D7, RP9.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "table"])
def test_admissions_survive_their_ledger(bench: Workbench, ledger: Ledger, kind: str) -> None:
    """They are of the same batch again, what they admitted stays known, also where their output is
    damaged, and the next one takes what they left. The audit proves them, before and behind.
    """
    spec = with_letters(bench, ledger, **KINDS[kind])
    admitted(ledger, spec)
    replayed(ledger, spec, 2, "again")
    proven(spec, 1)
    before = told(ledger)
    lose(ledger)
    known = 0 if spec.by_position else 41
    assert adopt(ledger, spec, log=quiet).ids == known
    assert told(ledger) == before
    hours_pass(ledger)
    collect(ledger, spec, quiet)
    marker = markers_of(spec)[1]
    path = marker.path_of(marker.of_kind(Kind.DATA)[0])
    text = path.read_bytes()
    path.write_bytes(text[:-1])
    lose(ledger)
    assert adopt(ledger, spec, log=quiet).ids == known
    path.write_bytes(text)
    assert told(ledger) == before
    assert admitted(ledger, spec, key="q2").batch.admission == 2
    bench.write("in/c.jsonl", [BAD, *events(38, 42)])
    run(ledger, spec, "r2")
    counts = [(m.counts.records_read, m.counts.quarantined) for m in markers_of(spec)]
    assert counts == [(50, 5), (5, 2), (2, 2), (5, 0)]
    assert markers_of(spec)[-1].counts.survivors == (5 if spec.by_position else 2)
    proven(spec, 1)


# Attacks RP9.
def test_lies_about_admissions(bench: Workbench, ledger: Ledger) -> None:
    """A dead letter that is admitted twice, or by a batch that none left it to, is told."""
    spec = with_letters(bench, ledger, **POSITION)
    for _ in range(2):
        admitted(ledger, spec)
    path = layout.marker(layout.archive_folder(spec), 3)
    content = json.loads(path.read_bytes())
    for admits, said in (
        ({"batch_id": 1, "admission": 1}, "batch 2 judged the same dead letters of batch 1"),
        ({"batch_id": 1, "admission": 3}, "admission 2 of batch 1 has no marker"),
        ({"batch_id": 7, "admission": 1}, "it judged dead letters of batch 7, which has no marker"),
    ):
        path.write_text(json.dumps(content | {"admits": admits}))
        [check] = [check for check in audit(spec).checks if check.name == "source"]
        assert said in check.offenders[0].what and check.offenders[0].batch == 3
    path.write_text(json.dumps(content))
    marker = markers_of(spec)[1]
    [data] = [marker.path_of(file) for file in marker.of_kind(Kind.DATA)]
    table = pq.read_table(data, partitioning=None)
    at = table.schema.get_field_index("_semel_offset")
    data.unlink()
    pq.write_table(table.set_column(at, "_semel_offset", pa.array([0] * table.num_rows)), data)
    assert {"files", "output"} <= broken(spec)


# Attacks D2.
@pytest.mark.parametrize("number", [1, 2])
def test_an_admission_without_its_batch(bench: Workbench, ledger: Ledger, number: int) -> None:
    """Where the dead letters of an admission were, nobody knows then: it is not taken over."""
    spec = with_letters(bench, ledger)
    for key in ("q", "q2"):
        admitted(ledger, spec, key=key)
    lose(ledger)
    path = layout.marker(layout.archive_folder(spec), number)
    path.rename(path.with_name(".aside"))
    with pytest.raises(
        CorruptionError, match="this marker is of admission .* Restore these markers"
    ):
        adopt(ledger, spec, log=quiet)
    assert not told(ledger)
