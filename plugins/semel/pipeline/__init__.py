"""Finds and loads the YAML files that declare pipelines.

`load` checks what depends on the machine (folders, transform modules); `Spec` checks all else.
"""

import ast
import inspect
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, Union

from pydantic import Field, TypeAdapter, ValidationError

from semel import settings
from semel.declare import yaml as spec_yaml
from semel.declare.parts import Model
from semel.declare.place import Location
from semel.declare.yaml import Problem
from semel.errors import AGAIN, SpecError, UsageError
from semel.pipeline import machine
from semel.pipeline.spec import Spec
from semel.sinks import spec as sinks

_Key = TypeVar("_Key")
_SINK = TypeAdapter(Annotated[Union[sinks.declarations()], Field(discriminator="type")])


class UnknownPipelineError(SpecError, UsageError):
    """No pipeline has this name. The message lists all pipelines. `meant`: the unknown name and the
    most similar one.
    """

    meant: tuple[str, str] | None = None


def declarations(folder: Path | None = None) -> list[Path]:
    """The YAML files of a folder, by default settings.pipelines_dir(), sorted by name."""
    folder = folder or settings.pipelines_dir()
    paths = [path for ending in ("*.yaml", "*.yml") for path in folder.glob(ending)]
    return sorted(filter(os.path.isfile, paths))


def load(path: Path) -> Spec:
    """The pipeline of a file. Raises SpecError with all faults, as `file:line: key: message`."""
    document = spec_yaml.read(path)
    try:
        spec = Spec.model_validate(document.data)
    except ValidationError as error:
        raise document.error(spec_yaml.problems_of(error, Spec)) from error
    if document.problems:
        raise document.error([])
    if spec.source.upstream is not None and spec.source.place() is None:
        try:
            spec = _fed(spec, path.parent)
        except (SpecError, ValueError) as error:
            raise document.error([Problem(("source", "pipeline"), str(error))]) from error
    if problems := [Problem(key, why) for key, why in machine.problems(spec)]:
        raise document.error(problems)
    return spec


def _fed(spec: Spec, folder: Path) -> Spec:
    """A pipeline whose source reads the sink of an upstream pipeline in the same folder.

    Raises SpecError if no file declares it, and ValueError if that sink cannot be read.
    """
    path = file_of(spec.source.upstream, folder)
    sink = spec_yaml.read(path).data.get("sink")
    try:
        fed = spec.source.with_sink(_SINK.validate_python(sink))
    except ValidationError as error:
        raise SpecError(f"{path} declares an invalid sink; correct that file") from error
    return spec.model_copy(update={"source": fed})


def load_all() -> dict[str, Spec]:
    """All pipelines by name. Raises SpecError with the faults of all files."""
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
    """The pipelines with a valid file. Invalid files are skipped."""
    specs = []
    for path in declarations():
        with suppress(SpecError):
            specs.append(load(path))
    return specs


def clashes(loaded: dict[Path, Spec]) -> list[str]:
    """Conflicts between valid files, as `file: key: message`."""
    with settings.resolving_once():
        places = [_PipelinePaths.of(path, spec) for path, spec in loaded.items()]
        clashing = [
            why for at, paths in enumerate(places) for other in places[:at]
            for why in _clashes(paths, other)
        ]  # fmt: skip
        return clashing + list(_circle(places))


@dataclass(frozen=True, kw_only=True)
class _PipelinePaths:
    """The locations of a pipeline, resolved once for the comparison of all pairs. `written`: each
    with its key in the declaration. `derived`: locations that semel creates for the sink.
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
                ("sink.archive", spec.archive_location()),
            ],
            derived=_derived(spec),
            read=spec.source.place(),
            folder=spec.source.folder(),
            drained=spec.source.exclusive_inputs,
        )


def _derived(spec: Spec) -> tuple[Location, ...]:
    return spec.sink.derived_places(counts=spec.aggregate is not None)


def _clashes(paths: _PipelinePaths, other: _PipelinePaths) -> Iterator[str]:
    """Conflicts between two pipelines."""
    path, name = paths.path, paths.spec.name
    if name == other.spec.name:
        yield f"{path}: name: {other.path} declares {name!r} too; rename one"
    if why := next(_shared(paths, other), None):
        yield f"{path}: {why}, of {other.path}; keep them apart"
    if why := _same_files(paths, other):
        yield f"{path}: {why} {other.path} reads; leave it out of both"
    # Keeps Q9.
    if shared := sorted(paths.drained & other.drained):
        yield (
            f"{path}: source: {name!r} and {other.spec.name!r} ({other.path}) both receive "
            f"from {shared[0]}, which delivers each message to one receiver only. Give each "
            "pipeline its own"
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
    """Circles of pipelines that read each other's output."""
    reads = upstreams({paths.path: paths.spec for paths in places})
    names = {paths.path: paths.spec.name for paths in places}
    while True:
        try:
            TopologicalSorter(reads).prepare()
            return
        except CycleError as error:
            *way, last = reversed(error.args[1])
        circle = ", which reads ".join(names[path] for path in (*way, last))
        yield (
            f"{last}: source: {circle}: semel would copy the same records again and again. Give "
            "one of the pipelines another source"
        )
        reads[last] = set()


