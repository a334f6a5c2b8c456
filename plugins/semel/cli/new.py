"""`semel new`: draft a pipeline's file from samples."""

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
        bool, typer.Option("--yes", "-y", help="Take each proposal, ask nothing.")
    ] = False,
    as_json: console.AsJson = False,
) -> None:
    """Draft a pipeline from sample files, try it on them, and write its commented YAML file.

    Infers format, schema, record id, times and the files' pattern. On a terminal it asks about
    each guess that matters. Overwrites nothing, and needs neither Airflow nor Spark.

    Example: semel new orders data/orders/*.csv --yes
    """
    from semel.cli.new_questions import ask_user
    from semel.infer import draft as drafts
    from semel.infer import sample
    from semel.infer.text import yaml_of
    from semel.infer.write import target_of, write
    from semel.sources import quoted

    if not yes and (as_json or not sys.stdin.isatty()):
        files = " ".join(quoted(str(path)) for path in samples)
        raise TerminalError(
            "there is no terminal to ask questions on. Accept each proposal with --yes",
            next=f"semel new {quoted(name)} {files} --yes",
        )
    target = target_of(name)
    try:
        sampled = sample.read_samples(samples)
        draft, trial = drafts.widen_to_fit(drafts.draft(name, sampled), sampled)
        if not yes:
            draft, trial = ask_user(draft, trial, sampled)
        finding = drafts.find_files(draft, sampled)
    except SemelError as error:
        error.next = error.next or NO_STEP  # The same samples would fail again.
        error.next += " --yes" * (yes and "semel new " in error.next)
        raise
    write(target, yaml_of(draft, trial, sampled))
    payload = {
        "pipeline": name,
        "file": target,
        "sampled": str(sampled),
        "records": trial.records,
        "quarantined": trial.quarantined,
        "reasons": trial.reasons,
        "example": trial.example,
        "files_found": finding.files,
        "files_refused": finding.refused,
        "declared": draft.document(),
        "columns": [
            {"name": column, "type": guess.type, "nulls": guess.nulls,
             "exceptions": guess.exceptions, "examples": guess.examples, "notes": guess.notes}
            for column, guess in draft.guesses.items()
        ],
        "repeats": draft.identity.repeats,
        "record_id_candidates": draft.identity.others,
        "next": _next(name, target, finding),
    }  # fmt: skip
    console.emit(
        payload, as_json=as_json, render=lambda: _render(draft, trial, sampled, target, finding)
    )


def _next(name: str, target: Path, finding: "SourceFinding") -> list[str]:
    """The next commands, for a shell."""
    here = os.path.relpath(target) if target.is_relative_to(Path.cwd()) else str(target)
    interval = f" --interval {finding.days[0]} {finding.days[1]}" if finding.days else ""
    return [f"semel validate {shlex.quote(here)}", f"semel run {name}{interval}"]


def _render(
    draft: "PipelineDraft", trial: "Trial", samples: "Samples", target: Path,
    finding: "SourceFinding",
) -> None:  # fmt: skip
    """Print the samples, the guesses, the doubtful ones among them, and the next commands."""
    print(f"read {samples}")
    print(
        f"{wording.count(trial.records, 'record')}, {trial.quarantined:,} quarantined"
        + (f" ({trial.reason_counts}), such as: {trial.example}" if trial.reason_counts else "")
    )
    files = wording.count(finding.files, "file")
    print(f"{draft.dialect.format}, {len(draft.guesses):,} columns; {draft.path} finds {files}")
    print(f"wrote {target}")
    print("look at:")
    for line in _doubtful(draft):
        print(f"  {line}")
    if finding.refused:
        print(f"  it refuses {wording.count(finding.refused, 'file')}: {finding.reason}")
    print("next:")
    for command in _next(draft.name, target, finding):
        print(f"  {command}")
    print(f"or in Airflow, where the DAG {draft.name} appears by itself:")
    if finding.days is None:
        print("  trigger it")
    else:
        last = finding.days[1] - timedelta(days=1)
        print(f"  unpause it, and backfill {finding.days[0]} to {last}")


def _doubtful(draft: "PipelineDraft") -> list[str]:
    """The guesses that you should check before the first batch, one a line."""
    from semel.infer.text import example

    lines = []
    for name, guess in draft.guesses.items():
        if guess.exceptions:
            values = ", ".join(map(example, guess.examples))
            wider = "json" if draft.dialect.format == "jsonl" else "string"
            lines.append(
                f"{ascii(name)}: {guess.exceptions:,} of {guess.records:,} values do not fit "
                f"{guess.type} ({values}), so their records are dead letters; {wider} fits all"
            )
        if guess.foreign:
            lines.append(f"{ascii(name)}: {guess.foreign}")
    if draft.optional:
        lacking = ", ".join(map(ascii, draft.optional))
        lines.append(f"optional: {lacking}: some samples lack them; the output has null there")
    if draft.record_id:
        names = ", ".join(map(ascii, draft.record_id))
        lines.append(f"record_id: {names}: records with equal values there are one record")
    else:
        lines.append("no record_id: semel cannot recognise repeats")
    if draft.waits:
        lines.append("closed_after: the longest pause of the program that writes the files")
    return lines
