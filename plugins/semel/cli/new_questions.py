"""What `semel new` asks on a terminal: each question has the guess as its answer."""

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


def asked(
    made: "PipelineDraft", tried: "Trial", read: "Samples"
) -> tuple["PipelineDraft", "Trial"]:
    """The draft with a person's answers, and its trial. typer.Abort: it is not to be written."""
    # Arrow and polars have handlers of their own, by which a read of the terminal goes on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _say(f"Read {read}: {count(tried.records, 'record')}, {tried.quarantined:,} of them quarantined.")
    _say(f"Enter takes what stands in brackets; {_NOTHING!r} leaves a key out.")
    for question in (_path, _types, _record_id, _record_time, _interval, _sink):
        made = question(made, read)
    from semel.infer.draft import widened

    made, tried = widened(made, read)
    _say(f"With these answers {tried.quarantined:,} of {tried.records:,} are quarantined.")
    if not typer.confirm(f"Write the pipeline {made.name}?", default=True, err=True):
        raise typer.Abort()
    return made, tried


def _path(made: "PipelineDraft", read: "Samples") -> "PipelineDraft":
    from semel.infer.draft import find

    def change(answer: str) -> "PipelineDraft":
        changed = replace(made, path=answer)
        find(changed, read)
        return changed

    return _ask("Which files does it read", made.path, change)


def _types(made: "PipelineDraft", read: "Samples") -> "PipelineDraft":
    """Only columns with exceptions: the others are what their values are."""
    from semel.infer.text import example

    for name, guess in list(made.guesses.items()):
        if not guess.exceptions:
            continue
        some = ", ".join(map(example, guess.examples))
        what = (
            f"{guess.exceptions:,} of {guess.records:,} values of {ascii(name)} are no "
            f"{guess.type}: {some}. Its type"
        )

        def change(answer: str, made: "PipelineDraft" = made, name: str = name) -> "PipelineDraft":
            guess = made.guesses[name]
            if answer == guess.type:
                return made
            other = replace(guess, type=answer, exceptions=0, examples=())
            return _tried(replace(made, guesses=made.guesses | {name: other}), read)

        made = _ask(what, guess.type, change)
    return made


def _record_id(made: "PipelineDraft", read: "Samples") -> "PipelineDraft":
    others = " or ".join(",".join(one) for one in made.identity.others)
    hint = f" (unique as well: {ascii(others)})" if others else ""

    def change(answer: str) -> "PipelineDraft":
        names = () if answer == _NOTHING else tuple(part.strip() for part in answer.split(","))
        return _tried(replace(made, record_id=names), read)

    default = ",".join(made.record_id) or _NOTHING
    return _ask(f"Columns that identify a record, with commas between{hint}", default, change)


def _record_time(made: "PipelineDraft", read: "Samples") -> "PipelineDraft":
    def change(answer: str) -> "PipelineDraft":
        return _checked(replace(made, record_time=None if answer == _NOTHING else answer))

    return _ask("The column of a record's own time", made.record_time or _NOTHING, change)


def _interval(made: "PipelineDraft", read: "Samples") -> "PipelineDraft":
    from semel.infer.names import Dates

    def change(answer: str) -> "PipelineDraft":
        if answer == _NOTHING:
            return replace(made, dates=None)
        if made.dates is not None and answer == made.dates.pattern:
            return made
        changed = replace(made, dates=Dates(pattern=answer, schedule=None))
        from semel.infer.draft import find

        find(_checked(changed), read)
        return changed

    default = made.dates.pattern if made.dates else _NOTHING
    return _ask("The date in a file's name (strptime's words), or mtime", default, change)


def _sink(made: "PipelineDraft", read: "Samples") -> "PipelineDraft":
    return _ask(
        "The folder of the output", made.sink, lambda answer: _checked(replace(made, sink=answer))
    )


def _checked(made: "PipelineDraft") -> "PipelineDraft":
    """The draft, if it is a declaration. SpecError: it is none."""
    from semel.infer.write import spec_of

    spec_of(made.document())
    return made


def _tried(made: "PipelineDraft", read: "Samples") -> "PipelineDraft":
    """The draft, if a batch of records like the samples' would be taken. SpecError: it would not.
    """
    from semel.errors import SpecError
    from semel.infer.draft import trial

    tried = trial(made, read)
    if not tried.fits:
        raise SpecError(
            f"{tried.quarantined:,} of {tried.records:,} records would be quarantined "
            f"({tried.told}); one of them: {tried.example}"
        )
    return made


def _ask(question: str, default: str, change: Callable[[str], "PipelineDraft"]) -> "PipelineDraft":
    """The draft as the answer changes it; the question is asked again while that is an error."""
    from semel.errors import SemelError

    for left in reversed(range(_TRIES_MAX)):
        answer = typer.prompt(question, default=default, err=True).strip()
        try:
            return change(answer)
        except SemelError as error:
            if not left:
                raise
            _say(str(error))
    raise typer.Abort()


def _say(line: str) -> None:
    typer.echo(line, err=True)
