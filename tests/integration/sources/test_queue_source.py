"""A queue's spool as a source: what becomes of its messages, and of its segments.

The segments are written as a receiver writes them; receiving has tests of its own.
"""

import json
import os
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pytest
import sqlalchemy as sa

from fixtures.airflow.tasks import Tasks
from fixtures.batches.account import ids, quiet, run, settled
from fixtures.batches.replays import replayed
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.files.rights import no_overrides
from fixtures.queue.nats import Nats
from fixtures.queue.segments import ADDRESS, IDS, SENT, Spool, in_groups, messages
from fixtures.spark.local import LocalEngine
from semel.audit import audit
from semel.catalog.bloom import Filter
from semel.catalog.ids import hash_ids
from semel.cli import main
from semel.clients.queue import PulledMessages
from semel.collect import collect
from semel.errors import ChangedError, SemelError, SourceError, SpecError, TerminalError
from semel.ledger import Ledger
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.repair.exact import exact
from semel.repair.losses import accept_loss
from semel.reports.gaps import GapReason, gaps
from semel.runs.run import run_batch
from semel.sources.queue.receive import to_record_batch
from semel.sources.queue.segment import OpenSegment
from semel.sources.queue.spec import Until
from semel.sources.queue.spool import Spool as OpenSpool
from semel.stage import stage

COLUMNS = {
    "id": "string", "n": "bigint", "at": "timestamp", "mid": "string", "sent": "timestamp",
    "okey": "string", "event_id": "string", "raw": "binary",
    "every": "array<struct<key:string,value:binary>>",
}  # fmt: skip

BESIDE = {
    "message_id": "mid", "published": "sent", "ordering_key": "okey",
    "attributes": {"event_id": "Event-Id", "raw": "Raw", "every": "*"},
}  # fmt: skip


@pytest.fixture
def spool(bench: Workbench) -> Spool:
    return Spool(bench)


def declared(spool: Spool, *record_id: str, **changes: object) -> Spec:
    """Exactly once, by the service's ids or by these columns, with a column for all there is."""
    source = {**BESIDE, "schema": COLUMNS, **changes.pop("source", {})}
    return spool.spec(
        record_id=list(record_id or ["mid"]), guarantee="exactly_once", source=source, **changes
    )


def values(start: int, stop: int) -> list[bytes]:
    return [json.dumps(event).encode() for event in events(start, stop)]


# Attacks Q4.
def test_a_message_is_its_value_and_what_is_beside_it(spool: Spool, ledger: Ledger) -> None:
    """Each column has what its message has; of an attribute that comes twice the last one counts.
    The audit, which reads the segment by itself, finds the same.
    """
    attributes = [
        [("Event-Id", b"a"), ("Event-Id", b"b"), ("Raw", b"\xff\x00")],
        [],
        [("Other", b"x"), ("Event-Id", "ü".encode())],
    ]
    sent = [SENT, None, SENT + timedelta(microseconds=1)]
    keys = ["k", None, ""]
    spool.add([messages(values(0, 3), 7, attributes=attributes, published=sent, ordering_key=keys)])
    spec = declared(spool)
    run(ledger, spec, "r1")
    found = sorted(settled(spec).rows, key=lambda row: row["n"])
    assert [row["mid"] for row in found] == [f"{IDS}{n}" for n in (7, 8, 9)]
    assert [row["sent"] for row in found] == sent
    assert [row["okey"] for row in found] == keys
    assert [row["event_id"] for row in found] == ["b", None, "ü"]
    assert [row["raw"] for row in found] == [b"\xff\x00", None, None]
    assert [[(e["key"], e["value"]) for e in row["every"]] for row in found] == attributes


def test_what_is_no_record_is_a_dead_letter(spool: Spool, ledger: Ledger) -> None:
    """Poison is set aside with its bytes as they came, and the others are taken: it was
    acknowledged, so it never comes back.
    """
    bad = [b"", b"{", b'{"id": 1}\n{"id": 2}', b"\xff", b"[]", b"x" * 10]
    good = values(0, 2)
    attributes = [[("Event-Id", b"\xff")] if at == 7 else [] for at in range(8)]
    spool.add([messages([good[0], *bad, good[1]], attributes=attributes)])
    spec = declared(spool)
    run(ledger, spec, "r1")
    found = settled(spec)
    assert found.ids == ids(0, 1)
    assert [raw for *_, raw in found.letters] == [*bad, good[1]]
    assert [at for _, at, *_ in found.letters] == [1, 2, 3, 4, 5, 6, 7]


def test_a_time_of_publishing_that_no_calendar_has(spool: Spool, ledger: Ledger) -> None:
    """A service that counts nanoseconds where it is to count milliseconds loses no message: one is
    received, and set aside with its position. The audit finds the same.
    """
    year_9999 = 253_402_300_799_999_999
    times = [0, None, -62_135_596_800_000_000, year_9999, -1 << 70, year_9999 + 1, 1 << 70]
    pulled = PulledMessages()
    for at, (value, when) in enumerate(zip(values(0, 7), times, strict=True)):
        pulled.ids.append(str(at))
        pulled.published.append(when)
        pulled.attributes.append([])
        pulled.ordering_keys.append(None)
        pulled.attempts.append(1)
        pulled.values.append(value)
    spool.add([to_record_batch(pulled)])
    spec = declared(spool)
    run(ledger, spec, "r1")
    found = settled(spec)
    assert found.ids == ids(0, 4)
    assert [(at, reason) for _, at, reason, _ in found.letters] == [
        (at, "type_mismatch") for at in (4, 5, 6)
    ]


