"""Declarations that are wrong, or change at the wrong time; limits; intervals."""

import gzip
import os
from datetime import UTC, datetime, timedelta

import pytest

from fixtures.batches.account import first_batch, ids, lines, quiet, refusals, run, settled
from fixtures.batches.workbench import Workbench, events
from fixtures.spark.local import LocalEngine
from semel import pipeline
from semel.errors import Doing, LimitError, SourceError, SpecError, TerminalError
from semel.ledger import Ledger
from semel.plan import plan
from semel.repair.accept import accept_columns
from semel.reports import summary
from semel.stage import stage

EVENT = len(lines(0, 1))


def day(number: int) -> datetime:
    return datetime(2026, 1, number, tzinfo=UTC)


def on(ledger: Ledger, spec, number: int, key: str | None = None):
    """Run the interval of one day."""
    return run(ledger, spec, key or f"day {number}", (day(number), day(number + 1)))


def daily(bench: Workbench, **source: object):
    """A pipeline that takes the files of its interval, by their names unless told otherwise."""
    source = {"select": "interval", "interval_from": "%Y-%m-%d.jsonl", **source}
    return bench.spec(source=source)


def stored(ledger: Ledger, table: str) -> int:
    with ledger.engine.connect() as connection:
        return connection.exec_driver_sql(f"SELECT count(*) FROM semel.{table}").scalar()


def test_an_unknown_key_stops_its_pipeline_alone(bench: Workbench, ledger: Ledger) -> None:
    """The error names file, line and key; other pipelines run on; mended, it runs."""
    bench.spec("typo")
    path = bench.pipelines / "typo.yaml"
    good = path.read_text()
    path.write_text(good + "recrod_time: at\n")
    with pytest.raises(SpecError, match=rf"typo\.yaml:{good.count(chr(10)) + 1}: recrod_time:"):
        pipeline.find("typo")
    bench.write("in/a.jsonl", events(0, 5))
    bench.spec()
    run(ledger, pipeline.find("events"), "r1")
    assert settled(pipeline.find("events")).ids == ids(0, 5)
    path.write_text(good)
    run(ledger, pipeline.find("typo"), "r1")
    assert settled(pipeline.find("typo")).ids == ids(0, 5)


# Attacks P12.
def test_a_renamed_pipeline_is_refused_its_old_sink(bench: Workbench, ledger: Ledger) -> None:
    """It would write all records there again: refused until it gets its name back."""
    spec = first_batch(bench, ledger, events(0, 5))
    renamed = bench.spec("visits", sink={"path": "out/events"})
    with pytest.raises(TerminalError, match="belongs to pipeline 'events'.*Keep the old name"):
        run(ledger, renamed, "r1")
    assert stored(ledger, "batch") == 1
    bench.write("in/a.jsonl", events(5, 8), mode="ab")
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 8)


# Attacks P12.
@pytest.mark.parametrize(
    "change",
    [{"record_id": ["id", "n"]}, {"record_id": None}, {"dedup": {"shards": 8}}],
    ids=["columns", "by_position", "shards"],
)
def test_identity_cannot_change(bench: Workbench, ledger: Ledger, change: dict) -> None:
    """The catalog's ids would mean something else: refused until it is put back."""
    spec = first_batch(bench, ledger, events(0, 5))
    bench.write("in/a.jsonl", events(3, 8), mode="ab")
    with pytest.raises(TerminalError, match="pipeline events: .*cannot change.*Put it back"):
        run(ledger, bench.spec(**change), "r2")
    assert stored(ledger, "batch") == 1
    run(ledger, bench.spec(), "r2")
    assert settled(spec).ids == ids(0, 8)


# Attacks S4.
def test_a_spec_that_changes_after_the_plan_is_refused(bench: Workbench, ledger: Ledger) -> None:
    """Stage refuses another declaration than the planned one; put back, the same batch goes on.

    What does not shape the data (description, schedule, limits) may change at any time. What no
    plan would take either is to be put back: nobody is sent to plan it again.
    """
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 5))
    batch = plan(ledger, spec, "r1").batch
    other = bench.spec(record_id=["n"])
    with pytest.raises(TerminalError, match="record_id cannot change .* Put it back") as raised:
        stage(ledger, other, batch.batch_id, LocalEngine(), quiet)
    assert raised.value.next_step(Doing(again="stage", anew="the whole run")) == "stage"
    changed = bench.spec(sink={"position_columns": True})
    with pytest.raises(TerminalError, match=rf"batch {batch.batch_id} .*abandon {batch.batch_id}"):
        stage(ledger, changed, batch.batch_id, LocalEngine(), quiet)
    assert settled(changed).ids == []
    back = bench.spec(description="another one", limits={"bytes_per_batch_max": "1 GiB"})
    assert run(ledger, back, "r1").plan.batch.batch_id == batch.batch_id
    assert settled(back).ids == ids(0, 5)


