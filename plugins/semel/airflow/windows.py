"""A sensor for your own DAGs: wait until a window of a pipeline is complete."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from semel.airflow.operators import WaitingOperator
from semel.declare.durations import format_duration
from semel.errors import TerminalError
from semel.pipeline.spec import Spec

if TYPE_CHECKING:
    from semel.ledger import Ledger


class SemelWindowSensor(WaitingOperator):
    """Waits until [start, end) is complete.

    `pipeline`, `folder`: as in VerbOperator. `start`, `end`: templates of ISO 8601 times, in UTC
    without a zone; by default the run's data interval. `wait_at_most`: the sensor fails after it.
    `allow_held`: succeed also if the window is held, although its rows may still grow.
    How it works: it reads the ledger once a minute, and frees its worker in between. A complete
    window stays complete, so the sensor cannot miss it.
    """

    verb = "wait"
    template_fields = ("declaration", "start", "end")
    operator_extra_links = ()

    def __init__(
        self,
        *,
        pipeline: str,
        start: str | None = None,
        end: str | None = None,
        wait_at_most: timedelta = timedelta(days=7),
        allow_held: bool = False,
        **kwargs: Any,
    ) -> None:
        if (start is None) != (end is None):
            raise ValueError("pass both start and end, or neither to wait for the data interval")
        super().__init__(pipeline=pipeline, **kwargs)
        self.start, self.end, self.wait_at_most = start, end, wait_at_most
        self.allow_held = allow_held

    def act(self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]) -> str:
        from semel.reports import completeness
        from semel.reports.summary import interval

        start, end = self._window(context)
        complete = completeness.read_completeness(ledger, spec)
        window = f"{spec.name}, {interval(start, end)}"
        missing = complete.missing(start, end)
        if not missing:
            return f"complete: {window}"
        if self.allow_held and complete.is_held(start, end):
            return f"held, and its rows may still grow: {window}"
        waits_for = f"{window} waits for {interval(*missing[0])}"
        if len(missing) > 1:
            waits_for += f" and {len(missing) - 1:,} more"
        now = datetime.now(UTC)
        since = self.waiting_since or now
        if now - since >= self.wait_at_most:
            raise TerminalError(
                f"{waits_for}, after {format_duration(self.wait_at_most)}",
                next=f"semel windows {spec.name}",
            )
        self.check_later(since, waits_for)
        raise AssertionError("deferring ends the task")

    def account(
        self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns an empty mapping, because a sensor does not work on a batch."""
        del ledger, spec, context
        return {}

    def _window(self, context: Mapping[str, Any]) -> tuple[datetime, datetime]:
        """Raises TerminalError if the start or the end is missing, or if the window is empty."""
        if self.start is None:
            start, end = (context.get(f"data_interval_{key}") for key in ("start", "end"))
        else:
            start, end = _moment(self.start), _moment(self.end)
        if start is None or end is None or start >= end:
            raise TerminalError(
                f"{self.task_id} has no window to wait for: it needs a start before an end, or a "
                "run with a data interval",
                next="clear the task, once the DAG gives it start and end",
            )
        return start.astimezone(UTC), end.astimezone(UTC)


def _moment(text: str) -> datetime:
    """Raises TerminalError if the text is not a time in ISO 8601."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise TerminalError(
            f"{text!r} is not a time in ISO 8601, such as 2013-01-01T00:00:00Z",
            next="clear the task, once the DAG gives the sensor a start and an end",
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
