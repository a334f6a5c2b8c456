"""`semel demo`: a week of real flights through Airflow, compared with the known truth."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from semel import console
from semel.archive.marker import Marker, markers_of
from semel.declare import wording
from semel.errors import TerminalError
from semel.model.manifest import Kind
from semel.pipeline.opening import open_sink
from semel.pipeline.spec import Spec
from semel_local import stack
from semel_local.demo import airflow_api, by_airport, by_day, exact, flights, follow
from semel_local.demo.progress import DemoProgress, next_week

if TYPE_CHECKING:  # DuckDB is slow to import, and the first line should not wait for it.
    from semel.audit import AuditVerdict

PIPELINE = "flights"


def run_week(*, as_json: bool) -> None:
    """Land the next week, run the pipelines, compare, audit. Raises typer.Exit(1) if one is wrong.
    """
    from semel import pipeline
    from semel.audit import audit

    began = time.monotonic()
    names = PIPELINE, by_day.PIPELINE, by_airport.PIPELINE
    spec, daily, chained = map(pipeline.find, names)
    week = _next_week(spec, daily, chained)
    stack.up(echo=console.progress.print)
    ends = stack.connection()
    api = airflow_api.stack_api(ends)
    # Fails here, before any file, if a connection is missing.
    open_sink(daily)
    api.wait_for_dag(by_airport.PIPELINE)
    since = datetime.now(UTC)
    truth = _land(spec, week)
    run_id = f"demo-week-{week:02d}"
    tasks = follow.run_all(api, (PIPELINE, by_day.PIPELINE), run_id)
    marker = _marker(spec, f"airflow:{PIPELINE}:{run_id}")
    chained_run = by_airport.wait_for(api, chained, marker, since)
    DemoProgress(week=week).save()
    actual, true = exact.batch_numbers(marker), exact.week_truth(truth)
    days = by_day.compare(daily, week)
    airports = by_airport.read_sums(chained), by_airport.true_sums(week)
    verdicts = {each.name: audit(each) for each in (spec, daily, chained)}
    exact_sums = days.ok and airports[0] == airports[1]
    ok = exact_sums and actual == true and all(verdict.ok for verdict in verdicts.values())
    seconds = follow.seconds(tasks[PIPELINE])
    payload = {
        "ok": ok,
        "week": week,
        "days": [day.day for day in truth.days],
        "run_id": run_id,
        "batch_id": marker.batch_id,
        "found": actual,
        "truth": true,
        "files": len(marker.of_kind(Kind.DATA)),
        "seconds": seconds | {"all": round(time.monotonic() - began, 1)},
        "audit": verdicts[PIPELINE].to_json(),
        "by_day": days.to_json()
        | {
            "seconds": follow.seconds(tasks[by_day.PIPELINE]),
            "audit": verdicts[by_day.PIPELINE].to_json(),
            "run": api.run_url(by_day.PIPELINE, run_id),
        },
        "by_airport": {
            "found": airports[0],
            "truth": airports[1],
            "audit": verdicts[by_airport.PIPELINE].to_json(),
            "run": api.run_url(by_airport.PIPELINE, chained_run),
        },
        "airflow": airflow_api.login(ends)
        | {
            "run": api.run_url(PIPELINE, run_id),
        },
    }
    console.emit(payload, as_json=as_json, render=lambda: _show(payload, days, verdicts))
    if not ok:
        raise typer.Exit(1)


def _next_week(spec: Spec, *others: Spec) -> int:
    return next_week((spec, *others), [spec.source_root(), spec.sink_path()])


def _land(spec: Spec, week: int) -> flights.Truth:
    # First, so that the next call finishes this week if this process dies.
    DemoProgress(week=week, done=False).save()
    truth = flights.write_week(spec.source_root(), week)
    first, last = truth.days[0].day, truth.days[-1].day
    console.progress.print(
        f"landed week {week}, {first} to {last}: {truth.counts.records_read:,} records in "
        f"{spec.source_root()}"
    )
    return truth


def _marker(spec: Spec, request_key: str) -> Marker:
    """The success marker of the run's newest batch. Raises TerminalError without one."""
    for marker in reversed(markers_of(spec)):
        if marker.request_key == request_key:
            return marker
    raise TerminalError(
        f"{request_key} planned no batch, because another run has read the week's files. Run this "
        "again for the next week",
        next=f"semel batches {PIPELINE}",
    )


def _show(
    payload: dict[str, Any], days: by_day.DayComparison, verdicts: dict[str, "AuditVerdict"]
) -> None:
    show = console.result.print
    actual, true = payload["found"], payload["truth"]
    title = f"week {payload['week']}, batch {payload['batch_id']}"
    table = exact.table(title, {"found": actual}, true)
    table.add_row("files finalized", f"{payload['files']:,}", "", "")
    show()
    show(table)
    show(follow.seconds_line(payload["seconds"]))
    show(
        "the numbers are exactly the known truth"
        if actual == true
        else "THE NUMBERS ARE NOT THE KNOWN TRUTH: this is a bug in semel"
    )
    by_day.show(days, payload["days"])
    airports = payload["by_airport"]
    by_airport.show(airports["found"], airports["truth"])
    show()
    for name, verdict in verdicts.items():
        show_verdict(name, verdict)
    airflow = payload["airflow"]
    show(airflow_api.login_line(airflow))
    runs = airflow["run"], payload["by_day"]["run"], airports["run"]
    show(f"these runs and their logs: {', '.join(runs)}")
    by_day.show_query()


def show_verdict(name: str, verdict: "AuditVerdict") -> None:
    """Print the broken promises of an audit, then, on one line, whether it passed."""
    for check in verdict.checks:
        for offender in check.offenders[:1]:
            console.result.print(f"broken: {check.promise}: {offender.what}", markup=False)
    word = "passes" if verdict.ok else "FAILS"
    console.result.print(
        f"semel audit {name} {word}: {sum(check.ok for check in verdict.checks)} of "
        f"{len(verdict.checks)} checks, "
        f"{wording.count(verdict.batches, 'batch', 'batches')}, output matched by "
        f"{verdict.proved_by}"
    )