# Attacks S17.
def test_new_columns_need_accept(bench: Workbench, ledger: Ledger) -> None:
    """An output with other columns than before is refused until `accept --columns`."""
    first_batch(bench, ledger, events(0, 5))
    wider = bench.spec(source={"schema": {"id": "string", "n": "bigint", "more": "string"}})
    bench.write("in/a.jsonl", events(5, 8), mode="ab")
    why = (
        r"batch 2: .* of events: it has 'more' \(string\); it lacks 'at' .*\. Change "
        "source.schema and source.unknown back, or run `semel accept events --columns"
    )
    with pytest.raises(TerminalError, match=why) as told:
        run(ledger, wider, "r2")
    assert "transform" not in str(told.value), "there is none"
    assert settled(wider).ids == ids(0, 5)
    accept_columns(ledger, wider)
    run(ledger, wider, "r2")
    assert settled(wider).ids == ids(0, 8)


# Attacks S16.
def test_too_many_bad_records_stop_the_batch(bench: Workbench, ledger: Ledger) -> None:
    """More than quarantine_ratio_max: staged is nothing.

    At the limit exactly it passes. With a higher limit, or a mended file, the batch goes on.
    """
    spec = bench.spec(limits={"quarantine_ratio_max": 0.1})
    bench.write("in/a.jsonl", [*events(0, 8), b"{bad", b"[]"])
    with pytest.raises(LimitError, match=r"batch 1: 2 of 10 records would be quarantined"):
        run(ledger, spec, "r1")
    assert settled(spec).ids == []
    spec = bench.spec(limits={"quarantine_ratio_max": 0.2})
    run(ledger, spec, "r1")
    found = settled(spec)
    assert (found.ids, found.reasons) == (ids(0, 8), {"malformed": 2})


MULTILINE = {
    "path": "in/*.csv", "format": "csv", "closed_after": "0 s", "csv": {"multiline": True},
    "schema": {"id": "string", "text": "string"},
}  # fmt: skip


def swallowing(bench: Workbench, *, ends: bool) -> None:
    """A file of a header and 1,000 lines, of which line 500 opens a quote that line 900 may close."""
    lines = [b"%d,text of %d" % (n, n) for n in range(1_000)]
    lines[500] = b'500,"text of 500'
    if ends:
        lines[900] = b'900,text of 900"'
    bench.write("in/a.csv", [b"id,text", *lines])


