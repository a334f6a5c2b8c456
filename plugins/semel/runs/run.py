"""`semel run`: the verbs of one run in order, without Airflow."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from semel import limits
from semel.commit import Committed, commit
from semel.finalize import Finalized, finalize
from semel.ledger import Ledger
from semel.model.batch import Log
from semel.pipeline.spec import Spec
from semel.plan import Plan, plan
from semel.stage import JobEngine, Staged, stage


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The results of the verbs, with the seconds of each. Only `plan`, if there was nothing new."""

    plan: Plan
    staged: Staged | None = None
    committed: Committed | None = None
    finalized: Finalized | None = None
    seconds: dict[str, float]


def run_batch(
    ledger: Ledger,
    spec: Spec,
    request_key: str,
    engine: JobEngine,
    interval: tuple[datetime, datetime] | None = None,
    log: Log = print,
) -> RunResult:
    """Plan, stage, commit and finalize one batch. The same request resumes where it stopped.

    With `source.on_empty: wait` it plans again each minute while there is nothing to take.
    """
    seconds: dict[str, float] = {}

    def timed(verb: str, call: Callable[[], Any]) -> Any:
        started = time.monotonic()
        answer = call()
        seconds[verb] = round(time.monotonic() - started, 3)
        return answer

    began = time.monotonic()
    while True:
        planned = timed("plan", lambda: plan(ledger, spec, request_key, interval, log))
        if not planned.must_wait(spec, timedelta(seconds=time.monotonic() - began)):
            break
        log(f"{spec.name} finds nothing to read; it checks again in {limits.LOOK_AGAIN_SECONDS} s")
        time.sleep(limits.LOOK_AGAIN_SECONDS)
    if planned.batch is None:
        return RunResult(plan=planned, seconds=seconds)
    steps = steps_of(ledger, spec, planned.batch.batch_id, engine, log)
    answers = {verb: timed(verb, step) for verb, step in steps.items()}
    return RunResult(
        plan=planned,
        staged=answers["stage"],
        committed=answers["commit"],
        finalized=answers["finalize"],
        seconds=seconds,
    )


def finish(ledger: Ledger, spec: Spec, batch_id: int, engine: JobEngine, log: Log) -> Finalized:
    """Stage, commit and finalize a planned batch, without the steps that are already done."""
    steps = steps_of(ledger, spec, batch_id, engine, log)
    steps["stage"]()
    steps["commit"]()
    return steps["finalize"]()


def steps_of(
    ledger: Ledger, spec: Spec, batch_id: int, engine: JobEngine, log: Log
) -> dict[str, Callable[[], Any]]:
    """The remaining steps of a planned batch, by verb, in order.

    They return `Staged`, `Committed` and `Finalized`.
    """

    def staging() -> Staged:
        return stage(ledger, spec, batch_id, engine, log)

    return {
        "stage": staging,
        "commit": lambda: commit(ledger, spec, batch_id, staging, log),
        "finalize": lambda: finalize(ledger, spec, batch_id),
    }
