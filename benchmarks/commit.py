"""B4: the transaction that commits, by the number of records of its batch.

    python benchmarks/commit.py
    python benchmarks/commit.py --smallest

Batches are staged by the generator (grow.py). Between its stage and its commit, others commit none,
or `--others` ids; comparing with these happens before the transaction, and is shown beside it. The
ratio of sizes is between batches that met the same number of others.
"""

import os
from argparse import Namespace
from typing import Any

import harness
from grow import Grown
from harness import Clock, Place, WatchedLedger, in_turn, medians

_DECIDES = "SET commit_seq = commit_seq + 1"


def main() -> None:
    sizes = [1_000, 100_000, 10_000_000]
    parser = harness.options_of(__doc__, runs=11, nargs="+", default=sizes, help="of the batches")
    parser.add_argument("--others", type=int, default=1_000_000, help="ids committed meanwhile")
    options = harness.parsed(parser, records=[10, 1_000], others=1_000)
    with harness.open_place() as place, WatchedLedger(place.dsn) as ledger:
        report = _measure(place, ledger, options)
    harness.save("commit", options, report)


def _measure(place: Place, ledger: WatchedLedger, options: Namespace) -> dict[str, Any]:
    whole: dict[str, list[float]] = {}
    sides = {}
    for size in options.records:
        for others in (0, options.others):
            name = _name(size, others)
            spec = place.spec(f"c{size}_{others}", record_id=["id"])
            whole[name] = []
            sides[name] = _side(Grown(place, ledger, spec), size, others, whole[name])
    found = in_turn(sides, options.runs)
    times = medians(found)
    totals = medians({name: seconds[1:] for name, seconds in whole.items()})
    slowest = max(max(seconds) for seconds in found.values())
    of_sizes = [
        [times[_name(size, others)] for size in options.records] for others in (0, options.others)
    ]
    headline = {
        "commit_ms_max": round(1000 * slowest, 2),
        "commit_ms_median_max": round(1000 * max(times.values()), 2),
        "commit_ratio_of_sizes": round(max(max(same) / min(same) for same in of_sizes), 3),
    }
    rows = [
        [name, *(round(1000 * s, 1) for s in (times[name], max(found[name]), totals[name]))]
        for name in times
    ]
    columns = ["batch", "transaction, median ms", "slowest ms", "all of commit, median ms"]
    table = {"title": "The transaction that commits", "columns": columns, "rows": rows}
    bars = {name: 1000 * seconds for name, seconds in times.items()}
    plot = {"kind": "bars", "title": "Milliseconds of the transaction, median", "bars": bars}
    title = "B4: commit"
    return {"title": title, "headline": headline, "tables": [table], "plots": [plot]}


def _name(records: int, others: int) -> str:
    return f"{records:,} records, {others:,} ids of others"


def _side(grown: Grown, records: int, others: int, whole: list[float]) -> harness.Side:
    def side(_: int, clock: Clock) -> None:
        batch_id = grown.add_random(records)
        if others:
            grown.commit(grown.add_random(others))
        grown.ledger.transactions.clear()
        os.sync()  # What it wrote so far is not the transaction's to wait for.
        with (total := Clock()):
            grown.commit(batch_id)
        whole.append(total.seconds)
        clock.seconds = grown.ledger.seconds_of(_DECIDES)
        harness.check("transactions that commit", clock.seconds > 0, True)

    return side


if __name__ == "__main__":
    main()
