"""Runs that replay: with `replay: true` in its configuration, a run does not take new records.
It computes the output of finalized batches again: all in its data interval, or the named ones.

A scheduled run never replays. Each replay is a separate batch under the run's request key, and each
task works through them in turn.
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

REPLAY, BATCHES, SHOWN_KEY = "replay", "batches", "shown"
"""The keys of a run's configuration. `shown`: what the page showed that created the run; see
`refuse_other`."""

_AGAIN = "load the page Days again, and start the replay there"

_TRIGGER = f'trigger the DAG again, with the configuration {{"{REPLAY}": true, "{BATCHES}": "17"}}'


def form_params(spec: Spec) -> dict[str, Param]:
    """The replay's parameters in Airflow's forms for a manual run and for a backfill."""
    by_interval = spec.source.select is Select.INTERVAL
    which = "those of the interval" if by_interval else "those named in Batches"
    needs = "Empty: those of the interval." if by_interval else "Required with Replay."
    return {
        REPLAY: Param(
            False,
            type="boolean",
            title="Replay",
            description="Take no new records. Compute the output of finalized batches again "
            f"({which}), with today's transforms and declaration.",
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
    """Raises TerminalError if Airflow hides keys of a run's configuration from its tasks."""
    conf = getattr(context["dag_run"], "conf", None) or {}
    keys = (REPLAY, BATCHES, SHOWN_KEY, INTERVAL_START, INTERVAL_END)
    params = context["params"]
    if ignored := [key for key in keys if key in conf and conf[key] != params.get(key)]:
        raise TerminalError(
            f"the run's configuration has {' and '.join(ignored)}, but Airflow hides it from the "
            "tasks: [core] dag_run_conf_overrides_params is False. Nothing was done. Set it to "
            "True where the tasks run",
            next="trigger the DAG again, once Airflow has that setting",
        )


def is_replay(context: Mapping[str, Any]) -> bool:
    """True if a run replays. Raises TerminalError if its configuration contradicts itself."""
    if context["dag_run"].run_type == "scheduled":
        return False
    params = context["params"]
    value = params.get(REPLAY, False)
    if not isinstance(value, bool):
        raise TerminalError(
            f"the run's configuration has {REPLAY}: {value!r}, which is neither true nor false",
            next=_TRIGGER,
        )
    if params.get(BATCHES) and not value:
        raise TerminalError(
            f"the run's configuration has {BATCHES} ({params[BATCHES]}) without {REPLAY}: true. "
            "Nothing was planned",
            next=_TRIGGER,
        )
    return value


def plan_replays(
    ledger: "Ledger", spec: Spec, context: Mapping[str, Any], request_key: str
) -> "list[Batch]":
    """Plan all replays of a run, or raise an error and plan nothing.

    Returns an empty list if a backfill's run covers an interval without batches, so that it
    continues with the next day. In a manual run that is an error.
    """
    from semel.runs import replay

    wanted: dict[str, Any] = _wanted(spec, context)
    try:
        roots = replay.roots(ledger, spec, **wanted)
    except StateError:
        if context["dag_run"].run_type != "backfill":
            raise
        return []
    if on_page := context["params"].get(SHOWN_KEY):
        refuse_changed(spec, roots, on_page, next=_AGAIN)
    return replay.plan_all(ledger, spec, request_key, roots)


# Keeps A7.
def refuse_changed(spec: Spec, roots: list[int], on_page: Any, *, next: str) -> None:
    """Raises StateError if the batches, or the digests of code or declaration, have changed since
    the page showed them.
    """
    from semel.archive import provenance

    now = {
        "batches": roots,
        "code": provenance.read_code(spec).digests.digest,
        "spec": spec.digest(),
    }
    on_page = on_page if isinstance(on_page, Mapping) else {}
    changed = [key for key, value in now.items() if on_page.get(key) != value]
    if changed:
        raise StateError(
            f"{' and '.join(changed)} of {spec.name} changed since the page showed them. Nothing "
            "was done",
            next=next,
        )


def _wanted(spec: Spec, context: Mapping[str, Any]) -> dict[str, Any]:
    """The batches that a run names, or its interval."""
    batches = context["params"].get(BATCHES)
    if batches:
        if context["dag_run"].run_type == "backfill":
            raise TerminalError(
                f"each run of a backfill would replay the same {BATCHES} ({batches}). Name them in "
                "a manual run",
                next=_TRIGGER,
            )
        return {"batches": numbers(batches)}
    if spec.source.select is not Select.INTERVAL:
        raise TerminalError(
            f"pipeline {spec.name} does not run by intervals, so a replay has to name its "
            f"{BATCHES}",
            next=_TRIGGER,
        )
    return {"interval": run_interval(context, spec)}


def describe_replays(ledger: "Ledger", spec: Spec, request_key: str) -> dict[str, Any]:
    """The present state of a run's replays: one by one, and the sum of their counts."""
    batches = planned_replays(ledger, spec, request_key)
    staged = [ledger.rows("stage", "staged", batch_id=batch.batch_id) for batch in batches]
    counts = [Counts.from_row(rows[0]) for rows in staged if rows]
    return {
        "replays": [
            {
                "batch_id": batch.root,
                "generation": batch.generation,
                "replay": batch.batch_id,
                "status": str(batch.status),
                "interval": [t.isoformat() for t in batch.interval] if batch.interval else None,
            }
            for batch in batches
        ],
        "counts": vars(sum(counts, start=Counts())) if counts else None,
    }


def planned_replays(ledger: "Ledger", spec: Spec, request_key: str) -> "list[Batch]":
    """The replays of a run, in the order of the batches that they replay."""
    from semel.runs import replay

    return replay.replays_of_request(ledger, spec, request_key)


def planned_text(batches: "list[Batch]") -> str:
    """The summary of plan: the batches that a run replays."""
    if not batches:
        return "nothing to do: this interval has no batch to replay"
    lines = [f"planned: {_count_text(batches)}"]
    lines += [f"  {_replay_text(batch)}" for batch in batches[:FILES_NAMED_MAX]]
    if len(batches) > FILES_NAMED_MAX:
        lines.append(f"  and {len(batches) - FILES_NAMED_MAX:,} more")
    if all(batch.status is BatchStatus.FINALIZED for batch in batches):
        return "\n".join(
            [*lines, "all are finalized already; the other tasks print their summaries again"]
        )
    return "\n".join([*lines, "next: stage"])


def progress_text(batch: "Batch", number: int, count: int) -> str:
    """The log line with which a task begins one of a run's replays."""
    return f"{number} of {count}: {_replay_text(batch)}"


def done_text(verb: str, batches: "list[Batch]") -> str:
    """The summary of a verb after all replays of a run."""
    steps = {"stage": "next: commit", "commit": "next: finalize"}
    last = steps.get(verb, "readers see these outputs, whole")
    return f"{verb}: done for {_count_text(batches)}\n{last}"


def _replay_text(batch: "Batch") -> str:
    span = f" of {summary.interval(*batch.interval)}" if batch.interval else ""
    return f"batch {batch.root}{span}: generation {batch.generation}, by batch {batch.batch_id}"


def _count_text(batches: "list[Batch]") -> str:
    return "1 replay" if len(batches) == 1 else f"{len(batches):,} replays"
