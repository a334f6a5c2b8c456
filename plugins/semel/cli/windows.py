"""`semel windows`: the complete windows, and the intervals that the other windows wait for."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from semel import console
from semel.cli import options
from semel.declare.wording import FILES_NAMED_MAX

if TYPE_CHECKING:
    from semel.reports.completeness import WindowProgress, WindowReport


def windows(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    since: options.Since = None,
    until: options.Until = None,
    query: Annotated[
        bool,
        typer.Option("--query", help="Print only a query that merges the rows of `aggregate`."),
    ] = False,
    as_json: console.AsJson = False,
) -> None:
    """List complete and incomplete windows, the newest first; by default, the last 31.

    Reads the ledger only, and changes nothing. Without `window` in the declaration, the windows
    are the intervals of the schedule. psql or DuckDB can run the query of --query.

    Example: semel windows flights_by_day --from 2013-01-01 --to 2013-01-07
    """
    from semel import pipeline as pipelines
    from semel.ledger import Ledger
    from semel.reports.completeness import windows as ask

    spec = pipelines.find(pipeline)
    if query:
        from semel.reports.window_rows import query as statement_of

        text = statement_of(spec)
        console.emit({"query": text}, as_json=as_json, render=lambda: print(f"{text};"))
        return
    with Ledger() as ledger:
        answer = ask(ledger, spec, **options.days(since, until), now=datetime.now(UTC))
    console.emit(answer, as_json=as_json, render=lambda: _render(answer))


def _render(answer: "WindowReport") -> None:
    table = console.table("window", "state", "waits for", folded=["waits for"])
    for window in answer.windows:
        table.add_row(_interval(window.start, window.end), str(window.state), _waits_for(window))
    console.show(table)
    for line in _notes(answer):
        print(line)


def _interval(start: datetime, end: datetime) -> str:
    from semel.reports.summary import interval

    return interval(start, end)


def _waits_for(window: "WindowProgress") -> str:
    intervals = [_interval(*part) for part in window.missing[:FILES_NAMED_MAX]]
    more = len(window.missing) - len(intervals)
    return ", ".join(intervals) + (f" and {more:,} more" if more else "")


def _notes(answer: "WindowReport") -> list[str]:
    from semel.declare.parts import Select

    name, lines = answer.pipeline, []
    if answer.select is Select.ARRIVAL:
        time = f"{answer.known.astimezone(UTC):%F %H:%M:%S} UTC" if answer.known else "not known"
        lines.append(f"event time: {time}")
    elif answer.known is None:
        lines.append(f"no window of {name} is covered yet: no run has finalized or found nothing")
    cause = "held by" if answer.select is Select.ARRIVAL else "not read:"
    lines += [f"{cause} {holder.name}: {holder.why}" for holder in answer.holders]
    lines += [f"next: semel gaps {name}"] if answer.holders else []
    commands = list(dict.fromkeys(c for window in answer.windows[::-1] for c in window.commands))
    lines += [f"next: {command}" for command in commands[:FILES_NAMED_MAX]]
    more = len(commands) - FILES_NAMED_MAX
    if more > 0:
        lines.append(f"and {more:,} more, beginning with `{commands[FILES_NAMED_MAX]}`")
    return lines
