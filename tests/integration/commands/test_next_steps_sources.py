"""Steps of sources, runs, reports and stage, typed: each works once its message was followed."""

import shlex
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from confluent_kafka import TopicPartition

from fixtures.batches.account import committed, first_batch, ids, quiet, run, settled, sql
from fixtures.batches.chains import again
from fixtures.batches.days import Days, of_days
from fixtures.batches.replays import BAD, allow, as_float, falls_silent
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.contract.sources import Upstream
from fixtures.files.rights import no_overrides
from fixtures.kafka.broker import Kafka
from fixtures.kafka.topics import Topic, in_output, stamp
from fixtures.queue.segments import ADDRESS, Spool, in_groups, sealed
from fixtures.spark.local import LocalEngine
from fixtures.wait import wait_for
from semel import failpoints
from semel.archive import provenance
from semel.archive.marker import markers_of
from semel.cli import main
from semel.ledger import Ledger, pipelines
from semel.model.manifest import Kind
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.runs import replay, requarantine
from semel.sources.queue.source import Segments
from semel.stage import stage

WINDOW = {"record_time": "at", "window": {"size": "1 hour", "zone": "UTC"}}
COUNTED = {**WINDOW, "aggregate": {"columns": {"events": "count()"}}}
PARQUET = {"path": "in/*.parquet", "format": "parquet"}
MULTILINE = {
    "path": "in/*.csv", "format": "csv", "csv": {"multiline": True}, "closed_after": "0 seconds",
}  # fmt: skip


def parquet(bench: Workbench, name: str, start: int, stop: int) -> Path:
    """A Parquet file with the columns of `events`."""
    path = bench.data / "in" / name
    numbers = range(start, stop)
    columns = {
        "id": [f"e{n:06d}" for n in numbers],
        "n": pa.array(numbers, pa.int64()),
        "at": pa.array([0] * len(numbers), pa.timestamp("us", "UTC")),
    }
    pq.write_table(pa.table(columns), path)
    return path


