"""`semel replay`: compute the output of finalized batches again, without Airflow."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel import console
from semel.cli import options

if TYPE_CHECKING:
    from semel.ledger import Ledger
    from semel.pipeline.spec import Spec
    from semel.runs.replay import Replayed, Root


def replay(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    batches: Annotated[
        str | None,
        typer.Option(metavar="A[..B]", help="The batches, by number: one, or from A to B."),
    ] = None,
    interval: Annotated[
        options.Span | None,
        typer.Option(
            metavar="START END",
            formats=options.DATES,
            help="The batches of the data intervals in [START, END), in UTC; by the time of their "
            "commit, where the pipeline has no intervals.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Tell what would be replayed, or why it cannot be."),
    ] = False,
    requarantine: Annotated[
        bool,
        typer.Option(
            "--requarantine", help="Judge their dead letters again instead: what is good is new."
        ),
    ] = False,
    request: Annotated[
        str | None,
        typer.Option(help="The request's name, if not that of the code and declaration of now."),
    ] = None,
    spark: options.Spark = None,
    as_json: console.AsJson = False,
) -> None:
    """Compute the output of finalized batches again, with today's transforms and declaration.

    The same ranges of the source are read, and the same records survive: which ones were repeats or
    bad is not decided again. Readers see the old output of a batch, or the new one. A batch whose
    newest output this code and this declaration have made already is left alone.

    With --requarantine the output stays, and the dead letters of the batches are read again: those
    that are good by today's declaration become new records, unless the catalog has their ids.

    Example: semel replay flights --interval 2013-01-01 2013-01-08 --dry-run
    """
    from semel import pipeline as pipelines
    from semel.ledger import Ledger
    from semel.runs import replay as verb

    between, numbers = options.range_of(interval, batches)
    spec = pipelines.find(pipeline)
    request = request or verb.request_of(spec)
    act = _judge_again if requarantine else _compute_again
    with Ledger() as ledger:
        roots = verb.roots(ledger, spec, batches=numbers, interval=between)
        act(ledger, spec, request, roots, spark, dry_run=dry_run, as_json=as_json)


def _compute_again(
    ledger: "Ledger",
    spec: "Spec",
    request: str,
    roots: list[int],
    spark: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    from semel import settings
    from semel.reports import summary
    from semel.runs import replay as verb
    from semel.spark.session import open_engine

    found = [verb.look(ledger, spec, root, request) for root in roots]
    if dry_run:
        _emit_plan(spec.name, found, as_json=as_json)
        return
    verb.refuse(ledger, spec, {one.batch_id: one.why for one in found})
    done: list[Replayed] = []
    if todo := [one.batch_id for one in found if not one.done]:
        with open_engine(spark or settings.spark_remote(), console.say) as engine:
            done += verb.run_all(ledger, spec, request, todo, engine, console.say)
    plain = _plain(spec.name, request, found, done)
    console.emit(plain, as_json=as_json, render=lambda: print(summary.replay(found, done)))


def _emit_plan(pipeline: str, found: "list[Root]", *, as_json: bool) -> None:
    """What would be replayed. Exit code 1 where a batch cannot be."""
    from semel.reports import summary

    plain = [{**vars(one), "why": str(one.why) if one.why else None} for one in found]
    payload = {"pipeline": pipeline, "batches": plain}
    console.emit(payload, as_json=as_json, render=lambda: print(summary.replay_plan(found)))
    if any(one.why for one in found):
        raise typer.Exit(1)


def _plain(
    pipeline: str, request: str, found: "list[Root]", done: "list[Replayed]"
) -> dict[str, Any]:
    replayed = [
        {
            "batch_id": one.batch.root,
            "generation": one.batch.generation,
            "by": one.batch.batch_id,
            "counts": one.finalized.counts,
            "marker": one.finalized.marker,
        }
        for one in done
    ]
    alone = [one.batch_id for one in found if one.done]
    return {"pipeline": pipeline, "request": request, "replayed": replayed, "left_alone": alone}


def _judge_again(
    ledger: "Ledger",
    spec: "Spec",
    request: str,
    roots: list[int],
    spark: str | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Admit what is good now of the dead letters of some batches, one batch after the other."""
    from semel import settings
    from semel.reports import summary
    from semel.runs import requarantine
    from semel.spark.session import open_engine

    left = requarantine.left(ledger, spec, roots)
    requarantine.refuse(ledger, spec, roots, left)
    if dry_run:
        payload = {"pipeline": spec.name, "letters": left}
        console.emit(payload, as_json=as_json, render=lambda: print(summary.letters_left(left)))
        return
    done = []
    if left:
        with open_engine(spark or settings.spark_remote(), console.say) as engine:
            for at, (root, letters) in enumerate(left.items(), 1):
                console.say(f"batch {root} ({at} of {len(left)}): {letters:,} dead letters")
                done.append(requarantine.run(ledger, spec, request, root, engine, console.say))
    admitted = [
        {
            "batch_id": one.root,
            "by": one.batch.batch_id,
            "admission": one.batch.admission,
            "counts": one.finalized.counts,
            "marker": one.finalized.marker,
        }
        for one in done
        if one.batch
    ]
    payload = {"pipeline": spec.name, "request": request, "admitted": admitted}
    console.emit(payload, as_json=as_json, render=lambda: print(summary.requarantine(done)))
