"""Objects of a store as a source: what is their own, against a real server of S3's protocol.

What they share with other sources is in test_contract_sources.py.
"""

import gzip
import json
import pickle
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
import xxhash

from fixtures.batches.account import ids, quiet, run, settled, sql
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import Shell
from fixtures.contract.sources import Objects, parquet_of
from fixtures.objects.s3 import CONNECTION, PASSWORD, S3
from fixtures.postgres.server import free_port
from semel.audit import audit
from semel.cli import main
from semel.clients import objects as client
from semel.errors import ChangedError, SemelError, SourceError, TerminalError, UnavailableError
from semel.ledger import Ledger
from semel.model.batch import Claim
from semel.model.split import splits_of
from semel.pipeline.opening import open_source
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.repair.accept import accept_file
from semel.reports.gaps import gaps
from semel.runs.run import run_batch
from semel.sources.objects import source as source_room
from workers import NEEDS_SPARK

TOLD_SECONDS = 10
DAY = timedelta(days=1)


@pytest.fixture
def place(bench: Workbench, s3: S3) -> Objects:
    """A bucket of objects of JSON Lines."""
    return Objects(bench, s3, "jsonl")


def lines(start: int, stop: int) -> bytes:
    return "".join(json.dumps(event) + "\n" for event in events(start, stop)).encode()


def claimed(ledger: Ledger, batch_id: int) -> list[Claim]:
    return [Claim.from_row(r) for r in ledger.rows("plan", "claims", batch_id=batch_id)]


def refused(ledger: Ledger, spec: Spec, key: str = "r") -> dict[str, str]:
    """What a plan refuses, with the reason of each."""
    return {r.name: r.reason for r in plan(ledger, spec, key).refusals}


def listed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """The folder and the key that each listing from now on begins at, as they are asked for."""
    asked, ask = [], client.Store.list

    def noting(self: client.Store, folder: str = "", after: str | None = None) -> object:
        asked.append((folder, after))
        return ask(self, folder, after)

    monkeypatch.setattr(client.Store, "list", noting)
    return asked


def test_all_formats_and_packings_are_read_and_audited(
    bench: Workbench, s3: S3, ledger: Ledger
) -> None:
    """Lines of JSON and CSV, plain, gzip and zstd with several members and frames, and row groups
    of Parquet: each record once, and the audit finds the same by its own readers. It takes 15 s:
    nine runs."""
    for number, (kind, parts) in enumerate(
        [("jsonl", 1), ("jsonl.gz", 2), ("jsonl.zst", 2), ("csv", 1), ("csv.gz", 1),
         ("csv.zst", 1), ("parquet", 1)]
    ):  # fmt: skip
        place = Objects(bench, s3, kind)
        spec = place.spec(name=f"p{number}")
        data = place.made(0, 40) if parts == 1 else place.made(0, 20) + place.made(20, 40)
        place.put(f"a.{kind}", data)
        place.put(f"b c+ü/%41.{kind}", place.made(40, 50))
        run(ledger, spec, "r1")
        assert settled(spec).ids == ids(0, 50), kind


def test_a_large_object_is_cut_into_splits_and_batches(place: Objects, ledger: Ledger) -> None:
    """An object of more than a batch's limit is read over several batches, and by several tasks
    each: every record once, also where a last line has no end."""
    place.put("a.jsonl", lines(0, 3_000).removesuffix(b"\n"))
    spec = place.spec(limits={"bytes_per_batch_max": 60_000})
    source = open_source(spec)
    for number in range(10):
        done = run(ledger, spec, f"r{number}")
        if done.plan.batch is None:
            break
        found = claimed(ledger, done.plan.batch.batch_id)
        assert len(splits_of(found, 10_000, whole=set())) > 1 and not source.is_whole(found[0])
    assert number == 3
    assert settled(spec).ids == ids(0, 3_000)


