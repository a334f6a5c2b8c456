"""Rules of stage and commit that no kill, twin or lost reply would show broken."""

import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fix_scene import (
    Scene,
    attempts,
    live_runs,
    manifest,
    payload_tables,
    staged,
    statements,
    status,
    time_passes,
)
from fixtures.batches.account import ids, quiet, run, settled, sql
from fixtures.batches.faults import collecting
from fixtures.batches.workbench import Workbench, events
from fixtures.spark.local import LocalEngine
from semel import failpoints, limits
from semel.collect import collect
from semel.collect.merge import merge_candidates
from semel.commit import commit
from semel.errors import CorruptionError, TerminalError
from semel.ledger import Ledger
from semel.plan import plan
from semel.plan.abandon import abandon
from semel.repair.accept import accept_columns
from semel.stage import stage

LOCK_ORDER = ["pipeline", "batch", "attempt"]


# Attacks S14.
def test_what_lies_in_the_folder_decides_nothing(scene: Scene) -> None:
    """Files of a zombie task beside those that the tasks reported never reach the output."""

    left = []

    def zombie(job) -> None:  # noqa: ANN001 - a StageJob
        letters = next(p for p in job.data_dir.iterdir() if "letters" in p.name)
        for name in (f"w00000-{'0' * 32}", f"r00000-letters-{'0' * 32}", "more.parquet"):
            left.append(Path(shutil.copy(letters, job.data_dir / name)))

    batch_id = staged(scene, "r1", LocalEngine(before_write=zombie))
    assert not {path for path, _ in manifest(scene.ledger, batch_id)} & {*left}
    scene.finish("r1", "r2")


class LosesRows(LocalEngine):
    """Hands back a data file that holds a row less than there are survivors."""

    def run(self, job):  # noqa: ANN001, ANN201 - as LocalEngine
        outcome = super().run(job)
        files = outcome.reports[-1].files
        short = [replace(f, records=f.records - 1) if f.kind == "data" else f for f in files]
        outcome.reports[-1] = replace(outcome.reports[-1], files=tuple(short))
        return outcome


# Attacks S20.
def test_a_row_that_was_not_written_is_seen(scene: Scene) -> None:
    """Without transforms rows written and survivors are equal, or nothing is staged."""
    with pytest.raises(CorruptionError, match=r"it wrote rows for \d+ of \d+ new records"):
        staged(scene, "r1", LosesRows())
    [batch] = sql(scene.ledger, "SELECT batch_id FROM semel.batch WHERE request_key = 'r1'")
    assert attempts(scene.ledger, batch["batch_id"]) == ["lost"]
    scene.finish("r1", "r2")


