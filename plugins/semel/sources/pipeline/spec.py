"""The declaration of another pipeline's output as a source."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator

from semel import settings
from semel.clients.objects import access
from semel.clients.objects.access import URL
from semel.declare import ddl
from semel.declare.parts import NAME, OnRefused, Select, Text, Unknown
from semel.declare.place import Location
from semel.errors import TerminalError
from semel.formats.table import source_format
from semel.sinks.spec import SinkSpec, checked_folder
from semel.sources.messages import CONNECTION
from semel.sources.spec import CsvOptions, SourceSpec


class PipelineSourceSpec(SourceSpec):
    """The finalized batches of another pipeline. A plan takes whole batches."""

    unit: ClassVar[str] = "rows"
    page: ClassVar[str] = "chain"
    part: ClassVar[str] = "batch"
    complete: ClassVar[str] = "row"
    awaited: ClassVar[str] = "batches that have claimed an output"
    dated: ClassVar[bool] = False
    expires: ClassVar[str] = (
        "a replay of the upstream pipeline has replaced some of its output"
    )
    limits: ClassVar[str] = "limits.records_per_batch_max"
    plan_keys: ClassVar[tuple[str, ...]] = (*SourceSpec.plan_keys, "connection")
    begins_anywhere: ClassVar[bool] = False
    folder_key: ClassVar[str | None] = "url"
    format: ClassVar[str] = "parquet"

    type: Literal["pipeline"]
    """The kind of source."""
    pipeline: str = Field(pattern=NAME)
    """The name of the pipeline whose output is read. Its sink is files or objects, in format:
    parquet."""
    path: Text | None = None
    """The folder of that output. null: the place in that pipeline's file, next to this file."""
    archive: Text | None = None
    """The folder of its markers, if its sink declares one."""
    url: str | None = Field(default=None, pattern=URL)
    """In place of path: the prefix of that output in an object store."""
    connection: str | None = Field(default=None, pattern=CONNECTION)
    """The Airflow connection for the url; on the command line and in Spark's executors the variable
    AIRFLOW_CONN_<CONNECTION>. Without one, the machine's role."""

    @property
    def upstream(self) -> str:
        """The name of the pipeline whose output is read."""
        return self.pipeline

    def with_sink(self, sink: SinkSpec) -> Self:
        """A copy that reads the output of a sink. Raises ValueError if semel cannot read it."""
        if not sink.in_files:
            raise ValueError(
                f"{self.pipeline!r} writes to {sink.whereabouts()}, whose rows have no stable "
                "order; a source of type pipeline reads only sinks of files and objects"
            )
        if sink.format != self.format:
            raise ValueError(
                f"{self.pipeline!r} writes {sink.format}; a source of type pipeline reads only a "
                f"sink with format: {self.format}"
            )
        place = ("path", "archive") if sink.in_folder else ("url", "connection")
        return self.model_copy(update={name: getattr(sink, name) for name in place})

    @property
    def unparsed_columns(self) -> dict[str, str]:
        """All columns, each with its origin."""
        return {name: f"column {name}" for name in self.columns}

    @property
    def on_refused_or_default(self) -> OnRefused:
        """By default a run warns, and takes the other batches."""
        return self.on_refused or OnRefused.WARN

    def describe(self) -> str:
        """Name the upstream pipeline."""
        return f"the finalized batches of `{self.pipeline}`"

    def selection_rule(self) -> str:
        """Plan does not select batches by a time."""
        return "its arrival"

    def folder_problem(self) -> str | None:
        """Why the archive cannot be read, or None."""
        try:
            self.markers()
        except TerminalError as error:
            return str(error)
        return None

    @property
    def connections(self) -> tuple[str, ...]:
        """The Airflow connection, if one is declared."""
        return (self.connection,) if self.connection else ()

    def place(self) -> Location | None:
        """The folder or prefix of that output. None before that pipeline's file was read."""
        if self.url is not None:
            return access.location(access.StoreLocation.of(self.url), self.connection)
        return super().place()

    def datasets(self, claimed: Callable[[], Iterable[str]]) -> list[tuple[str, str]]:
        """The folder or prefix of that output."""
        if self.url is not None:
            return [access.StoreLocation.of(self.url).dataset]
        return super().datasets(claimed)

    def reads_from(self, place: Location) -> bool:
        """Whether a location is that output's folder or prefix."""
        own = self.place()
        return own is not None and own.holds(place) and place.holds(own)

    def folder(self) -> Path | None:
        """The folder of that output. Returns None before that pipeline's file was read."""
        return None if self.path is None else settings.allowed(self.path, "source.path")

    def markers(self) -> Path | None:
        """The declared archive: the folder of its markers and backups."""
        return None if self.archive is None else settings.allowed(self.archive, "source.archive")

    _url = field_validator("url", mode="before")(access.check_url)

    @field_validator("path", "archive")
    @classmethod
    def _path(cls, path: str | None) -> str | None:
        return checked_folder(path)

    def _problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        yield from super()._problems()
        if self.select is not Select.ARRIVAL:
            yield ("select",), (
                "must be arrival: plan takes a batch of another pipeline once it is finalized"
            )
        if self.archive is not None and self.path is None:
            yield ("archive",), "does not apply without path: semel finds both by name"
        if self.connection is not None and self.url is None:
            yield ("connection",), "does not apply without url: semel finds both by name"
        if self.url is not None and self.path is not None:
            yield ("url",), "does not apply with path: the output is at one of the two"
        form = source_format(self.format)
        for name, text in self.columns.items():
            if why := form.refuses.get(ddl.parse(text).word):
                yield ("schema", name), f"{text}: {why}"
        if self.unknown is not Unknown.IGNORE:
            yield ("unknown",), f"{self.unknown} does not apply here: {form.unknown}; leave it out"
        if self.csv != CsvOptions():
            yield ("csv",), "does not apply here; leave it out"


DECLARED = (PipelineSourceSpec,)
