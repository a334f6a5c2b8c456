"""Runs that replay: with `replay: true` in its configuration a run takes nothing new, and computes
the output of finalized batches again, of its data interval or of the batches that it names.

A run of the schedule never replays. Each replay is a batch of its own under the run's request key,
and each task goes through them, one after the other.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param

from semel.airflow.intervals import INTERVAL_END, INTERVAL_START, run_interval
from semel.declare.parts import Select
from semel.declare.wording import FILES_NAMED_MAX
from semel.errors import StateError, TerminalError
from semel.model.batch import RANGE, BatchStatus, Counts, numbers
from semel.pipeline.spec import Spec
from semel.reports import summary

if TYPE_CHECKING:
    from semel.ledger import Ledger
    from semel.model.batch import Batch

REPLAY, BATCHES, SHOWN = "replay", "batches", "shown"
"""The keys of a run's configuration. `shown`: by a page that made the run; see `refuse_other`."""

_AGAIN = "load the page of days again, and replay from there what it shows now"

_TRIGGER = f'trigger the DAG again, with the configuration {{"{REPLAY}": true, "{BATCHES}": "17"}}'


def form(spec: Spec) -> dict[str, Param]:
    """What the forms of a manual run and of a backfill ask."""
    by_interval = spec.source.select is Select.INTERVAL
    which = "those of the interval" if by_interval else "those that Batches names"
    needs = "Left out: those of the interval." if by_interval else "With Replay it is needed."
    return {
        REPLAY: Param(
            False,
            type="boolean",
            title="Replay",
            description="Take nothing new: compute the output of finalized batches again, with "
            f"today's transforms and declaration: {which}.",
            section="Replay",
        ),
        BATCHES: Param(
            None,
            type=["null", "string"],
            pattern=f"^{RANGE}$",
            title="Batches",
            description=f"Only with Replay, not in a backfill: 17, or 17..23. {needs}",
            section="Replay",
        ),
    }


# Keeps A9.
def refuse_ignored(context: Mapping[str, Any]) -> None:
    """TerminalError: Airflow keeps something of a run's configuration from its tasks."""
    given = getattr(context["dag_run"], "conf", None) or {}
    known = (REPLAY, BATCHES, SHOWN, INTERVAL_START, INTERVAL_END)
    params = context["params"]
    if ignored := [key for key in known if key in given and given[key] != params.get(key)]:
        raise TerminalError(
            f"the run's configuration has {' and '.join(ignored)}, and Airflow keeps that from its "
            "tasks: [core] dag_run_conf_overrides_params is False. Nothing was done. Set it to "
            "True where the tasks run",
            next="trigger the DAG again, once Airflow has that setting",
        )


def asked(context: Mapping[str, Any]) -> bool:
    """Whether a run replays. TerminalError: its configuration is not clear about it."""
    if context["dag_run"].run_type == "scheduled":
        return False
    params = context["params"]
    given = params.get(REPLAY, False)
    if not isinstance(given, bool):
        raise TerminalError(
            f"the run's configuration has {REPLAY}: {given!r}, which is neither true nor false",
            next=_TRIGGER,
        )
    if params.get(BATCHES) and not given:
        raise TerminalError(
            f"the run's configuration has {BATCHES} ({params[BATCHES]}), which are for a replay, "
            f"and not {REPLAY}: true; nothing was planned",
            next=_TRIGGER,
        )
    return given


def plan(
    ledger: "Ledger", spec: Spec, context: Mapping[str, Any], request_key: str
) -> "list[Batch]":
    """Plan the replays of a run, all of them or none. Empty: a backfill's interval has no batch.

    A backfill over many days goes on after a day without a batch. In a manual run that is an error.
    """
    from semel.runs import replay

    wanted: dict[str, Any] = _wanted(spec, context)
    try:
        roots = replay.roots(ledger, spec, **wanted)
    except StateError:
        if context["dag_run"].run_type != "backfill":
            raise
        return []
    if shown := context["params"].get(SHOWN):
        refuse_other(spec, roots, shown, next=_AGAIN)
    return replay.plan_all(ledger, spec, request_key, roots)


