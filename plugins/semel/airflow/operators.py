"""The verbs as Airflow operators. Each calls one function of the core and ends with its summary.

A task finds its batch in the ledger by the run's request key; XComs are for people only. Fences
grant the right to write: Airflow may retry a task, clear it, kill it or run it twice at once.

A running task imports the verbs and Spark, and this module does not: Airflow imports it every few
seconds to search for DAGs, and they cost 1.6 s of a core.
"""

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from semel import pipeline
from semel.airflow import assets, links, metrics, notify, replays, task_failure
from semel.airflow.compat import SkipMixin
from semel.airflow.intervals import run_interval, skipped_interval
from semel.errors import SemelError, StateError, TerminalError
from semel.pipeline.spec import Spec

if TYPE_CHECKING:
    from semel.airflow.spark import Stager
    from semel.finalize import Finalized
    from semel.ledger import Ledger
    from semel.model.batch import Batch
    from semel.plan import Plan
    from semel.reports.completeness import Range


def request_key(context: Mapping[str, Any]) -> str:
    """The key of a DAG run in the ledger. Clearing the run or repeating a backfill keeps it."""
    run = context["dag_run"]
    return f"airflow:{run.dag_id}:{run.run_id}"


class VerbOperator(BaseOperator):
    """One verb for one pipeline.

    Purpose: load the pipeline, open the ledger, and end the log with the verb's summary. The verb
    makes all decisions.
    `pipeline`: its name. `folder`: the absolute path of the folder of its YAML file; by default
    SEMEL_PIPELINES_DIR or the Airflow Variable semel_pipelines_dir.
    After a TerminalError Airflow does not retry the task, because the same call would fail again.
    It retries after any other error. The rendered template shows the declaration in use.
    """

    verb: ClassVar[str]
    ui_color = "#eef4f8"
    template_fields = ("declaration",)
    template_fields_renderers = {"declaration": "yaml"}
    overwrite_rtif_after_execution = True
    operator_extra_links = links.RUN_LINKS

    def __init__(self, *, pipeline: str, folder: str | None = None, **kwargs: Any) -> None:
        if task_failure.HAS_POLICIES:
            kwargs["retry_policy"] = task_failure.RetryUnlessTerminal()
        super().__init__(**kwargs)
        self.on_failure_callback = [
            *self.on_failure_callback, notify.OnFailure(), task_failure.log_no_retry
        ]
        self.on_retry_callback = [*self.on_retry_callback, task_failure.log_retry]
        self.pipeline = pipeline
        self.folder = folder
        self.declaration: str | None = None
        self.batch_id: int | None = None

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Run the verb. Returns the task's XCom: the summary, and the batch's account as JSON."""
        from semel import settings
        from semel.airflow import surroundings

        began = time.monotonic()
        try:
            replays.refuse_ignored(context)
            surroundings.find_folders()
            if self.folder:
                os.environ[settings.PIPELINES_VARIABLE] = self.folder  # Also for spark-submit.
            spec = pipeline.find(self.pipeline)
            surroundings.find_connections(spec)
            self.declaration = spec.to_yaml()
            text, account = self.run_verb(spec, context)
        except SemelError as error:
            doing = task_failure.retry_steps(context, self.pipeline, self.batch_id, error)
            raise task_failure.log_failure(self.log, error, doing) from None
        self.log_lines(text)
        seconds = round(time.monotonic() - began, 3)
        metrics.send_duration(spec.name, self.verb, seconds)
        return {"summary": text, "seconds": seconds, **account}

    def run_verb(self, spec: Spec, context: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Call the verb with an open ledger. Returns its summary, and the batch's account."""
        from semel.airflow import surroundings
        from semel.ledger import Ledger

        surroundings.find_ledger()
        with Ledger() as ledger:
            try:
                text = self.act(ledger, spec, context)
            finally:
                metrics.send_lag(ledger, spec.name)
            return text, self.account(ledger, spec, context)

    @abstractmethod
    def act(self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]) -> str:
        """Call the verb and return its summary."""

    def log_lines(self, text: str) -> None:
        """Write each line to the task's log: refusals and late records as warnings."""
        from semel.reports.summary import LATE, REFUSED

        for line in text.splitlines():
            say = self.log.warning if line.startswith((REFUSED, LATE)) else self.log.info
            for part in task_failure.wrap_lines(line):
                say(part)

    def account(
        self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The state of the run's batch or of its replays. Empty for a run without a batch."""
        from semel import plan
        from semel.model.batch import Counts

        if replays.is_replay(context):
            return replays.describe_replays(ledger, spec, request_key(context))
        batch = plan.find_batch(ledger, spec, request_key(context))
        if batch is None:
            return {}
        staged = ledger.rows("stage", "staged", batch_id=batch.batch_id)
        return {
            "batch_id": batch.batch_id,
            "status": str(batch.status),
            "interval": [t.isoformat() for t in batch.interval] if batch.interval else None,
            "counts": vars(Counts.from_row(staged[0])) if staged else None,
        }

    def planned_batch(self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]) -> "Batch":
        """The batch that this run planned. Raises StateError if it has not planned a batch."""
        from semel import plan

        key = request_key(context)
        batch = plan.find_batch(ledger, spec, key)
        if batch is None:
            raise StateError(f"{key} has not planned a batch", next="clear the run's plan task")
        self.batch_id = batch.batch_id
        return batch

    def set_windows_event(
        self, spec: Spec, completed: "Iterable[Range]", context: Mapping[str, Any]
    ) -> None:
        """If the asset of complete windows is an outlet of this task, give it an event, or remove
        it if no window is newly complete.
        """
        asset, completed = assets.windows_asset(spec.name), list(completed)
        if asset not in self.outlets:
            return
        if completed:
            extra = assets.extra_of_windows(spec, completed)
            context["outlet_events"][asset].extra = extra
        else:
            # When the task ends, Airflow creates an event for each outlet in the list.
            self.outlets = [outlet for outlet in self.outlets if outlet != asset]

    def for_each_batch(
        self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any], do: "Callable[[Batch], str]"
    ) -> str:
        """Do the verb for the batch that this run planned, or for each of its replays in turn.

        Returns the summary. For replays it is a common one, and the log has one for each.
        """
        if not replays.is_replay(context):
            return do(self.planned_batch(ledger, spec, context))
        key = request_key(context)
        batches = replays.planned_replays(ledger, spec, key)
        if not batches:
            raise StateError(f"{key} has not planned a replay", next="clear the run's plan task")
        for number, batch in enumerate(batches, 1):
            self.batch_id = batch.batch_id
            self.log_lines(replays.progress_text(batch, number, len(batches)))
            lines = do(batch).splitlines()
            self.log_lines("\n".join(line for line in lines if not line.startswith("next: ")))
        return replays.done_text(self.verb, batches)


