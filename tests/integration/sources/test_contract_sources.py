"""The contract of sources, by one suite for all: another source is another entry of SOURCES."""

import importlib
import json
import pickle
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
import sqlalchemy as sa
import xxhash

from fixtures.batches.account import ids, quiet, run, settled
from fixtures.batches.workbench import Workbench
from fixtures.contract.sources import Files, Objects, Parquet, Place, StoredUpstream, Upstream
from fixtures.kafka.topics import Topic
from fixtures.postgres.server import database, lose
from fixtures.queue.segments import Spool, StoredSpool
from fixtures.spark.local import LocalEngine
from semel.commit import commit
from semel.errors import LimitError, SourceError
from semel.finalize import finalize
from semel.formats.selection import Selection
from semel.ledger import Ledger
from semel.model.batch import Claim
from semel.model.split import splits_of
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.repair.accept import choices, preview_accept
from semel.repair.adopt import adopt
from semel.repair.losses import accept_loss
from semel.reports.gaps import GapReason, gaps
from semel.sources import Source, empty_ledger_view
from semel.stage import stage
from semel.stage.fatal import search
from workers import NEEDS_BROKER

OBJECTS = ("objects.jsonl", "objects.csv", "objects.parquet")
OTHER_STORES = tuple(pytest.param(kind, marks=pytest.mark.proof) for kind in ("gcs", "azure"))
"""Go builds the one in two minutes, and npm fetches 365 MB for the other."""

PACKED = ("objects.jsonl.gz", "objects.csv.zst")
FILES = ("jsonl", "csv", "jsonl.gz", "parquet")
CUT = (*FILES, pytest.param("kafka", marks=NEEDS_BROKER))
SOURCES = (*CUT, "pipeline", "pipeline.stored", "queue", "queue.stored", *OBJECTS, *PACKED, *OTHER_STORES)

OF_FILES = pytest.mark.parametrize("place", FILES, indirect=True)
"""What has no meaning for other sources: other names, text, and coming back."""

OF_RECORDS = pytest.mark.parametrize("place", (*CUT, *OBJECTS), indirect=True)
"""What has no meaning for batches, which are taken whole, and when they come."""


@pytest.fixture(params=SOURCES)
def place(request: pytest.FixtureRequest, bench: Workbench) -> Iterator[Place]:
    match request.param:
        case "kafka":
            yield Topic(bench, request.getfixturevalue("kafka"))
        case "parquet":
            yield Parquet(bench)
        case "pipeline" | "pipeline.stored":
            postgres, template = map(request.getfixturevalue, ("postgres", "template"))
            with database(postgres, template) as dsn, Ledger(dsn) as ledger:
                if request.param == "pipeline":
                    yield Upstream(bench, ledger)
                else:
                    yield StoredUpstream(bench, ledger, request.getfixturevalue("s3"))
        case "queue":
            yield Spool(bench)
        case "queue.stored":
            patch = request.getfixturevalue("monkeypatch")
            yield StoredSpool(bench, request.getfixturevalue("s3"), patch)
        case kind if kind.startswith("objects."):
            yield Objects(bench, request.getfixturevalue("s3"), kind.removeprefix("objects."))
        case "gcs" | "azure":
            yield Objects(bench, request.getfixturevalue(request.param), "jsonl")
        case kind:
            yield Files(bench, kind)


def claimed(ledger: Ledger, batch_id: int) -> list[Claim]:
    return [Claim.from_row(r) for r in ledger.rows("plan", "claims", batch_id=batch_id)]


def read(source: Source, claims: list[Claim], split_bytes: int) -> list[tuple[list[dict], str]]:
    """The records of each split, and its digest."""
    whole = {claim.ordinal for claim in claims if source.is_whole(claim)}
    found = []
    for split in splits_of(claims, split_bytes, whole=whole):
        digest = xxhash.xxh3_128()
        rows = [row for b in source.read(split, 1, digest) for row in b.table.to_pylist()]
        found.append((rows, digest.hexdigest()))
    return found


def in_output(spec: Spec) -> list[str]:
    return settled(spec, audited=False).ids


def test_a_search_for_fatal_records_ends(place: Place, ledger: Ledger) -> None:
    """After two attempts whose processes were killed, stage seeks a record that kills its reader.
    There is none, and it blames none: a client with threads works in the search's children, too.
    """
    place.append(0, 30)
    spec = place.spec()
    batch_id = plan(ledger, spec, "r1").batch.batch_id
    source, claims = open_source(spec), claimed(ledger, batch_id)
    whole = {claim.ordinal for claim in claims if source.is_whole(claim)}
    assert search(source, list(splits_of(claims, 1 << 30, whole=whole)), batch_id) == []


