"""The verbs as Airflow operators. Each calls one function of the core and ends with its summary.

Where Airflow's and semel's notions differ: the batch is found by the run's request key in the
ledger (XComs are for people), and the right to write comes from fences, so that a task may be
retried, cleared or run twice at once, and its process may die.

The verbs and Spark are imported by the task that runs, because Airflow imports this module every
few seconds to look for DAGs, and they cost 1.6 s of a core.
"""

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator, SkipMixin

from semel import pipeline
from semel.airflow import assets, links, metrics, notify, replays, told
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
    """What a DAG run is in the ledger. Clearing and backfilling again keep it."""
    run = context["dag_run"]
    return f"airflow:{run.dag_id}:{run.run_id}"


class VerbOperator(BaseOperator):
    """One verb for one pipeline.

    Purpose: load the pipeline, open the ledger, and end the log with the verb's summary.
    `pipeline`: its name. `folder`: the absolute path of the folder that its YAML file lies in; left
    out, what SEMEL_PIPELINES_DIR or the Airflow Variable semel_pipelines_dir names.
    What it does not do: decide anything. A TerminalError fails the task without a retry, for the
    same call would fail again; any other error is retried.
    The rendered template shows the declaration that the task went by.
    """

    verb: ClassVar[str]
    ui_color = "#eef4f8"
    template_fields = ("declaration",)
    template_fields_renderers = {"declaration": "yaml"}
    overwrite_rtif_after_execution = True
    operator_extra_links = links.RUN_LINKS

    def __init__(self, *, pipeline: str, folder: str | None = None, **kwargs: Any) -> None:
        if told.HAS_POLICIES:
            kwargs["retry_policy"] = told.OnlyWhatMaySucceed()
        super().__init__(**kwargs)
        self.on_failure_callback = [
            *self.on_failure_callback, notify.OnFailure(), told.say_failed
        ]
        self.on_retry_callback = [*self.on_retry_callback, told.say_retry]
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
            text, account = self.answer(spec, context)
        except SemelError as error:
            doing = told.doing(context, self.pipeline, self.batch_id, error)
            raise told.failed(self.log, error, doing) from None
        self.say_all(text)
        seconds = round(time.monotonic() - began, 3)
        metrics.send_duration(spec.name, self.verb, seconds)
        return {"summary": text, "seconds": seconds, **account}

    def answer(self, spec: Spec, context: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The verb's summary, and the batch's account, by the ledger."""
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

    def say_all(self, text: str) -> None:
        """Write each line to the task's log; what was refused or late as a warning."""
        from semel.reports.summary import LATE, REFUSED

        for line in text.splitlines():
            say = self.log.warning if line.startswith((REFUSED, LATE)) else self.log.info
            for part in told.lines_of(line):
                say(part)

    def account(
        self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]
    ) -> dict[str, Any]:
        """What the run's batch came to so far, or its replays; empty when it has none."""
        from semel import plan
        from semel.model.batch import Counts

        if replays.asked(context):
            return replays.account(ledger, spec, request_key(context))
        batch = plan.find_batch(ledger, spec, request_key(context))
        if batch is None:
            return {}
        tried = ledger.rows("stage", "staged", batch_id=batch.batch_id)
        return {
            "batch_id": batch.batch_id,
            "status": str(batch.status),
            "interval": [t.isoformat() for t in batch.interval] if batch.interval else None,
            "counts": vars(Counts.from_row(tried[0])) if tried else None,
        }

    def batch(self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]) -> "Batch":
        """The batch that this run planned. StateError when it planned none."""
        from semel import plan

        key = request_key(context)
        found = plan.find_batch(ledger, spec, key)
        if found is None:
            raise StateError(f"{key} has planned no batch", next="clear the run's plan task")
        self.batch_id = found.batch_id
        return found

    def tell_of_windows(
        self, spec: Spec, found: "Iterable[Range]", context: Mapping[str, Any]
    ) -> None:
        """Give the asset of complete windows an event, where it is an outlet of this task and there
        are some.
        """
        asset, found = assets.windows_asset(spec.name), list(found)
        if asset not in self.outlets:
            return
        if found:
            extra = assets.extra_of_windows(spec, found)
            context["outlet_events"][asset].extra = extra
        else:
            # What stays in the list gets an event when the task ends.
            self.outlets = [outlet for outlet in self.outlets if outlet != asset]

    def each(
        self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any], do: "Callable[[Batch], str]"
    ) -> str:
        """Do the verb for the batch that this run planned, or for its replays, one after the other.

        Returns the summary; of replays each has its own in the log, and this is that of all.
        """
        if not replays.asked(context):
            return do(self.batch(ledger, spec, context))
        key = request_key(context)
        found = replays.planned(ledger, spec, key)
        if not found:
            raise StateError(f"{key} has planned no replay", next="clear the run's plan task")
        for at, batch in enumerate(found, 1):
            self.batch_id = batch.batch_id
            self.say_all(replays.text_of(batch, at, len(found)))
            lines = do(batch).splitlines()
            self.say_all("\n".join(line for line in lines if not line.startswith("next: ")))
        return replays.done_text(self.verb, found)


