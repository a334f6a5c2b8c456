"""The catalog against a set model, against damage, and against two doing the same at once; the
cache of its filters.
"""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel import limits
from semel.catalog import payload
from semel.catalog import runs as catalog
from semel.catalog.payload import FilterCache
from semel.catalog.runs import IdRun
from semel.collect import merge
from semel.errors import AttemptLostError, CorruptionError, RetryableError, StateError
from semel.ledger import Ledger
from semel.model.buckets import Buckets
from tiers import examples

HORIZON = 40 * 86_400
Ids = set[tuple[int, int]]


def columns(ids: Ids) -> tuple[np.ndarray, np.ndarray]:
    ordered = sorted(ids)
    return (
        np.array([h1 for h1, _ in ordered], np.uint64),
        np.array([h2 for _, h2 in ordered], np.uint32),
    )


def random_ids(count: int, seed: int) -> Ids:
    values = np.random.default_rng(seed).integers(0, 2**64, (2, count), dtype=np.uint64)
    return set(zip(values[0].tolist(), (values[1] >> np.uint64(32)).tolist(), strict=True))


class Catalog:
    """A pipeline whose catalog a test fills: `store` and `publish` do what stage and commit do."""

    def __init__(self, ledger: Ledger, folder: Path) -> None:
        self.ledger = ledger
        self.folder = folder
        self.cache = FilterCache(folder)
        self.pipeline_id = self.sql(
            "INSERT INTO semel.pipeline (name, sink_address, archive_path, identity, shards, "
            "bucket_seconds) VALUES ('p', '/p', '/a', 'id', 4, 86400) RETURNING pipeline_id"
        )
        with ledger.transaction() as connection:
            self.segment_id = catalog.ensure_segment(connection, self.pipeline_id, HORIZON)
        self.seq = 0

    def sql(self, statement: str, **values):
        with self.ledger.transaction() as connection:
            result = connection.execute(sa.text(statement), values)
            return result.scalar() if result.returns_rows else result.rowcount

    def attempt(self) -> int:
        """A running attempt of a new batch."""
        return self.sql(
            "WITH b AS (INSERT INTO semel.batch (pipeline_id, request_key, ordinal, spec,"
            " spec_digest, split_bytes)"
            " SELECT :p, 'r', count(*) + 1, '{}', '', 1 FROM semel.batch RETURNING batch_id) "
            "INSERT INTO semel.attempt (batch_id, fence, snapshot_seq, forgotten, driver) "
            "SELECT batch_id, 1, 0, '{}', 'd' FROM b RETURNING attempt_id",
            p=self.pipeline_id,
        )

    def lose(self, attempt_id: int) -> None:
        self.sql("UPDATE semel.attempt SET status = 'lost' WHERE attempt_id = :a", a=attempt_id)

    def win(self, attempt_id: int, age: timedelta = timedelta()) -> None:
        """Publish an attempt's runs as if it had committed `age` ago."""
        self.seq += 1
        expires_at = datetime.now(UTC) - age + timedelta(seconds=HORIZON)
        with self.ledger.transaction() as connection:
            catalog.publish_runs(connection, attempt_id, seq=self.seq, expires_at=expires_at)
        self.sql(
            "UPDATE semel.attempt SET status = 'won', records_read = 0, survivors = 0,"
            " duplicates_batch = 0, duplicates_catalog = 0, quarantined = 0, late = 0,"
            " input_digest = '', sink_schema = '', rows_written = 0, bytes_read = 0,"
            " staged_at = now() WHERE attempt_id = :a",
            a=attempt_id,
        )
        self.sql("UPDATE semel.pipeline SET commit_seq = :s", s=self.seq)

    def store(self, ids: Ids, *, attempt_id: int | None = None, shard: int = 0, **bucket) -> IdRun:
        h1, h2 = columns(ids)
        return payload.store_run(
            self.ledger,
            pipeline_id=self.pipeline_id,
            attempt_id=attempt_id or self.attempt(),
            shard=shard,
            segment_id=self.segment_id,
            buckets=bucket.get("buckets"),
            h1=h1,
            h2=h2,
        )

    def publish(self, ids: Ids, *, age: timedelta = timedelta(), **options) -> IdRun:
        run = self.store(ids, **options)
        self.win(run.attempt_id, age)
        return next(each for each in self.live() if each.id_run_id == run.id_run_id)

    def live(self) -> tuple[IdRun, ...]:
        with self.ledger.transaction() as connection:
            return catalog.snapshot(connection, self.pipeline_id).runs

    def known(self, asked: Ids, runs=None, cache: FilterCache | None = None) -> Ids:
        h1, h2 = columns(asked)
        runs = self.live() if runs is None else runs
        mask = payload.contains(self.ledger, cache or self.cache, runs, h1, h2)
        return {pair for pair, found in zip(sorted(asked), mask, strict=True) if found}

    def pieces(self, run: IdRun, kind: payload.PayloadStream) -> int:
        return self.sql(
            f"SELECT count(*) FROM semel.ids_{run.segment_id} WHERE id_run_id = :r AND kind = :k",
            r=run.id_run_id, k=kind,
        )  # fmt: skip

    def fresh_cache(self) -> FilterCache:
        """A machine that has fetched nothing yet."""
        return FilterCache(self.folder / f"machine-{np.random.default_rng().integers(2**60)}")


