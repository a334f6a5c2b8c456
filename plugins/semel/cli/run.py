"""`semel run | migrate`: run one batch without Airflow; create or upgrade the ledger's tables."""

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
        typer.Option(help="The request's name; by default, one for all runs by hand."),
    ] = None,
    spark: options.Spark = None,
    as_json: console.AsJson = False,
) -> None:
    """Plan, stage, commit and finalize one batch of a pipeline.

    After a failure the same command resumes where it stopped; otherwise it takes unclaimed records.

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
            f"--interval does not apply to {pipeline} (source.select: arrival): a run takes all "
            "unclaimed records. Leave it out",
            next=f"semel run {pipeline}",
        )
    # All runs by hand share a name, so that each one resumes the unfinished batch of the last.
    request = request or ":".join(["cli", *(t.isoformat() for t in window or ())])

    interval_of(spec, window)  # A wrong interval fails before Spark starts.

    remote = spark or settings.spark_remote()
    with Ledger() as ledger, open_engine(remote, console.say) as engine:
        result = run_batch(ledger, spec, request, engine, window, console.say)

    def render() -> None:
        print("\n".join(summary.plan_lines(result.plan)))
        if result.finalized is not None:
            print(summary.finalize(result.finalized))
        print("seconds: " + ", ".join(f"{verb} {s:.2f}" for verb, s in result.seconds.items()))
        for step in summary.plan_steps(result.plan):
            print(step)

    batch = result.plan.batch
    payload = {
        "pipeline": pipeline,
        "request": request,
        "batch_id": batch.batch_id if batch else None,
        "counts": result.finalized.counts if result.finalized else None,
        "marker": result.finalized.marker if result.finalized else None,
        "bytes_left": result.plan.bytes_left,
        "refused": result.plan.refusals,
        "seconds": result.seconds,
    }
    console.emit(payload, as_json=as_json, render=render)


def migrate(
    roles: Annotated[
        bool,
        typer.Option("--roles", help="Print the SQL of executors' role, and change nothing."),
    ] = False,
    as_json: console.AsJson = False,
) -> None:
    """Upgrade the ledger to this version's schema. You may run it at any time, even twice at once.

    Example: semel migrate
    """
    from semel import settings
    from semel.ledger.migrate import migrate as bring_up
    from semel.ledger.migrate import roles as roles_sql

    if roles:
        sql = roles_sql()
        console.emit({"sql": sql}, as_json=as_json, render=lambda: print(sql))
        return
    revision = bring_up(settings.ledger_dsn())
    text = f"the ledger is at revision {revision}"
    console.emit({"revision": revision}, as_json=as_json, render=lambda: print(text))