# Keeps A7.
def refuse_other(spec: Spec, roots: list[int], shown: Any, *, next: str) -> None:
    """StateError: what would be done (batches, digests of code and declaration) is not what was
    shown.
    """
    from semel.archive import provenance

    now = {"batches": roots, "code": provenance.look(spec).named.digest, "spec": spec.digest()}
    told = shown if isinstance(shown, Mapping) else {}
    other = [key for key, value in now.items() if told.get(key) != value]
    if other:
        raise StateError(
            f"{' and '.join(other)} of {spec.name} changed since the page showed them, so nothing "
            "was done",
            next=next,
        )


def _wanted(spec: Spec, context: Mapping[str, Any]) -> dict[str, Any]:
    """The batches that a run names, or its interval."""
    given = context["params"].get(BATCHES)
    if given:
        if context["dag_run"].run_type == "backfill":
            raise TerminalError(
                f"each run of a backfill would replay the same {BATCHES} ({given}); name them in a "
                "manual run",
                next=_TRIGGER,
            )
        return {"batches": numbers(given)}
    if spec.source.select is not Select.INTERVAL:
        raise TerminalError(
            f"pipeline {spec.name} takes what has arrived and has no intervals: a replay has to "
            f"name its {BATCHES}",
            next=_TRIGGER,
        )
    return {"interval": run_interval(context, spec)}


def account(ledger: "Ledger", spec: Spec, request_key: str) -> dict[str, Any]:
    """The replays of a run as they are now: each one, and the sum of their counts."""
    found = planned(ledger, spec, request_key)
    tried = [ledger.rows("stage", "staged", batch_id=batch.batch_id) for batch in found]
    counts = [Counts.from_row(rows[0]) for rows in tried if rows]
    return {
        "replays": [
            {
                "batch_id": batch.root,
                "generation": batch.generation,
                "replay": batch.batch_id,
                "status": str(batch.status),
                "interval": [t.isoformat() for t in batch.interval] if batch.interval else None,
            }
            for batch in found
        ],
        "counts": vars(sum(counts, start=Counts())) if counts else None,
    }


def planned(ledger: "Ledger", spec: Spec, request_key: str) -> "list[Batch]":
    """The replays of a run, in the order of the batches that they replay."""
    from semel.runs import replay

    return replay.replays_of_request(ledger, spec, request_key)


def planned_text(found: "list[Batch]") -> str:
    """Which batches a run replays."""
    if not found:
        return "nothing to do: this interval has no batch to replay"
    lines = [f"planned: {_replays(found)}"]
    lines += [f"  {_again(batch)}" for batch in found[:FILES_NAMED_MAX]]
    if len(found) > FILES_NAMED_MAX:
        lines.append(f"  and {len(found) - FILES_NAMED_MAX:,} more")
    if all(batch.status is BatchStatus.FINALIZED for batch in found):
        return "\n".join([*lines, "all are finalized already; the other tasks print it again"])
    return "\n".join([*lines, "next: stage"])


def text_of(batch: "Batch", at: int, count: int) -> str:
    """Which of a run's replays a task works on now."""
    return f"{at} of {count}: {_again(batch)}"


def done_text(verb: str, found: "list[Batch]") -> str:
    """That a verb is done for all replays of a run."""
    steps = {"stage": "next: commit", "commit": "next: finalize"}
    last = steps.get(verb, "readers see these outputs, whole")
    return f"{verb}: done for {_replays(found)}\n{last}"


def _again(batch: "Batch") -> str:
    span = f" of {summary.interval(*batch.interval)}" if batch.interval else ""
    return f"batch {batch.root}{span}: generation {batch.generation}, by batch {batch.batch_id}"


def _replays(found: "list[Batch]") -> str:
    return "1 replay" if len(found) == 1 else f"{len(found):,} replays"
