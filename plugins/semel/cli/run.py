"""`semel run | migrate`: a pipeline's verbs without Airflow, and the ledger's schema."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from semel.cli import output

DATES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"]
"""How times are given on the command line."""


def run(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    interval: Annotated[
        tuple[datetime, datetime] | None,
        typer.Option(
            metavar="START END", formats=DATES, help="The data interval [START, END), in UTC."
        ),
    ] = None,
    request: Annotated[
        str | None,
        typer.Option(help="The request's name, if not the command line's own."),
    ] = None,
    spark: Annotated[
        str | None,
        typer.Option(
            help="sc://host:port, or a master such as local[2]; else SEMEL_SPARK_REMOTE, else the "
            "local stack's."
        ),
    ] = None,
    as_json: output.AsJson = False,
) -> None:
    """Plan, stage, commit and finalize one batch of a pipeline.

    After a failure, the same command goes on where it stopped; else it takes what is unclaimed.

    Example: semel run flights
    """
    from semel import settings, summary
    from semel.cli.connect import open_ledger
    from semel.plan import interval_of
    from semel.run import run_batch
    from semel.spark.session import open_engine
    from semel.spec import pipeline as pipelines

    spec = pipelines.find(pipeline)
    window = None
    if interval is not None:
        start, end = (t.replace(tzinfo=t.tzinfo or UTC) for t in interval)
        window = (start, end)
    # One name for all runs by hand: the request finds its batch again, and then plans the next.
    request = request or ":".join(["cli", *(t.isoformat() for t in window or ())])

    interval_of(spec, window)  # Before Spark is started.

    def log(line: str) -> None:
        output.progress.print(line, markup=False)

    with open_ledger() as ledger, open_engine(spark or settings.spark_remote(), log) as engine:
        done = run_batch(ledger, spec, request, engine, window, log)

    def render() -> None:
        print(summary.plan(done.plan))
        if done.finalized is not None:
            print(summary.finalize(done.finalized))
        print("seconds: " + ", ".join(f"{verb} {s:.2f}" for verb, s in done.seconds.items()))

    batch = done.plan.batch
    payload = {
        "pipeline": pipeline,
        "request": request,
        "batch_id": batch.batch_id if batch else None,
        "counts": done.finalized.counts if done.finalized else None,
        "marker": done.finalized.marker if done.finalized else None,
        "bytes_left": done.plan.bytes_left,
        "refused": done.plan.refusals,
        "seconds": done.seconds,
    }
    output.emit(payload, as_json=as_json, render=render)


def migrate(as_json: output.AsJson = False) -> None:
    """Bring the ledger to this version's schema. Safe to run at any time, also twice at once.

    Example: semel migrate
    """
    from semel import settings
    from semel.ledger.migrate import migrate as bring_up

    revision = bring_up(settings.ledger_dsn())
    text = f"the ledger is at revision {revision}"
    output.emit({"revision": revision}, as_json=as_json, render=lambda: print(text))
