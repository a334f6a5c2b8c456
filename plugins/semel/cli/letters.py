"""`semel letters`: print the dead letters of a pipeline. It changes nothing."""

from typing import TYPE_CHECKING, Annotated

import typer

from semel import console, limits

if TYPE_CHECKING:
    from semel.reports.dead_letters import Letter


LETTERS_SHOWN_MAX = 10_000
"""Dead letters that it prints at most, because it holds them in memory."""


def letters(
    pipeline: Annotated[str, typer.Argument(help="The pipeline's name.")],
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", help="Only those of this batch.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", help="Only this reason, such as type_mismatch.")
    ] = None,
    count: Annotated[
        int, typer.Option(min=1, max=LETTERS_SHOWN_MAX, help="How many, newest first.")
    ] = limits.LETTERS_SHOWN,
    as_json: console.AsJson = False,
) -> None:
    """Print the dead letters of finalized batches: position, reason and text of each.

    Semel sets aside a record that does not fit the declaration, with its bytes. The catalog does
    not register its id, so a corrected copy passes later. A line number is known only while the
    file is unchanged. Rows that a table refused (`semel accept --refused`) are listed too.
    docs/bad-input.md explains each reason.

    Example: semel letters flights --reason type_mismatch
    """
    from semel import pipeline as pipelines
    from semel.reports.dead_letters import LETTER_REASONS
    from semel.reports.dead_letters import letters as look_for

    spec = pipelines.find(pipeline)
    if reason is not None and reason not in LETTER_REASONS:
        raise typer.BadParameter(
            f"{reason!r} is not a reason; the reasons are {', '.join(LETTER_REASONS)}"
        )
    answer = look_for(spec, batch_id=batch, reason=reason, count=count)

    def render() -> None:
        of = f" of batch {batch}" if batch is not None else ""
        kind = f"dead letters ({reason})" if reason else "dead letters"
        if not answer.total:
            print(f"{pipeline} has no {kind}{of}")
            return
        for letter in answer.letters:
            _print(letter, spec.source.unit[:-1])
        share = f"{len(answer.letters):,} of {answer.total:,}"
        batches = "1 batch" if answer.batches == 1 else f"{answer.batches:,} batches"
        print(f"{share} {kind} of {pipeline}{of}, in {batches}; the newest first")
        if not spec.limits.log_samples:
            print("limits.log_samples is false, so their texts are not printed")
        print(f"as Parquet: {answer.folder}")
        if len(answer.letters) < answer.total:
            more = min(answer.total, LETTERS_SHOWN_MAX)
            options = f" --batch {batch}" if batch is not None else ""
            options += f" --reason {reason}" if reason else ""
            print(f"next: semel letters {pipeline}{options} --count {more}")

    console.emit(answer, as_json=as_json, render=render)


def _print(letter: "Letter", unit: str) -> None:
    place = ""
    if letter.source is not None:
        place = f", {letter.source!r}"
        place += f" line {letter.line:,}" if letter.line else ""
        place += f" ({unit} {letter.offset})"
    print(f"batch {letter.batch_id}{place}: {letter.reason}")
    for line in filter(None, (letter.detail, letter.text)):
        print(f"    {line}")
