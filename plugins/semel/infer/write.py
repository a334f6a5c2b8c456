"""Write a new pipeline's file. It gets its final name only after a check."""

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
    """The file for a pipeline of this name.

    Raises SpecError if the name is invalid. Raises TerminalError if another pipeline or file has
    the name, or the folder of pipelines is missing.
    """
    if why := _name_problem(name):
        raise SpecError(f"{ascii(name)} is not a valid name for a pipeline: {why}", next=NO_STEP)
    folder = settings.pipelines_dir()
    if not folder.is_dir():
        raise TerminalError(
            f"the folder of pipelines, {folder}, does not exist. Create it, or set "
            f"{settings.PIPELINES_VARIABLE} to yours",
            next=f"mkdir -p {shlex.quote(str(folder))}",
        )
    for path in pipeline.declarations(folder):
        if spec_yaml.declared_name(path) == name:
            raise _name_clash(name, path)
    for path in (folder / f"{name}.yaml", folder / f"{name}.yml"):
        if os.path.lexists(path):
            raise _name_clash(name, path)
    return folder / f"{name}.yaml"


def write(path: Path, text: str) -> Spec:
    """Write the file completely or not at all. It never replaces an existing file.

    Raises SpecError if `semel validate` would not accept it. Raises TerminalError if the file
    exists by now.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
        spec = pipeline.load(temporary)
        others = {}
        for other in pipeline.declarations(path.parent):
            with suppress(SpecError):
                others[other] = pipeline.load(other)
        if clashes := pipeline.clashes(others | {temporary: spec}):
            raise SpecError("\n".join(clashes), next=NO_STEP)
        os.link(temporary, path)
    except FileExistsError as error:
        raise _name_clash(path.stem, path) from error
    except SpecError as error:
        raise SpecError(str(error).replace(str(temporary), str(path)), next=NO_STEP) from error
    except OSError as error:
        raise TerminalError(f"semel cannot write {path}: {error.strerror}") from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    return spec


def spec_of(document: dict[str, object]) -> Spec:
    """The spec of plain data. Raises SpecError with all its errors."""
    try:
        return Spec.model_validate(document)
    except ValidationError as error:
        problems = spec_yaml.problems_of(error, Spec)
        text = "; ".join(f"{spec_yaml.key_of(p.key)}: {p.why}" for p in problems)
        raise SpecError(text) from error


def _name_clash(name: str, path: Path) -> TerminalError:
    return TerminalError(
        f"{path} has the name {name!r} already. Choose another name, or remove that file",
        next="semel new --help",
    )


def _name_problem(name: str) -> str | None:
    """Why a pipeline cannot have this name. Returns None if it can."""
    source = {"type": "files", "path": "in/*", "format": "jsonl", "schema": {"a": "string"}}
    sink = {"type": "files", "path": "out", "format": "parquet"}
    try:
        spec_of({"name": name, "source": source, "sink": sink})
    except SpecError as error:
        return str(error)
    return None