# Attacks OB1.
def test_a_replaced_object_waits_for_accept(
    place: Objects, ledger: Ledger, shell: Shell
) -> None:
    """Another object under a key that was read is refused as replaced, and told with its command;
    the others go on. Put back, it is what was read. Accepted, all of it is a new generation."""
    place.put("a.jsonl", lines(0, 10))
    spec = place.spec()
    run(ledger, spec, "r1")
    place.put("a.jsonl", lines(100, 105))
    place.put("b.jsonl", lines(10, 15))
    found = run(ledger, spec, "r2").plan
    (told,) = found.refusals
    assert (told.name, told.reason) == ("a.jsonl", "replaced")
    assert "`semel accept events a.jsonl`" in told.detail and "0 to" not in told.detail
    assert settled(spec, audited=False).ids == ids(0, 15)
    place.put("a.jsonl", lines(0, 10))
    assert refused(ledger, spec, "r3") == {}
    place.put("a.jsonl", lines(100, 105))
    step = shell.fails("semel accept events a.jsonl --from 5")
    assert "--same and --from do not apply" in shell.err
    shell.runs(step)
    run(ledger, spec, "r4")
    assert settled(spec, audited=False).ids == sorted([*ids(0, 15), *ids(100, 105)])
    assert refused(ledger, spec, "r5") == {}
    shell.runs(shell.fails("semel accept events b.jsonl --same"))


# Attacks OB1.
def test_a_replaced_object_of_a_planned_batch_is_never_mixed(
    place: Objects, ledger: Ledger
) -> None:
    """While a batch that has claimed an object is planned, a longer one under its key gives nothing
    to another run: its bytes behind the claimed ones would be of another object."""
    place.put("a.jsonl", lines(0, 10))
    spec = place.spec()
    plan(ledger, spec, "r1")
    place.put("a.jsonl", lines(200, 230))
    other = plan(ledger, spec, "r2")
    assert other.batch is None and [r.reason for r in other.refusals] == ["replaced"]


# Attacks OB2, S6.
@pytest.mark.parametrize("kind", ["jsonl", "csv", "jsonl.gz", "jsonl.zst", "parquet"])
@pytest.mark.parametrize("same_size", [True, False])
def test_a_change_while_a_task_reads_gives_no_byte_of_another(
    bench: Workbench, s3: S3, ledger: Ledger, kind: str, same_size: bool
) -> None:
    """An object that is replaced after the driver has proven it, and before or while a task reads,
    fails the task: planned anew. One that is deleted fails it too, until it is back."""
    place = Objects(bench, s3, kind)
    place.put(f"a.{kind}", place.made(0, 50))
    spec = place.spec()
    source = open_source(spec)
    batch = plan(ledger, spec, "r1").batch.batch_id
    (claim,) = claimed(ledger, batch)
    source.check([claim], batch)
    (split,) = splits_of([claim], source.split_size, whole={0} if source.is_whole(claim) else set())

    def read() -> list[str]:
        digest = xxhash.xxh3_128()
        return [row["id"] for b in source.read(split, batch, digest) for row in b.table.to_pylist()]

    assert read() == ids(0, 50)
    place.put(f"a.{kind}", place.made(50, 100) if same_size else place.made(50, 120))
    with pytest.raises(ChangedError, match=f"its content changed.*semel abandon {batch}"):
        read()
    s3.delete(place.bucket, f"in/a.{kind}")
    with pytest.raises(SourceError, match="it does not exist"):
        read()
    place.put(f"a.{kind}", place.made(50, 100))
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(50, 100)