# Attacks P19.
def test_what_is_read_is_settled(place: Place, ledger: Ledger) -> None:
    """All that is there is offered once; a plan that finds nothing new writes nothing."""
    place.append(0, 10)
    spec = place.spec()
    assert run(ledger, spec, "r1").plan.batch
    version = "SELECT source_version FROM semel.pipeline"
    with ledger.engine.connect() as connection:
        before = connection.execute(sa.text(version)).scalar_one()
        assert run(ledger, spec, "r2").plan.batch is None
        assert connection.execute(sa.text(version)).scalar_one() == before
    place.append(10, 15)
    run(ledger, spec, "r3")
    assert in_output(spec) == ids(0, 15)


# Attacks P6.
@OF_RECORDS
@pytest.mark.parametrize("room", [1, 90, 200])
def test_a_range_ends_where_a_record_ends(place: Place, ledger: Ledger, room: int) -> None:
    """Whatever the room, each record is in one batch; one that is larger is taken alone."""
    place.append(0, 10)
    spec = place.spec(limits={"bytes_per_batch_max": room})
    taken = []
    for number in range(20):
        done = run(ledger, spec, f"r{number}")
        if done.plan.batch is None:
            break
        (claim,) = claimed(ledger, done.plan.batch.batch_id)
        taken.append(place.holds(claim.start, claim.end))
    assert in_output(spec) == ids(0, 10)
    assert [record for records in taken for record in records] == place.holds(0, 1 << 30)
    sizes = [sum(map(len, records)) for records in taken]
    assert len(sizes) > 1 and all(size <= max(room, 80) for size in sizes[1:])


# Attacks P10.
@OF_RECORDS
def test_an_interval_is_taken_whole_or_not_at_all(place: Place, ledger: Ledger) -> None:
    """More than the limit of an interval is an error before any work: nothing is planned."""
    place.append(0, 10)
    spec = place.spec(source=place.by_interval, limits={"bytes_per_batch_max": 100})
    always = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
    with pytest.raises(LimitError, match="the interval has .*bytes_per_batch_max"):
        plan(ledger, spec, "r1", always)
    assert ledger.rows("look", "batches", name=None, count=5) == []