# Keeps P12.
def _shared(paths: _PipelinePaths, other: _PipelinePaths) -> Iterator[str]:
    """Locations of two pipelines that overlap. Plan finds those that the addresses do not show."""
    for (key, place), (_, beside) in product(paths.written, other.written):
        if place.overlaps(beside):
            yield f"{key}: {place} overlaps with {beside}"
    key = paths.written[0][0]
    for derived in filter(other.table.overlaps, paths.derived):
        yield f"{key}: {derived}, which semel makes for {paths.table}, overlaps with {other.table}"
    for derived in filter(paths.table.overlaps, other.derived):
        yield f"{key}: {paths.table} overlaps with {derived}, which semel makes for {other.table}"
    for writer, reader in ((paths, other), (other, paths)):
        if writer.spec.sink.vacuumed and reader.read and writer.table.holds(reader.read):
            yield f"a vacuum of {writer.table} deletes the files of {reader.read}, a source"


def _same_files(paths: _PipelinePaths, other: _PipelinePaths) -> str | None:
    """A conflict if one of two pipelines moves files that the other one may not have read yet."""
    folder, other_folder = paths.folder, other.folder
    source, other_source = paths.spec.source, other.spec.source
    if source.own_folder and other_source.own_folder:
        return None
    if (source.retention is None and other_source.retention is None) or None in (
        folder,
        other_folder,
    ):
        return None
    if folder.is_relative_to(other_folder) or other_folder.is_relative_to(folder):
        return f"source.after_finalize: it moves files of {folder} that"
    return None


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a pipeline's file, for editors. Docstrings describe its keys."""
    from pydantic.json_schema import GenerateJsonSchema

    class Described(GenerateJsonSchema):
        def model_schema(self, schema: Any) -> dict[str, Any]:
            plain, model = super().model_schema(schema), schema["cls"]
            for name, text in _attribute_docstrings(model).items():
                if field := model.model_fields.get(name):
                    plain["properties"][field.alias or name]["description"] = text
            return plain

    plain = Spec.model_json_schema(schema_generator=Described)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | plain


def _attribute_docstrings(model: type[Model]) -> dict[str, str]:
    """The docstring below each attribute of a model. pydantic's `use_attribute_docstrings` would
    parse the source of all models at the start of each command.
    """
    texts = {}
    for base in reversed([base for base in model.__mro__ if issubclass(base, Model)]):
        [definition] = ast.parse(inspect.getsource(base)).body
        for node, below in pairwise(definition.body):
            match node, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    texts[name] = inspect.cleandoc(text)
    return texts


def json_schema_text() -> str:
    """The content of docs/pipeline.schema.json without its last newline."""
    return json.dumps(json_schema(), indent=2)


def find(name: str, folder: Path | None = None) -> Spec:
    """The pipeline of this name in a folder. Invalid files of other pipelines do not matter.

    Raises the errors of `file_of`, and SpecError if the pipeline's file is invalid.
    """
    return load(file_of(name, folder))


def file_of(name: str, folder: Path | None = None) -> Path:
    """The file that declares the pipeline of this name.

    Raises UnknownPipelineError if no file declares it, and SpecError if several do.
    """
    files = declarations(folder)
    declaring = [path for path in files if spec_yaml.declares(path, name)]
    if not declaring:
        where = folder or settings.pipelines_dir()
        names = sorted({*map(spec_yaml.declared_name, files)})
        close = get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        unknown = UnknownPipelineError(
            f"no pipeline is named {name!r} in {where}; {hint}there are: "
            f"{', '.join(names) or 'none'}",
            next=AGAIN if close else "semel batches" if names else "semel new --help",
        )
        unknown.meant = (name, close[0]) if close else None
        raise unknown
    if len(declaring) > 1:
        paths = " and ".join(map(str, declaring))
        raise SpecError(f"the pipeline {name!r} is declared in {paths}; rename or remove one")
    return declaring[0]
