"""B3: the catalog alone: ids per second written, bytes an id, false positives, looks at chunks.

    python benchmarks/catalog.py
    python benchmarks/catalog.py --smallest

Ids per second: a batch of `--written` ids, its shards stored by two processes at once (as Spark's
two tasks do), each run a transaction with fsync. The catalog then grows to `--records` ids,
`--batch` at a time, merged as collect merges; new ids are asked after each batch. `bytes_per_id` is
that of the timed batches as they were written, `_merged` of the grown catalog as it stands, with
the space of what merges left behind, `_vacuumed_full` without that.
"""

import multiprocessing
import time
from argparse import Namespace
from statistics import mean
from typing import Any

import numpy as np

import harness
from grow import Grown, IdsEngine, random_shard, size_of, store_shard
from harness import Clock, Place, in_turn, medians
from semel import settings
from semel.catalog.payload import FilterCache, contains
from semel.ledger import Ledger
from semel.stage.job import StageJob

_ASKED = 100_000
_PROCESSES = 2
_ledger: Ledger | None = None
_barrier: Any = None


def main() -> None:
    parser = harness.options_of(__doc__, runs=5, default=100_000_000, help="ids in the catalog")
    parser.add_argument("--batch", type=int, default=1_000_000, help="ids of a batch")
    written = "ids of a batch whose writing is timed"
    parser.add_argument("--written", type=int, default=4_000_000, help=written)
    options = harness.parsed(parser, records=20_000, batch=1_000, written=20_000)
    with harness.open_place() as place, Ledger(place.dsn) as ledger:
        report = _measure(place, ledger, options)
    harness.save("catalog", options, report)


def _measure(place: Place, ledger: Ledger, options: Namespace) -> dict[str, Any]:
    rates = _rates(place, ledger, options)
    before, written = size_of(ledger)
    fresh = before / written
    grown = Grown(place, ledger, place.spec("grown", record_id=["id"]))
    shares = []
    for number in range(-(-options.records // options.batch)):
        grown.commit(grown.add_random(options.batch))
        shares.append(_looks(grown, number))
        grown.merge()
    final = _looks(grown, -1)
    live = grown.live()
    ids = sum(run.ids for run in live)
    harness.check("the catalog's size", ids, -(-options.records // options.batch) * options.batch)
    merged = (size_of(ledger)[0] - before) / ids
    with ledger.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"VACUUM FULL semel.ids_{live[0].segment_id}")
    compact = (size_of(ledger)[0] - before) / ids
    headline = {
        "ids_per_second": rates[f"{_PROCESSES} processes"],
        "bytes_per_id": round(fresh, 2),
        "bytes_per_id_merged": round(merged, 2),
        "bytes_per_id_vacuumed_full": round(compact, 2),
        "chunk_reads_share": round(final["share"], 6),
        "chunk_reads_share_mean": round(mean(s["share"] for s in shares), 6),
        "chunk_reads_share_max": round(max(s["share"] for s in shares), 6),
    }
    rows = [[name, value] for name, value in headline.items()]
    rows += [[f"ids per second, {name}", rate] for name, rate in rates.items()]
    rows += [["false positives of one filter, mean", round(final["positives"], 6)]]
    rows += [["live runs a shard", len(live) / len({run.shard for run in live})]]
    table = {
        "title": f"{ids:,} ids, {options.batch:,} a batch",
        "columns": ["what", "value"],
        "rows": rows,
    }
    plot = {
        "kind": "lines",
        "title": "Share of new ids that cause a look at a chunk, before collect merges",
        "x": [options.batch * (at + 1) for at in range(len(shares))],
        "lines": {"share": [s["share"] for s in shares]},
    }
    title = "B3: the catalog of ids"
    return {"title": title, "headline": headline, "tables": [table], "plots": [plot]}


def _looks(grown: Grown, seed: int) -> dict[str, float]:
    """Ask new ids of shard 0: the share that a filter cannot rule out, and that of one filter."""
    h1, h2 = random_shard(_ASKED, [seed + 2, 1 << 40])
    cache = FilterCache(settings.cache_dir())
    runs = [run for run in grown.live() if run.shard == 0]
    hits = [cache.open(grown.ledger, run).filter.probe(h1) for run in runs]
    found = contains(grown.ledger, cache, runs[-1:], h1, h2)
    harness.check("new ids that are known", int(found.sum()), 0)
    return {
        "share": float(np.any(hits, axis=0).mean()),
        "positives": float(np.mean(hits)),
    }


def _rates(place: Place, ledger: Ledger, options: Namespace) -> dict[str, int]:
    """Ids per second that one and two processes write."""
    sides, found = {}, {}
    context = multiprocessing.get_context("spawn")
    pools = []
    for count in (1, _PROCESSES):
        barrier = context.Barrier(count)
        pool = context.Pool(count, initializer=_start, initargs=(place.dsn, barrier))
        pools.append(pool)
        name = f"{count} process{'es' if count > 1 else ''}"
        spec = place.spec(f"rate{count}", record_id=["id"])
        grown = Grown(place, ledger, spec)
        sides[name] = _rate_side(grown, pool, count, options.written)
    try:
        found = medians(in_turn(sides, options.runs))
    finally:
        for pool in pools:
            pool.terminate()
            pool.join()
    return {name: round(options.written / seconds) for name, seconds in found.items()}


def _rate_side(grown: Grown, pool: Any, processes: int, batch: int) -> harness.Side:
    def side(number: int, clock: Clock) -> None:
        def store(job: StageJob) -> int:
            work = [(job, part, processes, batch, number) for part in range(processes)]
            times = pool.starmap(_store, work, chunksize=1)
            clock.seconds = max(end for _, end in times) - min(start for start, _ in times)
            return batch

        grown.commit(grown.staged(IdsEngine(store=store)))

    return side


def _start(dsn: str, barrier: Any) -> None:
    global _ledger, _barrier
    _ledger, _barrier = Ledger(dsn), barrier


def _store(job: StageJob, part: int, parts: int, batch: int, seed: int) -> tuple[float, float]:
    """Store every `parts`-th shard of a batch. Returns when it began and ended."""
    own = range(part, job.shards, parts)
    ids = {s: random_shard((batch + s) // job.shards, [seed, s, job.attempt_id]) for s in own}
    _barrier.wait(timeout=600)  # No process may take the work of two.
    started = time.monotonic()  # It counts alike in all processes of a machine.
    for shard, found in ids.items():
        store_shard(_ledger, job, shard, found)
    return started, time.monotonic()


if __name__ == "__main__":
    main()
