"""What semel measures, through Airflow's own metrics: StatsD, Datadog or OpenTelemetry.

How it works: a metric is sent under its name with tags, and once more with the tags' values in its
name, for a StatsD without tags. Airflow does both for its own; `[metrics] legacy_names_on = False`
turns the second off. No metric costs a task: what goes wrong here is a warning in its log.
"""

import logging
from typing import TYPE_CHECKING, Any

from airflow.sdk.configuration import conf
from airflow.sdk.observability.stats import Stats

from semel.errors import RetryableError

if TYPE_CHECKING:
    from semel.finalize import Finalized
    from semel.ledger import Ledger

COUNTERS = {
    "semel.records_read": ("records_read",),
    "semel.records_new": ("survivors",),
    "semel.records_repeated": ("duplicates_batch", "duplicates_catalog"),
    "semel.records_quarantined": ("quarantined",),
    "semel.records_late": ("late",),
}
"""Each counter with the counts of a batch's account that it adds up."""

REPLAYED = "semel.records_replayed"
"""Counter: records whose output a replay computed again. No other counter has them twice."""

LAG = "semel.lag"
"""Gauge: seconds since the oldest batch that is not finalized was planned; 0 when there is none."""

DURATION = "semel.duration"
"""Timer: milliseconds that a verb's task took, from its start to its answer."""

_log = logging.getLogger(__name__)


def count(pipeline: str, done: "Finalized") -> None:
    """Add a finalized batch's account to the counters; what a replay read was counted before."""
    counts = done.counts
    if done.batch.replays is not None:
        _send("incr", REPLAYED, counts.survivors, pipeline=pipeline)
        return
    for name, parts in COUNTERS.items():
        _send("incr", name, sum(getattr(counts, part) for part in parts), pipeline=pipeline)


def lag(ledger: "Ledger", pipeline: str) -> None:
    """Tell how far behind a pipeline is. Nothing, when the ledger is away: its task says so."""
    try:
        [found] = ledger.rows("metrics", "lag", pipeline=pipeline)
    except RetryableError as error:
        _log.debug("no lag is told: %s", error)
        return
    _send("gauge", LAG, found["seconds"], pipeline=pipeline)


def duration(pipeline: str, verb: str, seconds: float) -> None:
    """Tell how long a verb took that ended well."""
    _send("timing", DURATION, seconds * 1000, pipeline=pipeline, verb=verb)


def _send(kind: str, name: str, value: float, **tags: Any) -> None:
    try:
        getattr(Stats, kind)(name, value, tags=tags)
        if conf.getboolean("metrics", "legacy_names_on", fallback=True):
            getattr(Stats, kind)(".".join([name, *tags.values()]), value)
    except Exception as error:  # Airflow takes clients of anybody's; none may cost a batch.
        _log.warning("the metric %s was not sent: %s: %s", name, type(error).__name__, error)