class ReceiveOperator(VerbOperator):
    """receive: copy a queue's messages into the spool. A run of replays skips it.

    `number`: its number among the receivers that run at once. If the task is killed, the queue
    delivers the messages again that it had not acknowledged. It works without the ledger: during an
    outage of the ledger, the queue could otherwise drop messages.
    """

    verb = "receive"

    def __init__(self, *, number: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.number = number

    def run_verb(self, spec: Spec, context: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        return self.act(None, spec, context), {}

    def act(self, ledger: None, spec: Spec, context: Mapping[str, Any]) -> str:
        from semel.reports import summary

        if replays.is_replay(context):
            return "nothing to do: this run replays batches"
        receipt = spec.source.receive(spec.name, spec.source.until, self.log.info)
        return summary.receive(receipt, "plan")


class WaitingOperator(VerbOperator):
    """A verb that checks once a minute whether its input has arrived."""

    waiting_since: datetime | None = None

    def check_later(self, since: datetime, why: str) -> None:
        """Defer the task for a minute, which frees its worker. `why`: the reason, for the log."""
        from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger

        from semel import limits

        self.log.info("%s, since %s; it checks again in a minute", why, f"{since:%F %H:%M} UTC")
        self.defer(
            trigger=TimeDeltaTrigger(timedelta(seconds=limits.LOOK_AGAIN_SECONDS)),
            method_name="resume",
            kwargs={"since": since.isoformat()},
        )

    def resume(
        self, context: Mapping[str, Any], event: Any = None, *, since: str
    ) -> dict[str, Any]:
        """Run the task again after a deferral."""
        del event
        self.waiting_since = datetime.fromisoformat(since)
        return self.execute(context)


class PlanOperator(WaitingOperator, SkipMixin):
    """plan. `source.on_empty` decides what happens when there is nothing to take.

    skip: the task succeeds, and Airflow skips the other tasks. If the run has a finalized batch
    already, they run, and print its summary again.
    """

    verb = "plan"
    inherits_from_skipmixin = True

    def act(self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]) -> str:
        from semel import plan
        from semel.reports import completeness, summary

        for why in notify.connection_problems(spec.notify):
            self.log.warning(why)
        if replays.is_replay(context):
            self.set_windows_event(spec, (), context)
            batches = replays.plan_replays(ledger, spec, context, request_key(context))
            text = replays.planned_text(batches)
            return text if batches else self._skip_others(context, text)
        key, between = request_key(context), run_interval(context, spec)
        if skipped := skipped_interval(context, spec):
            for line in summary.unscheduled_interval(spec.name, *skipped):
                self.log.warning(line)
        answer = plan.plan(ledger, spec, key, between, self.log_lines)
        text = summary.plan(answer)
        late = self._late_warning(spec, answer, context)
        completed = ()
        if spec.window is not None and not answer.is_done:
            completed = completeness.affected_windows(
                completeness.read_completeness(ledger, spec), spec.window.windows, answer.covers
            )
        self.set_windows_event(spec, completed, context)
        if answer.batch is not None:
            return "\n".join([*late, text])
        if answer.is_done:
            again = f"the other tasks print the summary of batch {answer.before.batch_id} again"
            return f"{text}\n{again}"
        now = datetime.now(UTC)
        since = self.waiting_since or now
        if answer.must_wait(spec, now - since):
            self.log_lines(text)
            self.check_later(since, "nothing to take")
        return self._skip_others(context, text)

    def _skip_others(self, context: Mapping[str, Any], text: str) -> str:
        """Let this task succeed and Airflow skip the others."""
        self.log_lines(text)
        context["ti"].xcom_push(key="return_value", value={"summary": text})
        self.skip(context["ti"], context["task"].get_flat_relatives(upstream=False))
        return text

    def _late_warning(self, spec: Spec, answer: "Plan", context: Mapping[str, Any]) -> list[str]:
        """A warning about records of earlier days, in a scheduled run only: you chose the days of
        any other run. If the asset of late records is an outlet of this task, it gets one event.
        """
        from semel.reports import summary

        days = answer.earlier if context["dag_run"].run_type == "scheduled" else {}
        asset = assets.late_asset(spec.name)
        if asset in self.outlets:
            extra = assets.extra_of_late(spec.name, days) if days else None
            if extra is None or assets.is_late_announced(spec.name, extra):
                # When the task ends, Airflow creates an event for each outlet in the list.
                self.outlets = [outlet for outlet in self.outlets if outlet != asset]
            else:
                context["outlet_events"][asset].extra = extra
        return [summary.late_files(spec.name, days)] if days else []


class _StagingOperator(VerbOperator):
    """The base of stage and commit. Both may use Spark; if the task is killed, it cancels the job.
    """

    stager: "Stager | None" = None

    def open_stager(self, ledger: "Ledger", spec: Spec) -> "Stager":
        """The stager of the run's batches. The caller closes it."""
        from semel.airflow.spark import Stager

        self.stager = Stager(ledger, spec, self.log.info)
        return self.stager

    def on_kill(self) -> None:
        if self.stager:
            self.stager.cancel()


class StageOperator(_StagingOperator):
    """stage, in the Spark of the connection `semel_spark` or `spark_default`."""

    verb = "stage"

    def act(self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]) -> str:
        with self.open_stager(ledger, spec) as stager:
            return self.for_each_batch(
                ledger, spec, context, lambda batch: stager.stage(batch.batch_id)
            )


