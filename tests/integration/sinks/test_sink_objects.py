"""Objects of a store as a sink, on a real server of S3's protocol: each row is there once, and no
key ever has two contents, whatever is lost, killed, refused or done twice.
"""

import json
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fixtures.batches.account import committed, ids, quiet, run, sql
from fixtures.batches.faults import Children, children, dies_at, forks  # noqa: F401
from fixtures.batches.replays import hours_pass, proven, replayed
from fixtures.batches.workbench import Workbench, events
from fixtures.objects.azure import Azure
from fixtures.objects.outlet import Prefix, through
from fixtures.objects.s3 import CONNECTION, PASSWORD, S3
from fixtures.objects.wire import HttpWire
from fixtures.spark.local import LocalEngine
from semel import failpoints
from semel.archive import layout
from semel.archive.marker import markers_of
from semel.audit import audit
from semel.clients.objects import Store
from semel.collect import collect
from semel.errors import (
    CorruptionError,
    RetryableError,
    SpecError,
    TerminalError,
    UnavailableError,
)
from semel.finalize import finalize
from semel.ledger import Ledger
from semel.pipeline.opening import open_sink
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.reader import dataset
from semel.reports.dead_letters import letters
from semel.runs.run import steps_of
from semel.sinks import Presence
from semel.spark import check
from semel.spark.check import CheckReport
from semel.stage import stage

TOLD_SECONDS = 10


@pytest.fixture
def prefix(bench: Workbench, s3: S3) -> Prefix:
    return Prefix(bench, s3)


def spread(prefix: Prefix, **sink: object) -> Spec:
    """A pipeline whose batches have a file for each of ten values of n."""
    return prefix.bench.spec(sink={**prefix.declared, "partition_by": ["n"], **sink})


def ten(first: int = 0) -> list[dict]:
    return [{**event, "n": event["n"] % 10} for event in events(first, first + 50)]


# Attacks OB5, OB6, OB7, OB12.
@pytest.mark.parametrize("what", ["lake/events/events-b", "lake/events/_semel/batches",
                                  "lake/events/_semel/markers"])  # fmt: skip
