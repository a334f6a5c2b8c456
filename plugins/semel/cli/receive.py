"""`semel receive`: move a queue's messages into the pipeline's spool."""

from typing import Annotated

import typer

from semel import console


def receive(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    forever: Annotated[
        bool, typer.Option("--forever", help="Run until SIGTERM or Ctrl-C; ignore source.until.")
    ] = False,
    idle: Annotated[
        str | None, typer.Option(help="End after this time without a message: '10 seconds'.")
    ] = None,
    seconds: Annotated[int | None, typer.Option(min=1, help="End after N seconds.")] = None,
    messages: Annotated[
        int | None, typer.Option(min=1, help="End after N messages.")
    ] = None,
    size: Annotated[
        str | None, typer.Option("--bytes", help="End after this volume: '1 GiB'.")
    ] = None,
    as_json: console.AsJson = False,
) -> None:
    """Receive messages of a queue into the pipeline's spool, and acknowledge them.

    Semel acknowledges a message only when the spool has it durably. So you can kill receive at any
    time, and run several at once. It ends at the first bound of source.until; the options replace
    these bounds. `semel run` then reads the spool.

    Example: semel receive flights --idle '10 seconds'
    """
    from semel import pipeline as pipelines
    from semel.declare.durations import parse_duration, parse_size
    from semel.errors import SpecError
    from semel.reports import summary

    spec = pipelines.find(pipeline)
    if not spec.source.receives:
        raise SpecError(
            f"{pipeline} reads {spec.source.describe()}, not a queue. Run it without receive",
            next=f"semel run {pipeline}",
        )
    try:
        bounds = {
            "idle": parse_duration(idle) if idle is not None else None,
            "seconds": seconds,
            "messages": messages,
            "bytes": parse_size(size) if size is not None else None,
        }
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    bounds = {name: value for name, value in bounds.items() if value is not None}
    if forever and bounds:
        raise typer.BadParameter("give either --forever or bounds")
    until = None if forever else spec.source.until.model_copy(update=bounds)
    received = spec.source.receive(spec.name, until, console.say)
    console.emit(
        {"pipeline": spec.name, **vars(received)},
        as_json=as_json,
        render=lambda: print(summary.receive(received, f"semel run {spec.name}")),
    )
