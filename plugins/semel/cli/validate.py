"""`semel validate`: find errors in pipeline files before Airflow reads them."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel import console
from semel.cli.check import describe_notify

if TYPE_CHECKING:
    from semel.pipeline.spec import Spec


_PAUSED = (
    "its DAG runs {when} and arrives paused, unless Airflow's settings say otherwise: "
    "airflow dags unpause {name}"
)


def _when(schedule: str) -> str:
    from semel.pipeline.spec import UPSTREAM

    if schedule == UPSTREAM:
        return "when the pipeline that it reads finalizes a batch,"
    return f"at {schedule!r} (UTC)"


def _notes(spec: "Spec") -> list[str]:
    """Warnings: connections of `notify` that this shell cannot use (Airflow may have others), a
    lookback that is too short for late parts, and the time that `window.delay` must cover.
    """
    from semel.declare.durations import format_duration

    notes = []
    if spec.source.select == "interval" and spec.source.lookback < spec.delay:
        wanted = format_duration(spec.delay)
        notes.append(
            f"window.delay is {wanted}, longer than source.lookback: no run reads records that "
            f"come in between. Declare source.lookback: {wanted}"
        )
    elif why := spec.source.lookback_advice():
        notes.append(why)
    if spec.delay and (why := spec.source.explain_delay()):
        notes.append(why)
    states = describe_notify(spec.notify)
    return [*notes, *(f"notify: {name} {why}: {remedy}" for name, why, remedy in states if remedy)]


def _file(argument: Path) -> Path:
    """The file itself, or the file that declares the pipeline of this name."""
    from semel import pipeline

    is_name = argument.name == str(argument) and not argument.suffix and not argument.exists()
    return pipeline.file_of(argument.name) if is_name else argument


def _neighbours(loaded: "dict[Path, Spec]") -> "dict[Path, Spec]":
    """The other pipelines in the same folders, except those with errors."""
    from semel import pipeline
    from semel.errors import SpecError

    resolved, others = {path.resolve() for path in loaded}, {}
    for folder in {path.parent for path in loaded}:
        for path in pipeline.declarations(folder):
            with suppress(SpecError):
                if path.resolve() not in resolved:
                    others[path] = pipeline.load(path)
    return others


def validate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE", help="Pipeline files, or names; all pipelines when left out."
        ),
    ] = None,
    print_schema: Annotated[
        bool, typer.Option("--print-schema", help="Print the JSON Schema for editors, and end.")
    ] = False,
    as_json: console.AsJson = False,
) -> None:
    """Check pipeline files: print every error with its file, line and key. Exit 1 if there is one.

    Example: semel validate dags/pipelines/flights.yaml
    """
    from semel import pipeline
    from semel.errors import SpecError

    if print_schema:
        schema = pipeline.json_schema()
        console.emit(schema, as_json=as_json, render=lambda: print(pipeline.json_schema_text()))
        return
    checked: list[dict[str, Any]] = []
    loaded: dict[Path, pipeline.Spec] = {}
    for path in map(_file, files) if files else pipeline.declarations():
        try:
            spec = loaded[path] = pipeline.load(path)
            checked.append(
                {
                    "file": path,
                    "name": spec.name,
                    "digest": spec.digest(),
                    "schedule": spec.schedule,
                    "notes": _notes(spec),
                    "errors": [],
                }
            )
        except SpecError as error:
            checked.append({"file": path, "errors": str(error).splitlines()})
    neighbours = _neighbours(loaded)
    older = pipeline.clashes(neighbours)
    clashes = [clash for clash in pipeline.clashes(neighbours | loaded) if clash not in older]
    count = len(clashes) + sum(len(file["errors"]) for file in checked)

    def render() -> None:
        for file in checked:
            if not file["errors"]:
                print(f"OK {file['file']}: {file['name']}, digest {file['digest'][:12]}")
                if file["schedule"]:
                    when = _when(file["schedule"])
                    print(f"   {_PAUSED.format(**file, when=when)}")
                for note in file["notes"]:
                    print(f"   {note}")
        for line in [line for file in checked for line in file["errors"]] + clashes:
            print(line)
        if not checked:
            print("there are no pipeline files")

    payload = {"ok": not count, "files": checked, "clashes": clashes}
    console.emit(payload, as_json=as_json, render=render)
    if count:
        raise typer.Exit(1)
