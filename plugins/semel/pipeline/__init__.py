"""The pipelines that users declare: finding and loading their YAML files.

What depends on the machine (folders, transform modules) is checked by `load`; the rest by `Spec`.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, Union

from pydantic import Field, TypeAdapter, ValidationError

from semel import settings
from semel.declare import yaml as spec_yaml
from semel.declare.place import Location
from semel.declare.yaml import Problem
from semel.errors import AGAIN, SpecError, UsageError
from semel.pipeline import machine
from semel.pipeline.spec import Spec
from semel.sinks import spec as sinks

_Key = TypeVar("_Key")
_SINK = TypeAdapter(Annotated[Union[sinks.declarations()], Field(discriminator="type")])


class UnknownPipelineError(SpecError, UsageError):
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
        fed = spec.source.with_sink(_SINK.validate_python(sink))
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
    with settings.resolving_once():
        places = [_PipelinePaths.of(path, spec) for path, spec in loaded.items()]
        clashing = [
            why for at, own in enumerate(places) for other in places[:at]
            for why in _clashes(own, other)
        ]  # fmt: skip
        return clashing + list(_circle(places))


@dataclass(frozen=True, kw_only=True)
class _PipelinePaths:
    """The places of a pipeline, resolved once: each pair of pipelines is compared. `written`: each
    with the key that declares it; `derived`: places that semel makes for the sink.
    """

    path: Path
    spec: Spec
    table: Location
    written: list[tuple[str, Location]]
    derived: tuple[Location, ...]
    read: Location | None
    folder: Path | None
    drained: set[str]

    @classmethod
    def of(cls, path: Path, spec: Spec) -> Self:
        table = spec.sink.whereabouts()
        return cls(
            path=path,
            spec=spec,
            table=table,
            written=[
                (f"sink.{spec.sink.located_by}", table),
                ("sink.archive", Location.of(_archive(spec))),
            ],
            derived=_derived(spec),
            read=spec.source.place(),
            folder=spec.source.folder(),
            drained=spec.source.exclusive_inputs,
        )


def _derived(spec: Spec) -> tuple[Location, ...]:
    return spec.sink.derived_places(counts=spec.aggregate is not None)


def _archive(spec: Spec) -> Path:
    """The archive as declared, or its default folder. That of a sink that is a mount lies in it."""
    if (declared := spec.declared_archive()) is not None:
        return declared
    beside = spec.sink_path() or settings.data_roots()[0] / spec.name
    return beside.parent / sinks.ARCHIVES / beside.name


def _clashes(own: _PipelinePaths, other: _PipelinePaths) -> Iterator[str]:
    """What is wrong between two pipelines."""
    path, name = own.path, own.spec.name
    if name == other.spec.name:
        yield f"{path}: name: {other.path} declares {name!r} too; rename one"
    if why := next(_shared(own, other), None):
        yield f"{path}: {why}, of {other.path}; keep them apart"
    if why := _same_files(own, other):
        yield f"{path}: {why} {other.path} reads; leave it out of both"
    # Keeps Q9.
    if shared := sorted(own.drained & other.drained):
        yield (
            f"{path}: source: {name!r} and {other.spec.name!r} ({other.path}) both receive "
            f"from {shared[0]}, which gives each message to one of them. Give each its own"
        )


def upstreams(specs: Mapping[_Key, Spec]) -> dict[_Key, set[_Key]]:
    """The pipelines whose output each pipeline reads."""
    with settings.resolving_once():
        outputs = {key: spec.sink.whereabouts() for key, spec in specs.items()}
        return {
            key: {
                other for other, output in outputs.items()
                if other != key and spec.source.reads_from(output)
            }
            for key, spec in specs.items()
        }  # fmt: skip


# Keeps P29.
def _circle(places: list[_PipelinePaths]) -> Iterator[str]:
    """Circles of pipelines of which each reads what the one before it writes."""
    reads = upstreams({own.path: own.spec for own in places})
    names = {own.path: own.spec.name for own in places}
    while True:
        try:
            TopologicalSorter(reads).prepare()
            return
        except CycleError as error:
            *way, last = reversed(error.args[1])
        circle = ", which reads ".join(names[path] for path in (*way, last))
        yield (
            f"{last}: source: {circle}: what is read would be written again without an end; let one "
            "of them read something else"
        )
        reads[last] = set()


# Keeps P12.
def _shared(own: _PipelinePaths, other: _PipelinePaths) -> Iterator[str]:
    """What of two pipelines lies in one place. What an address hides, plan finds out."""
    for (key, place), (_, beside) in product(own.written, other.written):
        if place.overlaps(beside):
            yield f"{key}: {place} overlaps with {beside}"
    key = own.written[0][0]
    for derived in filter(other.table.overlaps, own.derived):
        yield f"{key}: {derived}, which semel makes for {own.table}, overlaps with {other.table}"
    for derived in filter(own.table.overlaps, other.derived):
        yield f"{key}: {own.table} overlaps with {derived}, which semel makes for {other.table}"
    for one, two in ((own, other), (other, own)):
        if one.spec.sink.vacuumed and two.read and one.table.holds(two.read):
            yield f"a vacuum of {one.table} deletes the files of {two.read}, a source"


def _same_files(own: _PipelinePaths, other: _PipelinePaths) -> str | None:
    """How one of two pipelines moves files that the other one may not have read."""
    here, there = own.folder, other.folder
    one, two = own.spec.source, other.spec.source
    if one.own_folder and two.own_folder:
        return None
    if (one.retention is None and two.retention is None) or None in (here, there):
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
    files = declarations(folder)
    found = [path for path in files if spec_yaml.declares(path, name)]
    if not found:
        where = folder or settings.pipelines_dir()
        there = sorted({*map(spec_yaml.declared_name, files)})
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
