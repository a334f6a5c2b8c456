"""The common part of all sink declarations, and the list of the kinds of sink."""

import os
from abc import abstractmethod
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from pydantic import field_validator

from semel.clients.objects.access import check_url
from semel.declare.context import Context
from semel.declare.parts import GLOB, FolderWindow, Model, path_problem
from semel.declare.place import Location
from semel.errors import TerminalError
from semel.sinks import Sink
from semel.storage import StorePath, packs

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from pyarrow.fs import FileSystem

    from semel.declare.ddl import ColumnType
    from semel.declare.yaml import Key
    from semel.model.manifest import MarkedFile

KINDS = ("files", "objects", "delta", "postgres", "kafka", "bigquery")
"""A kind is a folder here: `spec.py` has its declaration, `sink.open_sink` returns its Sink."""

class RemoteOutput(Protocol):
    """An output that readers without access to the archive can read."""

    def markers(self) -> "Iterator[tuple[str, bytes]]":
        """The names and texts of the copies of markers. Raises SemelError if one is unreadable."""

    def file_system(self, files: "Iterable[MarkedFile]") -> "FileSystem":
        """A file system with these files of the markers, by their paths."""


ARCHIVES = "_semel"
"""The name of the folder of archives, next to a sink or inside it."""

NO_WINDOW = "null"
"""The window in a file's name if the rows lack a time."""


class SinkSpec(Model):
    """The common part of all sink declarations.

    - `place`: the keys of the place of the rows, with those of the access to it
    - `way`: the keys of the access only
    - `located_by`: the key that names the place
    - `vacuumed`: a vacuum of the place deletes all files except the output's
    - `aside`: keys that do not change the contents of a batch
    - `in_files`: the output consists of files
    - `in_folder`: the files are in a folder, from which adopt can recover ids; other sinks may
      refuse rows, and may rewrite a JSON value
    """

    place: ClassVar[tuple[str, ...]] = ()
    way: ClassVar[tuple[str, ...]] = ()
    located_by: ClassVar[str]
    vacuumed: ClassVar[bool] = False
    aside: ClassVar[tuple[str, ...]] = ("archive",)
    in_files: ClassVar[bool] = False
    in_folder: ClassVar[bool] = False
    no_aggregate_reason: ClassVar[str] = ""
    """Why this kind does not work with `aggregate`; empty if it does."""

    type: str
    """The kind of sink."""

    @field_validator("archive", check_fields=False)
    @classmethod
    def _archive(cls, path: str | None) -> str | None:
        if path is None or not StorePath.is_url(path):
            return checked_folder(path)
        if cls.in_folder:
            raise ValueError("is a URL, and a folder of files needs its archive next to it")
        return check_url(path)

    @property
    def folders(self) -> tuple[str, ...]:
        """The names of the output's folders, outermost first: of columns and of windows."""
        return tuple(one if isinstance(one, str) else one.name for one in self.partition_by)

    @property
    def windows(self) -> tuple[FolderWindow, ...]:
        """The items of `partition_by` that are windows of time."""
        return tuple(one for one in self.partition_by if not isinstance(one, str))

    @property
    def takes_positions(self) -> bool:
        """True if the writer needs each row's position."""
        return self.position_columns or self.shards > 1

    @property
    def replaces_rows(self) -> bool:
        """True if rows of later batches replace those of earlier ones."""
        return False

    @property
    def connections(self) -> tuple[str, ...]:
        """The names of its Airflow connections."""
        return ()

    def named_columns(self) -> "Iterable[tuple[Key, str]]":
        """The output columns that the declaration names, except folders, each with its key."""
        return ()

    def column_problems(
        self, columns: "Mapping[str, ColumnType]", listing: str
    ) -> "Iterator[tuple[Key, str]]":
        """Problems of the declaration with an output of `columns`, by key. `listing` is the text
        that lists them.
        """
        for key, name in self.named_columns():
            if name not in columns:
                yield key, f"{name!r} is not a column; {listing}"

    def path_problems(self, pipeline: str) -> "Iterator[tuple[Key, str]]":  # noqa: ARG002
        """Problems of the declared place with the names of a pipeline's files, by key."""
        yield from ()

    def aggregate_problems(self, names: "Collection[str]") -> "Iterator[tuple[Key, str]]":
        """Problems of the declaration with `aggregate`, by key. `names`: its columns."""
        if self.no_aggregate_reason:
            yield ("type",), f"{self.type} does not go with aggregate: {self.no_aggregate_reason}"
        if self.shards > 1:
            yield ("shards",), "needs each record's position, which a window's rows lack"
        if self.position_columns:
            yield ("position_columns",), "the rows of a window lack a position"
        for at, item in enumerate(self.partition_by):
            name = item if isinstance(item, str) else item.of
            if name not in names:
                yield ("partition_by", at), f"{name!r} is not one of {', '.join(names)}"

    def open(self, context: Context, address: str | None, files: object) -> Sink:
        """The sink. A folder sink is at `address`, and shares the checksums in `files`.

        Raises ImportError if a package is not installed, TerminalError if this process cannot
        reach the sink.
        """
        open_sink = import_module(f"semel.sinks.{self.type}.sink").open_sink
        return open_sink(context, address, files)

    @abstractmethod
    def describe(self) -> str:
        """The target of the rows, in Markdown."""

    @abstractmethod
    def dataset(self, address: str) -> tuple[str, str]:
        """Namespace and name of the target, by OpenLineage's naming documents."""

    @abstractmethod
    def whereabouts(self) -> Location:
        """The target. Raises TerminalError if it is a folder outside the data roots."""

    def derived_places(self, *, counts: bool) -> tuple[Location, ...]:  # noqa: ARG002
        """The other places that semel creates next to `whereabouts`. `counts`: the pipeline has
        `aggregate`.
        """
        return ()

    def folder(self) -> Path | None:
        """The absolute folder of the output. Returns None if the sink is not a folder.

        Raises TerminalError if the folder is outside the data roots.
        """
        return None

    @classmethod
    def output_at(cls, url: str, connection: str | None) -> RemoteOutput | None:  # noqa: ARG003
        """The output at a URL. Returns None if another kind has such URLs. Raises SemelError if
        the store does not answer.
        """
        return None

    def stem(
        self,
        pipeline: str,
        *,
        batch: int,
        part: int,
        fence: int,
        shard: int = 0,
        window: str | None = None,
    ) -> str:
        """The final name of a file, without extension; unique for (batch, part).

        `window`: the value of its window's folder. None if the rows lack a time.
        """
        numbers = {"batch": batch, "part": part, "fence": fence, "shard": shard}
        return self.file_name.format(pipeline=pipeline, window=window or NO_WINDOW, **numbers)


