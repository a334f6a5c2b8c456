"""What the fire showed, for people and, in its last line, for programs."""

import json
from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import Any

from killer import WEIGHTS, Kill
from livestack import Run
from verdict import Verdict


@dataclass(kw_only=True)
class Outcome:
    """All that is reported. `broken`: what went wrong besides the verdicts; empty when nothing."""

    seed: int
    kills: list[Kill]
    runs: list[Run]
    verdicts: list[Verdict]
    watched: dict[str, Any]
    """What the reader of files saw."""
    consumed: dict[str, Any]
    """What the consumer of the topics saw; empty where they were left out."""
    seconds: float
    broken: list[str]

    @property
    def exact(self) -> bool:
        """Whether every judge was heard and found the output exact."""
        heard = self.verdicts and all(verdict.exact for verdict in self.verdicts)
        return bool(heard) and not self.broken

    def to_json(self) -> dict[str, Any]:
        """The last line of the report."""
        return {
            "seed": self.seed,
            "kills": len(self.kills),
            "kills_by_kind": dict(Counter(kill.kind for kill in self.kills)),
            "pipelines": [verdict.pipeline for verdict in self.verdicts],
            "batches": sum(verdict.batches for verdict in self.verdicts),
            "records": sum(verdict.records for verdict in self.verdicts),
            "lost": sum(verdict.lost for verdict in self.verdicts),
            "twice": sum(verdict.twice for verdict in self.verdicts),
            "verdict": "exact" if self.exact else "broken",
        }


def show(outcome: Outcome) -> None:
    """Print the whole report."""
    print(f"\n{len(outcome.kills)} kills in {outcome.seconds:.0f} s, seed {outcome.seed}\n")
    print(f"{'kind':18}{'kills':>6}{'mended':>8}{'median s':>10}{'max s':>8}")
    for kind in WEIGHTS:
        kills = [kill for kill in outcome.kills if kill.kind == kind]
        took = [kill.seconds for kill in kills if kill.seconds is not None]
        if kills:
            times = f"{median(took):>10.1f}{max(took):>8.1f}" if took else ""
            print(f"{kind:18}{len(kills):>6}{len(took):>8}{times}")
    print("mended: the part is healthy again; the DAG run of a killed task or of its worker has")
    print("ended; after a Python worker, or a worker without a task, a batch was finalized.\n")
    for kind, states in sorted(_outcomes(outcome.runs).items()):
        shown = ", ".join(f"{state} {count}" for state, count in sorted(states.items()))
        print(f"runs of {kind}: {shown}")
    for verdict in outcome.verdicts:
        print(
            f"{verdict.pipeline}: {verdict.batches} batches read {verdict.read:,} records: "
            f"{verdict.records:,} in the output, {verdict.duplicates:,} duplicates, "
            f"{verdict.dead_letters:,} dead letters; lost {verdict.lost}, twice {verdict.twice}"
        )
        for line in verdict.broken:
            print(f"  BROKEN {line}")
    if seen := outcome.watched:
        print(
            f"the reader looked {seen['passes']} times, read {seen['batches']} batches with "
            f"{seen['records']:,} records, and {seen['read_again']} batches once more"
        )
    if seen := outcome.consumed:
        print(
            f"the consumer looked {seen['passes']} times, saw {seen['records']:,} messages, and "
            f"{seen['read_again']:,} of both topics once more"
        )
    for line in outcome.broken:
        print(f"BROKEN {line}")
    print(json.dumps(outcome.to_json()), flush=True)


def _outcomes(runs: list[Run]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for run in runs:
        found.setdefault(f"{run.dag} ({run.kind})", Counter())[run.state] += 1
    return found
