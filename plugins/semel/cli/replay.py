"""`semel replay`: compute the output of finalized batches again, without Airflow."""

import re
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli import output

if TYPE_CHECKING:
    from semel.replay import Replayed, Root

_FORMATS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S%z"]
_RANGE = re.compile(r"(\d{1,18})(?:\.\.(\d{1,18}))?")


def replay(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    batches: Annotated[
        str | None,
        typer.Option(metavar="A[..B]", help="The batches, by number: one, or from A to B."),
    ] = None,
    interval: Annotated[
        tuple[datetime, datetime] | None,
        typer.Option(
            metavar="START END",
            formats=_FORMATS,
            help="The batches of the data intervals in [START, END), in UTC; by the time of their "
            "commit, where the pipeline has no intervals.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Tell what would be replayed, or why it cannot be."),
    ] = False,
    request: Annotated[
        str | None,
        typer.Option(help="The request's name, if not that of the code and declaration of now."),
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
    """Compute the output of finalized batches again, with today's transforms and declaration.

    The same ranges of the source are read, and the same records survive: which ones were repeats or
    bad is not decided again. Readers see the old output of a batch, or the new one. A batch whose
    newest output this code and this declaration have made already is left alone.

    Example: semel replay flights --interval 2013-01-01 2013-01-08 --dry-run
    """
    if (batches is None) == (interval is None):
        raise typer.BadParameter("give either --batches A..B or --interval START END")
    from semel import replay as verb
    from semel import settings, summary
    from semel.cli.connect import open_ledger
    from semel.spark.session import open_engine
    from semel.spec import pipeline as pipelines

    spec = pipelines.find(pipeline)
    request = request or verb.request_of(spec)
    window = interval and tuple(t.replace(tzinfo=t.tzinfo or UTC) for t in interval)
    log = partial(output.progress.print, markup=False)

    with open_ledger() as ledger:
        roots = verb.roots(ledger, spec, batches=_numbers(batches), interval=window)
        found = [verb.look(ledger, spec, root, request) for root in roots]
        if dry_run:
            _emit_plan(pipeline, found, as_json=as_json)
            return
        _refuse(found)
        todo = [one.batch_id for one in found if not one.done]
        with ExitStack() as stack:
            where = spark or settings.spark_remote()
            engine = stack.enter_context(open_engine(where, log)) if todo else None
            done = list(verb.run_all(ledger, spec, request, todo, engine, log))
    alone = [one.batch_id for one in found if one.done]
    plain = {"pipeline": pipeline, "request": request, "left_alone": alone}
    plain["replayed"] = [_plain(one) for one in done]
    output.emit(plain, as_json=as_json, render=lambda: print(summary.replay(found, done)))


def _numbers(batches: str | None) -> tuple[int, int] | None:
    if batches is None:
        return None
    given = _RANGE.fullmatch(batches)
    if not given:
        raise typer.BadParameter(f"--batches {batches!r}: give one number, or two as in 17..23")
    first, last = int(given[1]), int(given[2] or given[1])
    if first > last:
        raise typer.BadParameter(f"--batches {batches}: the first number is the larger one")
    return first, last


def _emit_plan(pipeline: str, found: "list[Root]", *, as_json: bool) -> None:
    """What would be replayed. Exit code 1 where a batch cannot be."""
    from semel import summary

    plain = [{**vars(one), "why": str(one.why) if one.why else None} for one in found]
    payload = {"pipeline": pipeline, "batches": plain}
    output.emit(payload, as_json=as_json, render=lambda: print(summary.replay_plan(found)))
    if any(one.why for one in found):
        raise typer.Exit(1)


def _refuse(found: "list[Root]") -> None:
    """TerminalError when one of the batches cannot be replayed: then none is."""
    from semel.errors import TerminalError

    refused = [one for one in found if one.why is not None]
    if refused:
        count = f"{len(refused)} of {len(found)}" if len(found) > 1 else "the batch"
        lines = [f"batch {one.batch_id}: {one.why}" for one in refused]
        raise TerminalError(
            "\n".join([f"{count} cannot be replayed, so nothing was done", *lines]),
            next=refused[0].why.next or f"semel show {refused[0].batch_id}",
        )


def _plain(one: "Replayed") -> dict[str, Any]:
    return {
        "batch_id": one.batch.root,
        "generation": one.batch.generation,
        "by": one.batch.batch_id,
        "counts": one.finalized.counts,
        "marker": one.finalized.marker,
    }
