"""What the declarations of all sinks have, and which kinds of sink there are."""

import os
from abc import abstractmethod
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from pydantic import field_validator

from semel.declare.context import Context
from semel.declare.parts import GLOB, FolderWindow, Model, path_problem
from semel.declare.place import Location
from semel.errors import TerminalError
from semel.sinks import Sink

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from pyarrow.fs import FileSystem

    from semel.declare.ddl import ColumnType
    from semel.declare.yaml import Key
    from semel.model.manifest import MarkedFile

KINDS = ("files", "objects", "delta", "postgres", "kafka", "bigquery")
"""A kind is a folder here: `spec.py` holds its declaration, and `sink.opened` gives its Sink."""

class Away(Protocol):
    """Output as readers see it who do not see the archive."""

    def markers(self) -> "Iterator[tuple[str, bytes]]":
        """The names and texts of the copies of its markers. SemelError: they cannot be read."""

    def disk(self, files: "Iterable[MarkedFile]") -> "FileSystem":
        """Where these files of its markers are, by their paths."""


ARCHIVES = "_semel"
"""The name of the folder of archives, beside a sink or inside of it."""

NO_WINDOW = "null"
"""What a file's name says in place of a window, where the rows have no time."""

MARKERS = "markers"
"""The folder of the success markers, in an archive."""


