"""`semel demo --lake`: a week of real flights from a bucket to a Delta table, compared with the
truth. The pipeline's archive is in the bucket, too, so its tasks share no folder.

1. The demo starts an object store and the stack, with a pipeline over the bucket `lake`.
2. It puts the days into the bucket, an object each.
3. Airflow runs the pipeline, which adds its rows to the table in one commit.
4. The demo compacts the table, as owners of tables do.
5. It compares the rows that DuckDB reads with the flights themselves, and audits the output.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from semel import console, settings
from semel_local import stack
from semel_local.demo import airflow_api, exact, flights, follow
from semel_local.demo.progress import DemoProgress, next_week
from semel_local.demo.stream import declare
from semel_local.demo.week import show_verdict
from semel_local.stack import layout

if TYPE_CHECKING:  # DuckDB and the client of the store take a moment to import.
    from semel.audit import AuditVerdict
    from semel_local.demo.bucket import Bucket

PIPELINE = "flights_lake"

NAME = "demo-lake"
"""The name of this demo's file of progress."""

FILE = Path(__file__).parent / "pipelines" / f"{PIPELINE}.yaml"
"""The pipeline."""


def run_lake(*, as_json: bool) -> None:
    """Put the next week, run the pipeline, compare, audit. Raises typer.Exit(1) if one is wrong."""
    from semel import pipeline
    from semel.audit import audit

    began = time.monotonic()
    # 1.
    stack.fetch_server("store", echo=console.say)
    declare(settings.pipelines_dir(), [FILE])
    spec = pipeline.find(PIPELINE)
    stack.up(echo=console.progress.print, store=True)
    week = next_week([spec], [], NAME)
    ends, address = stack.connection(), stack.server_address("store")
    bucket, api = _bucket(address), airflow_api.stack_api(ends)
    # 2.
    DemoProgress(week=week, done=False).save(NAME)
    days = flights.days_of(week)
    for day in days:
        lines = flights.lines_of(day)[0]
        key = f"raw/{flights.file_name(day)}"
        bucket.put(key, b"".join(line.raw + b"\n" for line in lines))
        console.say(f"put {spec.source.url.removesuffix('raw')}{key}: {len(lines):,} records")
    # 3.
    run_id = f"demo-week-{week:02d}"
    tasks = follow.run_all(api, [PIPELINE], run_id)
    DemoProgress(week=week).save(NAME)
    # 4.
    table = spec.sink.table
    merged = bucket.compact(table)
    outcome = f"compacted {table}: {merged} files became one"
    console.say(outcome if merged else f"{table} has nothing to compact")
    # 5.
    rows = bucket.rows(table)
    true = exact.weeks_truth(week)
    actual = exact.pipeline_numbers(spec, rows, exact.true_rows(week))
    verdict = audit(spec)
    ok = actual == true and verdict.ok
    payload = {
        "ok": ok,
        "week": week,
        "days": days,
        "found": actual,
        "truth": true,
        "files_compacted": merged,
        "seconds": follow.seconds(tasks[PIPELINE]) | {"all": round(time.monotonic() - began, 1)},
        "audit": verdict.to_json(),
        "store": address,
        "output": table,
        "archive": spec.sink.archive,
        "airflow": airflow_api.run_links(ends, api, PIPELINE, run_id),
    }
    console.emit(payload, as_json=as_json, render=lambda: _show(payload, verdict))
    if not ok:
        raise typer.Exit(1)


def _bucket(server: str) -> "Bucket":
    from semel_local.demo.bucket import Bucket

    return Bucket(server, layout.secret("store_password"))


def _show(payload: dict[str, Any], verdict: "AuditVerdict") -> None:
    show, true = console.result.print, payload["truth"]
    show()
    show(exact.table(exact.weeks_title(payload["week"]), {PIPELINE: payload["found"]}, true))
    show(follow.seconds_line(payload["seconds"]))
    show_verdict(PIPELINE, verdict)
    show()
    if payload["ok"]:
        show(
            f"Exact. The bucket has {true['messages_read']:,} records of {true['new']:,} flights: "
            f"{true['repeats']:,} that the producer sent again, and {true['quarantined']:,} that\n"
            f"are broken. Each flight, with all its values, is once in the Delta table "
            f"{payload['output']}, as DuckDB reads it.",
            markup=False,
        )
        if payload["archive"]:
            show(f"Markers and staged files are below {payload['archive']}: no task uses a folder.")
    else:
        show("THIS IS NOT THE KNOWN TRUTH: this is a bug in semel")
    airflow = payload["airflow"]
    show(airflow_api.login_line(airflow))
    show(f"this run and its logs: {airflow['run']}")
    password = layout.secret_file("store_password")
    show(f"the store: http://{payload['store']}, S3's protocol, user semel, password in {password}")