def test_line_breaks_within_a_value(spool: Spool, ledger: Ledger) -> None:
    """JSON over several lines is one record."""
    pretty = json.dumps(events(0, 1)[0], indent=1).encode()
    spool.add([messages([pretty, *values(1, 3)])])
    spec = declared(spool)
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 3)


@pytest.mark.parametrize("value", ["csv", "bytes"])
def test_other_values(value: str, spool: Spool, ledger: Ledger) -> None:
    """The fields of CSV, and bytes as they are, empty ones too."""
    texts = [b"e000000,0,2026-01-01T00:00:00Z", b"", b"a,b\nc", b"\x00\xff"]
    spool.add([messages(texts)])
    schema = {"mid": "string"} | ({"body": "binary"} if value == "bytes" else {})
    schema |= {"id": "string", "n": "bigint", "at": "timestamp"} if value == "csv" else {}
    spec = spool.spec(
        guarantee="exactly_once", record_id=["mid"],
        source={"value": value, "message_id": "mid", "schema": schema},
    )  # fmt: skip
    run(ledger, spec, "r1")
    found = settled(spec)
    if value == "bytes":
        assert sorted(row["body"] for row in found.rows) == sorted(texts)
    else:
        assert found.ids == ids(0, 1) and [raw for *_, raw in found.letters] == texts[1:]


# Attacks Q4.
def test_what_is_delivered_again_is_dropped(spool: Spool, ledger: Ledger) -> None:
    """In one segment, in another of the same batch, and in a later batch."""
    spool.add(in_groups(0, 20))
    spool.add([*in_groups(10, 30), *in_groups(25, 35)])
    spec = declared(spool)
    run(ledger, spec, "r1")
    spool.add(in_groups(0, 40))
    run(ledger, spec, "r2")
    found = settled(spec)
    assert found.ids == ids(0, 40)
    assert found.counts.duplicates_batch == 15 and found.counts.duplicates_catalog == 35


# Attacks Q4.
def test_equal_ids_of_other_queues_are_other_messages(spool: Spool, ledger: Ledger) -> None:
    """Each stream counts from 1: no message is dropped as a repeat of another stream's."""
    spool.add(in_groups(0, 10))
    spool.add([messages(values(50, 60))], address="nats:others@2026-02-02T00:00:00Z")
    spec = declared(spool)
    run(ledger, spec, "r1")
    assert settled(spec).ids == [*ids(0, 10), *ids(50, 60)]


def test_publishers_repeat_themselves(spool: Spool, ledger: Ledger) -> None:
    """By what publishers set, two messages are one record, whatever ids the service gave them."""
    named = [[("Event-Id", f"k{n // 2}".encode())] for n in range(10)]
    spool.add([messages(values(0, 10), attributes=named)])
    spec = declared(spool, "event_id")
    run(ledger, spec, "r1")
    assert len(settled(spec).rows) == 5


def flip(path: Path, at: int) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


# Attacks Q3.
@pytest.mark.parametrize("at", [3, 40, 600, -1, -40])
def test_a_damaged_segment_is_refused_and_others_are_read(
    at: int, spool: Spool, ledger: Ledger
) -> None:
    """Whichever byte was changed before a plan saw it: head, group, foot, end."""
    flip(spool.add(in_groups(0, 10)), at)
    spool.add(in_groups(10, 20))
    spec = declared(spool, source={"on_refused": "warn"})
    done = run(ledger, spec, "r1")
    assert [r.reason for r in done.plan.refusals] == ["damaged"]
    assert "backup" in done.plan.refusals[0].detail
    assert settled(spec).ids == ids(10, 20)


# Attacks S6, Q3.
def test_what_is_changed_behind_the_plan_is_not_read(spool: Spool, ledger: Ledger) -> None:
    """Every task proves the segment: one that was planned, and has other bytes, fails the batch."""
    path = spool.add(in_groups(0, 10))
    spec = declared(spool)
    batch = plan(ledger, spec, "r1").batch
    flip(path, 600)
    with pytest.raises(ChangedError, match=f"semel abandon {batch.batch_id}"):
        stage(ledger, spec, batch.batch_id, LocalEngine(), log=quiet)
    flip(path, 600)
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 10)


def test_segments_of_another_pipeline(spool: Spool, ledger: Ledger) -> None:
    """They are refused, and the message says where they belong."""
    path = spool.add(in_groups(0, 10), pipeline="others")
    spool.add(in_groups(10, 20))
    path.rename(spool.sealed / path.name)
    spec = declared(spool, source={"on_refused": "warn"})
    done = run(ledger, spec, "r1")
    assert [r.reason for r in done.plan.refusals] == ["foreign"]
    assert str(path.parent) in done.plan.refusals[0].detail
    assert settled(spec).ids == ids(10, 20)


