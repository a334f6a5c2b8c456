"""What a DAG's page in Airflow says about its pipeline, in Markdown."""

from semel.declare.durations import format_duration
from semel.declare.parts import Select
from semel.pipeline import Spec
from semel.sinks.spec import KafkaSink, PostgresSink
from semel.sources.spec import KafkaSource
from semel.summary import size

COLLECT = """Runs `collect` for each pipeline: ids past their horizon are forgotten, id runs merged,
and staged files of lost attempts removed. What is still in use stays for the next time, and so any
run of it may be skipped, killed or repeated."""


def pipeline(spec: Spec) -> str:
    """Source, identity, sink and limits of a pipeline."""
    rows = [
        ("source", f"{_source(spec)}, {_selection(spec)}"),
        ("identity", _identity(spec)),
        ("transforms", ", ".join(f"`{name}`" for name in spec.transforms) or "none"),
        ("sink", _sink(spec)),
        ("asset", f"`semel://{spec.name}`: one event for each finalized batch"),
        ("limits", _limits(spec)),
        ("digest", f"`{spec.digest()[:12]}`; a batch is staged with the one it was planned with"),
    ]
    table = "\n".join(f"| {name} | {text} |" for name, text in rows)
    about = f"{spec.description}\n\n" if spec.description else ""
    return f"""{about}| | |
|---|---|
{table}

Every task may be retried or cleared: a batch that has committed is only finished, never done again.
Clearing a whole run plans what has arrived since. Readers go by the markers in the archive.

How to trigger, backfill and clear it, and what to do when it fails: the guide, `docs/guide/` in
semel's sources. Which days are complete: the tab *Days*.
"""


def _source(spec: Spec) -> str:
    source = spec.source
    if not isinstance(source, KafkaSource):
        return f"`{source.path}`, {source.format}"
    if source.pattern:
        # A table's cell ends at a bar, also within code.
        shown = "the topics that match `" + source.pattern.replace("|", "\\|") + "`"
    else:
        names = ", ".join(f"`{name}`" for name in source.topics)
        shown = f"the topic{'s' * (len(source.topics) > 1)} {names}"
    return f"{shown} of {_cluster(source)}, {source.value}"


def _cluster(part: KafkaSource | KafkaSink) -> str:
    """Where topics are. Who may see the page need not know how the cluster is reached."""
    return f"connection `{part.connection}`" if part.connection else f"`{part.bootstrap_servers}`"


def _selection(spec: Spec) -> str:
    source = spec.source
    if source.select is Select.ARRIVAL:
        return "what has arrived since the last batch"
    back = format_duration(source.lookback)
    kafka = isinstance(source, KafkaSource)
    by = "the messages' timestamps" if kafka else f"`{source.interval_from}`"
    return f"what belongs to the run's interval by {by}, lookback {back}"


def _identity(spec: Spec) -> str:
    if spec.by_position:
        return "a record's position; no repeats are dropped"
    columns = ", ".join(f"`{name}`" for name in spec.record_id)
    return (
        f"{columns}; repeats are dropped for {format_duration(spec.dedup.horizon)} "
        f"(scope {spec.dedup.scope})"
    )


def _sink(spec: Spec) -> str:
    sink = spec.sink
    if isinstance(sink, PostgresSink):
        by = f" by {', '.join(f'`{name}`' for name in sink.key)}" if sink.key else ""
        return f"table `{sink.table}` of connection `{sink.connection}`, {sink.mode}{by}"
    if isinstance(sink, KafkaSink):
        return f"topic `{sink.topic}` of {_cluster(sink)}, as JSON"
    names = ", ".join(f"`{name}`" for name in sink.partition_by)
    return f"`{sink.path}`, {sink.format}" + (f", in folders by {names}" if names else "")


def _limits(spec: Spec) -> str:
    most = size(spec.limits.bytes_per_batch_max)
    if isinstance(spec.source, KafkaSource):
        most = f"{spec.limits.records_per_batch_max:,} offsets or about {most}"
    return (
        f"{most} a batch; at most "
        f"{spec.limits.quarantine_ratio_max:.2%} quarantined; "
        f"{spec.max_active_runs} runs at the same time"
    )
