"""`semel receive`: a queue's messages into the pipeline's spool."""

from typing import Annotated

import typer

from semel import console


def receive(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    forever: Annotated[
        bool, typer.Option("--forever", help="Go on until SIGTERM or Ctrl-C; the bounds are void.")
    ] = False,
    idle: Annotated[
        str | None, typer.Option(help="End after so long without a message, as in '10 seconds'.")
    ] = None,
    seconds: Annotated[int | None, typer.Option(min=1, help="End after so many seconds.")] = None,
    messages: Annotated[
        int | None, typer.Option(min=1, help="End after so many messages.")
    ] = None,
    size: Annotated[
        str | None, typer.Option("--bytes", help="End after so many bytes, as in '1 GiB'.")
    ] = None,
    as_json: console.AsJson = False,
) -> None:
    """Receive messages of a queue into the pipeline's spool, and acknowledge them.

    A message is acknowledged once it is durable there; so a run may be killed at any time, and
    several may go on at once. It ends at the first bound of source.until, or of the options that
    take its place. `semel run` reads what is in the spool.

    Example: semel receive flights --idle '10 seconds'
    """
    from semel import pipeline as pipelines
    from semel.declare.durations import parse_duration, parse_size
    from semel.errors import SpecError
    from semel.reports import summary

    spec = pipelines.find(pipeline)
    if not spec.source.receives:
        raise SpecError(
            f"{pipeline} reads {spec.source.describe()}, which needs no receive",
            next=f"semel run {pipeline}",
        )
    try:
        given = {
            "idle": parse_duration(idle) if idle is not None else None,
            "seconds": seconds,
            "messages": messages,
            "bytes": parse_size(size) if size is not None else None,
        }
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    given = {name: value for name, value in given.items() if value is not None}
    if forever and given:
        raise typer.BadParameter("give either --forever or bounds")
    until = None if forever else spec.source.until.model_copy(update=given)
    done = spec.source.receive(spec.name, until, console.say)
    console.emit(
        {"pipeline": spec.name, **vars(done)},
        as_json=as_json,
        render=lambda: print(summary.receive(done, f"semel run {spec.name}")),
    )