# Attacks S29.
@pytest.mark.parametrize("kind", ["jsonl", "csv", "jsonl.gz", "jsonl.zst", "parquet"])
@pytest.mark.parametrize(
    ("raised", "told"),
    [(UnavailableError("away"), UnavailableError), (PermissionError(13, "no", "a"), SourceError)],
)
def test_a_store_that_fails_in_a_task_makes_no_dead_letters(
    bench: Workbench, s3: S3, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, kind: str,
    raised: Exception, told: type[Exception],
) -> None:  # fmt: skip
    """Whatever request of a task fails, the first or a later one: the task fails with what the
    store said, and no row is taken for damaged."""
    place = Objects(bench, s3, kind)
    place.put(f"a.{kind}", place.made(0, 6_000))
    spec = place.spec()
    source = open_source(spec)
    batch = plan(ledger, spec, "r1").batch.batch_id
    (claim,) = claimed(ledger, batch)
    (split,) = splits_of([claim], 1 << 30, whole=set())
    ask, stream, right = client.Store.read, client.Store.chunks, []

    def fails() -> None:
        if len(right) == at:
            raise raised
        right.append(at)

    def failing(self: client.Store, *asked: Any) -> bytes:
        fails()
        return ask(self, *asked)

    def breaking(self: client.Store, *asked: Any) -> Iterator[memoryview]:
        for piece in stream(self, *asked):
            fails()
            yield piece

    monkeypatch.setattr(client.Store, "read", failing)
    monkeypatch.setattr(client.Store, "chunks", breaking)
    at = -1
    assert sum(b.table.num_rows for b in source.read(split, batch, xxhash.xxh3_128())) == 6_000
    requests = len(right)
    assert requests
    for at in range(min(requests, 12)):
        right.clear()
        with pytest.raises(told):
            list(source.read(split, batch, xxhash.xxh3_128()))


# Attacks OB2.
def test_a_change_between_two_blocks_is_seen(place: Objects, ledger: Ledger) -> None:
    """Each request names the etag: what is replaced between two of them is not read on. What a
    request has begun to send may come to its end: it is of the version that was planned."""
    data = lines(0, 200_000)
    assert len(data) > 8 << 20
    place.put("a.jsonl", data)
    spec = place.spec()
    source = open_source(spec)
    batch = plan(ledger, spec, "r1").batch.batch_id
    first, second, *_ = splits_of(claimed(ledger, batch), 5 << 20, whole=set())
    digest = xxhash.xxh3_128()
    blocks = source.read(first, batch, digest)
    taken = next(blocks).bytes_read
    place.put("a.jsonl", data.replace(b"e0", b"f0"))
    try:
        taken += sum(block.bytes_read for block in blocks)
        assert digest.digest() == xxhash.xxh3_128(data[:taken]).digest()
    except ChangedError:
        pass
    with pytest.raises(ChangedError, match="its content changed"):
        list(source.read(second, batch, xxhash.xxh3_128()))


