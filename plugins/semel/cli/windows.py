"""`semel windows`: which windows of time are complete, and what the others wait for."""

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
        typer.Option(
            "--query", help="Print a statement that reads what `aggregate` counts, and no more."
        ),
    ] = False,
    as_json: console.AsJson = False,
) -> None:
    """List which windows are complete, the newest first: 31 of them unless told otherwise.

    Looks at the ledger alone, and changes nothing. Without `window` in the declaration, the
    windows are the intervals of the schedule. What --query prints is for psql, or for DuckDB.

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
    shown = [_interval(*part) for part in window.missing[:FILES_NAMED_MAX]]
    more = len(window.missing) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def _notes(answer: "WindowReport") -> list[str]:
    from semel.declare.parts import Select

    name, lines = answer.pipeline, []
    if answer.select is Select.ARRIVAL:
        known = f"{answer.known.astimezone(UTC):%F %H:%M:%S} UTC" if answer.known else "not known"
        lines.append(f"event time: {known}")
    elif answer.known is None:
        lines.append(f"nothing of {name} is covered yet: no run has finalized or found nothing")
    held = "held by" if answer.select is Select.ARRIVAL else "not read:"
    lines += [f"{held} {one.name}: {one.why}" for one in answer.holders]
    lines += [f"next: semel gaps {name}"] if answer.holders else []
    commands = list(dict.fromkeys(c for window in answer.windows[::-1] for c in window.commands))
    lines += [f"next: {command}" for command in commands[:FILES_NAMED_MAX]]
    rest = len(commands) - FILES_NAMED_MAX
    if rest > 0:
        lines.append(f"and {rest:,} more; the first of them: `{commands[FILES_NAMED_MAX]}`")
    return lines
