"""`semel letters`: the records that were set aside. Nothing here changes anything."""

from typing import TYPE_CHECKING, Annotated

import typer

from semel import console, limits

if TYPE_CHECKING:
    from semel.reports.dead_letters import Letter


LETTERS_SHOWN_MAX = 10_000
"""Dead letters that it prints at most: they are in memory; a file of them is Parquet."""


def letters(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", help="Those of one batch.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Those of one reason, such as type_mismatch.")
    ] = None,
    count: Annotated[
        int, typer.Option(min=1, max=LETTERS_SHOWN_MAX, help="How many, newest first.")
    ] = limits.LETTERS_SHOWN,
    as_json: console.AsJson = False,
) -> None:
    """Print the dead letters of finalized batches: where each was, what is wrong, its text.

    A record that cannot be taken is set aside alone, with its bytes. Its id is not remembered: a
    corrected one passes later. Lines are counted in the source while its file is unchanged. Rows
    that a table refused (`semel accept --refused`) are shown too. What each reason means is in
    docs/bad-input.md.

    Example: semel letters flights --reason type_mismatch
    """
    from semel import pipeline as pipelines
    from semel.reports.dead_letters import LETTER_REASONS
    from semel.reports.dead_letters import letters as look_for

    spec = pipelines.find(pipeline)
    if reason is not None and reason not in LETTER_REASONS:
        reasons = ", ".join(LETTER_REASONS)
        raise typer.BadParameter(f"{reason!r} is not a reason; the reasons are {reasons}")
    found = look_for(spec, batch_id=batch, reason=reason, count=count)

    def render() -> None:
        of = f" of batch {batch}" if batch is not None else ""
        kind = f"dead letters ({reason})" if reason else "dead letters"
        if not found.total:
            print(f"{pipeline} has no {kind}{of}")
            return
        for letter in found.letters:
            _print(letter, spec.source.unit[:-1])
        shown = f"{len(found.letters):,} of {found.total:,}"
        batches = "1 batch" if found.batches == 1 else f"{found.batches:,} batches"
        print(f"{shown} {kind} of {pipeline}{of}, in {batches}; the newest first")
        if not spec.limits.log_samples:
            print("what they hold is not shown: limits.log_samples is false")
        print(f"as Parquet: {found.folder}")
        if len(found.letters) < found.total:
            more = min(found.total, LETTERS_SHOWN_MAX)
            options = f" --batch {batch}" if batch is not None else ""
            options += f" --reason {reason}" if reason else ""
            print(f"next: semel letters {pipeline}{options} --count {more}")

    console.emit(found, as_json=as_json, render=render)


def _print(letter: "Letter", unit: str) -> None:
    place = ""
    if letter.source is not None:
        place = f", {letter.source!r}"
        place += f" line {letter.line:,}" if letter.line else ""
        place += f" ({unit} {letter.offset})"
    print(f"batch {letter.batch_id}{place}: {letter.reason}")
    for line in filter(None, (letter.detail, letter.text)):
        print(f"    {line}")
