"""`semel compare`: do many small batches give the same output as one large batch?"""

from typing import TYPE_CHECKING, Annotated

import typer

from semel import console
from semel.cli import options

if TYPE_CHECKING:
    from semel.compare import Comparison, Difference, Side

DIFFERENCES_SHOWN = 20
"""Differences that `semel compare` shows by default. It counts all."""

DIFFERENCES_SHOWN_MAX = 1_000
"""Differences that it shows at most, because it may read a file again for each."""

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
            help="Batches with an interval in [START, END), in UTC; with select: arrival, batches "
            "that committed in it.",
        ),
    ] = None,
    batches: Annotated[
        str | None, typer.Option(metavar="A[..B]", help="Batches by number, without --interval.")
    ] = None,
    other: Annotated[
        str | None,
        typer.Option(
            "--with", metavar="PIPELINE2", help="Compare with the output of another pipeline."
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(min=0, max=DIFFERENCES_SHOWN_MAX, help="Differences to show; it counts all."),
    ] = DIFFERENCES_SHOWN,
    spark: options.Spark = None,
    as_json: console.AsJson = False,
) -> None:
    """Check that many small batches gave the same output as one large batch.

    The same stage reads the records of all finalized batches in a range again, as one batch, into
    a scratch folder, and removes the folder at the end. Semel compares the two outputs as sets: by
    record id, by position or by whole rows; for an aggregate, by window and key, after merging. It
    prints each difference with its cause. Nothing of the pipeline changes. Exit code 0: equal; 1:
    different.

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
        comparison = look(
            ledger,
            spec,
            wanted,
            open_job=lambda: open_engine(spark or settings.spark_remote(), console.say),
            other=second,
            difference_limit=limit,
            log=console.say,
        )

    samples = spec.limits.log_samples and (second is None or second.limits.log_samples)
    lines = _lines(comparison, spec.source.unit, samples=samples)
    payload = {"equal": comparison.equal, **vars(comparison)}
    console.emit(payload, as_json=as_json, render=lambda: print("\n".join(lines)))
    if not comparison.equal:
        raise typer.Exit(1)


def _lines(comparison: "Comparison", unit: str, *, samples: bool) -> list[str]:
    """The lines for people. Without `samples` they explain why no row's values are in them."""
    live = "the live path" if comparison.counts else comparison.pipeline
    other = "the batch path" if comparison.counts else comparison.other
    names = {"live": live, "other": other}
    batches, differences = comparison.batches, comparison.differences
    numbers = f"{batches[0]}"
    if len(batches) > 1:
        numbers = f"{numbers} to {batches[-1]}, {len(batches):,} batches"
    by = {
        "id": "record id", "position": "position", "row": "whole rows", "window": "window and key"
    }[comparison.by]  # fmt: skip
    rows = f"{comparison.rows_live:,} rows of {live}, {comparison.rows_other:,} of {other}"
    lines = []
    for difference in differences:
        lines += _difference(difference, names, unit, "window" if by == "window and key" else "id")
    if lines and not samples:
        lines.append("limits.log_samples is false, so no values of rows are printed")
    if comparison.total > len(differences):
        lines.append(f"and {comparison.total - len(differences):,} more differences")
    lines.append(f"{comparison.pipeline}, batch {numbers}: {rows}, matched by {by}")
    for side, reasons in comparison.apart.items():
        name = names[side.removeprefix("only_")]
        counts = ", ".join(f"{reason} {count:,}" for reason, count in reasons.items())
        lines.append(f"records that only {name} kept out: {counts}")
    if comparison.equal:
        return [*lines, "equal"]
    causes = ", ".join(f"{cause} {count:,}" for cause, count in comparison.causes.items())
    lines.append(f"different: {comparison.total:,} ({causes})")
    if comparison.causes.keys() & _FOR_AUDIT:
        lines.append(f"next: semel audit {comparison.pipeline}")
    return lines


def _difference(difference: "Difference", names: dict[str, str], unit: str, key: str) -> list[str]:
    subject = f"{key} {difference.id}: " if difference.id is not None else ""
    kind = _KINDS[difference.kind].format_map(names)
    lines = [f"{subject}{kind}: {difference.cause}: {difference.why}"]
    for side, name in ((difference.live, names["live"]), (difference.other, names["other"])):
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