class StageAnswerOperator(VerbOperator):
    """Read from the ledger how a stage ended that another operator ran as `stage_batch.py`.

    Place it after that operator with the trigger rule `all_done`. It fails with the attempt's error.
    """

    verb = "stage"

    def act(self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]) -> str:
        from semel.airflow.spark import read_attempt

        def read(batch: "Batch") -> str:
            try:
                return read_attempt(ledger, spec, batch.batch_id)
            except SemelError as error:
                step = "clear the run's task that runs stage_batch.py"
                raise TerminalError(str(error), next=step) from error

        return self.for_each_batch(ledger, spec, context, read)


class CommitOperator(_StagingOperator):
    """commit. If other batches have committed first, the task stages the batch again."""

    verb = "commit"

    def act(self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]) -> str:
        from semel import commit
        from semel.reports import summary

        def commit_batch(batch: "Batch") -> str:
            number = batch.batch_id
            committed = commit.commit(
                ledger, spec, number, lambda: stager.stage(number), self.log.info
            )
            return summary.commit(committed)

        with self.open_stager(ledger, spec) as stager:
            return self.for_each_batch(ledger, spec, context, commit_batch)


class FinalizeOperator(VerbOperator):
    """finalize: give the batch's files their final names, and its pipeline's asset an event.

    In a run of replays the first one gets that event, and each other one an event under an alias.
    """

    verb = "finalize"
    finalized: "tuple[Spec, list[tuple[Finalized, bool]]] | None" = None
    """The declaration; and for each batch the result, with True if this task gave it an event."""

    def __init__(self, *, pipeline: str, outlets: Sequence[Any] = (), **kwargs: Any) -> None:
        others = [outlet for outlet in outlets if outlet != assets.REPLAYS_ALIAS]
        outlets = [*others, assets.asset(pipeline), assets.REPLAYS_ALIAS]
        super().__init__(pipeline=pipeline, outlets=outlets, **kwargs)

    def act(self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]) -> str:
        from semel import finalize
        from semel.reports import completeness, summary

        asset, finalized, windows = assets.asset(spec.name), [], []
        events = context["outlet_events"]

        def finalize_batch(batch: "Batch") -> str:
            result = finalize.finalize(ledger, spec, batch.batch_id)
            is_new = not (result.found and assets.is_announced(ledger, spec.name, batch.batch_id))
            has_event = any(new for _, new in finalized)
            finalized.append((result, is_new))
            completed = completeness.windows_of_batch(ledger, spec, batch.batch_id) if is_new else ()
            windows.extend(completed)
            if is_new:
                metrics.count_records(spec.name, result)
            if is_new and has_event:
                events[assets.REPLAYS_ALIAS].add(asset, extra=assets.extra(result, completed))
            elif is_new:
                events[asset].extra = assets.extra(result, completed)
            return summary.finalize(result)

        text = self.for_each_batch(ledger, spec, context, finalize_batch)
        self.finalized = spec, finalized
        self.set_windows_event(spec, windows, context)
        if not any(new for _, new in finalized):
            # When the task ends, Airflow creates an event for each outlet in the list.
            self.outlets = [outlet for outlet in self.outlets if outlet != asset]
        return text

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Airflow's OpenLineage provider calls it, if it is installed."""
        from semel.airflow import lineage
        from semel.ledger import Ledger

        del task_instance
        if self.finalized is None:
            return None
        with Ledger() as ledger:
            return lineage.lineage_of(ledger, *self.finalized)


