"""`semel days`: the progress of each interval, and the commands that read the missing records."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from semel import console
from semel.cli import options
from semel.declare.wording import FILES_NAMED_MAX

if TYPE_CHECKING:
    from semel.reports.days import BatchOfDay, DayCell, Days
    from semel.reports.progress import SourceCell

_UNSETTLED = ("unclaimed", "open", "waiting", "refused")


def days(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    since: options.Since = None,
    until: options.Until = None,
    as_json: console.AsJson = False,
) -> None:
    """List the progress of each interval of the schedule, or of each day; by default, the last 31.

    Reads the ledger and the source, and changes nothing. Without intervals (`select: arrival`), a
    batch stands on the day of its commit.

    Example: semel days flights --from 2013-01-01 --to 2013-01-07
    """
    from semel import pipeline as pipelines
    from semel.ledger import Ledger
    from semel.reports import summary
    from semel.reports.days import days as ask
    from semel.reports.progress import Sight

    spec = pipelines.find(pipeline)
    with Ledger() as ledger:
        sight = Sight.of(ledger, spec)
        answer = ask(
            ledger, spec, sight, now=datetime.now(UTC), **options.days(since, until)
        )
    items, unit = f"{spec.source.part}s", spec.source.unit
    refused = summary.refusal_lines(pipeline, sight.gaps.refusals, spec.source.part)
    console.emit(answer, as_json=as_json, render=lambda: _render(answer, items, unit, refused))


def _render(answer: "Days", items: str, unit: str, refused: list[str]) -> None:
    when = "committed on" if answer.by_commit else "interval"
    numbers = ("read", "new", "set aside")
    table = console.table(when, "state", *numbers, "batches", "not finalized", numbers=numbers)
    for day in answer.days:
        if day.batch_count or not answer.by_commit:
            table.add_row(*_row(day, unit))
    console.show(table)
    for line in [*refused, *_notes(answer, items, unit)]:
        print(line)


def _row(day: "DayCell", unit: str) -> list[str]:
    from semel.reports.summary import interval

    counts = day.counts
    account = (counts.records_read, counts.survivors, counts.quarantined + counts.late)
    numbers = [f"{n:,}" for n in account] if day.counted else [""] * 3
    silent = ", no sign of life" if day.silent else ""
    state, missing = f"{day.state}{silent}", unsettled(day.seen, unit)
    return [interval(day.start, day.end), state, *numbers, _batches(day), missing]


def _batches(day: "DayCell") -> str:
    """The newest batches of a cell. `*` marks a batch longer than the cell; a replayed batch is
    printed with its newest replay.
    """
    texts = [
        f"{b.batch_id}{'' if b.whole else '*'}"
        f"{f' (replayed by {b.made_by})' if b.generation > 1 else ''}"
        for b in day.batches
    ]
    more = day.batch_count - len(day.batches)
    return ", ".join(texts) + (f" and {more:,} more" if more else "")


def unsettled(cell: "SourceCell | None", unit: str) -> str:
    """The parts of a cell that are not finalized: `2 unclaimed (78 bytes), 1 refused`."""
    if cell is None:
        return ""
    counts = {name: getattr(cell, name) for name in _UNSETTLED}
    words = {"open": "in an open batch", "unclaimed": f"unclaimed ({cell.left:,} {unit})"}
    return ", ".join(f"{n:,} {words.get(name, name)}" for name, n in counts.items() if n)


def _notes(answer: "Days", items: str, unit: str) -> list[str]:
    from semel.reports.days import DAYS_BATCHES_MAX
    from semel.reports.summary import interval

    lines = _longer(answer)
    if answer.newest:
        lines.append(f"nothing is newer than {answer.newest:%F}; --from and --to show other days")
    if answer.ahead:
        day = f"{answer.ahead:%F}"
        lines += [
            f"the source has {items} with times in the future, up to {day}: a zip archive or a "
            "wrong clock may have set them. Correct the times, or run their intervals",
            f"next: semel days {answer.pipeline} --from {day} --to {day}",
        ]
    if answer.cut:
        lines.append(
            f"only the newest {DAYS_BATCHES_MAX:,} batches are shown, from "
            f"{answer.days[0].start:%F} on. Show older ones with --to"
        )
    if answer.by_commit:
        lines.append(
            f"each batch is on the day of its commit, because {answer.pipeline} declares "
            "select: arrival"
        )
    if text := unsettled(answer.undated, unit):
        where = "not finalized" if answer.by_commit else "on other days, or of an unknown day"
        lines.append(f"{where}: {items} {text}; `semel gaps {answer.pipeline}` lists them")
    if answer.newest_complete:
        lines.append(
            f"the newest complete window: {interval(*answer.newest_complete)}; "
            f"`semel windows {answer.pipeline}` lists the newest windows"
        )
    todo = _commands(answer)
    lines += [f"next: {command}" for command in todo[:FILES_NAMED_MAX]]
    if more := todo[FILES_NAMED_MAX :]:
        lines.append(f"and {len(more):,} more, beginning with `{more[0]}`")
    return lines


def _longer(answer: "Days") -> list[str]:
    """A line for each batch that spans several cells, and so is counted in none, with its account.
    """
    from semel.reports.summary import interval

    longer = {b.batch_id: b for day in answer.days for b in day.batches if not b.whole}
    lines = [
        f"* batch {b.batch_id} of {interval(b.start, b.end)} ({_account(b)}) spans several lines, "
        "and counts in none"
        for b in longer.values()
    ]
    more = len(lines) - FILES_NAMED_MAX
    return [*lines[:FILES_NAMED_MAX], *([f"* and {more:,} more batches"] if more > 0 else [])]


def _account(batch: "BatchOfDay") -> str:
    counts = batch.counts
    if counts is None:
        return str(batch.status)
    aside = counts.quarantined + counts.late
    return f"{counts.records_read:,} read, {counts.survivors:,} new, {aside:,} set aside"


def _commands(answer: "Days") -> list[str]:
    """The commands that read the missing records: one for adjacent intervals without open batches.
    """
    from semel.reports.days import CellState
    from semel.reports.intervals import moment

    late = (CellState.UNCLAIMED, CellState.PARTLY)
    spans: list[list[DayCell]] = []
    for day in (day for day in answer.days if day.command):
        last = spans[-1][-1] if spans else None
        if last and last.end == day.start and {last.state, day.state} <= {*late}:
            spans[-1].append(day)
        else:
            spans.append([day])
    return [
        first.command
        if first is last
        else f"semel run {answer.pipeline} --interval {moment(first.start)} {moment(last.end)}"
        for first, last in ((days[0], days[-1]) for days in spans)
    ]
