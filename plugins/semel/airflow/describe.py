"""What a DAG's page in Airflow says about its pipeline, in Markdown."""

from semel.declare.durations import format_duration
from semel.declare.parts import Select
from semel.pipeline.spec import Spec

COLLECT = """Runs `collect` for each pipeline: ids past their horizon are forgotten, id runs merged,
and staged files of lost attempts removed. What is still in use stays for the next time, and so any
run of it may be skipped, killed or repeated."""


def pipeline(spec: Spec) -> str:
    """Source, identity, sink and limits of a pipeline."""
    rows = [
        ("source", f"{spec.source.describe()}, {_selection(spec)}"),
        ("identity", _identity(spec)),
        ("transforms", ", ".join(f"`{name}`" for name in spec.transforms) or "none"),
        ("sink", spec.sink.describe()),
        ("asset", f"`semel://{spec.name}`: one event for each finalized batch"),
        ("limits", _limits(spec)),
        ("digest", f"`{spec.digest()[:12]}`; a batch is staged with the one it was planned with"),
    ]
    table = "\n".join(f"| {name} | {text} |" for name, text in rows)
    about = f"{spec.description}\n\n" if spec.description else ""
    return f"""{about}| | |
|---|---|
{table}

Safe to retry or clear at any point: a committed batch is finalized, never recomputed.
Clearing a whole run plans what has arrived since. Readers go by the markers in the archive.

How to trigger, backfill and clear it, and what to do when it fails: the guide, `docs/guide/` in
semel's sources. Which days are complete: the tab *Days*.
"""


def _selection(spec: Spec) -> str:
    source = spec.source
    if source.select is Select.ARRIVAL:
        return "what has arrived since the last batch"
    back = format_duration(source.lookback)
    return f"what belongs to the run's interval by {source.selection_rule()}, lookback {back}"


def _identity(spec: Spec) -> str:
    columns = ", ".join(f"`{name}`" for name in spec.record_id)
    if spec.by_position and columns:
        return f"{columns}; at_least_once: repeats are not dropped, and may be there"
    if spec.by_position:
        return "a record's position; no repeats are dropped"
    return (
        f"{columns}; repeats are dropped for {format_duration(spec.dedup.horizon)} "
        f"(scope {spec.dedup.scope})"
    )


def _limits(spec: Spec) -> str:
    return (
        f"{spec.source.describe_limit(spec.limits)} a batch; at most "
        f"{spec.limits.quarantine_ratio_max:.2%} quarantined; "
        f"{spec.max_active_runs} runs at the same time"
    )
