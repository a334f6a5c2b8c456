"""`semel new`: a pipeline's file, drafted from samples."""

import os
import shlex
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semel import console
from semel.declare import wording
from semel.errors import NO_STEP, SemelError, TerminalError

if TYPE_CHECKING:
    from semel.infer.draft import PipelineDraft, SourceFinding, Trial
    from semel.infer.sample import Samples


def new(
    name: Annotated[str, typer.Argument(help="The new pipeline's name: a-z, 0-9 and _.")],
    samples: Annotated[
        list[Path], typer.Argument(metavar="SAMPLE...", help="Files like those it will read.")
    ],
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Take what is proposed, ask nothing.")
    ] = False,
    as_json: console.AsJson = False,
) -> None:
    """Draft a pipeline from sample files, try it on them, and write its commented YAML file.

    Format, schema, record id, times and the files' pattern are inferred; on a terminal each guess
    that matters is asked about. Nothing is overwritten, and neither Airflow nor Spark is needed.

    Example: semel new orders data/orders/*.csv --yes
    """
    from semel.cli.new_questions import asked
    from semel.infer import draft as drafts
    from semel.infer import sample
    from semel.infer.text import yaml_of
    from semel.infer.write import target_of, write
    from semel.sources import quoted

    if not yes and (as_json or not sys.stdin.isatty()):
        files = " ".join(quoted(str(path)) for path in samples)
        raise TerminalError(
            "there is no terminal to ask questions on; --yes takes what is proposed",
            next=f"semel new {quoted(name)} {files} --yes",
        )
    target = target_of(name)
    try:
        read = sample.read(samples)
        made, tried = drafts.widened(drafts.draft(name, read), read)
        if not yes:
            made, tried = asked(made, tried, read)
        found = drafts.find(made, read)
    except SemelError as error:
        error.next = error.next or NO_STEP  # The same samples would fail again.
        error.next += " --yes" * (yes and "semel new " in error.next)
        raise
    write(target, yaml_of(made, tried, read))
    payload = {
        "pipeline": name,
        "file": target,
        "sampled": str(read),
        "records": tried.records,
        "quarantined": tried.quarantined,
        "reasons": tried.reasons,
        "example": tried.example,
        "files_found": found.files,
        "files_refused": found.refused,
        "declared": made.document(),
        "columns": [
            {"name": column, "type": guess.type, "nulls": guess.nulls,
             "exceptions": guess.exceptions, "examples": guess.examples, "notes": guess.notes}
            for column, guess in made.guesses.items()
        ],
        "repeats": made.identity.repeats,
        "record_id_candidates": made.identity.others,
        "next": _next(name, target, found),
    }  # fmt: skip
    console.emit(payload, as_json=as_json, render=lambda: _tell(made, tried, read, target, found))


def _next(name: str, target: Path, found: "SourceFinding") -> list[str]:
    """The commands that come next, as they are typed."""
    here = os.path.relpath(target) if target.is_relative_to(Path.cwd()) else str(target)
    interval = f" --interval {found.days[0]} {found.days[1]}" if found.days else ""
    return [f"semel validate {shlex.quote(here)}", f"semel run {name}{interval}"]


def _tell(
    made: "PipelineDraft", tried: "Trial", read: "Samples", target: Path, found: "SourceFinding"
) -> None:
    """What was read and inferred, what to look at, and what to do now."""
    print(f"read {read}")
    print(
        f"{wording.count(tried.records, 'record')}, {tried.quarantined:,} of them quarantined"
        + (f" ({tried.told}); one of them: {tried.example}" if tried.told else "")
    )
    files = wording.count(found.files, "file")
    print(f"{made.dialect.format}, {len(made.guesses):,} columns; {made.path} finds {files}")
    print(f"wrote {target}")
    print("look at:")
    for line in _doubtful(made):
        print(f"  {line}")
    if found.refused:
        print(f"  files that it finds and refuses: {found.refused:,}; {found.reason}")
    print("next:")
    for command in _next(made.name, target, found):
        print(f"  {command}")
    print(f"or in Airflow, where the DAG {made.name} appears by itself:")
    if found.days is None:
        print("  trigger it")
    else:
        last = found.days[1] - timedelta(days=1)
        print(f"  unpause it, and backfill {found.days[0]} to {last}")


def _doubtful(made: "PipelineDraft") -> list[str]:
    """What a person should look at before the first batch."""
    from semel.infer.text import example

    lines = []
    for name, guess in made.guesses.items():
        if guess.exceptions:
            some = ", ".join(map(example, guess.examples))
            wider = "json" if made.dialect.format == "jsonl" else "string"
            lines.append(
                f"{ascii(name)}: {guess.exceptions:,} of {guess.records:,} are no {guess.type} "
                f"({some}), so their records are dead letters; {wider} takes all"
            )
        if guess.foreign:
            lines.append(f"{ascii(name)}: {guess.foreign}")
    if made.optional:
        lacking = ", ".join(map(ascii, made.optional))
        lines.append(f"optional: {lacking}: some samples lack them, and have null there")
    if made.record_id:
        named = ", ".join(map(ascii, made.record_id))
        lines.append(f"record_id: {named}: records that agree in it are one record")
    else:
        lines.append("no record_id: a record that comes again is not recognised")
    if made.waits:
        lines.append("closed_after: how long whoever writes the files pauses at most")
    return lines