def test_renamed_copied_moved_back(spool: Spool, ledger: Ledger) -> None:
    """By its content a segment is known under any name; what a copy repeats is dropped."""
    path = spool.add(in_groups(0, 10))
    spec = declared(spool)
    run(ledger, spec, "r1")
    path = path.rename(path.with_name("other.seg"))
    assert run(ledger, spec, "r2").plan.batch is None
    path.with_name("copy.seg").write_bytes(path.read_bytes())
    run(ledger, spec, "r3")
    assert settled(spec).ids == ids(0, 10)
    away = path.rename(spool.bench.folder / "away")
    run(ledger, spec, "r4")
    away.rename(path)
    run(ledger, spec, "r5")
    assert settled(spec).ids == ids(0, 10)


# Attacks Q7.
def test_the_spool_of_another_machine(spool: Spool, ledger: Ledger) -> None:
    """No run is green on a spool that was made anew, be it empty or not, while what was read has to
    be somewhere; following the advice, one run begins with it.
    """
    spool.add(in_groups(0, 10))
    spec = declared(spool)
    run(ledger, spec, "r1")
    spool.lose()
    for add in (lambda: None, lambda: spool.add(in_groups(10, 20))):
        add()
        with pytest.raises(SourceError, match="missing: none of the segments that semel has read is here"):
            run(ledger, spec, "r2")
    assert run(ledger, declared(spool, source={"on_refused": "warn"}), "r2").plan.batch
    assert run(ledger, spec, "r3").plan.refusals == ()
    assert settled(spec, audited=False).ids == ids(0, 20)


# Attacks Q7.
def test_the_spool_of_another_machine_after_keep_spool(spool: Spool, ledger: Ledger) -> None:
    """Also when keep_spool was over before the next run, and whatever the segment is called, a spool
    from which collect has removed nothing is another one. The right one is taken.
    """
    spool.add(in_groups(0, 10), created=old(9))
    spec = declared(spool, source={"keep_spool": "1 day"})
    run(ledger, spec, "r1")
    finalized(ledger, hours=200)
    spool.lose()
    with pytest.raises(SourceError, match="missing: none of the segments that semel has read is here"):
        run(ledger, spec, "r2")
    spool.restore()
    assert run(ledger, spec, "r3").plan.refusals == () and collected(ledger, spec) == 1
    assert run(ledger, spec, "r4").plan.refusals == ()


# Attacks Q7, A5.
def test_a_spool_whose_last_segment_was_accepted_as_lost(spool: Spool, ledger: Ledger) -> None:
    """The spool is not another one because of that, once collect has removed all others."""
    spool.add(in_groups(0, 5), created=old(9))
    spec = declared(spool, source={"keep_spool": "1 day"}, limits={"records_per_batch_max": 5})
    run(ledger, spec, "r1")
    path = spool.add(in_groups(5, 15), created=old(8))
    run(ledger, spec, "r2")
    finalized(ledger, hours=200)
    path.unlink()
    with pytest.raises(SourceError, match="gone"):
        run(ledger, spec, "r3")
    accept_loss(ledger, spec, path.name)
    assert collected(ledger, spec) == 1
    assert run(ledger, spec, "r4").plan.refusals == ()


# Attacks P22, A5.
@pytest.mark.parametrize("name", ["as it was", "another"])
def test_a_lost_segment_that_comes_back_is_read(
    name: str, spool: Spool, ledger: Ledger, shell: Shell
) -> None:
    """Half of it was read, and the rest accepted as lost: no run is green while it is there again.
    The command that the refusal names reads the rest, once, and says so.
    """
    spool.add(in_groups(20, 22))
    spec = declared(spool, limits={"records_per_batch_max": 4})
    run(ledger, spec, "r0")
    path = spool.add(in_groups(0, 10))
    run(ledger, spec, "r1")
    away = path.rename(spool.bench.folder / "away")
    with pytest.raises(SourceError, match="gone"):
        run(ledger, spec, "r2")
    accept_loss(ledger, spec, path.name)
    run(ledger, spec, "r3")
    back = away.rename(path if name == "as it was" else path.with_name("back.seg"))
    with pytest.raises(SourceError, match="returned: it was accepted as lost from message 4") as red:
        run(ledger, spec, "r4")
    command = re.search(r"`(semel accept .+?)`", str(red.value))[1]
    assert "is read from message 4 on as partition" in shell.runs(command)
    for number in (5, 6, 7):
        assert run(ledger, spec, f"r{number}").plan.refusals == ()
    assert settled(spec).ids == [*ids(0, 10), *ids(20, 22)]
    assert settled(spec).counts.duplicates_catalog == 0
    assert "is read already" in shell.runs(f"semel accept {spec.name} {back.name}")


# Attacks Q5.
def test_dead_letters_behind_keep_spool(spool: Spool, ledger: Ledger, shell: Shell) -> None:
    """They cannot be judged again where they were. What the message advises works: their bytes are
    where the command says, and sent again, corrected, they are records.
    """
    spool.add([messages([*values(0, 2), b'{"id": "e000002", "n": "two"}'])], created=old(9))
    spec = declared(spool, source={"keep_spool": "1 day"})
    run(ledger, spec, "r1")
    finalized(ledger, hours=25)
    assert collected(ledger, spec) == 1
    step = shell.fails(f"semel replay {spec.name} --batches 1 --requarantine")
    assert step == f"semel letters {spec.name} --batch 1"
    assert "Send the dead letters' bytes to the source again, corrected" in shell.err
    folder = re.search("as Parquet: (.+)", shell.runs(step))[1]
    (kept,) = pads.dataset(folder).to_table().column("raw").to_pylist()
    spool.add([messages([kept.replace(b'"two"', b"2")], 30)])
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 3)