class ReceiveOperator(VerbOperator):
    """receive: put what a queue has into the spool. A run of replays receives nothing.

    `number`: which of several it is, side by side. When the task is killed, what it has not
    acknowledged comes again. It needs no ledger: what a queue keeps for a time only is received
    while that is away, too.
    """

    verb = "receive"

    def __init__(self, *, number: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.number = number

    def answer(self, spec: Spec, context: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        return self.act(None, spec, context), {}

    def act(self, ledger: None, spec: Spec, context: Mapping[str, Any]) -> str:
        from semel.reports import summary

        if replays.asked(context):
            return "nothing to do: this run replays batches"
        done = spec.source.receive(spec.name, spec.source.until, self.log.info)
        return summary.receive(done, "plan")


class WaitingOperator(VerbOperator):
    """A verb that may look again, a minute later, until it has what it waits for."""

    waiting_since: datetime | None = None

    def look_again(self, since: datetime, why: str) -> None:
        """In a minute, without a worker until then. `why`: what it waits for."""
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
        """Look again, a minute later."""
        del event
        self.waiting_since = datetime.fromisoformat(since)
        return self.execute(context)


class PlanOperator(WaitingOperator, SkipMixin):
    """plan. When there is nothing to take, it does what `source.on_empty` says.

    skip: it succeeds, and the other tasks are skipped. But not when the run has a batch already:
    then they find it finalized, and print its summary once more.
    """

    verb = "plan"
    inherits_from_skipmixin = True

    def act(self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]) -> str:
        from semel import plan
        from semel.reports import completeness, summary

        for why in notify.troubles(spec.notify):
            self.log.warning(why)
        if replays.asked(context):
            self.tell_of_windows(spec, (), context)
            found = replays.plan(ledger, spec, context, request_key(context))
            text = replays.planned_text(found)
            return text if found else self._pass_over(context, text)
        key, between = request_key(context), run_interval(context, spec)
        if found := skipped_interval(context, spec):
            for line in summary.left_out(spec.name, *found):
                self.log.warning(line)
        answer = plan.plan(ledger, spec, key, between, self.say_all)
        text = summary.plan(answer)
        late = self._late(spec, answer, context)
        completed = ()
        if spec.window is not None and not answer.is_done:
            completed = completeness.touched(
                completeness.of(ledger, spec), spec.window.windows, answer.covers
            )
        self.tell_of_windows(spec, completed, context)
        if answer.batch is not None:
            return "\n".join([*late, text])
        if answer.is_done:
            again = f"the other tasks print the summary of batch {answer.before.batch_id} again"
            return f"{text}\n{again}"
        now = datetime.now(UTC)
        since = self.waiting_since or now
        if answer.must_wait(spec, now - since):
            self.say_all(text)
            self.look_again(since, "nothing to take")
        return self._pass_over(context, text)

    def _pass_over(self, context: Mapping[str, Any], text: str) -> str:
        """End well, and let the other tasks be skipped."""
        self.say_all(text)
        context["ti"].xcom_push(key="return_value", value={"summary": text})
        self.skip(context["ti"], context["task"].get_flat_relatives(upstream=False))
        return text

    def _late(self, spec: Spec, answer: "Plan", context: Mapping[str, Any]) -> list[str]:
        """What came for earlier days, in a run of the schedule: others are about days that somebody
        chose. The asset for it, where it is an outlet of this task, gets an event once.
        """
        from semel.reports import summary

        days = answer.earlier if context["dag_run"].run_type == "scheduled" else {}
        asset = assets.late_asset(spec.name)
        if asset in self.outlets:
            extra = assets.extra_of_late(spec.name, days) if days else None
            if extra is None or assets.is_late_announced(spec.name, extra):
                # What stays in the list gets an event when the task ends.
                self.outlets = [outlet for outlet in self.outlets if outlet != asset]
            else:
                context["outlet_events"][asset].extra = extra
        return [summary.late(spec.name, days)] if days else []


class _StagingOperator(VerbOperator):
    """What stage and commit share: both may use Spark, and killing the task cancels that."""

    stager: "Stager | None" = None

    def open_stager(self, ledger: "Ledger", spec: Spec) -> "Stager":
        """What stages the run's batches, to be closed."""
        from semel.airflow.spark import Stager

        self.stager = Stager(ledger, spec, self.log.info)
        return self.stager

    def on_kill(self) -> None:
        if self.stager:
            self.stager.cancel()


class StageOperator(_StagingOperator):
    """stage, where the Airflow connection `spark_default` says."""

    verb = "stage"

    def act(self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]) -> str:
        with self.open_stager(ledger, spec) as stager:
            return self.each(
                ledger, spec, context, lambda batch: stager.stage(batch.batch_id)
            )


