"""`semel batches PIPELINE --made-by`: which code made which batches."""

from typing import TYPE_CHECKING

from semel import console

if TYPE_CHECKING:
    from semel.reports.code_versions import Made

_SHOWN = 5
_DIGITS = 12


def show(pipeline: str, *, as_json: bool) -> None:
    """Print the finalized batches of a pipeline by the code that made them, the newest first."""
    from semel import pipeline as pipelines
    from semel.ledger import Ledger
    from semel.reports.code_versions import made_by

    spec = pipelines.find(pipeline)
    with Ledger() as ledger:
        found = made_by(ledger, spec)

    def render() -> None:
        if not found:
            print(f"{spec.name} has no finalized batch yet")
        for made in found:
            print("\n".join(_lines(made)))

    console.emit({"pipeline": spec.name, "made_by": found}, as_json=as_json, render=render)


def _lines(made: "Made") -> list[str]:
    from semel.reports.summary import interval

    code, count = made.code, len(made.batches)
    head = f"code {made.digest[:_DIGITS]}, semel {code.semel}" if code else "code not known"
    if made.git_commits:
        head += f", git commit {_some([c[:_DIGITS] for c in reversed(made.git_commits)])}"
    numbers = [f"{first}" if first == last else f"{first} to {last}" for first, last in made.runs]
    lines = [head, f"  {'batch' if count == 1 else f'{count:,} batches:'} {', '.join(numbers)}"]
    if made.intervals:
        lines.append(f"  of {_some([interval(*span) for span in made.intervals])}")
    return [*lines, *(f"  {name!r}: {path}" for name, path in made.texts.items())]


def _some(texts: list[str]) -> str:
    more = len(texts) - _SHOWN
    return ", ".join([*texts[:_SHOWN], *([f"and {more:,} more"] if more > 0 else [])])