# Attacks Q7.
def test_a_spool_that_is_not_there(spool: Spool, ledger: Ledger) -> None:
    """No run is green because the spool is on another machine, before and behind the first batch;
    the message says what makes it.
    """
    spec = declared(spool)
    away = spool.bench.folder / "away"
    for number in range(2):
        with pytest.raises(SourceError, match=f"missing.*semel receive {spec.name}"):
            run(ledger, spec, f"r{number}a")
        if away.exists():
            away.rename(spool.spool)
        spool.add(in_groups(10 * number, 10 * number + 10))
        run(ledger, spec, f"r{number}b")
        spool.spool.rename(away)


def test_gaps_show_what_is_spooled(spool: Spool, ledger: Ledger) -> None:
    """Before a plan, all that waits is shown: segments, and how many messages each has."""
    spool.add(in_groups(0, 10))
    spec = declared(spool)
    run(ledger, spec, "r1")
    spool.add(in_groups(10, 17))
    found = [gap for gap in gaps(ledger, spec).gaps if gap.state is GapReason.UNCLAIMED]
    assert [(gap.start, gap.end) for gap in found] == [(0, 7)]


KEPT = "def run(frame):\n    return frame\n"

NO_IDS = {
    "a transform": {"transforms": ["kept:run"]},
    "a table": {"sink": {"type": "postgres", "table": "events", "connection": "target"}},
}


@pytest.mark.parametrize("what", NO_IDS)
def test_a_spool_that_exact_would_miss_is_refused(what: str, spool: Spool) -> None:
    """At least once, and ids that only the spool has: it must keep them for the horizon. What the
    message says to declare is taken, and so is all that needs no spool for its ids.
    """
    (spool.bench.transforms / "kept.py").write_text(KEPT)
    short = {"keep_spool": "7 days"}
    with pytest.raises(SpecError, match="source.keep_spool: 1 week is shorter") as refused:
        spool.spec(record_id=["id"], source=short, **NO_IDS[what])
    advised = re.search("Declare (.+) or longer", str(refused.value))[1]
    for source, more in (
        ({"keep_spool": advised}, {}), ({"keep_spool": None}, {}),
        (short, {"dedup": {"horizon": "7 days"}}), (short, {"guarantee": "exactly_once"}),
    ):  # fmt: skip
        spool.spec(record_id=["id"], source=source, **NO_IDS[what], **more)
    spool.spec(record_id=["id"], source=short)


# Attacks D11.
@pytest.mark.rest
def test_exact_succeeds_when_it_says(spool: Spool, ledger: Ledger) -> None:
    """Of a queue with a transform, whose spool collect has removed once: a pipeline that runs on as
    the message says is exactly once at the moment that it names. It waits for a horizon.
    """
    (spool.bench.transforms / "kept.py").write_text(KEPT)
    changes = {"record_id": ["id"], "transforms": ["kept:run"], "dedup": {"horizon": "15 s"},
               "source": {"keep_spool": "10 min"}}  # fmt: skip
    loose, engine = spool.spec(**changes), LocalEngine(transforms=True)
    spool.add(in_groups(0, 10), created=old(1))
    run(ledger, loose, "r1", engine=engine)
    finalized(ledger, hours=1)
    assert collected(ledger, loose) == 1
    exactly = spool.spec(**changes, guarantee="exactly_once")
    with pytest.raises(TerminalError, match="cannot recover the ids of batch 1 ") as refused:
        exact(ledger, exactly, log=quiet)
    told = re.search("run it at_least_once until (.+) UTC", str(refused.value))[1]
    until = datetime.fromisoformat(told).replace(tzinfo=UTC) + timedelta(seconds=1)
    while (left := (until - datetime.now(UTC)).total_seconds()) > 0:
        spool.add(in_groups(10, 20))
        loose = spool.spec(**changes)
        run(ledger, loose, f"r{left}", engine=engine)
        assert collected(ledger, loose) == 0
        time.sleep(min(left, 5))
    answer = exact(ledger, exactly, log=quiet)
    assert answer.exact_from
    assert bool(answer.ids) == bool(answer.batches)


def finalized(ledger: Ledger, hours: int) -> None:
    """Let the clock of what is finalized go on."""
    with ledger.engine.begin() as connection:
        connection.execute(
            sa.text(
                "UPDATE semel.batch SET finalized_at = finalized_at - make_interval(hours => :n)"
            ),
            {"n": hours},
        )


