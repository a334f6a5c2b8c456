"""`semel demo`: a week of real flights through Airflow, compared with the known truth."""

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.live import Live
from rich.table import Table

from semel import settings, stack
from semel.cli import output
from semel.demo import flights
from semel.demo.airflow_api import FINISHED, POLL_SECONDS, AirflowApi, TaskState
from semel.errors import TerminalError, UnavailableError
from semel.sinks import archive
from semel.spec.pipeline import Spec

if TYPE_CHECKING:  # DuckDB takes a moment to import, and the first line should not wait for it.
    from semel.audit import Verdict

PIPELINE = "flights"
VERBS = ("plan", "stage", "commit", "finalize")

RUN_SECONDS_MAX = 900
"""How long the run may take: a few seconds, and some minutes where tasks are retried."""

LOG_LINES_SHOWN = 25
"""How much of a failed task's log is printed."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """demo.json: the week that was landed last, and whether its run has succeeded."""

    week: int = 0
    done: bool = True

    @classmethod
    def load(cls) -> "Progress":
        """What an earlier demo has written, or that there was none."""
        try:
            return cls(**json.loads(_progress_file().read_text(encoding="utf-8")))
        except FileNotFoundError:
            return cls()

    def save(self) -> None:
        """Write it whole or not at all."""
        new = _progress_file().with_suffix(".new")
        new.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        new.replace(_progress_file())


@dataclass(frozen=True, kw_only=True)
class Landed:
    """What the week's batch holds by its success marker and its files."""

    batch_id: int
    counts: dict[str, int]
    reasons: dict[str, int]
    files: int
    rows: int


def run_week(*, as_json: bool) -> None:
    """Land the next week, run it, compare and audit. typer.Exit(1) when one is not right."""
    from semel.audit import audit
    from semel.spec import pipeline

    began = time.monotonic()
    spec = pipeline.find(PIPELINE)
    week = _next_week(spec)
    stack.up(echo=output.progress.print)
    ends = stack.connection()
    if ends.airflow_user is None or ends.airflow_password is None:
        raise TerminalError(
            "the demo logs in to Airflow as the local stack's own user, and the environment names "
            "another way to log in; unset AIRFLOW__CORE__AUTH_MANAGER and "
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS, then run this again"
        )
    api = AirflowApi(ends.airflow_url, ends.airflow_user, ends.airflow_password)
    truth = _land(spec, week)
    run_id = f"demo-week-{week:02d}"
    tasks = _run(api, run_id)
    Progress(week=week).save()
    found = _found(spec, f"airflow:{PIPELINE}:{run_id}", ends.ledger_dsn)
    rows = _compare(truth, found)
    verdict = audit(spec)
    ok = verdict.ok and all(row[1] == row[2] for row in rows)
    seconds = {verb: round(tasks[verb].seconds or 0, 1) for verb in VERBS}
    payload = {
        "ok": ok,
        "week": week,
        "days": [day.day for day in truth.days],
        "run_id": run_id,
        "batch_id": found.batch_id,
        "found": {name: value for name, value, _ in rows},
        "truth": {name: value for name, _, value in rows},
        "files": found.files,
        "seconds": seconds | {"all": round(time.monotonic() - began, 1)},
        "audit": verdict.to_json(),
        "airflow": {
            "url": ends.airflow_url,
            "user": ends.airflow_user,
            "password": ends.airflow_password,
            "run": api.run_url(PIPELINE, run_id),
        },
    }
    output.emit(payload, as_json=as_json, render=lambda: _show(payload, rows, verdict))
    if not ok:
        raise typer.Exit(1)


def _next_week(spec: Spec) -> int:
    """The week to land: the next one, or the last one where its run has not succeeded.

    TerminalError: the year is over, or there are files of a demo that nobody remembers.
    """
    known = Progress.load()
    week = known.week + known.done
    flights.days_of(week)
    if known.week == 0:
        folder, sink = spec.source_root(), spec.sink_path()
        kept = archive.of(spec)
        left = [*folder.glob("*.jsonl"), *archive.markers(kept).glob("*.json")]
        if left:
            raise TerminalError(
                f"{left[0]} is of an earlier demo, whose state is gone from "
                f"{settings.state_dir()}; "
                f"remove {folder}, {sink} and {kept} (`make reset` does it), and run this again"
            )
    return week


def _land(spec: Spec, week: int) -> flights.Truth:
    # Written down first: when this process dies in between, the next call finishes this week.
    Progress(week=week, done=False).save()
    truth = flights.write_week(spec.source_root(), week)
    first, last = truth.days[0].day, truth.days[-1].day
    output.progress.print(
        f"landed week {week}, {first} to {last}: {truth.records:,} records in {spec.source_root()}"
    )
    return truth


def _run(api: AirflowApi, run_id: str) -> dict[str, TaskState]:
    """Run the DAG to its end, and show its tasks meanwhile. TerminalError when it fails."""
    api.wait_for_dag(PIPELINE)
    api.start_run(PIPELINE, run_id)
    output.progress.print(f"Airflow runs {PIPELINE}, run {run_id}: {api.run_url(PIPELINE, run_id)}")
    deadline = time.monotonic() + RUN_SECONDS_MAX
    shown: dict[str, TaskState] = {}
    with Live(console=output.progress, transient=False) as live:
        while True:
            state = api.run_state(PIPELINE, run_id)
            tasks = api.tasks(PIPELINE, run_id)
            for verb in VERBS:
                _tell(api, run_id, tasks.get(verb), shown)
            if output.progress.is_terminal:
                live.update(_progress_table(tasks))
            if state in FINISHED:
                break
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"run {run_id} has not ended in {RUN_SECONDS_MAX} s; see "
                    f"{api.run_url(PIPELINE, run_id)}, and run this again: it goes on with this run"
                )
            time.sleep(POLL_SECONDS)
    if state == "failed":
        raise TerminalError(
            f"run {run_id} of {PIPELINE} failed; see {api.run_url(PIPELINE, run_id)}, and run this "
            "again: it goes on where the run failed"
        )
    return tasks