class CollectOperator(VerbOperator):
    """collect, for one pipeline. At its end the task fails if collect cannot finalize a batch.

    It gives the pipeline's asset an event for each finalized batch that does not have one yet.
    """

    verb = "collect"
    operator_extra_links = links.COLLECT_LINKS

    def __init__(self, *, outlets: Sequence[Any] = (), **kwargs: Any) -> None:
        others = [outlet for outlet in outlets if outlet != assets.COLLECT_ALIAS]
        super().__init__(outlets=[*others, assets.COLLECT_ALIAS], **kwargs)

    def act(self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]) -> str:
        from semel import collect, finalize
        from semel.reports import completeness, summary

        collected = collect.collect(ledger, spec, self.log.info)
        text = summary.collect(collected)
        if collected is not None and collected.damaged:
            raise TerminalError(text)
        events = context["outlet_events"][assets.COLLECT_ALIAS]
        for batch_id in assets.unannounced_batches(ledger, spec):
            finalized = finalize.finalize(ledger, spec, batch_id)
            completed = completeness.windows_of_batch(ledger, spec, batch_id)
            events.add(assets.asset(spec.name), extra=assets.extra(finalized, completed))
            if completed:
                extra = assets.extra_of_windows(spec, completed)
                events.add(assets.windows_asset(spec.name), extra=extra)
            metrics.count_records(spec.name, finalized)
            name = assets.asset(spec.name).name
            self.log.info("sent an event of batch %s to the asset %s", batch_id, name)
        return text