# Attacks C3.
def test_locks_are_taken_in_one_order(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each transaction of each verb locks pipeline, batch, attempt in this order: no deadlock.

    The one in which an attempt wins locks all three before it changes one.
    """
    monkeypatch.setattr("semel.commit.ATTEMPTS_LOST_BEFORE_LEASE", 1)
    monkeypatch.setattr(limits, "HEARTBEAT_SECONDS", 0.001)
    monkeypatch.setitem(merge_candidates.__kwdefaults__, "live_max", 1)
    log: list[tuple[object, str]] = []
    ledger, spec = scene.ledger, scene.spec

    def rival(_: object) -> None:
        scene.run("r2")

    with statements(lambda connection, text, _: log.append((connection.get_transaction(), text))):
        run(ledger, spec, "r1", engine=LocalEngine(before_write=rival))
        scene.add("d.jsonl", events(110, 120))
        orphan = staged(scene, "r3")
        sql(ledger, "UPDATE semel.batch SET seen_at = seen_at - interval '2 hours'")
        taken = plan(ledger, spec, "r4")
        assert taken.taken_over == (orphan,)
        abandon(ledger, taken.batch.batch_id, "by the test")
        collect(ledger, spec, quiet)
    transactions: dict[object, list[str]] = {}
    for transaction, text in log:
        transactions.setdefault(transaction, []).append(text)
    for texts in transactions.values():
        found = _locked(texts)
        assert found == sorted(found, key=LOCK_ORDER.index), texts
        place = [n for n, text in enumerate(texts) if "commit_seq = commit_seq + 1" in text]
        assert not place or _locked(texts[: place[0]]) == LOCK_ORDER, texts
    assert sum(_locked(texts) == LOCK_ORDER for texts in transactions.values()) >= 4
    scene.finish("r1", "r2", "r5")


def _locked(texts: list[str]) -> list[str]:
    """The tables of LOCK_ORDER whose rows a transaction locks, in the order of their first lock."""
    found = {}
    for text in texts:
        match = re.search(r"UPDATE semel\.(\w+)", text)
        if match is None and re.search(r"FOR (NO KEY )?(UPDATE|SHARE)", text):
            match = re.search(r"FROM semel\.(\w+)", text)
        if match and match[1] in LOCK_ORDER:
            found[match[1]] = None
    return [*found]


def _timed(start: int, stop: int, at: datetime) -> list[dict]:
    return [{**event, "at": at.isoformat()} for event in events(start, stop)]


# Attacks C5.
def test_a_bucket_that_was_collected_takes_no_commit(bench: Workbench, ledger: Ledger) -> None:
    """A staged copy of an id that was committed and forgotten meanwhile does not win: it is late.

    Nothing but the forgotten buckets tell, for the run that held the id is retired.
    """
    timed = {"record_time": "at", "limits": {"bytes_per_batch_max": 450}}
    spec = bench.spec(dedup={"shards": 1, "scope": "bucket", "horizon": "3650 d"}, **timed)
    old = datetime.now(UTC) - timedelta(days=500)
    for name in ("a", "b"):
        bench.write(f"in/{name}.jsonl", _timed(0, 6, old))
    batches = [plan(ledger, spec, request).batch.batch_id for request in ("r1", "r2")]
    for batch_id in batches:
        stage(ledger, spec, batch_id, LocalEngine(), quiet)
    commit(ledger, spec, batches[0], lambda: None, quiet)
    sql(ledger, "UPDATE semel.id_run SET expires_at = now() WHERE seq_min IS NOT NULL")
    assert collect(ledger, spec, quiet).runs_retired == 1

    def restage() -> None:
        stage(ledger, spec, batches[1], LocalEngine(), quiet)

    assert commit(ledger, spec, batches[1], restage, quiet).losses == 1
    assert attempts(ledger, batches[1]) == ["lost", "won"]
    for request in ("r1", "r2"):
        run(ledger, spec, request)
    found = settled(spec)
    assert found.ids == [event["id"] for event in events(0, 6)]
    assert found.reasons == {"late": 6}


# Attacks G1.
def test_what_a_bucket_forgot_is_late(bench: Workbench, ledger: Ledger) -> None:
    """A copy that comes when the ids of its bucket are gone is set aside as late, never new."""
    spec = bench.spec(record_time="at", dedup={"shards": 2, "scope": "bucket", "horizon": "30d"})
    bench.write("in/a.jsonl", events(0, 40))
    run(ledger, spec, "r1")
    time_passes(ledger, segments=True, runs=True)
    collecting(ledger, spec)
    assert live_runs(ledger) == {} and payload_tables(ledger) == []
    bench.write("in/b.jsonl", events(0, 50))
    run(ledger, spec, "r2")
    found = settled(spec)
    assert found.ids == ids(0, 40)
    assert found.reasons == {"late": 50}


# Attacks C7, C8.
@pytest.mark.parametrize("days", [None, 0, 30])
def test_ids_become_visible_with_their_commit(
    bench: Workbench, ledger: Ledger, days: int | None
) -> None:
    """Batch, attempt and id runs are changed by one transaction; before it nobody sees the runs.

    They expire a horizon after the later of batch time and the end of their newest bucket.
    """
    horizon = timedelta(days=40)
    scope = {"scope": "horizon" if days is None else "bucket", "horizon": "40 d", "shards": 2}
    spec = bench.spec(record_time="at", dedup=scope)
    newest = datetime.now(UTC) - timedelta(days=days or 0)
    earlier = newest - timedelta(days=5)
    bench.write("in/a.jsonl", [*_timed(0, 20, earlier), *_timed(20, 21, newest)])
    batch_id = plan(ledger, spec, "r1").batch.batch_id
    stage(ledger, spec, batch_id, LocalEngine(), quiet)
    text = "SELECT xmin::text AS xmin, expires_at, seq_min, seq_max FROM semel.id_run"

    def unseen() -> None:
        assert {(r["seq_min"], r["expires_at"]) for r in sql(ledger, text)} == {(None, None)}

    with failpoints.armed("commit.before_win", unseen) as fault:
        commit(ledger, spec, batch_id, lambda: None, quiet)
    assert fault.hit
    runs = sql(ledger, text)
    [batch] = sql(ledger, "SELECT xmin::text AS xmin, batch_time, commit_seq FROM semel.batch")
    [attempt] = sql(ledger, "SELECT xmin::text AS xmin FROM semel.attempt")
    assert {batch["xmin"]} == {attempt["xmin"]} == {run["xmin"] for run in runs}
    assert len(runs) == 2 and {(run["seq_min"], run["seq_max"]) for run in runs} == {(1, 1)}
    last = batch["batch_time"]
    if days is not None:
        size = horizon // 32
        ends = (newest - datetime.fromtimestamp(0, UTC)) // size * size + size
        last = max(last, datetime.fromtimestamp(0, UTC) + ends)
    assert {run["expires_at"] for run in runs} == {last + horizon}
    assert (last > batch["batch_time"]) == (days == 0)


# Attacks C13.
def test_the_first_commit_sets_the_columns(bench: Workbench, ledger: Ledger) -> None:
    """Of two batches staged with other columns the first to commit decides, and the other waits.

    Stage could not tell: there were no columns yet.
    """
    room = {"limits": {"bytes_per_batch_max": 300}}
    narrow = bench.spec(**room)
    schema = {"id": "string", "n": "bigint", "more": "string"}
    for name, start in (("a", 0), ("b", 5)):
        bench.write(f"in/{name}.jsonl", events(start, start + 5))
    first = plan(ledger, narrow, "r1").batch.batch_id
    stage(ledger, narrow, first, LocalEngine(), quiet)
    wide = bench.spec(source={"schema": schema}, **room)
    second = plan(ledger, wide, "r2").batch.batch_id
    stage(ledger, wide, second, LocalEngine(), quiet)

    def restage() -> None:
        stage(ledger, wide, second, LocalEngine(), quiet)

    commit(ledger, narrow, first, lambda: None, quiet)
    with pytest.raises(TerminalError, match="semel accept events --columns"):
        commit(ledger, wide, second, restage, quiet)
    assert status(ledger, second) == "planned" and set(attempts(ledger, second)) == {"lost"}
    run(ledger, narrow, "r1")
    assert {frozenset(row) for row in settled(narrow).rows} == {frozenset(("id", "n", "at"))}
    accept_columns(ledger, wide)
    run(ledger, wide, "r2")
    assert settled(wide).ids == [event["id"] for event in events(0, 10)]