def test_a_statement_that_is_not_there(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """Of lines of JSON no statement reads the windows; the command itself lists them."""
    first_batch(bench, ledger, events(0, 10), **COUNTED, sink={"format": "jsonl"})
    step = shell.fails("semel windows events --query")
    assert "2026-01-01" in shell.runs(step)


def test_a_statement_of_a_store(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """It would need the store's key; the command lists the windows, without the store."""
    sink = {"type": "objects", "url": "s3://bucket/out", "format": "parquet"}
    bench.spec(**COUNTED, sink=sink)
    step = shell.fails("semel windows events --query")
    assert "not yet" in shell.runs(step)


def test_a_statement_before_the_first_batch(
    bench: Workbench, ledger: Ledger, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The columns of transforms are known once a batch is finalized."""
    engine = LocalEngine(transforms=True)
    monkeypatch.setattr("semel.spark.session.open_engine", lambda *_: nullcontext(engine))
    (bench.transforms / "same.sql").write_text("SELECT * FROM records")
    by = {"columns": {"events": "count()"}, "by": ["id"]}
    bench.spec(
        **{**COUNTED, "aggregate": by}, transforms=["same.sql"], sink={"partition_by": ["id"]}
    )
    bench.write("in/a.jsonl", events(0, 3))
    shell.runs(shell.fails("semel windows events --query"))
    assert "SELECT" in shell.runs("semel windows events --query")


def test_rows_that_no_sink_refuses(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """Files take every row. The batch's account says that it has committed."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    committed(ledger, spec, "r1")
    step = shell.fails("semel accept events --refused 1")
    assert "committed" in shell.runs(step)


@pytest.mark.parametrize("what", ["other", "no folder"])
def test_a_file_that_cannot_be_put_away(
    bench: Workbench, ledger: Ledger, shell: Shell, what: str
) -> None:
    """collect ends with a failure and names itself: it moves the file once its place is free."""
    path = parquet(bench, "a.parquet", 0, 10)
    run(ledger, bench.spec(source=PARQUET | {"after_finalize": {"move": "done"}}), "r1")
    done = bench.data / "in/done"
    if what == "other":
        done.mkdir()
        (done / path.name).write_bytes(b"other")
    else:
        done.write_bytes(b"a file has the name of the folder")
    *_, step = shell.runs("semel collect events", code=1).splitlines()
    assert path.exists() and step == "next: semel collect events"
    shutil.rmtree(done) if done.is_dir() else done.unlink()
    shell.runs(step.removeprefix("next: "))
    assert not path.exists() and (done / path.name).exists()


def test_files_of_a_delta_table(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The run goes on once the pattern leads elsewhere."""
    spec = bench.spec(source=PARQUET | {"path": "in/*/*.parquet"})
    table = bench.data / "in/table"
    (table / "_delta_log").mkdir(parents=True)
    parquet(bench, "table/a.parquet", 0, 10)
    parquet(bench, "b.parquet", 10, 20)
    step = shell.fails("semel run events")
    bench.spec(source=PARQUET)
    shell.runs(step)
    assert settled(spec, audited=False).ids == ids(10, 20)


def test_a_planned_file_that_cannot_be_read(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """The same run reads it once its rights are back."""
    path = parquet(bench, "a.parquet", 0, 10)
    spec = bench.spec(source=PARQUET)
    plan(ledger, spec, "cli")
    path.parent.chmod(0o000)
    with no_overrides():
        step = shell.fails("semel run events")
    path.parent.chmod(0o755)
    shell.runs(step)
    assert settled(spec).ids == ids(0, 10)


def test_a_replay_whose_files_have_other_columns(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """The same replay is done once the declaration fits the files again."""
    parquet(bench, "a.parquet", 0, 10)
    spec = bench.spec(source=PARQUET)
    run(ledger, spec, "r1")
    schema = {"id": "string", "n": "bigint", "at": "timestamp", "more": "string"}
    bench.spec(source=PARQUET | {"schema": schema})
    step = shell.fails("semel replay events --batches 1")
    bench.spec(source=PARQUET)
    shell.runs(step)
    assert settled(spec).ids == ids(0, 10)


def test_a_file_whose_place_no_plan_has_seen(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """A run sees where the first file went; after it the other one is accepted."""
    first, second = (parquet(bench, f"{n}.parquet", 10 * n, 10 * n + 10) for n in (0, 1))
    spec = bench.spec(source=PARQUET, record_id=None)
    run(ledger, spec, "r1")
    first.rename(first.with_name("z.parquet"))
    shutil.copy(second, first)
    shell.runs(shell.fails(f"semel accept events {first}"))
    shell.runs(f"semel accept events {first}")


def test_a_run_whose_batch_was_abandoned_meanwhile(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """The same run plans its records in a new batch."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 10))
    with failpoints.armed("plan.after_write", lambda: abandon(ledger, 1, "by hand")):
        step = shell.fails("semel run events")
    shell.runs(step)
    assert settled(spec).ids == ids(0, 10)


def test_a_batch_of_late_records(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The same run sets them aside once the limit allows it."""
    days = Days(bench, ledger)
    days.declare(limits={"late_ratio_max": 0.5})
    days.read(of_days(0, 10, 30))
    days.expire()
    bench.write("in/2.jsonl", of_days(20, 32, 30))
    step = shell.fails("semel run events")
    spec = days.declare(limits={"late_ratio_max": 1.0})
    shell.runs(step)
    assert settled(spec).reasons == {"late": 12}


def test_a_record_of_many_lines(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The same run takes it once the limit is higher."""
    spec = bench.spec(source=MULTILINE, limits={"lines_per_record_max": 2})
    path = bench.data / "in/a.csv"
    path.write_text('id,n,at\n"e\n\n1",1,2026-01-01T00:00:00Z\n')
    step = shell.fails("semel run events")
    bench.spec(source=MULTILINE, limits={"lines_per_record_max": 3})
    shell.runs(step)
    assert settled(spec).ids == ["e\n\n1"]


@pytest.fixture
def up(shell: Shell, linked: Upstream) -> Upstream:  # noqa: ARG001 - its engine comes later
    """The pipeline `up`, with a batch that `events` reads."""
    linked.append(0, 10)
    return linked


def test_an_output_that_a_batch_has_claimed(up: Upstream, ledger: Ledger, shell: Shell) -> None:
    """`semel batches` shows the batch that is at work."""
    plan(ledger, up.spec(), "r1")
    again(up, 5)
    step = shell.fails("semel accept events up/b00000001")
    assert "planned" in shell.runs(step)


def test_an_output_that_cannot_go_on(up: Upstream, ledger: Ledger, shell: Shell) -> None:
    """A batch that was replayed is accepted as a whole."""
    spec = up.spec()
    run(ledger, spec, "r1")
    again(up, 5)
    run(ledger, spec, "r2")
    shell.runs(shell.fails("semel accept events up/b00000001 --same"))
    shell.runs("semel run events")
    assert settled(spec, audited=False).ids == sorted(ids(0, 10) + ids(0, 5))


def test_a_file_of_an_output_that_is_damaged(up: Upstream, ledger: Ledger, shell: Shell) -> None:
    """The same run reads it once it was restored."""
    spec = up.spec()
    (marker,) = markers_of(up.declared)
    (path,) = map(marker.path_of, marker.of_kind(Kind.DATA))
    held = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(held[:-9])
    step = shell.fails("semel run events")
    path.write_bytes(held)
    shell.runs(step)
    assert settled(spec).ids == ids(0, 10)


def test_a_chain_that_cannot_follow(up: Upstream, ledger: Ledger, shell: Shell) -> None:
    """The first pipeline is replayed alone."""
    run(ledger, up.spec(record_id=["id"]), "r1")
    step = shell.fails("semel replay up --batches 1 --downstream")
    assert step == "semel replay up --batches 1"
    shell.runs(step)


def test_a_file_that_was_edited_between_attempts(
    bench: Workbench, ledger: Ledger, shell: Shell
) -> None:
    """Once its batch is abandoned, a run plans the file as it is now."""
    spec = bench.spec()
    path = bench.write("in/a.jsonl", events(0, 1000))
    batch = plan(ledger, spec, "cli").batch
    stage(ledger, spec, batch.batch_id, LocalEngine(), log=quiet)
    sql(ledger, "UPDATE semel.attempt SET status = 'lost'")
    path.write_bytes(path.read_bytes().replace(b'"n": 500', b'"n": 501'))
    shell.runs(shell.fails("semel run events"))
    shell.runs("semel run events")
    assert settled(spec).ids == ids(0, 1000)


def meanwhile(ledger: Ledger, action: Callable[[sa.Connection], object], line: str) -> None:
    """Run a command, and do something else while it waits for the pipeline's lock."""
    with ledger.transaction() as connection:
        pipelines.lock(connection, pipelines.find(connection, "events"))
        command = Thread(target=main, args=[shlex.split(line)[1:]])
        command.start()
        wait_for(lambda: sql(ledger, WAITING), "the command")
        action(connection)
    command.join()


WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


def step_of(shell: Shell) -> str:
    """The step that a command named."""
    return shell.capsys.readouterr().err.splitlines()[-1].removeprefix("next: ")


def test_two_requests_that_replay_at_once(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The slower one ends; the same command is done once the other replay was left."""
    spec = first_batch(bench, ledger, events(0, 10))
    stored = provenance.spec_with_code(spec)

    def other(connection: sa.Connection) -> None:
        replay.insert(connection, spec, stored, "other", replays=1, generation=2, judged_by=1)

    shell.capsys.readouterr()
    meanwhile(ledger, other, "semel replay events --batches 1")
    falls_silent(ledger)
    shell.runs(step_of(shell))


def letters(bench: Workbench, ledger: Ledger) -> Spec:
    """A batch with a dead letter that is good by the declaration of now."""
    first_batch(bench, ledger, [*events(0, 3), BAD])
    spec = as_float(bench)
    allow(ledger, spec)
    return spec


def test_two_requests_that_admit_at_once(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """The same for dead letters."""
    spec = letters(bench, ledger)
    stored = provenance.spec_with_code(spec)

    def other(connection: sa.Connection) -> None:
        replay.insert(connection, spec, stored, "other", admits=1, admission=1)

    shell.capsys.readouterr()
    meanwhile(ledger, other, "semel replay events --batches 1 --requarantine")
    falls_silent(ledger)
    shell.runs(step_of(shell))


def test_two_requests_that_go_on_at_once(bench: Workbench, ledger: Ledger, shell: Shell) -> None:
    """One that is at work is looked at. Both give up what it has left, and one is the faster; the
    other's command is done once that one was left, too.
    """
    spec = letters(bench, ledger)
    requarantine.plan(ledger, spec, "left", 1)
    step = shell.fails("semel replay events --batches 1 --requarantine")
    assert step == "semel show 2" and "is at work on batch 1" in shell.err
    shell.runs(step)
    falls_silent(ledger)
    faster = lambda: requarantine.plan(ledger, spec, "other", 1)  # noqa: E731
    with failpoints.armed("abandon.after_release", faster):
        step = shell.fails("semel replay events --batches 1 --requarantine")
    falls_silent(ledger)
    shell.runs(step)


@pytest.fixture
def spool(bench: Workbench) -> Spool:
    return Spool(bench)


def test_a_segment_whose_disk_has_changed_a_byte(
    spool: Spool, ledger: Ledger, shell: Shell
) -> None:
    """Nothing shows it but its own checksum. The same run reads it once it was restored."""
    path = spool.add(in_groups(0, 10))
    spec = spool.spec()
    plan(ledger, spec, "cli")
    whole = path.read_bytes()
    path.write_bytes(whole[:600] + bytes([whole[600] ^ 1]) + whole[601:])
    stamp = Segments.current_part(open_source(spec), path.name).fingerprint
    now = "evidence || jsonb_build_object('stamp', CAST(:stamp AS text))"
    sql(ledger, f"UPDATE semel.claim SET evidence = {now}", stamp=stamp)
    step = shell.fails("semel run events")
    path.write_bytes(whole)
    shell.runs(step)
    assert settled(spec).ids == ids(0, 10)


def test_a_segment_that_cannot_be_removed(spool: Spool, ledger: Ledger, shell: Shell) -> None:
    """collect ends with a failure and names itself: it removes the segment once it may."""
    path = spool.add(in_groups(0, 10))
    run(ledger, spool.spec(source={"keep_spool": "0 s"}), "r1")
    path.parent.chmod(0o555)
    with no_overrides():
        *_, step = shell.runs("semel collect events", code=1).splitlines()
    path.parent.chmod(0o755)
    assert path.exists() and step == "next: semel collect events"
    shell.runs(step.removeprefix("next: "))
    assert not path.exists()


def test_a_segment_of_another_stream(spool: Spool, ledger: Ledger, shell: Shell) -> None:
    """It is accepted once the declaration says that the stream is the old one."""
    path = spool.add(in_groups(0, 10))
    spec = spool.spec()
    run(ledger, spec, "r1")
    other = sealed(spool.bench.folder / "aside", in_groups(20, 30), address="nats:other@2026")
    other.replace(path)
    step = shell.fails(f"semel accept events {path.name}")
    spool.spec(source={"address": ADDRESS})
    shell.runs(step)


def test_a_topic_that_lost_what_a_batch_has_claimed(
    topic: Topic, ledger: Ledger, shell: Shell
) -> None:
    """Once the batch is abandoned, the next plan names the offsets that are lost. Then nothing is
    refused, so accept has nothing to do, and gaps says so.
    """
    topic.append(0, 10)
    spec = topic.spec(name="events", source={"on_refused": "warn"})
    plan(ledger, spec, "cli")
    topic.kafka.delete_records(topic.name, {0: 5})
    step = shell.fails("semel run events")
    assert step == "semel abandon 1"
    shell.runs(step)
    assert f"`semel accept events {topic.at()} --lost`" in shell.runs("semel run events")
    shell.runs(f"semel accept events {topic.at()} --lost")
    shell.runs("semel run events")
    assert in_output(spec) == ids(5, 10)
    step = shell.fails(f"semel accept events {topic.at()} --same")
    assert "all that the source holds is finalized" in shell.runs(step)


def test_an_interval_whose_records_are_being_deleted(
    bench: Workbench, ledger: Ledger, kafka: Kafka, shell: Shell
) -> None:
    """The same run ends once the broker has removed their segments. It does so five times a second
    here, so mostly one of a few runs meets them.
    """
    topic = Topic(bench, kafka, config={"segment.ms": "3600000"})
    days = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day) for day in range(21)]
    for day, when in enumerate(days):
        topic.append(day, day + 1, timestamp_ms=stamp(when))
    spec = topic.spec(name="events", source={"select": "interval"})
    run(ledger, spec, "r1", (days[0], days[-1]))
    for day in range(1, len(days)):
        line = f"semel run events --interval {days[day - 1]:%F} {days[day]:%F}"

        def delete(until: int = day) -> None:
            [deleted] = kafka.admin.delete_records([TopicPartition(topic.name, 0, until)]).values()
            deleted.result()

        with failpoints.armed("plan.after_register", delete):
            if main(shlex.split(line)[1:]):
                break
    assert "cannot yet find the first offset" in (told := shell.capsys.readouterr().err)
    step = told.splitlines()[-1].removeprefix("next: ")
    wait_for(lambda: main(shlex.split(step)[1:]) == 0, "the broker", poll=0.1)
    assert in_output(spec) == ids(0, 20)