class CommitOperator(_StagingOperator):
    """commit. An attempt that is beaten by other batches is staged again from here."""

    verb = "commit"

    def act(self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]) -> str:
        from semel import commit
        from semel.reports import summary

        def one(batch: "Batch") -> str:
            number = batch.batch_id
            done = commit.commit(
                ledger, spec, number, lambda: stager.stage(number), self.log.info
            )
            return summary.commit(done)

        with self.open_stager(ledger, spec) as stager:
            return self.each(ledger, spec, context, one)


class FinalizeOperator(VerbOperator):
    """finalize: the batch's files get their final names, and its pipeline's asset an event; of
    replays each has one, the first of them as that of a batch, the others under an alias.
    """

    verb = "finalize"
    finalized: "tuple[Spec, list[tuple[Finalized, bool]]] | None" = None
    """By which declaration, what it did of each batch, and whether that was told for the first
    time.
    """

    def __init__(self, *, pipeline: str, outlets: Sequence[Any] = (), **kwargs: Any) -> None:
        others = [outlet for outlet in outlets if outlet != assets.REPLAYS_ALIAS]
        outlets = [*others, assets.asset(pipeline), assets.REPLAYS_ALIAS]
        super().__init__(pipeline=pipeline, outlets=outlets, **kwargs)

    def act(self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]) -> str:
        from semel import finalize
        from semel.reports import completeness, summary

        asset, finalized, windows = assets.asset(spec.name), [], []
        events = context["outlet_events"]

        def one(batch: "Batch") -> str:
            done = finalize.finalize(ledger, spec, batch.batch_id)
            counted = not (done.found and assets.is_announced(ledger, spec.name, batch.batch_id))
            others = any(told for _, told in finalized)
            finalized.append((done, counted))
            found = completeness.of_batch(ledger, spec, batch.batch_id) if counted else ()
            windows.extend(found)
            if counted:
                metrics.count_records(spec.name, done)
            if counted and others:
                events[assets.REPLAYS_ALIAS].add(asset, extra=assets.extra(done, found))
            elif counted:
                events[asset].extra = assets.extra(done, found)
            return summary.finalize(done)

        text = self.each(ledger, spec, context, one)
        self.finalized = spec, finalized
        self.tell_of_windows(spec, windows, context)
        if not any(counted for _, counted in finalized):
            # What stays in the list gets an event when the task ends.
            self.outlets = [outlet for outlet in self.outlets if outlet != asset]
        return text

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """What Airflow's OpenLineage provider asks for, where it is installed."""
        from semel.airflow import lineage
        from semel.ledger import Ledger

        del task_instance
        if self.finalized is None:
            return None
        with Ledger() as ledger:
            return lineage.lineage_of(ledger, *self.finalized)


class CollectOperator(VerbOperator):
    """collect, for one pipeline. It fails, when all is done, while a batch cannot be finalized.

    It tells the pipeline's asset of the batches that nobody has told of.
    """

    verb = "collect"
    operator_extra_links = links.COLLECT_LINKS

    def __init__(self, *, outlets: Sequence[Any] = (), **kwargs: Any) -> None:
        others = [outlet for outlet in outlets if outlet != assets.COLLECT_ALIAS]
        super().__init__(outlets=[*others, assets.COLLECT_ALIAS], **kwargs)

    def act(self, ledger: "Ledger", spec: Spec, context: Mapping[str, Any]) -> str:
        from semel import collect, finalize
        from semel.reports import completeness, summary

        done = collect.collect(ledger, spec, self.log.info)
        text = summary.collect(done)
        if done is not None and done.damaged:
            raise TerminalError(text)
        events = context["outlet_events"][assets.COLLECT_ALIAS]
        for batch_id in assets.unannounced_batches(ledger, spec):
            told_of = finalize.finalize(ledger, spec, batch_id)
            found = completeness.of_batch(ledger, spec, batch_id)
            events.add(assets.asset(spec.name), extra=assets.extra(told_of, found))
            if found:
                extra = assets.extra_of_windows(spec, found)
                events.add(assets.windows_asset(spec.name), extra=extra)
            metrics.count_records(spec.name, told_of)
            name = assets.asset(spec.name).name
            self.log.info("sent an event of batch %s to the asset %s", batch_id, name)
        return text