def test_a_lost_answer_is_no_loss(
    prefix: Prefix, ledger: Ledger, http_wire: HttpWire, s3: S3, monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:  # fmt: skip
    """The server has put an object, and its answer is cut: HEAD tells that it is one's own, of
    data, of notes, and of a copy that replaces one; each key is put once."""
    through(http_wire, s3, monkeypatch)
    prefix.bench.write("in/a.jsonl", events(0, 10))
    http_wire.cut(f"PUT /{prefix.bucket}/{what}")
    run(ledger, prefix.spec(), "r1")
    assert http_wire.cuts == 1 and prefix.read() == ids(0, 10)
    http_wire.cut(f"PUT /{prefix.bucket}/{what}")
    replayed(ledger, prefix.spec(), 1, "again")
    assert http_wire.cuts == 2 and prefix.read() == ids(0, 10)
    puts = Counter(asked for asked, status in http_wire.done
                   if asked.startswith("PUT") and status == 200
                   and "/_semel/probe-" not in asked)  # fmt: skip
    copy = f"PUT /{prefix.bucket}/lake/events/_semel/markers/b00000001.json"
    assert puts.pop(copy) == 2 and {*puts.values()} == {1}
    proven(prefix.spec())


def test_a_slow_upload_is_waited_for(
    prefix: Prefix, http_wire: HttpWire, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that takes longer to send than a store that is away may take to answer. It takes 5 s:
    that is the bound and some more."""
    through(http_wire, s3, monkeypatch)
    store = open_sink(prefix.spec())._store
    http_wire.slow = 0.05
    begun = time.monotonic()
    assert store.create("large", random.randbytes(6 << 20), {})
    assert time.monotonic() - begun > 4


def killed(ledger: Ledger, spec: Spec, batch: int) -> None:
    """What each of the sixteen does."""
    finalize(ledger, spec, batch)


# Attacks OB5, OB6, F9.
def test_sixteen_finalizers_killed_anywhere(
    prefix: Prefix, ledger: Ledger, children: Children, http_wire: HttpWire, s3: S3,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Processes finalize one batch at once, and are killed at points and at random moments: each
    row is there once, and each key was put once. It takes 10 s: sixteen processes start."""
    through(http_wire, s3, monkeypatch)
    spec = spread(prefix)
    prefix.bench.write("in/a.jsonl", ten())
    batch = committed(ledger, spec, "r1")
    points = ["sink.before_put", "sink.after_put", "sink.before_publish", "sink.after_publish",
              "sink.before_copy", "sink.after_copy", "finalize.after_mark"]  # fmt: skip
    chosen = random.Random(34)
    first = children.start(killed, "sink.after_put:exit:1", None, batch)
    first.process.join(60)
    assert first.process.exitcode == failpoints.EXIT_CODE
    for number in range(15):
        at = f"{chosen.choice(points)}:exit:{chosen.randint(1, 3)}" if number % 2 else ""
        children.start(killed, at, None, batch)
    for child in children.started[1:]:
        if chosen.random() < 0.5:
            time.sleep(chosen.random() / 10)
            child.process.kill()
    for child in children.started:
        child.process.join(60)
    assert -signal.SIGKILL in {child.process.exitcode for child in children.started}
    finalize(ledger, spec, batch)
    assert [row_id for _, row_id in prefix.rows()] == ids(0, 50)
    assert prefix.read() == ids(0, 50)
    puts = Counter(asked for asked, status in http_wire.done
                   if asked.startswith("PUT") and status == 200)  # fmt: skip
    puts = {asked: count for asked, count in puts.items() if "probe" not in asked}
    assert {*puts.values()} == {1} and len(puts) == 12
    proven(spec)


# Attacks OB5, OB6, F4.
@pytest.mark.parametrize("which", ["data", "note", "copy"])
def test_a_foreign_object_stays_and_is_loud(prefix: Prefix, ledger: Ledger, which: str) -> None:
    """Under a key of the batch, of its note or of its marker's copy: nothing is touched, the key is
    named, and once it is gone the batch is finished."""
    spec = prefix.spec()
    prefix.bench.write("in/a.jsonl", events(0, 10))
    batch = committed(ledger, spec, "r1")
    key = {
        "data": "events-b00000001-00000.parquet",
        "note": f"_semel/batches/b{1:018d}.json",
        "copy": "_semel/markers/b00000001.json",
    }[which]
    theirs = f"{prefix.prefix}/{key}"
    prefix.s3.put(prefix.bucket, theirs, b"{}")
    with pytest.raises((CorruptionError, TerminalError), match=re.escape(key)):
        finalize(ledger, spec, batch)
    assert prefix.get(theirs) == b"{}"
    prefix.s3.delete(prefix.bucket, theirs)
    finalize(ledger, spec, batch)
    assert prefix.read() == ids(0, 10)
    proven(spec)


# Attacks OB5.
@pytest.mark.proof
def test_the_store_killed_under_load(prefix: Prefix, ledger: Ledger) -> None:
    """Batches of many files, and a server that is killed and started again: nothing is lost and
    nothing is there twice. It takes 20 s: a store that is away is waited for."""
    spec, over = spread(prefix), threading.Event()

    def kills() -> None:
        chosen = random.Random(5)
        while not over.wait(0.3 + chosen.random()):
            prefix.s3.kill()
            time.sleep(0.2)
            prefix.s3.start()

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kills)
        try:
            for number in range(6):
                prefix.bench.write(f"in/{number}.jsonl", ten(50 * number))
                for _ in range(60):
                    try:
                        run(ledger, spec, f"r{number}")
                        break
                    except RetryableError:
                        continue
                else:
                    pytest.fail("it never ended")
        finally:
            over.set()
            killing.result(30)
    assert [row_id for _, row_id in prefix.rows()] == ids(0, 300)
    assert prefix.read() == ids(0, 300)
    proven(spec)


# Attacks RP5, RP7, OB8, OB12.
def test_a_replay_replaces_by_its_marker(prefix: Prefix, ledger: Ledger) -> None:
    """Readers by markers see the new rows alone; collect deletes the old objects, and leaves one
    that somebody has put in the place of theirs."""
    spec = spread(prefix)
    prefix.bench.write("in/a.jsonl", ten())
    run(ledger, spec, "r1")
    old = prefix.keys()
    replayed(ledger, spec, 1, "again")
    assert prefix.read() == ids(0, 50) and len(prefix.keys()) == 20
    proven(spec)
    hours_pass(ledger)
    kept = prefix.get(old[0])
    prefix.s3.put(prefix.bucket, old[0], b"theirs")
    done = collect(ledger, spec, log=quiet)
    assert done.replaced_removed == 0 and "is not the object" in done.damaged[0]
    assert prefix.get(old[0]) == b"theirs"
    prefix.s3.delete(prefix.bucket, old[0])
    done = collect(ledger, spec, log=quiet)
    assert done.replaced_removed == 1 and done.damaged == () and kept
    assert len(prefix.keys()) == 10 and not {*prefix.keys()} & {*old}
    assert prefix.read() == ids(0, 50)
    proven(spec)


# Attacks OB12.
def test_a_late_finalizer_leaves_a_newer_copy(prefix: Prefix, ledger: Ledger) -> None:
    """One that stood before it put its copy goes on once a replay has replaced it."""
    spec = prefix.spec()
    prefix.bench.write("in/a.jsonl", events(0, 10))
    batch = committed(ledger, spec, "r1")
    sink = open_sink(spec)
    old = prefix.bench.folder / "b00000001.json"
    finalize(ledger, spec, batch)
    old.write_bytes(markers_of(spec)[0].path.read_bytes())
    replayed(ledger, spec, 1, "again")
    key = f"{prefix.prefix}/_semel/markers/b00000001.json"
    newest = prefix.get(key)
    assert json.loads(newest)["generation"] == 2
    sink.copy_marker(prefix.won((0, 10)), old)
    assert prefix.get(key) == newest


# Attacks OB5, R1.
def test_readers_see_whole_batches_and_never_an_attempt(
    prefix: Prefix, ledger: Ledger
) -> None:
    """Before a commit nothing of a batch is below the prefix; while it is half finalized a listing
    has some files of a committed batch, and a reader by markers none."""
    spec = spread(prefix)
    prefix.bench.write("in/a.jsonl", ten())
    run(ledger, spec, "r1")
    before = prefix.keys(own=True)
    prefix.bench.write("in/b.jsonl", ten(50))
    batch = committed(ledger, spec, "r2")
    assert prefix.keys(own=True) == before
    with dies_at("sink.before_put", 4):
        finalize(ledger, spec, batch)
    assert 10 < len(prefix.keys()) < 20
    assert prefix.read() == ids(0, 50)
    finalize(ledger, spec, batch)
    assert prefix.read() == ids(0, 100)
    assert [row_id for _, row_id in prefix.rows()] == ids(0, 100)


WINDOWS = [{"window": "1 day", "of": "at", "name": "day"}]


@pytest.mark.parametrize("form", ["parquet", "jsonl", "csv"])
def test_formats_folders_and_shards(prefix: Prefix, ledger: Ledger, form: str) -> None:
    """Keys, rows and columns are those that a folder of files would have."""
    layout_of = {
        "format": form, "partition_by": ["n", *WINDOWS], "shards": 2, "position_columns": True,
        "file_name": "{window}-s{shard}-b{batch}-p{part}",
    }  # fmt: skip
    remote = prefix.bench.spec(sink={**prefix.declared, **layout_of})
    local = prefix.bench.spec("local", sink={"type": "files", "path": "out/local", **layout_of})
    prefix.bench.write("in/a.jsonl", ten())
    for spec in (remote, local):
        run(ledger, spec, "r1")
    folder = local.sink_path()
    shape = r"n=\d/day=2026-01-01/2026-01-01-s[01]-b1-p\d+\." + form
    keys = [key.removeprefix(f"{prefix.prefix}/") for key in prefix.keys()]
    assert len(keys) > 10 and all(re.fullmatch(shape, key) for key in keys), keys
    there = dataset(prefix.declared["url"], connection=CONNECTION)
    here = dataset(folder)
    assert there.schema == here.schema
    # A source partition's number is its own in each pipeline.
    read_there, read_here = (
        found.to_table().drop_columns("_semel_source").sort_by("id") for found in (there, here)
    )
    assert read_there == read_here and read_here.num_rows == 50
    proven(remote)


# Attacks OB13.
def test_a_reader_is_told_of_a_foreign_object(prefix: Prefix, ledger: Ledger) -> None:
    """It gives no row of an object that is another one than its marker lists."""
    prefix.bench.write("in/a.jsonl", events(0, 10))
    run(ledger, prefix.spec(), "r1")
    [key] = prefix.keys()
    prefix.s3.put(prefix.bucket, key, prefix.get(key))
    with pytest.raises(CorruptionError, match="is not the object that its marker lists"):
        prefix.read()


def test_what_is_not_there_is_told_to_a_reader(prefix: Prefix, s3: S3) -> None:
    """No batch yet; no output at all; and a login in a URL is not said."""
    with pytest.raises(TerminalError, match="has no finalized batch"):
        prefix.read()
    with pytest.raises(TerminalError, match="the URL is not one of an object store") as told:
        dataset("s3://me:geheim@bucket/x")
    assert "geheim" not in str(told.value)


# Attacks OB7, D1, H2.
def test_another_ledger_is_refused(
    prefix: Prefix, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once notes of another ledger's pipeline of the same name, or of another name, are there,
    nothing more is read or put."""
    spec = prefix.spec()
    prefix.bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    prefix.finalize(prefix.won((70, 80), batch_id=9))
    prefix.bench.write("in/b.jsonl", events(10, 20))
    batch, engine = plan(ledger, spec, "r2").batch.batch_id, LocalEngine()
    with pytest.raises(TerminalError, match=r"has batch 9 of pipeline .events. of another"):
        stage(ledger, spec, batch, engine, log=quiet)
    assert not engine.jobs


# Attacks H2.
def test_notes_that_are_gone_or_damaged_are_loud(prefix: Prefix, ledger: Ledger) -> None:
    """A store that was emptied, or restored to an earlier time, gets no further batch."""
    spec = prefix.spec()
    prefix.bench.write("in/a.jsonl", events(0, 10))
    run(ledger, spec, "r1")
    note = f"{prefix.prefix}/_semel/batches/b{1:018d}.json"
    text = prefix.get(note)
    prefix.s3.delete(prefix.bucket, note)
    prefix.bench.write("in/b.jsonl", events(10, 20))
    with pytest.raises(TerminalError, match="has no note of batch 1"):
        run(ledger, spec, "r2")
    prefix.s3.put(prefix.bucket, note, b"{no json")
    assert not audit(spec).ok
    prefix.s3.put(prefix.bucket, note, text)
    run(ledger, spec, "r2")
    assert prefix.read() == ids(0, 20)


# Attacks H2.
def test_finalize_requests_notes_that_changed_since_stage(
    prefix: Prefix, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stage requests the newest notes. Finalize lists them again, and requests those of another
    etag: one that somebody has replaced meanwhile stops it, and what stage kept of it does not."""
    request, requested = Store.read, []
    monkeypatch.setattr(
        Store, "read", lambda store, key, *rest: requested.append(key) or request(store, key, *rest)
    )
    spec = prefix.spec()
    for number in range(4):
        prefix.bench.write(f"in/{number}.jsonl", events(10 * number, 10 * number + 10))
        batch_id = plan(ledger, spec, f"r{number}").batch.batch_id
        taken = {}
        for verb, step in steps_of(ledger, spec, batch_id, LocalEngine(), quiet).items():
            requested.clear()
            if (verb, number) == ("finalize", 3):
                break
            step()
            taken[verb] = len(requested)
    assert taken == {"stage": 3, "commit": 0}
    note = f"{prefix.prefix}/_semel/batches/b{2:018d}.json"
    text = prefix.get(note)
    prefix.s3.put(prefix.bucket, note, text.replace(b'"rows": 10', b'"rows": 11'))
    with pytest.raises(TerminalError, match="batch 2"):
        step()
    assert requested == [f"_semel/batches/b{2:018d}.json"]
    prefix.s3.put(prefix.bucket, note, text)
    requested.clear()
    step()
    assert not requested
    assert prefix.read() == ids(0, 40)


def test_the_newest_notes_are_found_in_a_long_list(prefix: Prefix) -> None:
    """Of 30 batches with gaps the asked ones come, and all of them when all are asked for."""
    from semel.sinks import NotesQuery

    sink = prefix.sink()
    numbers = [*range(1, 16), *range(4_000, 4_015)]
    for number in numbers:
        sink.publish(won := prefix.won((number, number + 1), batch_id=number), won.files)
    assert [n.batch_id for n in sink.notes().batch_notes] == numbers
    for has, count in ((4_014, 5), (4_014, 20), (None, 3)):
        newest = sink.notes(NotesQuery("events", count, prefix.staged, has))
        assert [n.batch_id for n in newest.batch_notes] == numbers[-count:]


def looked(spec: Spec) -> CheckReport:
    found = CheckReport()
    check._sinks(found, [spec], quiet)
    return found


# Attacks OB11.
def test_check_probes_the_store(
    prefix: Prefix, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that the store keeps the promise, and leaves nothing; of one that does not, what to
    take."""
    [one] = looked(prefix.spec()).checks
    assert one.ok and "a second put of one key is refused" in one.detail
    assert prefix.keys(own=True) == []
    prefix.unfit(monkeypatch)
    [one] = looked(prefix.spec()).checks
    assert not one.ok and "does not refuse a second put" in one.detail
    assert prefix.keys(own=True) == []


@pytest.mark.parametrize(
    "trouble",
    [pytest.param(one, marks=pytest.mark.proof) for one in ("secret", "expired", "away")]
    + ["bucket"],
)
def test_a_store_that_cannot_be_used_is_told(
    prefix: Prefix, ledger: Ledger, s3: S3, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """Stage and finalize fail within ten seconds with what to do, and tell no secret; the batch
    waits and lands."""
    spec = prefix.spec()
    prefix.bench.write("in/a.jsonl", events(0, 10))
    planned = plan(ledger, spec, "r1").batch.batch_id
    variable = f"AIRFLOW_CONN_{CONNECTION.upper()}"

    def fails(verb: Callable[[], object]) -> None:
        with monkeypatch.context() as patch:
            said: tuple[type[Exception], str] = (TerminalError, "Correct the key and secret")
            if trouble == "secret":
                patch.setenv(variable, s3.connection(password="other-secret"))
            elif trouble == "expired":
                patch.setenv(variable, s3.connection(login="gone"))
            elif trouble == "bucket":
                s3.client.delete_bucket(Bucket=prefix.bucket)
                said = TerminalError, rf"s3://{prefix.bucket}\b.*: its bucket .* does not exist"
            else:
                s3.kill()
                said = UnavailableError, "does not answer"
            begun = time.monotonic()
            with pytest.raises(said[0], match=said[1]) as told:
                verb()
            assert time.monotonic() - begun < TOLD_SECONDS
            for secret in (PASSWORD, "other-secret", "Signature="):
                assert secret not in str(told.value)
        s3.start()
        if trouble == "bucket":
            s3.client.create_bucket(Bucket=prefix.bucket)

    fails(lambda: stage(ledger, spec, planned, LocalEngine(), log=quiet))
    batch = committed(ledger, spec, "r1")
    fails(lambda: finalize(ledger, spec, batch))
    finalize(ledger, spec, batch)
    assert prefix.read() == ids(0, 10)


def test_a_store_that_lets_nobody_list(
    prefix: Prefix, ledger: Ledger, http_wire: HttpWire, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers 403 for what is absent. The check and a run say which right is missing, before any
    attempt; with it the batch lands."""
    through(http_wire, s3, monkeypatch)
    spec, http_wire.unlisted = prefix.spec(), True
    prefix.bench.write("in/a.jsonl", events(0, 10))
    [one] = looked(spec).checks
    assert not one.ok and "Allow ListBucket on it" in one.detail
    with pytest.raises(TerminalError, match="Allow ListBucket on it"):
        run(ledger, spec, "r1")
    assert sql(ledger, "SELECT * FROM semel.attempt") == []
    http_wire.unlisted = False
    run(ledger, spec, "r1")
    assert prefix.read() == ids(0, 10)


def test_no_secret_leaves_the_process(prefix: Prefix, ledger: Ledger) -> None:
    """Not in a job, the archive, the ledger or the store."""
    engine = LocalEngine()
    prefix.bench.write("in/a.jsonl", events(0, 10))
    run(ledger, prefix.spec(), "r1", engine=engine)
    texts = [repr(engine.jobs), str(prefix.sink())]
    texts += [str(row) for row in sql(ledger, "SELECT * FROM semel.batch")]
    texts += [prefix.get(key).decode("latin-1") for key in prefix.keys(own=True)]
    kept = layout.archive_folder(prefix.spec())
    texts += [path.read_bytes().decode("latin-1") for path in kept.rglob("*") if path.is_file()]
    assert len(texts) > 6 and not any(PASSWORD in text for text in texts)


# Attacks OB9.
def test_a_record_of_a_key_that_is_too_long_is_a_dead_letter(
    prefix: Prefix, ledger: Ledger
) -> None:
    """Folders of long values; others land, with letters of any alphabet in their keys."""
    names = [f"c{number}" for number in range(6)]
    schema = {"id": "string", "n": "bigint", "at": "timestamp", **dict.fromkeys(names, "string")}
    spec = prefix.bench.spec(
        source={"schema": schema}, sink={**prefix.declared, "partition_by": names}
    )
    texts = ["\u6f22 \u0436\u0301", "x" * 180, "\ufffe\uffff%2F", *["y"] * 28]
    records = [
        {**event, **dict.fromkeys(names, text)}
        for event, text in zip(events(0, len(texts)), texts, strict=True)
    ]
    prefix.bench.write("in/a.jsonl", records)
    run(ledger, spec, "r1")
    found = dataset(spec.sink.url, connection=CONNECTION).to_table(["c0"])
    wanted = sorted(text for text in texts if text[0] != "x")
    assert sorted(found.column("c0").to_pylist()) == wanted
    assert [letter.reason for letter in letters(spec, count=9).letters] == ["sink_refuses"]
    assert audit(spec).ok


# Attacks OB9.
def test_a_prefix_that_is_too_long_is_refused(prefix: Prefix) -> None:
    """No record is at fault, so `validate` refuses the prefix: no server is queried."""
    room = prefix.bench.spec(sink=prefix.declared).sink.folders_bytes_max("events")
    url = f"{prefix.declared['url']}/"
    assert prefix.bench.spec(sink={**prefix.declared, "url": url + "p" * (room - 1)})
    with pytest.raises(SpecError, match="sink.url: is too long: .* over 1024 bytes"):
        prefix.bench.spec(sink={**prefix.declared, "url": url + "p" * room})


@pytest.mark.parametrize(
    ("sink", "why"),
    [
        ({"url": "s3://me:geheim@bucket/x"}, "Put a login into a connection"),
        ({"url": "s3://bucket//x"}, "has //, /./ or /../ in its prefix"),
        ({"url": "s3://bucket/../x"}, "has //, /./ or /../ in its prefix"),
        ({"file_name": "b{batch}"}, "lacks {part}"),
        ({"partition_by": ["none"]}, "not a column"),
        ({"format": "avro"}, "parquet"),
        ({"mode": "append"}, "mode"),
    ],
)
def test_a_declaration_that_is_wrong_is_told(
    bench: Workbench, sink: dict[str, object], why: str
) -> None:
    """With the key, and without what may be a secret."""
    declared = {"type": "objects", "url": "s3://bucket/x", "format": "parquet"}
    with pytest.raises(SpecError, match=why) as told:
        bench.spec(sink=declared | sink)
    assert "geheim" not in str(told.value)


def test_a_batch_without_rows_has_a_marker_alone(prefix: Prefix, ledger: Ledger) -> None:
    """Readers get no row, and the audit is content."""
    prefix.bench.write("in/a.jsonl", [b"{bad"])
    run(ledger, prefix.spec(), "r1")
    assert prefix.keys(own=True) == [f"{prefix.prefix}/_semel/markers/b00000001.json"]
    assert prefix.read() == []
    proven(prefix.spec())


def test_the_audit_asks_for_the_copies(prefix: Prefix, ledger: Ledger) -> None:
    """A copy that is gone or another one is told: readers elsewhere go by it."""
    prefix.bench.write("in/a.jsonl", events(0, 10))
    run(ledger, prefix.spec(), "r1")
    key = f"{prefix.prefix}/_semel/markers/b00000001.json"
    for harm in (lambda: prefix.s3.put(prefix.bucket, key, b"{}"),
                 lambda: prefix.s3.delete(prefix.bucket, key)):  # fmt: skip
        harm()
        found = [o.what for c in audit(prefix.spec()).checks for o in c.offenders]
        assert any("is not a copy of the marker" in what for what in found)


def test_look_tells_apart(prefix: Prefix) -> None:
    """Nothing, one's own, and another of the same size."""
    sink, won = prefix.sink(), prefix.won((0, 10))
    [key] = [f"{prefix.prefix}/{f.final_path.rpartition('#')[2]}" for f in won.files]
    assert sink.query_presence(won) == [Presence.ABSENT]
    prefix.s3.put(prefix.bucket, key, b"x" * won.files[0].bytes)
    assert sink.query_presence(won) == [Presence.WRONG]


# Attacks OB5.
def test_a_file_that_changes_while_it_is_put_is_not_put(prefix: Prefix) -> None:
    """A staged file that is damaged behind the look is told, and nothing of it is there."""
    sink, won = prefix.sink(), prefix.won((0, 10))
    path = Path(won.files[0].staged_path)
    path.write_bytes(b"x" * won.files[0].bytes)
    with pytest.raises(CorruptionError, match="was not put"):
        sink.publish(won, won.files)
    assert prefix.keys() == []


# Attacks OB10.
def test_rows_are_of_the_bytes_that_were_put(prefix: Prefix, ledger: Ledger) -> None:
    """Another object with the same size and the metadata of the first is told by its bytes."""
    prefix.bench.write("in/a.jsonl", events(0, 10))
    run(ledger, prefix.spec(), "r1")
    [key] = prefix.keys()
    there = prefix.s3.client.head_object(Bucket=prefix.bucket, Key=key)
    data = bytearray(prefix.get(key))
    data[len(data) // 2] ^= 1
    prefix.s3.client.put_object(
        Bucket=prefix.bucket, Key=key, Body=bytes(data), Metadata=there["Metadata"]
    )
    [marker] = markers_of(prefix.spec())
    with pytest.raises(CorruptionError, match="is not the object that semel put there"):
        list(prefix.sink().rows(marker))
    assert not audit(prefix.spec()).ok


# Attacks OB5, OB6, OB12.
def test_azure_keeps_the_promise(
    bench: Workbench, ledger: Ledger, azure: Azure
) -> None:
    """The same on a server of Azure's blobs: a batch that died half way, a replay, its old objects,
    and a foreign object."""
    url = f"az://{azure.bucket()}/lake"
    sink = {"type": "objects", "url": url, "connection": CONNECTION, "format": "parquet"}
    spec = bench.spec(sink={**sink, "partition_by": ["n"]})
    assert all(one.ok for one in looked(spec).checks)
    bench.write("in/a.jsonl", ten())
    batch = committed(ledger, spec, "r1")
    with dies_at("sink.before_put", 4):
        finalize(ledger, spec, batch)
    finalize(ledger, spec, batch)
    replayed(ledger, spec, 1, "again")
    hours_pass(ledger)
    assert collect(ledger, spec, log=quiet).replaced_removed == 1
    found = dataset(url, connection=CONNECTION).to_table()
    assert sorted(found.column("id").to_pylist()) == ids(0, 50)
    proven(spec)
    bench.write("in/b.jsonl", ten(50))
    batch = committed(ledger, spec, "r2")
    azure.put(url[5:-5], f"lake/n=0/events-b{batch:08d}-00000.parquet", b"theirs")
    with pytest.raises(CorruptionError, match="Nothing was touched"):
        finalize(ledger, spec, batch)