# Attacks OB3.
def test_only_the_folders_of_an_interval_are_listed(
    place: Objects, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run lists the folders of its interval and its lookback, and no others: what is not listed
    is not gone, and is taken by the run of its own interval."""
    for day in range(1, 9):
        place.put(f"dt=2026-01-{day:02d}/x.jsonl", lines(day * 10, day * 10 + 10))
    source = {"select": "interval", "interval_from": "dt=%Y-%m-%d/", "lookback": "1 d"}
    spec = place.spec(source=source, limits={"bytes_per_batch_max": 100_000})
    asked = listed(monkeypatch)
    first = datetime(2026, 1, 3, tzinfo=UTC)
    done = run(ledger, spec, "r3", (first, first + DAY))
    assert asked == [("dt=2026-01-02", None), ("dt=2026-01-03", None)]
    assert done.plan.refusals == ()
    assert settled(spec).ids == ids(20, 40)
    asked.clear()
    for day in (6, 1):  # Later, then earlier: the others are neither gone nor read again.
        start = datetime(2026, 1, day, tzinfo=UTC)
        assert run(ledger, spec, f"r{day}", (start, start + DAY)).plan.refusals == ()
    assert ("dt=2026-01-06", None) in asked and ("dt=2026-01-03", None) not in asked
    assert settled(spec).ids == sorted([*ids(10, 40), *ids(50, 70)])
    place.put("dt=2026-01-03/late.jsonl", lines(500, 505))
    run(ledger, spec, "again", (first, first + DAY))
    assert settled(spec).ids == sorted([*ids(10, 40), *ids(50, 70), *ids(500, 505)])


# Attacks OB3.
def test_what_is_gone_of_a_listed_folder_is_told(place: Objects, ledger: Ledger) -> None:
    """An object that was seen, and never read, is missed by a run that lists its folder; by no
    other one."""
    place.put("dt=2026-01-01/x.jsonl", lines(0, 10))
    source = {"select": "interval", "interval_from": "dt=%Y-%m-%d/", "on_refused": "warn"}
    spec = place.spec(source=source)
    first = datetime(2026, 1, 1, tzinfo=UTC)
    batch = plan(ledger, spec, "r1", (first, first + DAY)).batch
    abandon(ledger, batch.batch_id, "not now")
    place.s3.delete(place.bucket, "in/dt=2026-01-01/x.jsonl")
    other = plan(ledger, spec, "r2", (first + DAY, first + 2 * DAY))
    assert other.refusals == ()
    again = plan(ledger, spec, "r3", (first, first + DAY))
    assert [(r.name, r.reason) for r in again.refusals] == [("dt=2026-01-01/x.jsonl", "gone")]


# Attacks OB16.
@pytest.mark.parametrize("on_refused", ["fail", "warn"])
def test_what_was_refused_is_looked_at_by_each_plan(
    bench: Workbench, s3: S3, ledger: Ledger, on_refused: str
) -> None:
    """A run lists the folders of its interval, and those in which something is refused: the next
    day's plan forgets nothing of that, and takes its own day. Once it is settled, nobody looks
    there any more."""
    place = Objects(bench, s3, "parquet")
    source = {"select": "interval", "interval_from": "dt=%Y-%m-%d/", "on_refused": on_refused}
    spec = place.spec(source=source)
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in range(1, 6)]
    keys = [f"dt={day:%Y-%m-%d}/x.parquet" for day in days]
    damaged = keys[0].replace("x", "y")
    for number, key in enumerate(keys):
        place.put(key, parquet_of(10 * number, 10 * number + 10))

    def go(number: int, key: str) -> dict[str, str]:
        """What is refused after a run of a day."""
        with suppress(SourceError):
            run(ledger, spec, key, (days[number], days[number] + DAY))
        found = sql(ledger, "SELECT name, reason FROM semel.refusal")
        return {one["name"]: one["reason"] for one in found}

    assert go(0, "r1") == {}
    place.put(keys[0], parquet_of(100, 105))
    place.put(damaged, b"no footer")
    both = {keys[0]: "replaced", damaged: "damaged"}
    assert go(0, "r1") == both
    assert go(1, "r2") == both
    assert settled(spec, audited=False).ids == ids(0, 20)
    accept_file(ledger, spec, keys[0], same=False)
    assert go(2, "r3") == {damaged: "damaged"}
    place.put(damaged, parquet_of(200, 205))
    assert go(3, "r4") == {}
    assert settled(spec, audited=False).ids == ids(0, 40)
    listed = open_source(spec).narrow((days[4], days[4] + DAY), partial(ledger.rows, pipeline_id=1))
    assert listed.scope.folders == ("dt=2026-01-05",)
    assert go(0, "r1 again") == {}
    assert settled(spec, audited=False).ids == sorted([*ids(0, 40), *ids(100, 105), *ids(200, 205)])


# Attacks OB4.
def test_an_ordered_listing_begins_where_something_is_left(
    place: Objects, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ordered: true a run lists from the last key that was read on. It goes back for what was
    refused, was not read to its end, or is of an abandoned batch: nothing of these is passed over.
    """
    for name in ("2026-01-01", "2026-01-02"):
        place.put(f"{name}.jsonl", lines(int(name[-2:]) * 10, int(name[-2:]) * 10 + 10))
    spec = place.spec(source={"ordered": True})
    asked = listed(monkeypatch)
    run(ledger, spec, "r1")
    place.put("2026-01-03.jsonl", lines(30, 40))
    run(ledger, spec, "r2")
    assert [after for _, after in asked] == [None, "2026-01-02.jsonl"]
    # 1. An abandoned batch.
    place.put("2026-01-04.jsonl", lines(40, 50))
    batch = plan(ledger, spec, "r3").batch.batch_id
    place.put("2026-01-05.jsonl", lines(50, 60))
    run(ledger, spec, "r4")
    abandon(ledger, batch, "not now")
    run(ledger, spec, "r5")
    assert settled(spec).ids == ids(10, 60)
    # 2. What is behind the limit of a batch.
    small = place.spec(source={"ordered": True}, limits={"bytes_per_batch_max": 300})
    place.put("2026-01-06.jsonl", lines(60, 70))
    place.put("2026-01-07.jsonl", lines(70, 80))
    for number in range(20):
        if run(ledger, small, f"s{number}").plan.batch is None:
            break
    assert settled(spec).ids == ids(10, 80)
    asked.clear()
    plan(ledger, spec, "r6")
    assert asked == [("", "2026-01-07.jsonl")]
    # 3. The promise: what comes before is never seen by a run, and by gaps it is.
    place.put("2026-01-00.jsonl", lines(0, 10))
    assert plan(ledger, spec, "r7").batch is None
    assert [gap.name for gap in gaps(ledger, spec).gaps] == ["2026-01-00.jsonl"]


def test_a_key_that_an_ordered_listing_passed_by(
    place: Objects, ledger: Ledger, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """gaps says that no run reads it, and what does: it prints no run that would take nothing."""
    monkeypatch.setenv("SEMEL_LEDGER_DSN", ledger.dsn)
    place.put("2026-01-02.jsonl", lines(0, 10))
    spec = place.spec(source={"ordered": True})
    run(ledger, spec, "r1")
    place.put("2026-01-01.jsonl", lines(10, 20))
    assert run(ledger, spec, "r2").plan.batch is None and main(["gaps", spec.name]) == 1
    said = capsys.readouterr().out
    assert "'2026-01-01.jsonl' bytes" in said and "Declare ordered: false for one run" in said
    assert "next: semel run" not in said
    place.put("2026-01-03.jsonl", lines(20, 30))
    assert main(["gaps", spec.name]) == 1 and "next: semel run" in capsys.readouterr().out
    spec = place.spec()
    run(ledger, spec, "r3")
    assert settled(spec).ids == ids(0, 30)


# Attacks OB4.
def test_a_silent_batch_of_an_ordered_listing_is_taken_over(
    place: Objects, ledger: Ledger
) -> None:
    """A batch that was planned, and whose run died, is taken over by a later run, though objects
    behind its own were read since."""
    spec = place.spec(source={"ordered": True})
    place.put("1.jsonl", lines(0, 10))
    plan(ledger, spec, "dead")
    place.put("2.jsonl", lines(10, 20))
    run(ledger, spec, "r1")
    sql(ledger, "UPDATE semel.batch SET seen_at = seen_at - interval '1 day'")
    place.put("3.jsonl", lines(20, 30))
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 30)


# Attacks OB4.
def test_a_refused_object_of_an_ordered_listing_stays_refused(
    bench: Workbench, s3: S3, ledger: Ledger
) -> None:
    """An object whose header is not the schema's is listed each time, until it is corrected; then
    it is read, though later ones were."""
    place = Objects(bench, s3, "csv")
    spec = place.spec(source={"ordered": True})
    place.put("1.csv", place.made(0, 10))
    place.put("2.csv", b"other,names\n1,2\n")
    place.put("3.csv", place.made(20, 30))
    run(ledger, spec, "r1")
    assert refused(ledger, spec, "r2") == {"2.csv": "header"}
    place.put("4.csv", place.made(30, 40))
    run(ledger, spec, "r3")
    assert refused(ledger, spec, "r4") == {"2.csv": "header"}
    place.put("2.csv", place.made(10, 20))
    run(ledger, spec, "r5")
    assert settled(spec).ids == ids(0, 40)
    assert refused(ledger, spec, "r6") == {}


def answers_of(
    monkeypatch: pytest.MonkeyPatch, file: str
) -> dict[tuple[str, str], list[int]]:
    """How many rows each statement of a file of queries answers with from now on."""
    counts, ask = defaultdict(list), Ledger.rows

    def noting(self: Ledger, verb: str, name: str, /, **values: object) -> list[Any]:
        answer = ask(self, verb, name, **values)
        counts[verb, name] += [len(answer)] if verb == file else []
        return answer

    monkeypatch.setattr(Ledger, "rows", noting)
    return counts


def test_what_is_read_leaves_the_working_set(
    place: Objects, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an ordered listing, plans ask for the partitions of what they list alone, and the first
    plan after many objects for those that a batch is still at work on; one that is listed again, as
    it was, is the same partition; as another object, it is refused."""
    spec = place.spec(source={"ordered": True})
    for day in range(5):
        place.put(f"{day}.jsonl", lines(day * 10, day * 10 + 10))
        run(ledger, spec, f"r{day}")
    for more in range(20):
        place.put(f"5-{more:02}.jsonl", lines(50 + more, 51 + more))
    run(ledger, spec, "more")
    answers = answers_of(monkeypatch, "objects")
    run(ledger, spec, "last")
    assert {n for counts in answers.values() for n in counts} <= {0, 1}
    count = "SELECT count(*) FROM semel.source_partition WHERE closed_at IS NULL"
    with ledger.engine.connect() as connection:
        assert connection.execute(sa.text(count)).scalar_one() <= 1
    whole = place.spec()
    assert run(ledger, whole, "whole").plan.batch is None
    assert settled(spec).ids == ids(0, 70)
    assert run(ledger, spec, "again").plan.batch is None
    place.put("0.jsonl", lines(100, 110))
    assert refused(ledger, whole, "replaced") == {"0.jsonl": "replaced"}
    accept_file(ledger, whole, "0.jsonl", same=False)
    run(ledger, whole, "accepted")
    assert settled(spec, audited=False).ids == sorted([*ids(0, 70), *ids(100, 110)])
    assert refused(ledger, whole, "last of all") == {}


def test_damaged_objects_are_told(bench: Workbench, s3: S3, ledger: Ledger) -> None:
    """Parquet without a footer, or of another schema: refused before any work. A packed stream
    that is cut off fails its batch; once it is replaced, the run goes on by itself."""
    place = Objects(bench, s3, "parquet")
    spec = place.spec()
    data = parquet_of(0, 10)
    place.put("cut.parquet", data[:-20])
    place.put("none.parquet", b"no such thing")
    place.put("right.parquet", data)
    assert refused(ledger, spec) == {"cut.parquet": "damaged", "none.parquet": "damaged"}
    for kind in ("jsonl.gz", "jsonl.zst"):
        packed = Objects(bench, s3, kind)
        other = packed.spec(name=kind.replace(".", "_"))
        whole = packed.made(0, 2_000)
        packed.put(f"a.{kind}", whole[:-30])
        with pytest.raises(SourceError, match="damaged or cut off"):
            run(ledger, other, "r1")
        packed.put(f"a.{kind}", whole)
        run(ledger, other, "r1")
        assert settled(other).ids == ids(0, 2_000)


# Attacks P26.
def test_notes_of_writers_are_passed_over(place: Objects, ledger: Ledger) -> None:
    """_SUCCESS, hidden folders, empty objects, keys that the pattern does not name, and what lies
    beside the prefix."""
    place.put("a/x.jsonl", lines(0, 10))
    for key in ("a/_SUCCESS", "_temporary/1.jsonl", "a/.x.jsonl.crc", "a/y.csv"):
        place.put(key, b"no record\n")
    place.put("a/empty.jsonl", b"")
    place.s3.put(place.bucket, "inside/x.jsonl", lines(10, 20))
    spec = place.spec(source={"pattern": "*.jsonl"})
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 10)
    assert refused(ledger, spec, "r2") == {}
    place.put("_day/x.jsonl", lines(20, 30))
    spec = place.spec(name="days", source={"pattern": "_day/*.jsonl"})
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(20, 30)


def test_hostile_keys(place: Objects, ledger: Ledger, s3: S3) -> None:
    """Spaces, quotes, percent signs, shell's words, 1,024 bytes: each is read once, and its refusal
    names a command that is typed as it is. A key that no path can have ends the plan, named."""
    keys = [
        "a b.jsonl", "%2e%2e.jsonl", "$(rm -rf x);'\"`.jsonl", "ünï/ço∂e.jsonl", "a..b/c...jsonl",
        "/".join(["k" * 200] * 5) + "/" + "n" * (1024 - 3 - 5 * 201 - 6) + ".jsonl",
    ]  # fmt: skip
    assert len(f"in/{keys[-1]}") == 1024
    for number, key in enumerate(keys):
        place.put(key, lines(number * 10, number * 10 + 10))
    spec = place.spec()
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 10 * len(keys))
    for key in keys:
        place.put(key, lines(900, 901))
    found = plan(ledger, spec, "r2").refusals
    assert {r.name for r in found} == set(keys)
    assert {r.reason for r in found} == {"replaced"}
    s3.put(place.bucket, "in/new\nline.jsonl", b"x")
    with pytest.raises(TerminalError, match="Rename it, or choose a URL below"):
        plan(ledger, spec, "r3")


def test_a_store_that_is_away_fails_the_plan_and_changes_nothing(
    place: Objects, ledger: Ledger, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is not there: the plan ends within ten seconds with what to do; no object is
    gone for that. When the store is back, the run goes on."""
    place.put("a.jsonl", lines(0, 10))
    spec = place.spec()
    run(ledger, spec, "r1")
    place.put("b.jsonl", lines(10, 20))
    batch = plan(ledger, spec, "r2").batch.batch_id
    source, found = open_source(spec), claimed(ledger, batch)
    nobody = f"http://127.0.0.1:{free_port()}"
    with monkeypatch.context() as patch:
        patch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", s3.connection(nobody))
        begun = time.monotonic()
        for call in (lambda: plan(ledger, spec, "r3"), lambda: source.check(found, batch)):
            with pytest.raises(UnavailableError, match="does not answer"):
                call()
        assert time.monotonic() - begun < TOLD_SECONDS
    assert plan(ledger, spec, "r3").refusals == ()
    run(ledger, spec, "r2")
    assert settled(spec).ids == ids(0, 20)


@pytest.mark.proof
def test_credentials_that_are_not_taken_fail_the_plan(
    place: Objects, ledger: Ledger, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told with whose they are, within ten seconds, and without any secret; also by a task."""
    place.put("a.jsonl", lines(0, 10))
    spec = place.spec()
    batch = plan(ledger, spec, "r1").batch.batch_id
    (claim,) = claimed(ledger, batch)
    variable = f"AIRFLOW_CONN_{CONNECTION.upper()}"
    monkeypatch.setenv(variable, s3.connection(password="another"))
    for call in (
        lambda: plan(ledger, spec, "r2"),
        lambda: open_source(spec).read_text(splits_of([claim], 1 << 20, whole=set())[0], batch),
    ):
        begun = time.monotonic()
        with pytest.raises(TerminalError, match=CONNECTION) as told:
            call()
        assert time.monotonic() - begun < TOLD_SECONDS
        assert "another" not in str(told.value) and PASSWORD not in str(told.value)
    monkeypatch.delenv(variable)
    with pytest.raises(TerminalError, match=f"export {variable}"):
        plan(ledger, spec, "r3")


def test_no_secret_is_in_what_goes_to_tasks_or_stays(
    place: Objects, ledger: Ledger, bench: Workbench
) -> None:
    """Neither the source that is sent to tasks, nor any file of the output, nor the ledger's
    batches hold the connection's login or secret."""
    place.put("a.jsonl", lines(0, 10))
    spec = place.spec()
    run(ledger, spec, "r1")
    held = [pickle.dumps(open_source(spec)), str(ledger.rows("look", "batches", name=None, count=5))
            .encode()]  # fmt: skip
    held += [path.read_bytes() for path in bench.data.rglob("*") if path.is_file()]
    assert len(held) > 3
    for data in held:
        assert PASSWORD.encode() not in data and b"AKIATESTS" not in data


def test_the_audit_finds_what_stage_did_wrong(
    place: Objects, ledger: Ledger, bench: Workbench
) -> None:
    """An object that is another one since is told by the audit; one that was deleted is a batch
    that cannot be proven any more."""
    place.put("a.jsonl", lines(0, 10))
    place.put("b.jsonl", lines(10, 20))
    spec = place.spec()
    run(ledger, spec, "r1")
    assert audit(spec).ok
    place.put("a.jsonl", lines(100, 110))
    assert not audit(spec).ok
    place.s3.delete(place.bucket, "in/a.jsonl")
    verdict = audit(spec)
    assert verdict.ok and "the objects that were read were deleted" in str(verdict)


def test_a_row_group_is_a_split(bench: Workbench, s3: S3, ledger: Ledger) -> None:
    """Positions are rows, and no task reads a row group of another's split: a request for each
    column chunk of its own, and not the whole object."""
    place = Objects(bench, s3, "parquet")
    rows = [e | {"at": datetime.fromisoformat(e["at"])} for e in events(0, 4_000)]
    kinds = {"id": pa.string(), "n": pa.int64(), "at": pa.timestamp("us", "UTC")}
    file = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, pa.schema(kinds)), file, row_group_size=1_000)
    place.put("a.parquet", file.getvalue().to_pybytes())
    spec = place.spec()
    source = open_source(spec)
    batch = plan(ledger, spec, "r1").batch.batch_id
    (claim,) = claimed(ledger, batch)
    assert (claim.start, claim.end) == (0, 4_000)
    found = []
    for split in splits_of([claim], 1_000, whole=set()):
        digest = xxhash.xxh3_128()
        rows = [r["id"] for b in source.read(split, 1, digest) for r in b.table.to_pylist()]
        assert len(rows) in (0, 1_000)
        found += rows
    assert found == ids(0, 4_000)


def test_gzip_by_somebody_else(place: Objects, ledger: Ledger, tmp_path: Path) -> None:
    """An object of gzip that is empty inside, and one of several members with names in them."""
    for name, data in {
        "1.jsonl.gz": gzip.compress(b""),
        "2.jsonl.gz": gzip.compress(lines(0, 5)) + gzip.compress(lines(5, 10)),
    }.items():
        place.put(name, data)
    spec = place.spec()
    run(ledger, spec, "r1")
    assert settled(spec).ids == ids(0, 10)


@NEEDS_SPARK
def test_sparks_tasks_read_by_themselves(
    place: Objects, ledger: Ledger, s3: S3, request: pytest.FixtureRequest, executors_state: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Tasks in processes of Spark's own open the store by the connection that they find there, not
    by what the driver has; without it they say which variable is missing. It takes 20 s: it starts
    Spark."""
    engine = request.getfixturevalue("spark_engine")
    monkeypatch.setattr(source_room, "SPLIT_BYTES", 5_000)
    for number in range(4):
        place.put(f"{number}.jsonl", lines(number * 500, number * 500 + 500))
    spec = place.spec(source={"connection": "of_executors"})
    # Spark was started before, so its workers do not have it.
    monkeypatch.setenv("AIRFLOW_CONN_OF_EXECUTORS", s3.connection())
    with pytest.raises(SemelError, match="export AIRFLOW_CONN_OF_EXECUTORS"):
        run_batch(ledger, spec, "r1", engine, log=quiet)
    state = executors_state / "addresses.json"
    more = {"AIRFLOW_CONN_OF_EXECUTORS": s3.connection()}
    state.write_text(json.dumps(json.loads(state.read_text()) | more))
    run_batch(ledger, spec, "r1", engine, log=quiet)
    assert settled(spec).ids == ids(0, 2_000)
