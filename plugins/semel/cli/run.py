"""`semel run | migrate`: a pipeline's verbs without Airflow, and the ledger's schema."""

from typing import Annotated

import typer

from semel import console
from semel.cli import options


@options.resumes
def run(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    interval: Annotated[
        options.Span | None,
        typer.Option(
            metavar="START END",
            formats=options.DATES,
            help="The data interval [START, END), in UTC.",
        ),
    ] = None,
    request: Annotated[
        str | None,
        typer.Option(help="The request's name, if not the command line's own."),
    ] = None,
    spark: options.Spark = None,
    as_json: console.AsJson = False,
) -> None:
    """Plan, stage, commit and finalize one batch of a pipeline.

    After a failure, the same command goes on where it stopped; else it takes what is unclaimed.

    Example: semel run flights
    """
    from semel import pipeline as pipelines
    from semel import settings
    from semel.declare.parts import Select
    from semel.errors import TerminalError
    from semel.ledger import Ledger
    from semel.plan import interval_of
    from semel.reports import summary
    from semel.runs.run import run_batch
    from semel.spark.session import open_engine

    window = options.window(interval) if interval is not None else None
    spec = pipelines.find(pipeline)
    if window is not None and spec.source.select is Select.ARRIVAL:
        raise TerminalError(
            f"{pipeline} takes what has arrived (source.select: arrival), so --interval would "
            "change nothing; leave it out",
            next=f"semel run {pipeline}",
        )
    # One name for all runs by hand: the request finds its batch again, and then plans the next.
    request = request or ":".join(["cli", *(t.isoformat() for t in window or ())])

    interval_of(spec, window)  # Before Spark is started.

    remote = spark or settings.spark_remote()
    with Ledger() as ledger, open_engine(remote, console.say) as engine:
        done = run_batch(ledger, spec, request, engine, window, console.say)

    def render() -> None:
        print("\n".join(summary.plan_lines(done.plan)))
        if done.finalized is not None:
            print(summary.finalize(done.finalized))
        print("seconds: " + ", ".join(f"{verb} {s:.2f}" for verb, s in done.seconds.items()))
        for step in summary.plan_steps(done.plan):
            print(step)

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
    console.emit(payload, as_json=as_json, render=render)


def migrate(as_json: console.AsJson = False) -> None:
    """Bring the ledger to this version's schema. Safe to run at any time, also twice at once.

    Example: semel migrate
    """
    from semel import settings
    from semel.ledger.migrate import migrate as bring_up

    revision = bring_up(settings.ledger_dsn())
    text = f"the ledger is at revision {revision}"
    console.emit({"revision": revision}, as_json=as_json, render=lambda: print(text))
