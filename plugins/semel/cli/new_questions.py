"""The questions of `semel new` on a terminal. The default answer of each is the guess."""

import signal
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from semel.declare.wording import count

if TYPE_CHECKING:
    from semel.infer.draft import PipelineDraft, Trial
    from semel.infer.sample import Samples

_NOTHING = "none"
_TRIES_MAX = 5


def ask_user(
    draft: "PipelineDraft", trial: "Trial", samples: "Samples"
) -> tuple["PipelineDraft", "Trial"]:
    """The draft with a person's answers, and its trial. Raises typer.Abort if the person declines.
    """
    # With the handlers of Arrow and polars, a read of the terminal ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _say(f"Read {samples}: {count(trial.records, 'record')}, {trial.quarantined:,} quarantined.")
    _say(f"Enter takes the proposal in brackets; {_NOTHING!r} leaves a key out.")
    for question in (_path, _types, _record_id, _record_time, _interval, _sink):
        draft = question(draft, samples)
    from semel.infer.draft import widen_to_fit

    draft, trial = widen_to_fit(draft, samples)
    _say(f"With these answers {trial.quarantined:,} of {trial.records:,} are quarantined.")
    if not typer.confirm(f"Write the pipeline {draft.name}?", default=True, err=True):
        raise typer.Abort()
    return draft, trial


def _path(draft: "PipelineDraft", samples: "Samples") -> "PipelineDraft":
    from semel.infer.draft import find_files

    def change(answer: str) -> "PipelineDraft":
        changed = replace(draft, path=answer)
        find_files(changed, samples)
        return changed

    return _ask("Which files does it read", draft.path, change)


def _types(draft: "PipelineDraft", samples: "Samples") -> "PipelineDraft":
    """Ask only about columns with exceptions: all values of the other columns fit their type."""
    from semel.infer.text import example

    for name, guess in list(draft.guesses.items()):
        if not guess.exceptions:
            continue
        values = ", ".join(map(example, guess.examples))
        question = (
            f"{guess.exceptions:,} of {guess.records:,} values of {ascii(name)} do not fit "
            f"{guess.type}: {values}. Its type"
        )

        def change(
            answer: str, draft: "PipelineDraft" = draft, name: str = name
        ) -> "PipelineDraft":
            guess = draft.guesses[name]
            if answer == guess.type:
                return draft
            other = replace(guess, type=answer, exceptions=0, examples=())
            return _tried(replace(draft, guesses=draft.guesses | {name: other}), samples)

        draft = _ask(question, guess.type, change)
    return draft


def _record_id(draft: "PipelineDraft", samples: "Samples") -> "PipelineDraft":
    others = " or ".join(",".join(columns) for columns in draft.identity.others)
    hint = f" (unique as well: {ascii(others)})" if others else ""

    def change(answer: str) -> "PipelineDraft":
        names = () if answer == _NOTHING else tuple(part.strip() for part in answer.split(","))
        return _tried(replace(draft, record_id=names), samples)

    default = ",".join(draft.record_id) or _NOTHING
    return _ask(f"Columns that identify a record, with commas between{hint}", default, change)


def _record_time(draft: "PipelineDraft", samples: "Samples") -> "PipelineDraft":
    def change(answer: str) -> "PipelineDraft":
        return _checked(replace(draft, record_time=None if answer == _NOTHING else answer))

    return _ask("The column of a record's own time", draft.record_time or _NOTHING, change)


def _interval(draft: "PipelineDraft", samples: "Samples") -> "PipelineDraft":
    from semel.infer.names import Dates

    def change(answer: str) -> "PipelineDraft":
        if answer == _NOTHING:
            return replace(draft, dates=None)
        if draft.dates is not None and answer == draft.dates.pattern:
            return draft
        changed = replace(draft, dates=Dates(pattern=answer, schedule=None))
        from semel.infer.draft import find_files

        find_files(_checked(changed), samples)
        return changed

    default = draft.dates.pattern if draft.dates else _NOTHING
    return _ask("The date in a file's name (in strptime's format), or mtime", default, change)


def _sink(draft: "PipelineDraft", samples: "Samples") -> "PipelineDraft":
    return _ask(
        "The folder of the output", draft.sink, lambda answer: _checked(replace(draft, sink=answer))
    )


def _checked(draft: "PipelineDraft") -> "PipelineDraft":
    """The draft itself. Raises SpecError if it is not a valid declaration."""
    from semel.infer.write import spec_of

    spec_of(draft.document())
    return draft


def _tried(draft: "PipelineDraft", samples: "Samples") -> "PipelineDraft":
    """The draft itself. Raises SpecError if it would quarantine too many of the samples' records.
    """
    from semel.errors import SpecError
    from semel.infer.draft import trial as try_draft

    trial = try_draft(draft, samples)
    if not trial.fits:
        raise SpecError(
            f"{trial.quarantined:,} of {trial.records:,} records would be quarantined "
            f"({trial.reason_counts}), such as: {trial.example}"
        )
    return draft


def _ask(question: str, default: str, change: Callable[[str], "PipelineDraft"]) -> "PipelineDraft":
    """The draft that `change` makes of the answer. Asks again while the answer is an error."""
    from semel.errors import SemelError

    for remaining in reversed(range(_TRIES_MAX)):
        answer = typer.prompt(question, default=default, err=True).strip()
        try:
            return change(answer)
        except SemelError as error:
            if not remaining:
                raise
            _say(str(error))
    raise typer.Abort()


def _say(line: str) -> None:
    typer.echo(line, err=True)