@pytest.fixture
def pipeline(ledger, tmp_path) -> Catalog:
    return Catalog(ledger, tmp_path / "filters")


@pytest.fixture
def small(monkeypatch) -> None:
    """Pieces so small that a few ids make many of them."""
    monkeypatch.setattr(limits, "IDS_PER_CHUNK", 3)
    monkeypatch.setattr("semel.catalog.payload.CHUNKS_PER_READ", 2)
    monkeypatch.setattr("semel.catalog.payload.FILTER_PIECE_BYTES", 40)
    monkeypatch.setattr("semel.collect.merge.MERGE_IDS_AT_ONCE", 5)


edges = st.sampled_from([0, 1, 2**31, 2**63, 2**64 - 1])
few = st.sets(
    st.tuples(edges | st.integers(0, 2**64 - 1), st.integers(0, 3)), min_size=1, max_size=25
)
quick = settings(max_examples=examples(25), deadline=None,
                 suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip


# Attacks G7.
@quick
@given(stored=st.lists(few, min_size=1, max_size=4), asked=few, data=st.data())
def test_look_ups_and_merges_agree_with_sets(pipeline, small, stored, asked, data):
    """An id is known if and only if a run holds it, before and after the runs are merged."""
    runs = [pipeline.publish(ids) for ids in stored]
    union = set().union(*stored)
    asked |= set(data.draw(st.lists(st.sampled_from(sorted(union)))))
    assert pipeline.known(asked, runs) == asked & union
    for run, ids in zip(runs, stored, strict=True):
        assert pipeline.known(ids, [run]) == ids
    assert {run.id_run_id for run in pipeline.live()} >= {run.id_run_id for run in runs}
    merged = merge.merge(pipeline.ledger, pipeline.cache, tuple(runs))
    assert merged.ids == len(union)
    assert (merged.seq_min, merged.seq_max) == (runs[0].seq_min, runs[-1].seq_max)
    assert merged.expires_at == max(run.expires_at for run in runs)
    assert pipeline.known(asked | union, [merged]) == union
    assert not {run.id_run_id for run in runs} & {run.id_run_id for run in pipeline.live()}
    assert merged in pipeline.live()


@quick
@given(mine=few, theirs=few)
def test_overlap_counts_common_ids(pipeline, small, mine, theirs):
    """Two runs of a shard overlap in exactly the ids they share, whichever of them is smaller."""
    own, other = pipeline.store(mine), pipeline.publish(theirs)
    count = payload.overlap(pipeline.ledger, pipeline.cache, [own], [other])
    assert count == len(mine & theirs)
    assert payload.overlap(pipeline.ledger, pipeline.cache, [other], [own]) == count


@pytest.mark.rest
def test_many_ids_in_real_sizes(pipeline, monkeypatch):
    """Several chunks and several merge ranges keep every id, and let nothing else in."""
    parts = [random_ids(30_000, seed) for seed in range(3)]
    runs = [pipeline.publish(ids) for ids in parts]
    union, others = set().union(*parts), random_ids(50_000, 9)
    assert pipeline.known(union | others, runs) == union
    monkeypatch.setattr("semel.collect.merge.MERGE_IDS_AT_ONCE", 20_000)
    merged = merge.merge(pipeline.ledger, pipeline.cache, tuple(runs))
    assert pipeline.known(union | others) == union
    # The merged run is, byte by byte, the run that an attempt with all these ids would have stored.
    assert merged.checksum == pipeline.store(union).checksum


def test_unpublished_ids_are_not_known(pipeline):
    """A snapshot shows what has committed: nothing of attempts that are open or lost."""
    ids = random_ids(10, 1)
    run = pipeline.store(ids)
    assert pipeline.live() == ()
    pipeline.win(run.attempt_id)
    with pipeline.ledger.transaction() as connection:
        snapshot = catalog.snapshot(connection, pipeline.pipeline_id)
        assert catalog.own_runs(connection, run.attempt_id) == list(snapshot.runs)
        with pytest.raises(StateError, match="no pipeline 0"):
            catalog.snapshot(connection, 0)
    assert snapshot.commit_seq == 1
    assert pipeline.known(ids, snapshot.runs) == ids


def test_only_the_same_bucket_and_shard_overlap(pipeline):
    """Runs of other shards or other buckets are not compared at commit: they cannot share an id."""
    ids = random_ids(10, 1)
    mine = pipeline.store(ids, buckets=Buckets((5, 6)))
    apart = [
        pipeline.publish(ids, shard=1, buckets=Buckets((5, 6))),
        pipeline.publish(ids, buckets=Buckets((6, 9))),
    ]
    assert payload.overlap(pipeline.ledger, pipeline.cache, [mine], apart) == 0
    same = pipeline.publish(ids, buckets=Buckets((2, 6)))
    assert payload.overlap(pipeline.ledger, pipeline.cache, [mine], [same]) == 10


def test_a_twin_stores_the_run_once(pipeline):
    """Two speculative tasks that store the same ids at the same moment leave one run."""
    ids, attempt_id = random_ids(20_000, 1), pipeline.attempt()
    gate = threading.Barrier(2)

    def task(_: int) -> IdRun:
        gate.wait()
        return pipeline.store(ids, attempt_id=attempt_id)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(task, range(2))
    assert first == second
    assert pipeline.pieces(first, payload.PayloadStream.CHUNK) == -(-20_000 // limits.IDS_PER_CHUNK)
    assert pipeline.known(ids, [first]) == ids


def test_a_chunk_is_a_page(pipeline):
    """A chunk lies in its row, not beside it, and the row fills its page: a look-up reads one."""
    chunks = 20
    run = pipeline.publish(random_ids(chunks * limits.IDS_PER_CHUNK, 1))
    pages = "SELECT count(DISTINCT (ctid::text::point)[0]) FROM semel.ids_{} WHERE kind = 1"
    assert pipeline.sql(pages.format(run.segment_id)) == chunks


# Attacks S9.
def test_a_twin_with_other_ids_is_an_error(pipeline):
    """Two tasks of one attempt that disagree cannot both be right: nobody picks one silently."""
    ids, attempt_id = random_ids(10, 1), pipeline.attempt()
    pipeline.store(ids, attempt_id=attempt_id)
    with pytest.raises(CorruptionError, match="found different new ids"):
        pipeline.store(random_ids(10, 2), attempt_id=attempt_id)


# Attacks S9.
def test_a_lost_attempt_stores_nothing(pipeline):
    """A zombie task of an attempt that was given up adds no ids."""
    attempt_id = pipeline.attempt()
    pipeline.lose(attempt_id)
    with pytest.raises(AttemptLostError, match=f"attempt {attempt_id}"):
        pipeline.store(random_ids(10, 1), attempt_id=attempt_id)
    assert pipeline.sql("SELECT count(*) FROM semel.id_run") == 0


def test_unsorted_ids_are_refused(pipeline):
    """Ids out of order would be stored where no look-up finds them."""
    with pytest.raises(ValueError, match="not sorted"):
        payload.store_run(
            pipeline.ledger, pipeline_id=pipeline.pipeline_id, attempt_id=pipeline.attempt(),
            shard=0, segment_id=pipeline.segment_id, buckets=None,
            h1=np.array([2, 1], np.uint64), h2=np.array([1, 1], np.uint32),
        )  # fmt: skip


FLIP = "UPDATE semel.ids_{} SET payload = set_bit(payload, {}, 1 - get_bit(payload, {})) "


# Attacks S3, L5.
@pytest.mark.parametrize(("damage", "message"), [
    (FLIP.format("{0}", 77, 77) + "WHERE kind = 0", "does not match its checksum"),
    (FLIP.format("{0}", 8 * 12 * 671, 8 * 12 * 671) + "WHERE kind = 1 AND piece = 0",
     "chunk 0 does not match its checksum"),
    ("UPDATE semel.ids_{0} SET payload = substr(payload, 13) WHERE kind = 1 AND piece = 0",
     "chunk 0 has 8052 bytes instead of 672 ids"),
    ("DELETE FROM semel.ids_{0} WHERE kind = 1 AND piece = 1",
     r"chunk pieces \[1\] of 2 are missing"),
    ("DELETE FROM semel.ids_{0} WHERE kind = 0", r"index pieces \[0\] of 1 are missing"),
    ("DROP TABLE semel.ids_{0}", "its table semel.ids_1 is missing"),
])  # fmt: skip
def test_damage_is_an_error_and_never_no_ids(pipeline, damage, message):
    """A flipped bit, a short chunk or a missing piece: an error that names the run. A missing table:
    one that names the table.
    """
    ids = random_ids(1_000, 1)
    run = pipeline.publish(ids)
    pipeline.sql(damage.format(run.segment_id))
    where = "the ledger .*" if damage.startswith("DROP") else f"id run {run.id_run_id} .*"
    with pytest.raises(CorruptionError, match=where + message):
        pipeline.known(ids, cache=pipeline.fresh_cache())


def test_swapped_chunks_are_an_error(pipeline):
    """A whole chunk of another run in the place of this run's is noticed."""
    runs = [pipeline.publish(random_ids(100, seed)) for seed in (1, 2)]
    pipeline.sql(
        f"UPDATE semel.ids_{runs[0].segment_id} AS a SET payload = b.payload "
        f"FROM semel.ids_{runs[0].segment_id} AS b "
        "WHERE a.kind = 1 AND b.kind = 1 AND a.id_run_id = :a AND b.id_run_id = :b",
        a=runs[0].id_run_id, b=runs[1].id_run_id,
    )  # fmt: skip
    with pytest.raises(CorruptionError, match="chunk 0 does not match"):
        pipeline.known(random_ids(100, 1))


@pytest.mark.parametrize("spoil", [
    lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
    lambda data: data[:-1],
    lambda data: b"",
])  # fmt: skip
def test_a_damaged_cache_file_is_fetched_anew(pipeline, spoil: Callable[[bytes], bytes]):
    """The cache holds copies: a wrong one is replaced from the ledger, and no duplicate passes."""
    ids = random_ids(1000, 1)
    run = pipeline.publish(ids)
    assert pipeline.known(ids) == ids
    file = pipeline.folder / run.checksum
    whole = file.read_bytes()
    file.write_bytes(spoil(whole))
    assert pipeline.known(ids, cache=FilterCache(pipeline.folder)) == ids
    assert file.read_bytes() == whole


def test_filters_are_fetched_once(pipeline):
    """Another process of the machine asks the ledger for nothing but chunks."""
    ids = random_ids(1000, 1)
    run = pipeline.publish(ids)
    assert pipeline.known(ids) == ids
    pipeline.sql(f"DELETE FROM semel.ids_{run.segment_id} WHERE kind = 0")
    assert pipeline.known(ids, cache=FilterCache(pipeline.folder)) == ids


def test_the_cache_stays_within_its_limit(pipeline):
    """Filters that were unused for longest make room, and are fetched again when asked for."""
    parts = [random_ids(1000, seed) for seed in range(4)]
    runs = [pipeline.publish(ids) for ids in parts]
    size = runs[0].filter_bytes + 16
    bytes_max = 2 * size + 100
    cache = FilterCache(pipeline.folder, bytes_max=bytes_max)
    for run, ids in zip(runs, parts, strict=True):
        assert pipeline.known(ids, [run], cache) == ids
        assert sum(path.stat().st_size for path in pipeline.folder.iterdir()) <= bytes_max
    filters = {path.name for path in pipeline.folder.iterdir() if path.name != ".room"}
    assert filters == {r.checksum for r in runs[2:]}
    assert pipeline.known(parts[0], runs[:1], FilterCache(pipeline.folder)) == parts[0]


# Attacks G3.
def test_a_merge_of_retired_runs_leaves_nothing(pipeline):
    """Of two merges that take the same part one is undone whole."""
    runs = [pipeline.publish(random_ids(100, seed)) for seed in range(3)]
    merged = merge.merge(pipeline.ledger, pipeline.cache, tuple(runs[:2]))
    with pytest.raises(RetryableError, match=rf"id runs \[{runs[1].id_run_id}\] were retired"):
        merge.merge(pipeline.ledger, pipeline.cache, tuple(runs[1:]))
    assert pipeline.live() == (runs[2], merged)
    assert pipeline.sql(f"SELECT count(*) FROM semel.ids_{merged.segment_id}") == 8


# Attacks G4.
def test_payload_stays_while_an_attempt_may_ask(pipeline):
    """Merged parts can be read as long as an attempt from before the merge is open, no longer."""
    parts = [random_ids(100, seed) for seed in range(2)]
    runs = [pipeline.publish(ids) for ids in parts]
    reader = pipeline.attempt()
    merge.merge(pipeline.ledger, pipeline.cache, tuple(runs))
    younger = pipeline.attempt()
    assert catalog.delete_payload(pipeline.ledger, pipeline.pipeline_id) == 0
    assert pipeline.known(parts[0] | parts[1], runs, pipeline.fresh_cache()) == parts[0] | parts[1]
    pipeline.lose(reader)
    assert catalog.delete_payload(pipeline.ledger, pipeline.pipeline_id) == 4
    assert pipeline.known(parts[0] | parts[1]) == parts[0] | parts[1]
    pipeline.store(parts[0], attempt_id=younger)
    pipeline.lose(younger)
    assert catalog.delete_payload(pipeline.ledger, pipeline.pipeline_id) == 2


# Attacks G5.
def test_a_segment_is_dropped_when_nobody_can_need_it(pipeline):
    """Not while its span is open, a run of it is live, or an attempt from before is open."""
    def droppable() -> list[int]:
        with pipeline.ledger.transaction() as connection:
            catalog.retire_expired(connection, pipeline.pipeline_id)
            return catalog.droppable_segments(connection, pipeline.pipeline_id)

    run = pipeline.publish(random_ids(100, 1), age=timedelta(seconds=HORIZON + 60))
    assert droppable() == []  # the span is open
    pipeline.sql("UPDATE semel.segment SET span_start = now() - interval '2 d', span_end = now()")
    reader = pipeline.attempt()
    earlier = "UPDATE semel.attempt SET started_at = now() - interval '1 d' WHERE attempt_id = :a"
    pipeline.sql(earlier, a=reader)
    assert droppable() == []  # the reader may have pinned the run
    with pytest.raises(RetryableError, match="still needed"):
        catalog.drop_segment(pipeline.ledger, pipeline.pipeline_id, run.segment_id)
    pipeline.lose(reader)
    live = pipeline.publish(random_ids(100, 2))
    assert live.segment_id == run.segment_id
    assert droppable() == []  # a run is live
    pipeline.sql("UPDATE semel.id_run SET expires_at = now() WHERE seq_max = 2")
    assert droppable() == [run.segment_id]
    assert catalog.delete_payload(pipeline.ledger, pipeline.pipeline_id) == 0  # goes as a table
    catalog.drop_segment(pipeline.ledger, pipeline.pipeline_id, run.segment_id)
    assert pipeline.sql("SELECT to_regclass(:t)", t=f"semel.ids_{run.segment_id}") is None
    assert droppable() == []
    with pytest.raises(RetryableError, match="dropped already"):
        catalog.drop_segment(pipeline.ledger, pipeline.pipeline_id, run.segment_id)


def test_spans_are_aligned_and_made_once(pipeline):
    """One segment a span; a changed horizon begins its spans where the old ones ended."""
    def ensure(horizon: int) -> int:
        with pipeline.ledger.transaction() as connection:
            return catalog.ensure_segment(connection, pipeline.pipeline_id, horizon)

    assert ensure(HORIZON) == ensure(HORIZON) == pipeline.segment_id
    aligned = "SELECT extract(epoch FROM span_start)::bigint % :s FROM semel.segment"
    assert pipeline.sql(aligned, s=HORIZON // 4) == 0
    pipeline.sql("UPDATE semel.segment SET dropped_at = now(), span_end = now()")
    second = ensure(2 * HORIZON)
    assert second != pipeline.segment_id
    assert ensure(2 * HORIZON) == second
    gap = "SELECT max(span_start) - min(span_end) FROM semel.segment"
    assert pipeline.sql(gap) == timedelta()


_listed: list[list[str]] = []


def _hear(event: str, arguments: tuple) -> None:
    if _listed and event in ("os.listdir", "os.scandir"):
        _listed[-1].append(str(arguments[0]))


sys.addaudithook(_hear)  # It cannot be taken away; while no test asks, it does nothing.


@pytest.fixture
def listings() -> list[str]:
    """The folders that this process lists, from here on."""
    _listed.append([])
    yield _listed[-1]
    _listed.pop()


def test_a_fetch_does_not_look_at_the_other_filters(pipeline, listings):
    """What a fetch costs does not depend on how many filters there are, in whichever process."""
    parts = [random_ids(100, seed) for seed in range(10)]
    runs = [pipeline.publish(ids) for ids in parts]
    assert pipeline.known(parts[0], runs[:1]) == parts[0]  # The first one counts what is there.
    listings.clear()
    for run, ids in zip(runs[1:], parts[1:], strict=True):
        assert pipeline.known(ids, [run], FilterCache(pipeline.folder)) == ids
    assert listings == []


def test_looks_at_all_filters_are_rare(pipeline, listings):
    """A cache that is full is looked through once for many fetches, and stays within its limit."""
    parts = [random_ids(100, seed) for seed in range(60)]
    runs = [pipeline.publish(ids) for ids in parts]
    size = runs[0].filter_bytes + 16
    for run, ids in zip(runs, parts, strict=True):
        cache = FilterCache(pipeline.folder, bytes_max=24 * size)
        assert pipeline.known(ids, [run], cache) == ids
        files = [p for p in pipeline.folder.iterdir() if p.name != ".room"]
        assert sum(path.stat().st_size for path in files) <= 24 * size
    kept = {path.name for path in pipeline.folder.iterdir()}
    assert {run.checksum for run in runs[-21:]} <= kept, "the newest are there"
    ours = [path for path in listings if path == str(pipeline.folder)]
    assert len(ours) - 61 <= 60 // 3 + 1, "61 are this test's own"


@pytest.mark.parametrize("said", [b"", b"x", b"-5", b"9" * 40])
def test_a_count_that_is_wrong_is_counted_anew(pipeline, said: bytes):
    """The file that says how much is there may be damaged or gone: the limit holds all the same."""
    parts = [random_ids(1000, seed) for seed in range(3)]
    runs = [pipeline.publish(ids) for ids in parts]
    size = runs[0].filter_bytes + 32
    for run, ids in zip(runs, parts, strict=True):
        (pipeline.folder / ".room").write_bytes(said)
        cache = FilterCache(pipeline.folder, bytes_max=2 * size)
        assert pipeline.known(ids, [run], cache) == ids
    files = [p for p in pipeline.folder.iterdir() if p.name != ".room"]
    assert sum(path.stat().st_size for path in files) <= 2 * size
