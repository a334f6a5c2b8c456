"""`semel demo`: a week of real flights through Airflow, compared with the known truth."""

import json
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from semel import console, stack
from semel.archive import layout
from semel.declare import wording
from semel.demo import airflow_api, by_day, flights, follow
from semel.demo.progress import Progress, next_week
from semel.errors import TerminalError
from semel.pipeline import Spec
from semel.pipeline.opening import open_sink

if TYPE_CHECKING:  # DuckDB takes a moment to import, and the first line should not wait for it.
    from semel.audit import Verdict

PIPELINE = "flights"


@dataclass(frozen=True, kw_only=True)
class Landed:
    """What the week's batch holds by its success marker and its files."""

    batch_id: int
    counts: dict[str, int]
    reasons: dict[str, int]
    files: int
    rows: int


def run_week(*, as_json: bool) -> None:
    """Land the next week, run both pipelines, compare and audit. typer.Exit(1): one is not right.
    """
    from semel import pipeline
    from semel.audit import audit

    began = time.monotonic()
    spec, daily = pipeline.find(PIPELINE), pipeline.find(by_day.PIPELINE)
    week = _next_week(spec, daily)
    stack.up(echo=console.progress.print)
    ends = stack.connection()
    api = airflow_api.of_stack(ends)
    # Nothing lands while a connection is missing.
    open_sink(daily)
    truth = _land(spec, week)
    run_id = f"demo-week-{week:02d}"
    tasks = follow.run_all(api, (PIPELINE, by_day.PIPELINE), run_id)
    Progress(week=week).save()
    found = _found(spec, f"airflow:{PIPELINE}:{run_id}", ends.ledger_dsn)
    rows = _compare(truth, found)
    days = by_day.compare(daily, flights.sums_by_day(week))
    verdicts = {each.name: audit(each) for each in (spec, daily)}
    ok = days.ok and all(row[1] == row[2] for row in rows)
    ok = ok and all(verdict.ok for verdict in verdicts.values())
    seconds = follow.seconds(tasks[PIPELINE])
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
        "audit": verdicts[PIPELINE].to_json(),
        "by_day": days.to_json()
        | {
            "seconds": follow.seconds(tasks[by_day.PIPELINE]),
            "audit": verdicts[by_day.PIPELINE].to_json(),
            "run": api.run_url(by_day.PIPELINE, run_id),
        },
        "airflow": {
            "url": ends.airflow_url,
            "user": ends.airflow_user,
            "password": ends.airflow_password,
            "run": api.run_url(PIPELINE, run_id),
        },
    }
    console.emit(payload, as_json=as_json, render=lambda: _show(payload, rows, days, verdicts))
    if not ok:
        raise typer.Exit(1)


def _next_week(spec: Spec, daily: Spec) -> int:
    """As `next_week`, with what this demo leaves."""
    folder, kept = spec.source_root(), [layout.of(each) for each in (spec, daily)]
    left = [*folder.glob("*.jsonl")]
    left += [marker for each in kept for marker in layout.markers(each).glob("*.json")]
    return next_week(left, [folder, spec.sink_path(), *kept])


def _land(spec: Spec, week: int) -> flights.Truth:
    # Written down first: when this process dies in between, the next call finishes this week.
    Progress(week=week, done=False).save()
    truth = flights.write_week(spec.source_root(), week)
    first, last = truth.days[0].day, truth.days[-1].day
    console.progress.print(
        f"landed week {week}, {first} to {last}: {truth.records:,} records in {spec.source_root()}"
    )
    return truth


def _found(spec: Spec, request_key: str, ledger_dsn: str) -> Landed:
    """The run's batch, from its marker and its dead letters. TerminalError when it has none."""
    import pyarrow.parquet as pq

    from semel import plan
    from semel.ledger import Ledger

    with Ledger(ledger_dsn) as ledger:
        batch = plan.find_batch(ledger, spec, request_key)
    if batch is None:
        raise TerminalError(
            f"{request_key} planned no batch: another run has taken the week's files; run this "
            "again for the next week",
            next=f"semel batches {PIPELINE}",
        )
    kept = layout.of(spec)
    marker = json.loads(layout.marker(kept, batch.batch_id).read_bytes())
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


def _show(
    payload: dict[str, Any],
    rows: list[tuple[str, int, int]],
    days: by_day.Compared,
    verdicts: dict[str, "Verdict"],
) -> None:
    show = console.result.print
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
    show("seconds: " + ", ".join(f"{verb} {seconds[verb]}" for verb in follow.VERBS))
    same = all(value == true for _, value, true in rows)
    show(
        "the numbers are exactly the known truth"
        if same
        else "THE NUMBERS ARE NOT THE KNOWN TRUTH: this is a defect of semel"
    )
    by_day.show(days, payload["days"])
    show()
    for name, verdict in verdicts.items():
        show_verdict(name, verdict)
    airflow = payload["airflow"]
    show(f"Airflow: {airflow['url']}, user {airflow['user']}, password {airflow['password']}")
    show(f"these runs and their logs: {airflow['run']}, {payload['by_day']['run']}")
    by_day.show_query()


def show_verdict(name: str, verdict: "Verdict") -> None:
    """Print on one line whether an audit passed; before it, what is broken."""
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
