"""B2: what a batch costs as the catalog grows: 500 k records against 1, 10 and 100 million ids.

    python benchmarks/lookup.py
    python benchmarks/lookup.py --smallest

Each catalog is filled through the product's own write path (grow.py) and merged as collect merges.
The same files are read against each; 2 % of a batch are repeats, of the newest ids, or of any (then
each repeat points into another chunk). After each run its ids are retired again, so that catalogs
keep their size. Filters are cached, or each run begins on a machine that has fetched none.
"""

import os
import shutil
from argparse import Namespace
from itertools import product
from typing import Any

import numpy as np

import harness
from data import Shape, landed
from grow import Grown
from harness import Clock, Place, Side, check, in_turn, medians
from semel.ledger import Ledger
from semel.runs.run import run_batch
from semel.spark.engine import SparkEngine

_REPEATS = 0.02
_RECENT = 1_000_000
_SCOPES: dict[str, dict[str, Any]] = {
    "horizon": {"dedup": {"scope": "horizon"}},
    "bucket": {"dedup": {"scope": "bucket"}, "record_time": "ts"},
}


def main() -> None:
    parser = harness.options_of(__doc__, runs=5, default=500_000, help="of a batch")
    sizes = [1_000_000, 10_000_000, 100_000_000]
    parser.add_argument("--catalogs", type=int, nargs="+", default=sizes, metavar="IDS")
    parser.add_argument("--grow-by", type=int, default=1_000_000, metavar="IDS", help="a batch")
    parser.add_argument("--scopes", nargs="+", choices=list(_SCOPES), default=list(_SCOPES))
    options = harness.parsed(parser, records=2_000, catalogs=[2_000, 4_000], grow_by=2_000)
    with (
        harness.open_place() as place,
        harness.open_spark(place) as spark,
        Ledger(place.dsn) as ledger,
    ):
        report = _Bench(place, ledger, SparkEngine(spark), options).measure()
    harness.save("lookup", options, report)


class _Bench:
    """Catalogs of several sizes whose ids end at the same number, so that all read the same."""

    def __init__(
        self, place: Place, ledger: Ledger, engine: SparkEngine, options: Namespace
    ) -> None:
        self.place, self.ledger, self.engine, self.options = place, ledger, engine, options
        self.end = max(options.catalogs)
        self.catalogs: dict[tuple[str, int], Grown] = {}
        self.runs = 0
        self.landings = 0

    def measure(self) -> dict[str, Any]:
        """All combinations, as harness.save takes them."""
        for scope, size in product(self.options.scopes, self.options.catalogs):
            self.catalogs[scope, size] = self._grow(scope, size)
        tables, lines = [], {}
        headline: dict[str, float] = {}
        for scope in self.options.scopes:
            for cached, of in product((True, False), ("recent", "any")):
                if of == "any" and (scope != "horizon" or not cached):
                    continue
                title = f"scope {scope}, filters {'' if cached else 'not '}cached, repeats of {of}"
                harness.tell(f"{title} ids")
                times = self._compare(scope, cached=cached, of=of)
                tables.append(self._table(f"{title} ids", scope, times))
                lines[title] = [times[size] for size in sorted(times)]
                ratio = times[max(times)] / times[min(times)]
                named = self.options.smallest or (min(times), max(times)) == (10**6, 10**8)
                if named and scope == "horizon":
                    suffix = ("" if cached else "_uncached") + ("" if of == "recent" else "_any")
                    headline[f"ratio_100m_over_1m{suffix}"] = round(ratio, 3)
        plot = {
            "kind": "lines",
            "title": f"Seconds of a batch of {self.options.records:,} by ids in the catalog",
            "x": sorted(self.options.catalogs),
            "lines": lines,
        }
        title = "B2: a batch against a growing catalog"
        return {"title": title, "headline": headline, "tables": tables, "plots": [plot]}

    def _grow(self, scope: str, size: int) -> Grown:
        declared = {"record_id": ["id"], **_SCOPES[scope]}
        grown = Grown(self.place, self.ledger, self.place.spec(f"{scope}_{size}", **declared))
        with (clock := Clock()):
            for first in range(self.end - size, self.end, self.options.grow_by):
                last = min(first + self.options.grow_by, self.end)
                grown.commit(grown.add_records(np.arange(first, last)))
                grown.merge()
        runs = len(grown.live())
        harness.tell(f"{size} ids, scope {scope}: {runs} runs, grown in {clock.seconds:.1f} s")
        return grown

    def _compare(self, scope: str, *, cached: bool, of: str) -> dict[int, float]:
        sides = {}
        for size in self.options.catalogs:
            sides[str(size)] = self._side(scope, size, cached=cached, of=of)
        first = self.runs
        self.runs += self.options.runs + 1
        found = in_turn({k: _from(first, side) for k, side in sides.items()}, self.options.runs)
        return {int(size): seconds for size, seconds in medians(found).items()}

    def _side(self, scope: str, size: int, *, cached: bool, of: str) -> Side:
        grown = self.catalogs[scope, size]
        share = min(size, _RECENT) if of == "recent" else size
        known = (self.end - share, self.end)

        def side(number: int, clock: Clock) -> None:
            records = self.options.records
            # Every comparison has files of its own: a copy of a known file is refused.
            first = self.end + number * records
            shape = Shape(records=records, repeats=_REPEATS, first=first, known=known)
            self.landings += 1
            path = self.place.data / grown.spec.name / f"b{self.landings}.jsonl"
            landed(shape, path)
            if not cached:
                self.place.fresh_cache()
            with clock:
                ran = run_batch(
                    self.ledger, grown.spec, path.name, self.engine, log=harness.quiet
                )
            check(grown.spec.name, ran.finalized.counts.survivors, shape.new)
            self._forget(ran.plan.batch.batch_id)
            if not cached:
                shutil.rmtree(os.environ["SEMEL_CACHE_DIR"])
                self.place.fresh_cache()

        return side

    def _forget(self, batch_id: int) -> None:
        """Retire what a run added."""
        with self.ledger.engine.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE semel.id_run AS r SET retired_at = clock_timestamp()"
                " FROM semel.attempt AS a"
                " WHERE a.attempt_id = r.attempt_id AND a.batch_id = %(batch_id)s",
                {"batch_id": batch_id},
            )

    def _table(self, title: str, scope: str, times: dict[int, float]) -> dict[str, Any]:
        rows = [
            [
                f"{size:,}",
                len(self.catalogs[scope, size].live()),
                round(seconds, 2),
                round(seconds / times[min(times)], 3),
            ]
            for size, seconds in sorted(times.items())
        ]
        columns = ["ids in the catalog", "live runs", "median, s", "ratio to the smallest"]
        return {"title": title, "columns": columns, "rows": rows}


def _from(first: int, side: Side) -> Side:
    return lambda number, clock: side(first + number, clock)


if __name__ == "__main__":
    main()