class SinkSpec(Model):
    """What the declarations of all sinks have.

    `place`: the keys that say where the rows are, and how one gets there; `way`: those that say
    only the latter; `located_by`: the one that names the place. `vacuumed`: a vacuum of the place
    deletes all that is not the output's. `aside`: keys that do not say what is in a batch. `in_files`: the output is
    files. `in_folder`: they are of a folder, from which ids can be had back; what is no folder may
    refuse rows, and may keep a JSON value in other words.
    """

    place: ClassVar[tuple[str, ...]] = ()
    way: ClassVar[tuple[str, ...]] = ()
    located_by: ClassVar[str]
    vacuumed: ClassVar[bool] = False
    aside: ClassVar[tuple[str, ...]] = ("archive",)
    in_files: ClassVar[bool] = False
    in_folder: ClassVar[bool] = False
    counts_refused: ClassVar[str] = ""
    """Why it takes no partial rows of windows; empty: it does."""

    type: str
    """The kind of sink."""

    @field_validator("archive", check_fields=False)
    @classmethod
    def _archive(cls, path: str | None) -> str | None:
        return folder_of(path)

    @property
    def folders(self) -> tuple[str, ...]:
        """The names of the output's folders, outermost first: of columns and of windows."""
        return tuple(one if isinstance(one, str) else one.name for one in self.partition_by)

    @property
    def windows(self) -> tuple[FolderWindow, ...]:
        """Those that are windows of time."""
        return tuple(one for one in self.partition_by if not isinstance(one, str))

    @property
    def takes_positions(self) -> bool:
        """Whether the rows come to the writer with their positions."""
        return self.position_columns or self.shards > 1

    @property
    def replaces_rows(self) -> bool:
        """Whether later batches take the place of rows of earlier ones."""
        return False

    @property
    def connections(self) -> tuple[str, ...]:
        """The names of the Airflow connections that it uses."""
        return ()

    def named_columns(self) -> "Iterable[tuple[Key, str]]":
        """The columns of the output that it names, besides folders, each with its key."""
        return ()

    def column_problems(
        self, columns: "Mapping[str, ColumnType]", there: str
    ) -> "Iterator[tuple[Key, str]]":
        """What of it does not fit an output of these columns, by its keys. `there` lists them."""
        for key, name in self.named_columns():
            if name not in columns:
                yield key, f"{name!r} is not a column; {there}"

    def counting_problems(self, names: "Collection[str]") -> "Iterator[tuple[Key, str]]":
        """Why it takes no partial rows of windows, by its keys. `names`: their columns."""
        if self.counts_refused:
            yield ("type",), f"{self.type} does not go with aggregate: {self.counts_refused}"
        if self.shards > 1:
            yield ("shards",), "goes by a record's position, which no row of a window has"
        if self.position_columns:
            yield ("position_columns",), "a row of a window has no position"
        for at, one in enumerate(self.partition_by):
            name = one if isinstance(one, str) else one.of
            if name not in names:
                yield ("partition_by", at), f"{name!r} is not one of {', '.join(names)}"

    def open(self, context: Context, address: str | None, looks: object) -> Sink:
        """The sink; one of a folder is at `address`, and keeps what it saw there in `looks`.

        ImportError: a package is not installed. TerminalError: it cannot be reached from here.
        """
        opened = import_module(f"semel.sinks.{self.type}.sink").opened
        return opened(context, address, looks)

    @abstractmethod
    def describe(self) -> str:
        """Where rows go, in Markdown."""

    @abstractmethod
    def dataset(self, address: str) -> tuple[str, str]:
        """Namespace and name of the target, as OpenLineage's documents of names have them."""

    @abstractmethod
    def whereabouts(self) -> Location:
        """What it writes to. TerminalError: a folder that lies outside the data roots."""

    def derived_places(self, *, counts: bool) -> tuple[Location, ...]:  # noqa: ARG002
        """The places next to `whereabouts` that semel makes, by names of its own. `counts`: the
        pipeline counts windows.
        """
        return ()

    def folder(self) -> Path | None:
        """The absolute folder of the output; None where it is no folder.

        TerminalError: it lies outside the data roots.
        """
        return None

    @classmethod
    def away(cls, url: str, connection: str | None) -> Away | None:  # noqa: ARG003
        """The output at a URL. None: it is no URL of this kind's. SemelError: it is not reached."""
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

        `window`: the value of its window's folder, None where the rows have no time.
        """
        numbers = {"batch": batch, "part": part, "fence": fence, "shard": shard}
        return self.file_name.format(pipeline=pipeline, window=window or NO_WINDOW, **numbers)


class ServiceSinkSpec(SinkSpec):
    """A sink that is no folder: tasks write Parquet files, whose rows it takes."""

    format: ClassVar[str] = "parquet"
    partition_by: ClassVar[tuple[str, ...]] = ()
    file_name: ClassVar[str] = "{pipeline}-b{batch:08d}-{part:05d}"
    shards: ClassVar[int] = 1

    @property
    def connections(self) -> tuple[str, ...]:
        """The one that is declared."""
        return (self.connection,) if self.connection else ()


def declarations() -> tuple[type[SinkSpec], ...]:
    """The declarations of all kinds. No Arrow and no client library is imported for them."""
    return tuple(import_module(f"semel.sinks.{kind}.spec").DECLARED for kind in KINDS)


def away(url: str, connection: str | None = None) -> Away:
    """The output at a URL, of whichever kind. TerminalError: it is none."""
    found = (kind.away(url, connection) for kind in declarations())
    if there := next(filter(None, found), None):
        return there
    raise TerminalError("the URL is none of a sink that can be read, such as s3://bucket/prefix")


# Keeps L2.
def archive_of(sink: Path) -> Path:
    """The archive of a sink folder, or the place for a new one.

    TerminalError: there are two.
    """
    beside, inside = sink.parent / ARCHIVES / sink.name, sink / ARCHIVES
    there = [archive for archive in (beside, inside) if (archive / MARKERS).is_dir()]
    if len(there) > 1:
        raise TerminalError(
            f"{beside} and {inside} both hold markers, and a sink has one archive; move the one "
            "that does not belong here aside, or declare sink.archive"
        )
    if there:
        return there[0]
    return inside if inside.is_dir() or _is_mount(sink) else beside


def _is_mount(sink: Path) -> bool:
    """Whether a folder is a mount, so that no file beside it can be linked into it."""
    try:
        return os.path.ismount(sink) or sink.stat().st_dev != sink.parent.stat().st_dev
    except (FileNotFoundError, NotADirectoryError):
        return False


def folder_of(path: str | None) -> str | None:
    """The declared path of one folder. ValueError: it is none."""
    if path is None:
        return None
    if why := path_problem(path):
        raise ValueError(f"{path!r} {why}")
    if GLOB.search(path):
        raise ValueError(f"{path!r} holds *, ? or [: it is one folder")
    return path
