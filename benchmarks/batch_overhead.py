"""B13: what a batch costs without work: round trips to the ledger, and milliseconds, by verb.

    python benchmarks/batch_overhead.py
    python benchmarks/batch_overhead.py --smallest
    python benchmarks/batch_overhead.py --runs 3

Plan, stage, commit and finalize of one record, by its id and by its position, and a plan that finds
nothing, all without Spark: the steps of a job run in this process. Beside them run as many bare
transactions (BEGIN; SELECT 1; COMMIT) as a batch has verbs. Each run has a ledger of its own with
one connection, as a command has, and its pipeline has batches before it. Round trips are counted on
the wire, in a pass of its own behind a proxy, which would cost time.
"""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from statistics import median
from typing import Any

import psycopg

import harness
from fixtures.postgres.wire import Sent, Wire
from fixtures.spark.local import LocalEngine
from harness import Clock, Place, in_turn, quiet, ratio
from semel.ledger import Ledger
from semel.pipeline.spec import Spec
from semel.plan import plan
from semel.runs.run import steps_of

_VERBS = ("plan", "stage", "commit", "finalize")
_TITLES = {
    "bare": "four bare transactions",
    "idle": "a plan that finds nothing",
    "id": "one record, by id",
    "position": "one record, by position",
}
_COUNTED = 3  # Statements that a driver prepares at their sixth run are no batch's own.

Around = Callable[[str], AbstractContextManager[Any]]
"""What a verb runs in."""


def main() -> None:
    parser = harness.options_of(__doc__, runs=40, default=1, help="of a batch")
    options = harness.parsed(parser)
    with harness.open_place() as place:
        sides = _sides(place, options.records)
        milliseconds: dict[tuple[str, str], list[float]] = {}
        found = in_turn(
            {name: partial(_timed, side, name, milliseconds) for name, side in sides.items()},
            options.runs,
        )
        with Wire(place.dsn) as counting:
            sent = {name: _counted(side, counting) for name, side in sides.items()}
    harness.save("batch_overhead", options, _report(found, milliseconds, sent, options.runs))


class _Side:
    """Runs one after the other, each on a fresh ledger at `dsn`."""

    def __init__(self, place: Place, spec: Spec | None = None, records: int = 0) -> None:
        self.place, self.spec, self.records = place, spec, records
        self._runs = 0

    def run(self, dsn: str, around: Around) -> None:
        self._runs += 1
        harness.tasks_use(dsn)
        if self.spec is None:
            with psycopg.connect(dsn) as connection:
                connection.execute("SELECT 1")
                connection.commit()
                with around("all"):
                    for _ in _VERBS:
                        connection.execute("SELECT 1")
                        connection.commit()
            return
        self._land()
        with Ledger(dsn) as ledger:
            with ledger.transaction():
                pass  # It is connected now.
            self._batch(ledger, self.spec, around)

    def _batch(self, ledger: Ledger, spec: Spec, around: Around) -> None:
        request = f"{spec.name}-{self._runs}"
        with around("plan"):
            planned = plan(ledger, spec, request)
        harness.check("plan", planned.batch is not None, self.records > 0)
        if planned.batch is None:
            return
        for verb, step in steps_of(
            ledger, spec, planned.batch.batch_id, LocalEngine(), quiet
        ).items():
            with around(verb):
                done = step()
        harness.check("batch", done.counts.survivors, self.records)

    def _land(self) -> None:
        path = self.place.data / self.spec.name / "grows.jsonl"
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            for number in range(self.records):
                file.write(json.dumps({"id": f"{self._runs}-{number}"}) + "\n")


def _sides(place: Place, records: int) -> dict[str, _Side]:
    by_id = place.spec("id", record_id=["id"])
    sides = {
        "bare": _Side(place),
        "idle": _Side(place, by_id),
        "id": _Side(place, by_id, records),
        "position": _Side(place, place.spec("position"), records),
    }
    for name in ("id", "position"):  # What is made once for a pipeline is no batch's.
        sides[name].run(place.dsn, lambda verb: ExitStack())
    return sides


def _timed(
    side: _Side, name: str, milliseconds: dict[tuple[str, str], list[float]], run: int, clock: Clock
) -> None:
    def around(verb: str) -> AbstractContextManager[Any]:
        clocks[verb] = Clock()
        return clocks[verb]

    clocks: dict[str, Clock] = {}
    side.run(side.place.dsn, around)
    for verb, own in clocks.items():
        clock.seconds += own.seconds
        if run:
            milliseconds.setdefault((name, verb), []).append(1000 * own.seconds)


def _counted(side: _Side, counting: Wire) -> dict[str, Sent]:
    """By verb, the least that some runs sent."""
    runs = []
    for _ in range(_COUNTED):
        verbs: dict[str, _Counting] = {}
        side.run(counting.dsn, lambda verb, v=verbs: v.setdefault(verb, _Counting(counting)))
        runs.append({verb: each.sent for verb, each in verbs.items()})
    return {verb: min((r[verb] for r in runs), key=lambda s: s.round_trips) for verb in runs[0]}


class _Counting:
    """What was sent in a block."""

    def __init__(self, counting: Wire) -> None:
        self._counting = counting
        self.sent = Sent()

    def __enter__(self) -> None:
        self._before = self._counting.sent

    def __exit__(self, *error: object) -> None:
        self.sent = self._counting.sent - self._before


def _report(
    found: dict[str, list[float]],
    milliseconds: dict[tuple[str, str], list[float]],
    sent: dict[str, dict[str, Sent]],
    runs: int,
) -> dict[str, Any]:
    rows = []
    for name, verbs in sent.items():
        for verb, each in verbs.items():
            rows.append([_TITLES[name], verb, *_cells(each), _ms(milliseconds[name, verb])])
        if len(verbs) > 1:
            both = _cells(sum(verbs.values(), Sent())), _ms([1000 * s for s in found[name]])
            rows.append([_TITLES[name], "whole", *both[0], both[1]])
    whole = {name: sum(verbs.values(), Sent()).round_trips for name, verbs in sent.items()}
    return {
        "title": "B13: a batch without work",
        "headline": {
            "round_trips_idle": whole["idle"],
            "round_trips_id": whole["id"],
            "round_trips_position": whole["position"],
            "ratio_batch_overhead": ratio(found, "id", "bare"),
        },
        "tables": [
            {
                "title": f"By verb, medians of {runs} runs",
                "columns": ["what", "verb", "transactions", "statements", "round trips", "ms"],
                "rows": rows,
            },
        ],
    }


def _cells(sent: Sent) -> list[int]:
    return [sent.transactions, sent.statements, sent.round_trips]


def _ms(found: list[float]) -> float:
    return round(median(found), 2)


if __name__ == "__main__":
    main()