def old(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def collected(ledger: Ledger, spec: Spec) -> int:
    done = collect(ledger, spec)
    assert done is not None and not done.damaged and not done.files_moved
    return done.spooled_removed


# Attacks Q5.
def test_a_segment_goes_when_all_of_it_is_final(spool: Spool, ledger: Ledger) -> None:
    """Not while messages of it are unclaimed, planned or committed; not before keep_spool is over
    since the last of them was finalized; then it goes, and what is left is proven.
    """
    spool.add(in_groups(0, 10), created=old(9))
    spec = declared(spool, source={"keep_spool": "1 day"}, limits={"records_per_batch_max": 6})
    assert collect(ledger, spec) is None
    for number in (1, 2):
        run(ledger, spec, f"r{number}")
        assert collected(ledger, spec) == 0
    finalized(ledger, hours=23)
    assert collected(ledger, spec) == 0
    finalized(ledger, hours=2)
    assert collected(ledger, spec) == 1 and not os.listdir(spool.sealed)
    assert run(ledger, spec, "r3").plan.batch is None and collected(ledger, spec) == 0
    spool.add(in_groups(10, 20))
    run(ledger, spec, "r4")
    with pytest.raises(SemelError, match="collect has removed it, as source.keep_spool was over"):
        replayed(ledger, spec, 1, "x")
    verdict = audit(spec)
    assert verdict.ok and any("source.keep_spool is over" in note for note in verdict.notes)


# Attacks Q5.
def test_a_segment_that_went_too_early(spool: Spool, ledger: Ledger) -> None:
    """The audit does not take what somebody removed for what collect removed."""
    path = spool.add(in_groups(0, 10))
    spec = declared(spool)
    run(ledger, spec, "r1")
    path.unlink()
    verdict = audit(spec)
    assert not verdict.ok and path.name in str(verdict)


# Attacks Q5, Q7.
@pytest.mark.parametrize("keep", ["30 days", None])
def test_what_collect_has_removed_is_known(
    spool: Spool, ledger: Ledger, keep: str | None
) -> None:
    """Whatever its name was, and however long segments are kept since: nobody misses it. One that a
    person removed is missed, though collect could have done so by now.
    """
    path = spool.add(in_groups(0, 10), created=old(9))
    path.rename(path.with_name("mine.seg"))
    spec = declared(spool, source={"keep_spool": "1 day"})
    run(ledger, spec, "r1")
    finalized(ledger, hours=25)
    assert collected(ledger, spec) == 1
    spec = declared(spool, source={"keep_spool": keep})
    assert run(ledger, spec, "r2").plan.batch is None and audit(spec).ok
    path = spool.add(in_groups(10, 20), created=old(99))
    run(ledger, spec, "r3")
    path.unlink()
    assert not audit(spec).ok


def test_what_was_seen_and_never_read_is_missed(spool: Spool, ledger: Ledger) -> None:
    """A segment that a plan has listed and taken nothing of is told when it is gone, as the queue
    has its messages no more; until somebody accepts the loss.
    """
    spool.add(in_groups(0, 5))
    path = spool.add(in_groups(5, 12))
    spec = declared(spool, limits={"records_per_batch_max": 5}, source={"on_refused": "warn"})
    run(ledger, spec, "r1")
    path.unlink()
    refused = run(ledger, spec, "r2").plan.refusals
    assert [(r.name, r.reason) for r in refused] == [(path.name, "gone")]
    accept_loss(ledger, spec, path.name)
    assert run(ledger, spec, "r3").plan.refusals == ()


def test_a_spool_that_lost_all_is_missed_once(spool: Spool, ledger: Ledger) -> None:
    """Of its segments one was read by half: the spool is another one, and nothing in it is taken
    for gone. Once a run has read something of it, what was not read is gone, until a person
    accepts that.
    """
    path = spool.add(in_groups(0, 10))
    unread = spool.add(in_groups(10, 15))
    spec = declared(spool, limits={"records_per_batch_max": 5}, source={"on_refused": "warn"})
    run(ledger, spec, "r1")
    spool.lose()
    told = [(r.name, r.reason) for r in run(ledger, spec, "r2").plan.refusals]
    assert told == [(str(path.parent.parent), "missing")]
    spool.add(in_groups(20, 25))
    run(ledger, spec, "r3")
    told = [(r.name, r.reason) for r in run(ledger, spec, "r4").plan.refusals]
    assert told == [(path.name, "gone"), (unread.name, "gone")]
    for name, _ in told:
        accept_loss(ledger, spec, name)
    assert run(ledger, spec, "r5").plan.refusals == ()
    assert settled(spec, audited=False).ids == [*ids(0, 5), *ids(20, 25)]


# Attacks Q3.
@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize(("at", "messages"), [(3, 10), (600, 10), (-1, 10), (0, 1)])
def test_a_damaged_segment_that_is_moved_out_is_missed(
    at: int, messages: int, accepted: bool, spool: Spool, ledger: Ledger
) -> None:
    """Its messages were acknowledged: as many as can be counted are told as gone until a person
    accepts that, and no look at it writes to the ledger again. Brought back whole it is read, and
    not missed any more.
    """
    path = spool.add(in_groups(0, 10))
    whole = path.read_bytes()
    flip(path, at) if at else path.write_bytes(b"torn")
    spool.add(in_groups(10, 20))
    spec = declared(spool, source={"on_refused": "warn"})
    run(ledger, spec, "r1")
    away = path.rename(spool.bench.folder / "away")
    for number in (2, 3):
        (told,) = run(ledger, spec, f"r{number}").plan.refusals
        assert (told.name, told.reason) == (path.name, "gone")
        assert f"its messages 0 to {messages} were never read" in told.detail
    version = ledger.rows("partitions", "version", pipeline_id=1)
    assert [r.reason for r in gaps(ledger, spec).refusals] == ["gone"]
    assert run(ledger, spec, "r4").plan.refusals == (told,)
    assert ledger.rows("partitions", "version", pipeline_id=1) == version
    if accepted:
        accept_loss(ledger, spec, path.name)
    else:
        away.write_bytes(whole)
        away.rename(path)
    assert run(ledger, spec, "r5").plan.refusals == ()
    assert settled(spec).ids == ids(10 if accepted else 0, 20)


# Attacks Q3.
def test_a_damaged_segment_that_is_restored_is_read(spool: Spool, ledger: Ledger) -> None:
    """In its place, as the message says: nothing of it is missed, then or later."""
    path = spool.add(in_groups(0, 10))
    whole = path.read_bytes()
    flip(path, -1)
    spec = declared(spool)
    for number in range(2):
        with pytest.raises(SourceError, match="damaged.*Restore it from a backup"):
            run(ledger, spec, f"r{number}")
    path.write_bytes(whole)
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 10)
    assert run(ledger, spec, "r3").plan.refusals == ()


