"""`semel compare`: does the live path give what the batch path gives?"""

from typing import TYPE_CHECKING, Annotated

import typer

from semel import console
from semel.cli import options

if TYPE_CHECKING:
    from semel.compare import Comparison, Difference, Side

DIFFERENCES_SHOWN = 20
"""Differences that `semel compare` shows unless told otherwise; all are counted."""

DIFFERENCES_SHOWN_MAX = 1_000
"""Differences that it shows at most: for each a file may be read once more."""

_FOR_AUDIT = {"unknown", "output_changed", "source_changed"}
_KINDS = {
    "only_live": "only in {live}",
    "only_other": "only in {other}",
    "more_live": "more rows in {live}",
    "more_other": "more rows in {other}",
    "values": "other values",
}


def compare(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    interval: Annotated[
        options.Span | None,
        typer.Option(
            metavar="START END",
            formats=options.DATES,
            help="Batches whose interval lies in [START, END), in UTC; with select: arrival those "
            "that committed then.",
        ),
    ] = None,
    batches: Annotated[
        str | None, typer.Option(metavar="A[..B]", help="Batches by number, in place of that.")
    ] = None,
    other: Annotated[
        str | None,
        typer.Option(
            "--with", metavar="PIPELINE2", help="Compare with its output of the same interval."
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            min=0, max=DIFFERENCES_SHOWN_MAX, help="Differences to show; all are counted."
        ),
    ] = DIFFERENCES_SHOWN,
    spark: options.Spark = None,
    as_json: console.AsJson = False,
) -> None:
    """Check that many small batches gave what one batch gives that reads all of it at once.

    What the finalized batches of a range read is read again, as one batch, by the same stage, into
    a scratch folder, which is removed again. The two outputs are compared as sets, by record id, by
    position or by whole rows; where windows are counted merged, by window and key. Each difference
    is told with its cause. Nothing of the pipeline changes. Exit code 0: equal; 1: different.

    Example: semel compare flights --interval 2026-01-01 2026-01-08
    """
    from semel import pipeline as pipelines
    from semel import settings
    from semel.compare import BatchRange
    from semel.compare import compare as look
    from semel.ledger import Ledger
    from semel.spark.session import open_engine

    between, numbers = options.range_of(interval, batches)
    if other is not None and between is None:
        raise typer.BadParameter("--with needs --interval: each pipeline has its own numbers")
    (start, end), (first, last) = between or (None, None), numbers or (None, None)
    wanted = BatchRange(start=start, end=end, first=first, last=last)
    spec = pipelines.find(pipeline)
    second = pipelines.find(other) if other is not None else None

    with Ledger() as ledger:
        found = look(
            ledger,
            spec,
            wanted,
            open_job=lambda: open_engine(spark or settings.spark_remote(), console.say),
            other=second,
            difference_limit=limit,
            log=console.say,
        )

    told = spec.limits.log_samples and (second is None or second.limits.log_samples)
    lines = _lines(found, spec.source.unit, told=told)
    payload = {"equal": found.equal, **vars(found)}
    console.emit(payload, as_json=as_json, render=lambda: print("\n".join(lines)))
    if not found.equal:
        raise typer.Exit(1)


def _lines(found: "Comparison", unit: str, *, told: bool) -> list[str]:
    live = "the live path" if found.counts else found.pipeline
    other = "the batch path" if found.counts else found.other
    names = {"live": live, "other": other}
    numbers = f"{found.batches[0]}"
    if len(found.batches) > 1:
        numbers = f"{numbers} to {found.batches[-1]}, {len(found.batches):,} batches"
    by = {
        "id": "record id", "position": "position", "row": "whole rows", "window": "window and key"
    }[found.by]  # fmt: skip
    rows = f"{found.rows_live:,} rows of {live}, {found.rows_other:,} of {other}"
    lines = []
    for one in found.differences:
        lines += _difference(one, names, unit, "window" if found.by == "window" else "id")
    if lines and not told:
        lines.append("what rows hold is not shown: limits.log_samples is false")
    if found.total > len(found.differences):
        lines.append(f"and {found.total - len(found.differences):,} more differences")
    lines.append(f"{found.pipeline}, batch {numbers}: {rows}, matched by {by}")
    for side, counted in found.apart.items():
        name = names[side.removeprefix("only_")]
        counts = ", ".join(f"{reason} {count:,}" for reason, count in counted.items())
        lines.append(f"records that only {name} kept out: {counts}")
    if found.equal:
        return [*lines, "equal"]
    causes = ", ".join(f"{cause} {count:,}" for cause, count in found.causes.items())
    lines.append(f"different: {found.total:,} ({causes})")
    if found.causes.keys() & _FOR_AUDIT:
        lines.append(f"next: semel audit {found.pipeline}")
    return lines


def _difference(one: "Difference", names: dict[str, str], unit: str, key: str) -> list[str]:
    what = f"{key} {one.id}: " if one.id is not None else ""
    kind = _KINDS[one.kind].format_map(names)
    lines = [f"{what}{kind}: {one.cause}: {one.why}"]
    for side, name in ((one.live, names["live"]), (one.other, names["other"])):
        lines += [f"    {name}: {part}" for part in _side(side, unit)]
    return lines


def _side(side: "Side", unit: str) -> list[str]:
    from semel.declare.wording import place

    count = "no row" if not side.rows else "1 row" if side.rows == 1 else f"{side.rows:,} rows"
    parts = [count]
    if side.batch_id is not None:
        parts.append(f"of batch {side.batch_id}")
    if side.position:
        at = side.position
        parts.append(f"from {at.source!r} {place(at.line, at.offset, unit)}")
    lines = [" ".join(parts)]
    if side.row is not None:
        lines.append(", ".join(f"{name}={value!r}" for name, value in side.row.items()))
    return lines
