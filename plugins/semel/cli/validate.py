"""`semel validate`: what is wrong with pipeline files, before Airflow sees them."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel import console

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
    """Warnings: connections of `notify` that this shell cannot use (Airflow may have others), late
    parts that no run looks back for, and what `window.delay` must cover.
    """
    from semel.declare.durations import format_duration

    notes = []
    if spec.source.select == "interval" and spec.source.lookback < spec.delay:
        wanted = format_duration(spec.delay)
        notes.append(
            f"window.delay is {wanted}, and no run looks back so far: what comes within it, but "
            f"after the run of its interval, stays unread. Declare source.lookback: {wanted}"
        )
    elif why := spec.source.lookback_advice():
        notes.append(why)
    if spec.delay and (why := spec.source.explain_delay()):
        notes.append(why)
    if not spec.notify:
        return notes
    from semel.airflow import notify

    seen = [(name, *notify.in_this_shell(name)) for name in spec.notify]
    return [*notes, *(f"notify: {name} {why}: {remedy}" for name, why, remedy in seen if remedy)]


def _file(given: Path) -> Path:
    """A file, or the one that declares the pipeline of this name."""
    from semel import pipeline

    is_name = given.name == str(given) and not given.suffix and not given.exists()
    return pipeline.file_of(given.name) if is_name else given


def _beside(loaded: "dict[Path, Spec]") -> "dict[Path, Spec]":
    """The pipelines whose files lie in the same folders, where those are right."""
    from semel import pipeline
    from semel.errors import SpecError

    given, found = {path.resolve() for path in loaded}, {}
    for folder in {path.parent for path in loaded}:
        for path in pipeline.declarations(folder):
            with suppress(SpecError):
                if path.resolve() not in given:
                    found[path] = pipeline.load(path)
    return found


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
    """Check pipeline files: every error with file, line and key. Exit 1 when there is one.

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
    beside = _beside(loaded)
    known = pipeline.clashes(beside)
    clashes = [clash for clash in pipeline.clashes(beside | loaded) if clash not in known]
    count = len(clashes) + sum(len(one["errors"]) for one in checked)

    def render() -> None:
        for one in checked:
            if not one["errors"]:
                print(f"OK {one['file']}: {one['name']}, digest {one['digest'][:12]}")
                if one["schedule"]:
                    when = _when(one["schedule"])
                    print(f"   {_PAUSED.format(**one, when=when)}")
                for note in one["notes"]:
                    print(f"   {note}")
        for line in [line for one in checked for line in one["errors"]] + clashes:
            print(line)
        if not checked:
            print("there are no pipeline files")

    payload = {"ok": not count, "files": checked, "clashes": clashes}
    console.emit(payload, as_json=as_json, render=render)
    if count:
        raise typer.Exit(1)