def test_what_is_no_file_is_refused(spool: Spool, ledger: Ledger) -> None:
    """A pipe, a folder, a link to nowhere, a name that is no UTF-8: each is refused, none ends or
    holds up the plan, and others are read.
    """
    spool.add(in_groups(0, 5))
    os.mkfifo(spool.sealed / "pipe.seg")
    (spool.sealed / "folder.seg").mkdir()
    (spool.sealed / "link.seg").symlink_to(spool.sealed / "nowhere")
    (spool.sealed.with_name("open") / "folder.part").mkdir()
    with open(os.fsencode(spool.sealed) + b"/\xff.seg", "wb"):
        pass
    spec = declared(spool, source={"on_refused": "warn"})
    refused = run(ledger, spec, "r1").plan.refusals
    assert sorted((r.name, r.reason) for r in refused) == [
        (name, "unreadable")
        for name in ("'\\udcff.seg'", "folder.seg", "link.seg", "pipe.seg")
    ]
    assert settled(spec).ids == ids(0, 5)


# Attacks Q1, Q2.
def test_a_plan_seals_what_a_dead_receiver_left(spool: Spool, ledger: Ledger) -> None:
    """What was appended may have been acknowledged: all of it is read, and of a torn group behind
    it nothing. The part of a receiver that lives is left to it.
    """
    spool.add(in_groups(0, 5))
    folder = spool.sealed.with_name("open")
    dead, alive = (OpenSegment.create(folder, "events", ADDRESS, datetime.now(UTC)) for _ in range(2))
    for group in in_groups(5, 15):
        dead.append(group)
    dead.close()
    with dead.path.open("ab") as file:
        file.write(b"SQG1 torn")
    (group,) = in_groups(15, 20)
    alive.append(group)
    spec = declared(spool)
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 15)
    alive.seal(spool.sealed)
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 20)


def left(spool: Spool, start: int, stop: int) -> OpenSegment:
    """A part whose receiver lives until it is closed."""
    part = OpenSegment.create(spool.sealed.with_name("open"), "events", ADDRESS, datetime.now(UTC))
    for group in in_groups(start, stop):
        part.append(group)
    return part


# Attacks Q2.
def test_what_a_plan_seals_is_told(spool: Spool, ledger: Ledger) -> None:
    """One line with the numbers, also when the plan fails by something else; and nothing where
    nothing was sealed.
    """
    spool.add(in_groups(0, 5))
    for start in (5, 10):
        left(spool, start, start + 5).close()
    flip(spool.add(in_groups(20, 25)), -1)
    spec, said = declared(spool), []
    for _ in range(2):
        with pytest.raises(SourceError, match="damaged"):
            plan(ledger, spec, "r1", log=said.append)
    assert said == [
        "recovered 2 segments with 10 messages from receivers that ended early"
    ]


# Attacks Q2.
def test_parts_that_a_plan_may_not_write(
    spool: Spool, ledger: Ledger, capsys: pytest.CaptureFixture
) -> None:
    """Receivers of another user: what is sealed is read, that of a living one is let alone, and
    that of a dead one is told, by `semel gaps` too. Once its owner receives, it is read.
    """
    spool.add(in_groups(0, 5))
    dead, alive = left(spool, 5, 10), left(spool, 10, 15)
    dead.close()
    folder, spec, said = dead.path.parent, declared(spool), []
    for path, mode in ((dead.path, 0o444), (alive.path, 0o444), (folder, 0o555)):
        path.chmod(mode)
    with no_overrides():
        run_batch(ledger, spec, "r1", LocalEngine(), log=said.append)
        assert main(["gaps", spec.name]) == 0
    assert settled(spec).ids == ids(0, 5)
    (told,) = [line for line in said if "may not write there" in line]
    assert told.startswith(f"refused: {dead.path}: ") and "Permission denied" in told
    assert str(dead.path) in capsys.readouterr().err
    folder.chmod(0o755)
    with no_overrides():
        spool_of(spec).recover(quiet)
    assert dead.path.exists()
    for path in (dead.path, alive.path):
        path.chmod(0o644)
    with no_overrides():
        spool_of(spec).recover(quiet)
    alive.seal(spool.sealed)
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 15)


