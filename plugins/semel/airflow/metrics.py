"""semel's metrics, through Airflow's clients for StatsD, Datadog or OpenTelemetry.

How it works: semel sends a metric under its name with tags, and again with the tags' values in its
name, for a StatsD without tags. Airflow does the same for its own metrics; `[metrics]
legacy_names_on = False` turns the second form off. A failure here never fails a task: it is a
warning in the task's log.
"""

import logging
from typing import TYPE_CHECKING, Any

from airflow.configuration import conf

from semel.airflow.compat import Stats
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
"""For each counter, the counts of a batch's account that it sums."""

REPLAYED = "semel.records_replayed"
"""Counter: records whose output a replay computed again. The other counters do not count these."""

LAG = "semel.lag"
"""Gauge: seconds since plan of the oldest batch that is not finalized; 0 if all are."""

DURATION = "semel.duration"
"""Timer: milliseconds of a verb's task, from its start to its answer."""

_log = logging.getLogger(__name__)


def count_records(pipeline: str, result: "Finalized") -> None:
    """Add a finalized batch's account to the counters; a replay adds only to REPLAYED."""
    counts = result.counts
    if result.batch.replays is not None:
        _send("incr", REPLAYED, counts.survivors, pipeline=pipeline)
        return
    for name, parts in COUNTERS.items():
        _send("incr", name, sum(getattr(counts, part) for part in parts), pipeline=pipeline)


def send_lag(ledger: "Ledger", pipeline: str) -> None:
    """Send how far behind a pipeline is. Does nothing if the ledger does not answer: its task
    reports that.
    """
    try:
        [row] = ledger.rows("metrics", "lag", pipeline=pipeline)
    except RetryableError as error:
        _log.debug("%s was not sent: %s", LAG, error)
        return
    _send("gauge", LAG, row["seconds"], pipeline=pipeline)


def send_duration(pipeline: str, verb: str, seconds: float) -> None:
    """Send the duration of a verb that ended well."""
    _send("timing", DURATION, seconds * 1000, pipeline=pipeline, verb=verb)


def _send(kind: str, name: str, value: float, **tags: Any) -> None:
    try:
        getattr(Stats, kind)(name, value, tags=tags)
        if conf.getboolean("metrics", "legacy_names_on", fallback=True):
            getattr(Stats, kind)(".".join([name, *tags.values()]), value)
    except Exception as error:  # Airflow accepts third-party clients; none may fail a batch.
        _log.warning("the metric %s was not sent: %s: %s", name, type(error).__name__, error)
