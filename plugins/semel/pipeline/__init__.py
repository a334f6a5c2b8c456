"""The pipelines that users declare: finding and loading their YAML files.

What depends on the machine (folders, transform modules) is checked by `load`; the rest by `Spec`.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Union

from pydantic import Field, TypeAdapter, ValidationError

from semel import settings
from semel.declare import yaml as spec_yaml
from semel.declare.place import Location
from semel.declare.yaml import Problem
from semel.errors import AGAIN, SpecError
from semel.pipeline import machine
from semel.pipeline.spec import Spec
from semel.sinks import spec as sinks

_SINK = TypeAdapter(Annotated[Union[sinks.declarations()], Field(discriminator="type")])


class UnknownPipelineError(SpecError):
    """No pipeline has this name. The message lists those that there are. `meant`: the name that was
    given, and the one that it is like.
    """

    meant: tuple[str, str] | None = None


def declarations(folder: Path | None = None) -> list[Path]:
    """The YAML files of a folder of pipelines, else of settings.pipelines_dir(), by name."""
    folder = folder or settings.pipelines_dir()
    found = [path for ending in ("*.yaml", "*.yml") for path in folder.glob(ending)]
    return sorted(filter(os.path.isfile, found))


def load(path: Path) -> Spec:
    """The pipeline of one file. SpecError lists all that is wrong, as `file:line: key: message`."""
    document = spec_yaml.read(path)
    try:
        spec = Spec.model_validate(document.data)
    except ValidationError as error:
        raise document.error(spec_yaml.problems_of(error, Spec)) from error
    if document.problems:
        raise document.error([])
    if spec.source.upstream is not None and spec.source.folder() is None:
        try:
            spec = _fed(spec, path.parent)
        except (SpecError, ValueError) as error:
            raise document.error([Problem(("source", "pipeline"), str(error))]) from error
    if problems := [Problem(key, why) for key, why in machine.problems(spec)]:
        raise document.error(problems)
    return spec


def _fed(spec: Spec, folder: Path) -> Spec:
    """A pipeline whose source is the output of one that another file of the folder declares.

    SpecError: none does. ValueError: it cannot be read.
    """
    path = file_of(spec.source.upstream, folder)
    sink = spec_yaml.read(path).data.get("sink")
    try:
        fed = spec.source.fed_by(_SINK.validate_python(sink))
    except ValidationError as error:
        raise SpecError(f"the sink that {path} declares is wrong; correct that file") from error
    return spec.model_copy(update={"source": fed})


def load_all() -> dict[str, Spec]:
    """All pipelines by name. SpecError lists all that is wrong with any of the files."""
    loaded: dict[Path, Spec] = {}
    errors: list[str] = []
    for path in declarations():
        try:
            loaded[path] = load(path)
        except SpecError as error:
            errors.append(str(error))
    if errors := errors + clashes(loaded):
        raise SpecError("\n".join(errors))
    return {spec.name: spec for spec in loaded.values()}


def loadable() -> list[Spec]:
    """The pipelines whose own file is right; the others are passed over."""
    found = []
    for path in declarations():
        with suppress(SpecError):
            found.append(load(path))
    return found


def clashes(loaded: dict[Path, Spec]) -> list[str]:
    """What is wrong between files that are right by themselves, as `file: key: message`."""
    found: list[str] = []
    seen: list[tuple[Path, Spec]] = []
    for path, spec in loaded.items():
        for other_path, other in seen:
            if spec.name == other.name:
                found.append(f"{path}: name: {other_path} declares {spec.name!r} too; rename one")
            if why := next(_shared(spec, other), None):
                found.append(f"{path}: {why}, of {other_path}; keep them apart")
            if why := _same_files(spec, other):
                found.append(f"{path}: {why} {other_path} reads; leave it out of both")
            # Keeps Q9.
            if shared := sorted(spec.source.drained & other.source.drained):
                found.append(
                    f"{path}: source: {spec.name!r} and {other.name!r} ({other_path}) both receive "
                    f"from {shared[0]}, which gives each message to one of them. Give each its own"
                )
        seen.append((path, spec))
    return found + list(_circle(loaded))


# Keeps P29.
def _circle(loaded: dict[Path, Spec]) -> Iterator[str]:
    """Circles of pipelines of which each reads what the one before it writes."""
    reads = {
        path: {
            other
            for other, upstream in loaded.items()
            if other != path and spec.source.reads(upstream.sink.whereabouts())
        }
        for path, spec in loaded.items()
    }
    while True:
        try:
            TopologicalSorter(reads).prepare()
            return
        except CycleError as error:
            *way, last = reversed(error.args[1])
        names = ", which reads ".join(loaded[path].name for path in (*way, last))
        yield (
            f"{last}: source: {names}: what is read would be written again without an end; let one "
            "of them read something else"
        )
        reads[last] = set()


# Keeps P12.
def _shared(spec: Spec, other: Spec) -> Iterator[str]:
    """What of two pipelines lies in one place. What an address hides, plan finds out."""
    for (key, own), (_, place) in product(_written(spec), _written(other)):
        if own.overlaps(place):
            yield f"{key}: {own} overlaps with {place}"
    key = f"sink.{spec.sink.located_by}"
    own, place = spec.sink.whereabouts(), other.sink.whereabouts()
    for derived in filter(place.overlaps, _derived(spec)):
        yield f"{key}: {derived}, which semel makes for {own}, overlaps with {place}"
    for derived in filter(own.overlaps, _derived(other)):
        yield f"{key}: {own} overlaps with {derived}, which semel makes for {place}"
    for one, two in ((spec, other), (other, spec)):
        table, read = one.sink.whereabouts(), two.source.place()
        if one.sink.vacuumed and read and table.holds(read):
            yield f"a vacuum of {table} deletes the files of {read}, a source"


def _written(spec: Spec) -> list[tuple[str, Location]]:
    """The places that a pipeline writes to, each with the key that declares it. The archive of a
    sink that is a mount lies in the sink.
    """
    archive, folder = spec.declared_archive(), spec.sink_path()
    if archive is None:
        beside = folder or settings.data_roots()[0] / spec.name
        archive = beside.parent / sinks.ARCHIVES / beside.name
    places = [(f"sink.{spec.sink.located_by}", spec.sink.whereabouts())]
    return [*places, ("sink.archive", Location.of(archive))]


def _derived(spec: Spec) -> tuple[Location, ...]:
    return spec.sink.derived_places(counts=spec.aggregate is not None)


def _same_files(spec: Spec, other: Spec) -> str | None:
    """How one of two pipelines moves files that the other one may not have read."""
    here, there = spec.source.folder(), other.source.folder()
    if spec.source.own_folder and other.source.own_folder:
        return None
    if not (spec.source.puts_away or other.source.puts_away) or None in (here, there):
        return None
    if here.is_relative_to(there) or there.is_relative_to(here):
        return f"source.after_finalize: it moves files of {here} that"
    return None


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a pipeline's file, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Spec.model_json_schema()


def json_schema_text() -> str:
    """docs/pipeline.schema.json, but for its last newline."""
    return json.dumps(json_schema(), indent=2)


def find(name: str, folder: Path | None = None) -> Spec:
    """The pipeline of this name in a folder, also when another pipeline's file is broken.

    UnknownPipelineError and SpecError as of `file_of`. SpecError also: its file is wrong.
    """
    return load(file_of(name, folder))


def file_of(name: str, folder: Path | None = None) -> Path:
    """The file that declares the pipeline of this name.

    UnknownPipelineError lists what there is. SpecError: two declare it.
    """
    declared = [(spec_yaml.declared_name(path), path) for path in declarations(folder)]
    found = [path for known, path in declared if known == name]
    if not found:
        where = folder or settings.pipelines_dir()
        there = sorted({known for known, _ in declared})
        close = get_close_matches(name, there, n=1)
        told = f"did you mean {close[0]}? " if close else ""
        unknown = UnknownPipelineError(
            f"no pipeline is named {name!r} in {where}; {told}there are: "
            f"{', '.join(there) or 'none'}",
            next=AGAIN if close else "semel batches" if there else "semel new --help",
        )
        unknown.meant = (name, close[0]) if close else None
        raise unknown
    if len(found) > 1:
        shown = " and ".join(map(str, found))
        raise SpecError(f"the pipeline {name!r} is declared in {shown}; rename or remove one")
    return found[0]