@pytest.mark.parametrize("folder", ["open", "sealed"])
def test_folders_that_a_plan_may_not_list(folder: str, spool: Spool, ledger: Ledger) -> None:
    """Neither ends a plan without a word: parts are told, and segments are refused."""
    spool.add(in_groups(0, 5))
    spec, said = declared(spool, source={"on_refused": "warn"}), []
    place = spool.sealed.with_name(folder)
    place.chmod(0)
    with no_overrides():
        answer = plan(ledger, spec, "r1", log=said.append)
    place.chmod(0o755)
    refused = [(r.name, r.reason) for r in answer.refusals]
    assert refused == ([] if folder == "open" else [(str(place), "unreadable")])
    assert [line.partition(": this user may not")[0] for line in said] == (
        [f"refused: {place}"] if folder == "open" else []
    )


def spool_of(spec: Spec) -> OpenSpool:
    return OpenSpool(spec.source.spool_of(spec.name))


def of_nats(spool: Spool, nats: Nats, stream: str, *record_id: str, **changes: object) -> Spec:
    """The same of a real stream."""
    source = {"servers": nats.servers, "stream": stream, **changes.pop("source", {})}
    return declared(spool, *record_id, source=source, **changes)


# Attacks Q6.
def test_check_asks_the_queue(spool: Spool, nats: Nats) -> None:
    """A horizon that is shorter than the queue's retention and a day is refused, with the one that
    will do, and so is a queue that keeps messages for ever; else the queue is told.
    """
    stream = nats.stream(max_age=6 * 86_400)
    nats.publish(stream, values(0, 3))
    short = of_nats(spool, nats, stream, dedup={"horizon": "6 days"})
    with pytest.raises(SourceError, match="keeps messages for 6 days") as refused:
        open_source(short).check_service(short.dedup.horizon)
    wanted = str(refused.value).partition("Declare at least ")[2]
    right = of_nats(spool, nats, stream, dedup={"horizon": wanted})
    assert right.dedup.horizon == timedelta(days=7)
    told = open_source(right).check_service(right.dedup.horizon)
    assert f"nats:{stream}@" in told and "3 messages" in told
    ever = of_nats(spool, nats, nats.stream())
    with pytest.raises(SourceError, match="for ever"):
        open_source(ever).check_service(ever.dedup.horizon)


# Attacks Q4.
def test_from_a_stream_to_the_output(spool: Spool, nats: Nats, ledger: Ledger) -> None:
    """Received, planned, staged and finalized: each record once, also of a stream that was deleted
    and made anew, whose messages have the same numbers.
    """
    stream = nats.stream()
    spec = of_nats(spool, nats, stream)
    for round in range(2):
        start = 10 * round
        nats.publish(stream, [(v, {"Event-Id": "é"}) for v in values(start, start + 10)])
        received = spec.source.receive(spec.name, Until(idle=timedelta(seconds=1)), quiet)
        assert received.messages == 10
        run(ledger, spec, f"r{round}")
        nats.delete(stream)
        nats.stream(stream)
    found = settled(spec)
    assert found.ids == ids(0, 20)
    assert {row["event_id"] for row in found.rows} == {"é"}


def test_a_receive_says_which_bound_ended_it(spool: Spool, nats: Nats) -> None:
    """While messages wait, no sentence reads as if all had come."""
    stream = nats.stream()
    spec = of_nats(spool, nats, stream)
    nats.publish(stream, values(0, 10))
    done = spec.source.receive(spec.name, Until(messages=4), quiet)
    assert (done.messages, done.ended_by, done.waiting) == (4, "until.messages", 6)
    assert done.describe().endswith("; until.messages ended it, and about 6 messages wait in the queue")
    done = spec.source.receive(spec.name, Until(idle=timedelta(seconds=1)), quiet)
    assert (done.messages, done.ended_by, done.waiting) == (6, "until.idle", None)
    assert "wait in the queue" not in done.describe()


