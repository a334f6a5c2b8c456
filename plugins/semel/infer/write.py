"""The place of a new pipeline's file, and the file itself: it is checked before it has its name."""

import os
import shlex
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from semel import pipeline, settings
from semel.declare import yaml as spec_yaml
from semel.errors import NO_STEP, SpecError, TerminalError
from semel.pipeline.spec import Spec


def target_of(name: str) -> Path:
    """The file that a pipeline of this name is written to.

    SpecError: no pipeline can have this name. TerminalError: the name or the file is taken, or the
    folder of pipelines is not there.
    """
    if why := _name_problem(name):
        raise SpecError(f"{ascii(name)} is no name for a pipeline: {why}", next=NO_STEP)
    folder = settings.pipelines_dir()
    if not folder.is_dir():
        raise TerminalError(
            f"the folder of pipelines, {folder}, is not there; make it, or name yours in "
            f"{settings.PIPELINES_VARIABLE}",
            next=f"mkdir -p {shlex.quote(str(folder))}",
        )
    for path in pipeline.declarations(folder):
        if spec_yaml.declared_name(path) == name:
            raise _taken(name, path)
    for path in (folder / f"{name}.yaml", folder / f"{name}.yml"):
        if os.path.lexists(path):
            raise _taken(name, path)
    return folder / f"{name}.yaml"


def write(path: Path, text: str) -> Spec:
    """Write the file, whole or not at all; what is there is never replaced.

    SpecError: `semel validate` would not accept it. TerminalError: the file is there by now.
    """
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with made.open("x", encoding="utf-8") as file:
            file.write(text)
        spec = pipeline.load(made)
        others = {}
        for other in pipeline.declarations(path.parent):
            with suppress(SpecError):
                others[other] = pipeline.load(other)
        if clashes := pipeline.clashes(others | {made: spec}):
            raise SpecError("\n".join(clashes), next=NO_STEP)
        os.link(made, path)
    except FileExistsError as error:
        raise _taken(path.stem, path) from error
    except SpecError as error:
        raise SpecError(str(error).replace(str(made), str(path)), next=NO_STEP) from error
    except OSError as error:
        raise TerminalError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with suppress(FileNotFoundError):
            made.unlink()
    return spec


def spec_of(document: dict[str, object]) -> Spec:
    """The spec of plain data. SpecError lists what is wrong with it."""
    try:
        return Spec.model_validate(document)
    except ValidationError as error:
        found = spec_yaml.problems_of(error, Spec)
        shown = "; ".join(f"{spec_yaml.key_of(p.key)}: {p.why}" for p in found)
        raise SpecError(shown) from error


def _taken(name: str, path: Path) -> TerminalError:
    return TerminalError(
        f"the name {name!r} is taken by {path}; choose another name, or remove that file",
        next="semel new --help",
    )


def _name_problem(name: str) -> str | None:
    """Why no pipeline can have this name."""
    source = {"type": "files", "path": "in/*", "format": "jsonl", "schema": {"a": "string"}}
    sink = {"type": "files", "path": "out", "format": "parquet"}
    try:
        spec_of({"name": name, "source": source, "sink": sink})
    except SpecError as error:
        return str(error)
    return None
