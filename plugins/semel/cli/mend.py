"""`semel accept | abandon | collect`: what a person decides, and what is forgotten."""

from typing import Annotated

import typer

from semel.cli import output


def accept(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    path: Annotated[
        str | None, typer.Argument(help="The refused file, as `semel gaps` shows it.")
    ] = None,
    same: Annotated[
        bool,
        typer.Option("--same", help="It goes on in the partition that was read (checked)."),
    ] = False,
    columns: Annotated[
        bool, typer.Option("--columns", help="Let the output have new columns from here on.")
    ] = False,
    as_json: output.AsJson = False,
) -> None:
    """Settle a file that plan refused: as a new generation (default) or --same; or new --columns.

    A new generation is read from its start: with a record_id, what it repeats is dropped.

    Example: semel accept flights flights/flights-2013-01-01.jsonl
    """
    if (path is None) != columns:
        raise typer.BadParameter("give either a PATH or --columns")
    from semel import pipeline as pipelines
    from semel.accept import accept_columns, accept_file
    from semel.cli.connect import open_ledger

    spec = pipelines.find(pipeline)
    with open_ledger() as ledger:
        if path is None:
            accept_columns(ledger, spec)
            text = f"{pipeline}: the next batch that commits decides the columns"
            output.emit({"pipeline": pipeline}, as_json=as_json, render=lambda: print(text))
            return
        done = accept_file(ledger, spec, path, same=same)
    how = "goes on in" if same else "is read from its start as"
    text = f"{done.path} {how} partition {done.source_partition_id}, generation {done.generation}"
    output.emit(
        {"pipeline": pipeline, "accepted": done}, as_json=as_json, render=lambda: print(text)
    )


def abandon(
    batch: Annotated[int, typer.Argument(help="The batch's number.")],
    reason: Annotated[str, typer.Option(help="Kept with the batch.")] = "abandoned by hand",
    as_json: output.AsJson = False,
) -> None:
    """Give up a batch that never committed; its records are planned again by the next run.

    Example: semel abandon 17
    """
    from semel.abandon import abandon as give_up
    from semel.cli.connect import open_ledger

    with open_ledger() as ledger:
        ranges = give_up(ledger, batch, reason)
    text = f"batch {batch} is abandoned; {ranges} ranges are free, and the next run plans them"
    output.emit(
        {"batch_id": batch, "ranges_released": ranges}, as_json=as_json, render=lambda: print(text)
    )


def collect(
    pipeline: Annotated[
        str | None, typer.Argument(help="The pipeline's name; all when left out.")
    ] = None,
    as_json: output.AsJson = False,
) -> None:
    """Forget ids past their horizon, merge id runs, remove files of lost attempts.

    Example: semel collect flights
    """
    from semel import pipeline as pipelines
    from semel import summary
    from semel.cli.connect import open_ledger
    from semel.collect import collect as collect_one

    specs = [pipelines.find(pipeline)] if pipeline else list(pipelines.load_all().values())
    with open_ledger() as ledger:
        done = [collect_one(ledger, spec, output.progress.print) for spec in specs]
    done = [one for one in done if one is not None]

    def render() -> None:
        for one in done:
            print(summary.collect(one))
        if not done:
            print("there is nothing to collect")

    output.emit({"collected": done}, as_json=as_json, render=render)