def test_a_receive_needs_no_ledger(
    spool: Spool, nats: Nats, ledger: Ledger, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue keeps messages for a time only: Airflow's task receives them also while the ledger is
    away, and the next plan has them.
    """
    stream = nats.stream()
    spec = of_nats(spool, nats, stream, source={"until": {"idle": "1 second"}})
    nats.publish(stream, values(0, 10))
    with monkeypatch.context() as patch:
        patch.setenv("SEMEL_LEDGER_DSN", "postgresql://127.0.0.1:1/away")
        tasks.run("Receive")
        with pytest.raises(SystemExit, match="does not answer"):
            tasks.run("Plan")
    assert nats.unacknowledged(stream) == (0, 0)
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 10)


def test_repeats_and_what_only_a_filter_takes_for_one(
    spool: Spool, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figure 5-5 of "Streaming Systems" (Akidau, Chernyak, Lax): of r1 to r9, r1, r4 and r6 were
    delivered before, and the catalog drops them. The filter takes r8 for known, too: the catalog's
    chunks deny that, it is written, and it is counted apart, as a false positive.
    """
    before = [messages(values(n, n + 1), n) for n in (1, 4, 6)]
    spool.add(before)
    spec = declared(spool, dedup={"shards": 1})
    run(ledger, spec, "r1")
    r8 = hash_ids(pa.table({"mid": [f"{IDS}8"]}), ("mid",), shards=1).h1
    probe = Filter.probe
    monkeypatch.setattr(Filter, "probe", lambda self, h1: probe(self, h1) | np.isin(h1, r8))
    spool.add([messages(values(1, 10), 1)])
    run(ledger, spec, "r2")
    found = settled(spec)
    assert found.ids == ids(1, 10) and found.counts.duplicates_catalog == 3
    (counted,) = ledger.rows("page", "shards", name=spec.name)
    assert (counted["asked"], counted["false_hits"]) == (6, 1)


def test_letters_and_find_show_the_message(
    spool: Spool, ledger: Ledger, capsys: pytest.CaptureFixture
) -> None:
    """Who looks for a message by its id finds its place in the output; a dead letter is shown with
    its segment and its number.
    """
    path = spool.add([messages([*values(0, 2), b"poison"])])
    spec = declared(spool)
    run(ledger, spec, "r1")
    assert main(["find", spec.name, f"{IDS}2"]) == 0
    assert "batch 1" in capsys.readouterr().out
    assert main(["letters", spec.name]) == 0
    told = capsys.readouterr().out
    assert path.name in told and "poison" in told


WRONG = {
    "no record_id": ({"record_id": None}, "record_id: is missing: a queue delivers"),
    "interval": ({"source": {"select": "interval"}}, "source.select: must be arrival"),
    "bucket": (
        {"record_id": ["event_id"], "record_time": "sent", "dedup": {"scope": "bucket"}},
        "bucket does not work with record_time: sent",
    ),
    "no string": ({"source": {"message_id": "n"}}, "source.message_id: 'n' is bigint"),
    "twice": ({"source": {"ordering_key": "mid"}}, "belongs to two of message_id"),
    "elsewhere": ({"source": {"spool": "/etc"}}, "source.spool"),
    "a login": ({"source": {"servers": "nats://me:secret@h:1"}}, "source.servers"),
    "two ways": ({"source": {"connection": "c"}}, "either connection or servers"),
}


@pytest.mark.parametrize("case", WRONG)
def test_declarations_that_are_refused(case: str, bench: Workbench) -> None:
    """The key and the reason are told, and nothing that is secret."""
    changes, why = WRONG[case]
    source = {
        "type": "nats", "servers": "nats://127.0.0.1:4222", "stream": "s", "consumer": "c",
        "spool": "spool", "value": "json", "schema": COLUMNS, **BESIDE,
        **changes.get("source", {}),
    }  # fmt: skip
    with pytest.raises(SpecError, match=re.escape(why)) as refused:
        bench.spec(**{"record_id": ["mid"], **changes, "source": source})
    assert "secret" not in str(refused.value)


NATS = {"type": "nats", "stream": "s", "consumer": "c"}
SQS = {"type": "sqs", "queue": "https://sqs.eu-west-1.amazonaws.com/1/q"}
PUBSUB = {"type": "pubsub", "subscription": "projects/p/subscriptions/s"}
SHARED = [
    ({**NATS, "servers": "nats://a:1,nats://b:1"}, {"servers": "nats://b:1"}, True),
    ({**NATS, "servers": "nats://a:1"}, {"consumer": "d"}, False),
    ({**NATS, "servers": "nats://a:1"}, {"stream": "t"}, False),
    ({**NATS, "servers": "nats://a:1"}, {"servers": "nats://b:1"}, False),
    ({**NATS, "connection": "x"}, {}, True),
    ({**NATS, "connection": "x"}, {"connection": "y"}, False),
    (SQS, {}, True),
    (SQS, {"connection": "x"}, True),
    (SQS, {"queue": "https://sqs.eu-west-2.amazonaws.com/1/q"}, False),
    (SQS, {"queue": "https://sqs.eu-west-1.amazonaws.com/2/q"}, False),
    (PUBSUB, {"connection": "x"}, True),
    (PUBSUB, {"subscription": "projects/p/subscriptions/t"}, False),
    (PUBSUB, SQS, False),
]


# Attacks Q9.
@pytest.mark.parametrize(("one", "changes", "refused"), SHARED)
def test_two_pipelines_with_one_queue(
    one: dict, changes: dict, refused: bool, bench: Workbench, shell: Shell
) -> None:
    """Each would get a part of the messages: refused with both names and files; where each has a
    queue, a subscription or a consumer of its own, they are taken.
    """
    beside = {"spool": "spool", "value": "json", "schema": COLUMNS, **BESIDE}
    two = changes if "type" in changes else {**one, **changes}
    for name, source in (("one", one), ("two", two)):
        bench.spec(name, record_id=["mid"], source={**source, **beside})
    told = shell.runs("semel validate", 1 if refused else 0)
    lines = [line for line in told.splitlines() if "both receive from" in line]
    assert len(lines) == refused
    for word in ("two.yaml: source: 'two' and 'one'", "one.yaml"):
        assert all(word in line for line in lines)


def test_the_advice_for_a_queue_without_ids(bench: Workbench) -> None:
    """The lines that the message says make a declaration."""
    source = {
        "type": "nats", "servers": "nats://127.0.0.1:4222", "stream": "s", "consumer": "c",
        "spool": "spool", "value": "json", "schema": {"a": "int"},
    }  # fmt: skip
    told = "source.message_id: message_id, in the schema message_id: string, and record_id: ["
    with pytest.raises(SpecError, match=re.escape(told)):
        bench.spec(record_id=None, source=source)
    source |= {"message_id": "message_id", "schema": {"a": "int", "message_id": "string"}}
    assert bench.spec(record_id=["message_id"], source=source).record_id == ("message_id",)