def _tell(
    api: AirflowApi, run_id: str, task: TaskState | None, shown: dict[str, TaskState]
) -> None:
    """One line when a task's state has changed; of a failed try also the end of its log."""
    before = shown.get(task.task_id) if task else None
    if task is None or (
        before and (before.state, before.try_number) == (task.state, task.try_number)
    ):
        return
    shown[task.task_id] = task
    if not output.progress.is_terminal and task.state not in (None, "scheduled", "queued"):
        seconds = f" after {task.seconds:.1f} s" if task.ended and task.seconds else ""
        output.progress.print(f"  {task.task_id}: {task.state}{seconds}")
    if task.state in ("failed", "up_for_retry"):
        output.progress.print(f"end of the log of {task.task_id}, try {task.try_number}:")
        for line in api.log(PIPELINE, run_id, task)[-LOG_LINES_SHOWN:]:
            output.progress.print(f"  | {line}", markup=False)


def _progress_table(tasks: dict[str, TaskState]) -> Table:
    colours = {"success": "green", "failed": "red", "up_for_retry": "red", "running": "cyan"}
    table = Table("task", "state", "seconds", box=None, pad_edge=False)
    for verb in VERBS:
        task = tasks.get(verb)
        state = (task and task.state) or "waiting"
        seconds = f"{task.seconds:.1f}" if task and task.seconds is not None else ""
        table.add_row(verb, state, seconds, style=colours.get(state, "dim"))
    return table


def _found(spec: Spec, request_key: str, ledger_dsn: str) -> Landed:
    """The run's batch, from its marker and its dead letters. TerminalError when it has none."""
    import pyarrow.parquet as pq

    from semel import plan
    from semel.ledger import Ledger

    with Ledger(ledger_dsn) as ledger:
        batch = plan.find_batch(ledger, spec, request_key)
    if batch is None:
        raise TerminalError(
            f"{request_key} planned no batch: another run has taken the week's files; see "
            f"`semel batches {PIPELINE}`, and run this again for the next week"
        )
    kept = archive.of(spec)
    marker = json.loads(archive.marker(kept, batch.batch_id).read_bytes())
    reasons: Counter[str] = Counter()
    for file in marker["files"]:
        if file["kind"] == "dead_letters":
            reasons.update(pq.read_table(kept / file["path"]).column("reason").to_pylist())
    data = [file for file in marker["files"] if file["kind"] == "data"]
    return Landed(
        batch_id=batch.batch_id,
        counts=marker["counts"],
        reasons=dict(reasons),
        files=len(data),
        rows=sum(file["records"] for file in data),
    )


def _compare(truth: flights.Truth, found: Landed) -> list[tuple[str, int, int]]:
    """Name, found and true number of each count. `quarantined:REASON` is a part of quarantined."""
    counts = found.counts
    rows = [
        ("records_read", counts["records_read"], truth.records),
        ("new", counts["survivors"], truth.new),
        ("duplicates_within_the_batch", counts["duplicates_batch"], truth.duplicates_batch),
        ("duplicates_against_the_catalog", counts["duplicates_catalog"], truth.duplicates_catalog),
        ("quarantined", counts["quarantined"], sum(truth.quarantined.values())),
    ]
    for reason in sorted(truth.quarantined | found.reasons):
        parts = found.reasons.get(reason, 0), truth.quarantined.get(reason, 0)
        rows.append((f"quarantined:{reason}", *parts))
    return [*rows, ("late", counts["late"], 0), ("rows_finalized", found.rows, truth.new)]


def _show(payload: dict[str, Any], rows: list[tuple[str, int, int]], verdict: "Verdict") -> None:
    show = output.result.print
    table = Table(box=None, pad_edge=False)
    table.add_column(f"week {payload['week']}, batch {payload['batch_id']}")
    table.add_column("found", justify="right")
    table.add_column("truth", justify="right")
    table.add_column("")
    for name, value, true in rows:
        _, part, reason = name.partition(":")
        shown = f"  {reason}" if part else name.replace("_", " ")
        table.add_row(shown, f"{value:,}", f"{true:,}", "" if value == true else "DIFFERENT")
    table.add_row("files finalized", f"{payload['files']:,}", "", "")
    show()
    show(table)
    seconds = payload["seconds"]
    show("seconds: " + ", ".join(f"{verb} {seconds[verb]}" for verb in VERBS))
    same = all(value == true for _, value, true in rows)
    show(
        "the numbers are exactly the known truth"
        if same
        else "THE NUMBERS ARE NOT THE KNOWN TRUTH: this is a defect of semel"
    )
    _show_verdict(verdict)
    airflow = payload["airflow"]
    show(f"Airflow: {airflow['url']}, user {airflow['user']}, password {airflow['password']}")
    show(f"this run and its logs: {airflow['run']}")


def _show_verdict(verdict: "Verdict") -> None:
    for check in verdict.checks:
        for offender in check.offenders[:1]:
            output.result.print(f"broken: {check.promise}: {offender.what}", markup=False)
    word = "passes" if verdict.ok else "FAILS"
    output.result.print(
        f"semel audit {PIPELINE} {word}: {sum(check.ok for check in verdict.checks)} of "
        f"{len(verdict.checks)} checks, {verdict.batches} batches, output matched by "
        f"{verdict.proved_by}"
    )


def _progress_file() -> Path:
    return settings.state_dir() / "demo.json"