# Attacks S16.
@pytest.mark.parametrize("packed", [False, True])
def test_a_quote_that_is_not_closed_counts_as_what_it_swallowed(
    bench: Workbench, ledger: Ledger, packed: bool
) -> None:
    """One dead letter of 500 lines is half of the batch, though one record of 501: bytes count too."""
    spec = bench.spec(source=MULTILINE | {"path": "in/*"}, limits={"quarantine_ratio_max": 0.1})
    swallowing(bench, ends=False)
    if packed:
        path = bench.data / "in" / "a.csv"
        path.with_name("a.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    with pytest.raises(LimitError, match=r"batch 1: 7\.8 KiB of 15\.4 KiB would be quarantined"):
        run(ledger, spec, "r1")
    assert settled(spec).ids == []
    spec = bench.spec(source=MULTILINE | {"path": "in/*"}, limits={"quarantine_ratio_max": 0.6})
    run(ledger, spec, "r1")
    found = settled(spec)
    assert (len(found.ids), found.reasons) == (500, {"malformed": 1})


# Attacks S16.
def test_a_record_of_too_many_lines_stops_the_batch(bench: Workbench, ledger: Ledger) -> None:
    """A quote that another line happens to close makes a good record of 401 lines: limits say so."""
    swallowing(bench, ends=True)
    spec = bench.spec(source=MULTILINE, limits={"lines_per_record_max": 400})
    with pytest.raises(LimitError, match=r"a\.csv' line 502 .* spans 401 lines, .*_max 400 allows"):
        run(ledger, spec, "r1")
    assert settled(spec).ids == []
    spec = bench.spec(source=MULTILINE, limits={"lines_per_record_max": 401})
    run(ledger, spec, "r1")
    assert len(settled(spec).ids) == 600


# Attacks P21.
@pytest.mark.parametrize("what", ["file", "declaration", "limit"])
def test_a_run_of_too_many_bad_records_goes_on(
    bench: Workbench, ledger: Ledger, what: str
) -> None:
    """Each way that the error names leads to a finalized batch, by clearing the run alone.

    A batch whose file or declaration was corrected is planned anew; another run's plan leaves it
    alone.
    """
    kinds = {"schema": {"id": "string", "n": "boolean"}}
    spec = bench.spec(limits={"quarantine_ratio_max": 0.1}, source=kinds)
    bench.write("in/a.jsonl", events(0, 8))
    with pytest.raises(LimitError, match="Then clear the whole run, or repeat\n`semel run"):
        run(ledger, spec, "cli")
    if what == "file":
        bench.write("in/a.jsonl", [{"id": event["id"], "n": True} for event in events(0, 8)])
    elif what == "declaration":
        spec = bench.spec(limits={"quarantine_ratio_max": 0.1})
    else:
        spec = bench.spec(limits={"quarantine_ratio_max": 1.0}, source=kinds)
        stage(ledger, spec, 1, LocalEngine(), quiet)
    assert plan(ledger, spec, "r2").batch is None
    done = run(ledger, spec, "cli")
    if what == "limit":
        assert done.plan.batch.ordinal == 1 and settled(spec).ids == []
    else:
        assert done.plan.anew[0] == 1 and done.plan.batch.ordinal == 2
        assert "planned again: batch 1 never committed, and its " in summary.plan(done.plan)
        assert settled(spec).ids == ids(0, 8)


# Attacks P21.
def test_a_run_that_is_at_work_is_not_planned_anew(bench: Workbench, ledger: Ledger) -> None:
    """While an attempt shows life, the same request finds its batch as it was planned."""
    spec = bench.spec()
    bench.write("in/a.jsonl", events(0, 5))
    batch = plan(ledger, spec, "r1").batch.batch_id
    changed = bench.spec(sink={"position_columns": True})
    found = []
    engine = LocalEngine(before_write=lambda _: found.append(plan(ledger, changed, "r1")))
    stage(ledger, spec, batch, engine, quiet)
    assert [(answer.batch.batch_id, answer.anew) for answer in found] == [(batch, None)]
    with ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE semel.attempt SET status = 'running', staged_at = NULL")
        connection.exec_driver_sql("UPDATE semel.batch SET seen_at = now() - interval '1 minute'")
    assert plan(ledger, changed, "r1").anew[0] == batch


# Attacks S16.
def test_a_batch_that_is_bad_all_through_starts_no_job(
    bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong schema is told from a part of the batch; with the right one the batch goes on."""
    monkeypatch.setattr("semel.stage.sample.SAMPLED_BATCH_BYTES_MIN", 100)
    spec = bench.spec(limits={"quarantine_ratio_max": 0.05})
    bad = [b'{"id": "x", "n": "%d"}' % n for n in range(500)]
    bench.write("in/a.jsonl", bad)
    engine = LocalEngine()
    with pytest.raises(LimitError, match=r'batch 1: of at most 501 [\s\S]*n: expected a whole n'):
        run(ledger, spec, "r1", engine=engine)
    assert engine.jobs == []
    assert settled(spec).ids == []
    spec = bench.spec(limits={"quarantine_ratio_max": 1.0})
    run(ledger, spec, "r1")
    assert settled(spec).reasons == {"type_mismatch": 500}


def test_arrival_leaves_the_rest_to_the_next_run(bench: Workbench, ledger: Ledger) -> None:
    """Over bytes_per_batch_max the rest waits, cut at a record's end; a longer one goes alone."""
    spec = bench.spec(limits={"bytes_per_batch_max": 130})
    bench.write("in/a.jsonl", events(0, 5))
    long = b'{"id": "long", "other": "' + b"x" * 500 + b'"}'
    bench.write("in/b.jsonl", [long, *events(5, 7)])
    os.utime(bench.data / "in" / "a.jsonl", (1, 1))
    taken = []
    while (done := run(ledger, spec, f"r{len(taken)}")).plan.batch:
        taken.append((done.plan.bytes, done.plan.bytes_left))
    left = 5 * EVENT + len(long) + 1 + 2 * EVENT
    for size in (2 * EVENT, 2 * EVENT, EVENT, len(long) + 1, 2 * EVENT):
        left -= size
        assert taken.pop(0) == (size, left)
    assert taken == []
    assert settled(spec).ids == [*ids(0, 7), "long"]


def test_an_interval_pipeline_needs_an_interval(bench: Workbench, ledger: Ledger) -> None:
    """Without one, or with one that is empty or turned around, nothing is planned."""
    spec = daily(bench)
    bench.write("in/2026-01-01.jsonl", events(0, 10))
    for interval in (None, (day(1), day(1)), (day(2), day(1))):
        with pytest.raises(TerminalError, match="events selects by interval.*--interval"):
            run(ledger, spec, "r1", interval)
    assert stored(ledger, "batch") == 0


def test_names_say_the_interval(bench: Workbench, ledger: Ledger) -> None:
    """Each interval takes its own files, in any order; a name without a date is refused."""
    spec = daily(bench, on_refused="warn")
    for number in (1, 2, 3):
        bench.write(f"in/2026-01-0{number}.jsonl", events(10 * number, 10 * number + 10))
    bench.write("in/today.jsonl", events(90, 95))
    bench.write("in/2026-02-30.jsonl", events(95, 99))
    on(ledger, spec, 3)
    assert settled(spec).ids == ids(30, 40)
    assert refusals(ledger) == {"today.jsonl": "interval", "2026-02-30.jsonl": "interval"}
    on(ledger, spec, 1)
    on(ledger, spec, 2)
    assert on(ledger, spec, 4).plan.batch is None
    assert settled(spec).ids == ids(10, 40)
    (bench.data / "in" / "today.jsonl").rename(bench.data / "in" / "2026-01-04.jsonl")
    on(ledger, spec, 4)
    assert settled(spec).ids == [*ids(10, 40), *ids(90, 95)]


# Attacks P10.
def test_a_file_of_unknown_time_fails_an_interval(bench: Workbench, ledger: Ledger) -> None:
    """It may belong to this interval: without `on_refused: warn` nothing is planned."""
    spec = daily(bench)
    bench.write("in/2026-01-01.jsonl", events(0, 10))
    bench.write("in/today.jsonl", events(90, 95))
    with pytest.raises(SourceError, match=r"would not be complete.*\n.*today\.jsonl.*interval"):
        on(ledger, spec, 1)
    assert stored(ledger, "batch") == 0
    assert refusals(ledger) == {"today.jsonl": "interval"}
    on(ledger, daily(bench, on_refused="warn"), 1)
    assert settled(spec).ids == ids(0, 10)


def test_arrival_may_fail_for_refused_files_too(bench: Workbench, ledger: Ledger) -> None:
    """`on_refused: fail`: nothing is planned until all is settled."""
    spec = bench.spec(source={"on_refused": "fail"})
    bench.write("in/a.jsonl", events(0, 5))
    os.mkfifo(bench.data / "in" / "pipe.jsonl")
    with pytest.raises(SourceError, match=r"1 file is refused.*on_refused: warn"):
        run(ledger, spec, "r1")
    (bench.data / "in" / "pipe.jsonl").unlink()
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 5)


def test_an_intervals_late_bytes_come_with_a_cleared_run(bench: Workbench, ledger: Ledger) -> None:
    """What arrives in an interval after its batch is taken by the same run, as its next batch."""
    spec = daily(bench)
    bench.write("in/2026-01-01.jsonl", events(0, 10))
    on(ledger, spec, 1)
    bench.write("in/2026-01-01.jsonl", events(8, 15), mode="ab")
    assert on(ledger, spec, 2).plan.batch is None
    assert on(ledger, spec, 1).plan.batch.ordinal == 2
    assert settled(spec).ids == ids(0, 15)


def test_lookback_takes_what_earlier_intervals_left(bench: Workbench, ledger: Ledger) -> None:
    """What is unclaimed within `lookback` before the interval comes along; older stays a gap."""
    spec = daily(bench, lookback="1 day")
    for number in (1, 2, 3):
        bench.write(f"in/2026-01-0{number}.jsonl", events(10 * number, 10 * number + 10))
    on(ledger, spec, 3)
    assert settled(spec).ids == ids(20, 40)
    bench.write("in/2026-01-03.jsonl", events(40, 42), mode="ab")
    on(ledger, spec, 4)
    assert settled(spec).ids == ids(20, 42)
    on(ledger, spec, 1)
    assert settled(spec).ids == ids(10, 42)


def test_mtime_says_the_interval(bench: Workbench, ledger: Ledger) -> None:
    """A file belongs to the interval [start, end) in which it was last written."""
    spec = daily(bench, interval_from="mtime")
    places = {"a": day(1), "b": day(2) - timedelta(seconds=1), "c": day(2)}
    for number, (name, when) in enumerate(places.items()):
        path = bench.write(f"in/{name}.jsonl", events(10 * number, 10 * number + 10))
        os.utime(path, (when.timestamp(), when.timestamp()))
    on(ledger, spec, 1)
    assert settled(spec).ids == ids(0, 20)
    on(ledger, spec, 2)
    assert settled(spec).ids == ids(0, 30)