class ServiceSinkSpec(SinkSpec):
    """A sink that loads its rows from the Parquet files that tasks write."""

    format: ClassVar[str] = "parquet"
    partition_by: ClassVar[tuple[str, ...]] = ()
    file_name: ClassVar[str] = "{pipeline}-b{batch:08d}-{part:05d}"
    shards: ClassVar[int] = 1

    @property
    def connections(self) -> tuple[str, ...]:
        """The declared connection, if any."""
        return (self.connection,) if self.connection else ()


def declarations() -> tuple[type[SinkSpec], ...]:
    """The declarations of all kinds. Imports neither Arrow nor a client library."""
    return tuple(import_module(f"semel.sinks.{kind}.spec").DECLARED for kind in KINDS)


def open_output_at(url: str, connection: str | None = None) -> RemoteOutput:
    """The output at a URL. Raises TerminalError if no kind of sink has such URLs."""
    outputs = (kind.output_at(url, connection) for kind in declarations())
    if output := next(filter(None, outputs), None):
        return output
    raise TerminalError(
        "the URL is not one of an object store. Write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or "
        "az://CONTAINER/PREFIX"
    )


# Keeps L2.
def archive_of(sink: Path) -> Path:
    """The archive of a sink folder, or the place for a new one. Raises TerminalError if there are
    two.
    """
    beside, inside = sink.parent / ARCHIVES / sink.name, sink / ARCHIVES
    archives = [archive for archive in (beside, inside) if (archive / packs.MARKERS).is_dir()]
    if len(archives) > 1:
        raise TerminalError(
            f"{beside} and {inside} both have markers, and a sink has one archive. Move the wrong "
            "one away, or declare sink.archive"
        )
    if archives:
        return archives[0]
    return inside if inside.is_dir() or _is_mount(sink) else beside


def _is_mount(sink: Path) -> bool:
    """True if a folder is a mount point: files next to it cannot be linked into it."""
    try:
        return os.path.ismount(sink) or sink.stat().st_dev != sink.parent.stat().st_dev
    except (FileNotFoundError, NotADirectoryError):
        return False


def checked_folder(path: str | None) -> str | None:
    """The declared path. Raises ValueError if it is not the path of one folder."""
    if path is None:
        return None
    if why := path_problem(path):
        raise ValueError(f"{path!r} {why}")
    if GLOB.search(path):
        raise ValueError(f"{path!r} has *, ? or [; declare one folder, without a pattern")
    return path