def test_a_task_reads_the_same_again(place: Place, ledger: Ledger) -> None:
    """The same claim gives the same records and the same digest, in ascending positions; however it
    is cut, each record once. The source goes to tasks as it is.
    """
    place.append(0, 100)
    spec = place.spec()
    claims = claimed(ledger, plan(ledger, spec, "r1").batch.batch_id)
    source = pickle.loads(pickle.dumps(open_source(spec)))
    once = read(source, claims, 1 << 20)
    assert read(source, claims, 1 << 20) == once
    length = claims[0].end - claims[0].start
    for split_size in (length // 20, length // 6):
        cut = read(source, claims, split_size)
        rows = [row for rows, _ in cut for row in rows]
        assert [row["id"] for row in rows] == ids(0, 100)
        offsets = [row["_semel_offset"] for row in rows]
        assert offsets == sorted(set(offsets)) and rows == once[0][0]
        assert source.is_whole(claims[0]) or len(cut) > 1


# Attacks RP1, RP9.
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("only", [False, True])
def test_a_selection_is_a_part_of_it(
    place: Place, ledger: Ledger, only: bool, every: int
) -> None:
    """The rows that are taken, the positions of the others; digest and bytes are those of all."""
    place.append(0, 100)
    spec = place.spec()
    claims = claimed(ledger, plan(ledger, spec, "r1").batch.batch_id)
    source = open_source(spec)
    whole = {0} if source.is_whole(claims[0]) else set()
    for split in splits_of(claims, (claims[0].end - claims[0].start) // 3, whole=whole):
        digests = xxhash.xxh3_128(), xxhash.xxh3_128()
        blocks = list(source.read(split, 1, digests[0]))
        rows = [row for block in blocks for row in block.table.to_pylist()]
        offsets = np.array([row["_semel_offset"] for row in rows[::every]], np.int64)
        selection = Selection(offsets=offsets, only=only)
        selected = list(source.read(split, 1, digests[1], selection))
        taken, others = [], []
        for number, row in enumerate(rows):
            (taken if (number % every == 0) == only else others).append(row)
        assert [row for block in selected for row in block.table.to_pylist()] == taken
        left_out = [int(at) for block in selected for at in block.left_out]
        assert left_out == [row["_semel_offset"] for row in others]
        assert digests[0].hexdigest() == digests[1].hexdigest()
        sizes = (sum(block.bytes_read for block in found) for found in (blocks, selected))
        assert len(set(sizes)) == 1


@pytest.mark.parametrize(
    "place", (*CUT, "pipeline", "pipeline.stored", "queue", "queue.stored", "objects.parquet"),
    indirect=True,
)  # fmt: skip
def test_no_split_holds_more_than_told(place: Place, ledger: Ledger) -> None:
    """The records of each split, wherever a claim is cut, are no more than the source says; of
    lines in objects it says nothing, as it would have to fetch them all."""
    place.append(0, 100)
    spec = place.spec()
    source = open_source(spec)
    claims = claimed(ledger, plan(ledger, spec, "r1").batch.batch_id)
    whole = {0} if source.is_whole(claims[0]) else set()
    for split in splits_of(claims, (claims[0].end - claims[0].start) // 6, whole=whole):
        part = replace(split.claim, start=split.start, end=split.end)
        ((rows, _),) = read(source, [part], 1 << 20)
        assert source.records_max(split, 1) >= len(rows) - 1


@OF_FILES
def test_what_can_be_joined_is_the_same(place: Files, ledger: Ledger) -> None:
    """The text of a split is the bytes of its positions."""
    place.append(0, 100)
    spec = place.spec()
    source = open_source(spec)
    claims = claimed(ledger, plan(ledger, spec, "r1").batch.batch_id)
    for split in splits_of(claims, 1000, whole={0} if source.is_whole(claims[0]) else set()):
        if source.can_join(split.claim):
            assert source.read_text(split, 1) == place.text(split.start, split.end)


# Attacks S6.
def test_growth_changes_no_claim(place: Place, ledger: Ledger) -> None:
    """What comes after the plan is the next batch's."""
    place.append(0, 10)
    spec = place.spec()
    source = open_source(spec)
    batch = plan(ledger, spec, "r1").batch.batch_id
    place.append(10, 20)
    claims = claimed(ledger, batch)
    source.check(claims, batch)
    assert [claim.end for claim in source.find(claims, batch)] == [claims[0].end]
    run(ledger, spec, "r1")
    run(ledger, spec, "r2")
    assert in_output(spec) == ids(0, 20)


# Attacks S6, P8.
def test_a_change_is_told_before_any_work(place: Place, ledger: Ledger) -> None:
    """Other records where some were claimed: an error that names them, and the advice works."""
    place.append(0, 10)
    spec = place.spec()
    batch = plan(ledger, spec, "r1").batch.batch_id
    place.change()
    source, claims = open_source(spec), claimed(ledger, batch)
    for ask in (source.check, source.find):
        with pytest.raises(SourceError, match=place.told(batch)):
            ask(claims, batch)
    abandon(ledger, batch, "it changed")
    place.take_change(ledger, spec)
    run(ledger, spec, "r2")
    assert in_output(spec) == ids(900, 950)


# Attacks A4.
@pytest.mark.parametrize(
    "place", ["parquet", "pipeline", "pipeline.stored", "queue", "queue.stored", "objects.jsonl"],
    indirect=True,
)  # fmt: skip
def test_what_is_offered_for_a_change_can_be_accepted(place: Place, ledger: Ledger) -> None:
    """Each choice that a page gives for what is refused is one that accept takes."""
    place.append(0, 10)
    spec = place.spec(source={"on_refused": "warn"})
    run(ledger, spec, "r1")
    place.change()
    refused = plan(ledger, spec, "r2").refusals
    assert refused
    for one in refused:
        for how in choices(spec.source, one.reason):
            assert preview_accept(ledger, spec, one.name, same=how == "same")


# Attacks P25, C15.
def test_a_staged_batch_commits_what_it_has_claimed(place: Place, ledger: Ledger) -> None:
    """Other records take the place of the claimed ones, and another run plans: the staged batch
    commits its own records, whole, and none of them is read again.
    """
    place.append(0, 10)
    spec = place.spec()
    batch = plan(ledger, spec, "r1").batch.batch_id
    stage(ledger, spec, batch, LocalEngine(), log=quiet)
    place.change()
    with suppress(SourceError):  # Of a queue a plan fails with what it refuses.
        run(ledger, spec, "r2")
    commit(ledger, spec, batch, lambda: None, log=quiet)
    finalize(ledger, spec, batch)
    with suppress(SourceError):
        run(ledger, spec, "r3")
    found = in_output(spec)
    assert found[:10] == ids(0, 10) and found[10:] in ([], ids(900, 950))


@OF_FILES
def test_another_name_is_the_same_partition(place: Files, ledger: Ledger) -> None:
    """Between two plans, and between plan and stage: nothing is read twice."""
    place.append(0, 10)
    spec = place.spec()
    run(ledger, spec, "r1")
    place.rename()
    place.append(10, 15)
    plan(ledger, spec, "r2")
    place.rename()
    run(ledger, spec, "r2")
    assert in_output(spec) == ids(0, 15)


# Attacks A5, P18.
def test_what_is_gone_is_told_until_a_person_accepts_it(place: Place, ledger: Ledger) -> None:
    """Records that were seen and never read, and are gone: refused, a gap, then a loss for ever."""
    place.append(0, 10)
    spec = place.spec(source={"on_refused": "warn"})
    name = place.called
    abandon(ledger, plan(ledger, spec, "r1").batch.batch_id, "not now")
    place.lose()
    assert [(r.name, r.reason) for r in plan(ledger, spec, "r2").refusals] == [(name, "gone")]
    assert [r.reason for r in gaps(ledger, spec).refusals] == ["gone"]
    lost = accept_loss(ledger, spec, name)
    assert sum(loss.end - loss.start for loss in lost) > 0
    assert accept_loss(ledger, spec, name) == lost
    found = gaps(ledger, spec)
    assert found.refusals == () and [loss.name for loss in found.losses] == [name]


@pytest.mark.parametrize("place", [*FILES, "pipeline"], indirect=True)
def test_what_comes_back_goes_on(place: Files, ledger: Ledger) -> None:
    """A partition that was closed is open again: it is not read twice."""
    place.append(0, 200)
    spec = place.spec()
    run(ledger, spec, "r1")
    place.lose()
    told = {refusal.reason for refusal in run(ledger, spec, "r2").plan.refusals}
    assert told == ({"missing"} if isinstance(place, Upstream) else set())  # CH4
    place.restore()
    place.append(200, 210)
    run(ledger, spec, "r3")
    assert in_output(spec) == ids(0, 210)


# Attacks D4.
def test_a_lost_ledger_finds_its_partitions(place: Place, ledger: Ledger) -> None:
    """From markers alone: only what is new is read."""
    place.append(0, 200)
    spec = place.spec()
    run(ledger, spec, "r1")
    lose(ledger)
    place.append(200, 210)
    adopt(ledger, spec, log=quiet)
    run(ledger, spec, "r2")
    assert in_output(spec) == ids(0, 210)


# Attacks D4.
@OF_FILES
def test_a_lost_ledger_finds_what_was_renamed(place: Files, ledger: Ledger) -> None:
    """From markers alone, whatever its name is now."""
    place.append(0, 200)
    spec = place.spec()
    run(ledger, spec, "r1")
    lose(ledger)
    place.rename()
    adopt(ledger, spec, log=quiet)
    assert run(ledger, spec, "r2").plan.batch is None
    assert in_output(spec) == ids(0, 200)


def test_the_ledger_keeps_evidence_as_it_is(place: Place, ledger: Ledger) -> None:
    """What a source gave to the ledger comes back equal, and says that nothing differs."""
    place.append(0, 10)
    spec = place.spec()
    source = open_source(spec)
    shown = source.discover()
    (offer,) = source.match(shown, empty_ledger_view(shown), None).offers
    evidence = source.evidence(offer, offer.end)
    batch = plan(ledger, spec, "r1").batch.batch_id
    (claim,) = claimed(ledger, batch)
    assert (claim.name, claim.identity, claim.evidence) == (offer.name, offer.identity, evidence)


def test_executors_look_at_what_the_driver_sees(place: Place) -> None:
    """`semel check` says what is there; a task, which gets plain values, can look at it. A kind that
    says nothing of it is listed."""
    place.append(0, 10)
    source = open_source(place.spec())
    told, look = source.probe()
    assert re.search(" of (events|up) in ", told) and Source.probe(source) == ("1 to read", None)
    importlib.import_module(look.module).check_access(*json.loads(json.dumps(look.values)))


def test_a_look_before_the_first_plan_changes_nothing(place: Place, ledger: Ledger) -> None:
    """`semel gaps` shows what the first run will take."""
    place.append(0, 10)
    spec = place.spec()
    (gap,) = gaps(ledger, spec).gaps
    assert (gap.name, gap.start, gap.state) == (place.called, 0, GapReason.UNCLAIMED)
    assert place.holds(0, gap.end) == place.holds(0, 1 << 30)
    assert ledger.rows("look", "batches", name=None, count=5) == []
