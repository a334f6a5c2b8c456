"""The text about a pipeline on its DAG's page in Airflow, in Markdown."""

from semel.declare.durations import format_duration
from semel.declare.parts import Select
from semel.pipeline.spec import Spec

COLLECT_MARKDOWN = """Runs `collect` for each pipeline: it forgets ids past their horizon, merges
id runs, and removes staged files of lost attempts. Files in use stay for the next run. You can
skip, kill or repeat any run."""


def pipeline_markdown(spec: Spec) -> str:
    """Source, identity, sink and limits of a pipeline."""
    rows = [
        ("source", f"{spec.source.describe()}, {_selection(spec)}"),
        ("identity", _identity(spec)),
        ("transforms", ", ".join(f"`{name}`" for name in spec.transforms) or "none"),
        ("sink", spec.sink.describe()),
        ("asset", f"`semel://{spec.name}`: one event for each finalized batch"),
        ("limits", _limits(spec)),
        ("digest", f"`{spec.digest()[:12]}`; stage uses the declaration that plan used"),
    ]
    table = "\n".join(f"| {name} | {text} |" for name, text in rows)
    about = f"{spec.description}\n\n" if spec.description else ""
    return f"""{about}| | |
|---|---|
{table}

You can retry or clear any task at any time: semel finalizes a committed batch and never recomputes
it. If you clear a whole run, it plans whatever has arrived since. Readers follow the markers in the
archive.

The guide, `docs/guide/` in semel's sources, explains how to trigger, backfill and clear a run, and
how to repair a failed one. The tab *Days* shows which days are complete.
"""


def _selection(spec: Spec) -> str:
    source = spec.source
    if source.select is Select.ARRIVAL:
        return "everything that has arrived since the last batch"
    back = format_duration(source.lookback)
    return f"what belongs to the run's interval by {source.selection_rule()}, lookback {back}"


def _identity(spec: Spec) -> str:
    columns = ", ".join(f"`{name}`" for name in spec.record_id)
    if spec.by_position and columns:
        return f"{columns}; at_least_once: semel does not drop repeats"
    if spec.by_position:
        return "a record's position; semel does not drop repeats"
    return (
        f"{columns}; semel drops repeats for {format_duration(spec.dedup.horizon)} "
        f"(scope {spec.dedup.scope})"
    )


def _limits(spec: Spec) -> str:
    return (
        f"{spec.source.describe_limit(spec.limits)} a batch; at most "
        f"{spec.limits.quarantine_ratio_max:.2%} quarantined; "
        f"{spec.max_active_runs} runs at the same time"
    )
