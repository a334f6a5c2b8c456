"""The declaration of another pipeline's output as a source."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator

from semel import settings
from semel.declare import ddl
from semel.declare.parts import NAME, OnRefused, Select, Text, Unknown
from semel.declare.place import Location
from semel.errors import TerminalError
from semel.formats.table import source_format
from semel.sinks.spec import SinkSpec, checked_folder
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
    begins_anywhere: ClassVar[bool] = False
    format: ClassVar[str] = "parquet"

    type: Literal["pipeline"]
    """The kind of source."""
    pipeline: str = Field(pattern=NAME)
    """The name of the pipeline whose output is read. Its sink is files, in format: parquet."""
    path: Text | None = None
    """The folder of that output. null: the folder in that pipeline's file, next to this file."""
    archive: Text | None = None
    """The folder of its markers, if its sink declares one."""

    @property
    def upstream(self) -> str:
        """The name of the pipeline whose output is read."""
        return self.pipeline

    def with_sink(self, sink: SinkSpec) -> Self:
        """A copy that reads the output of a sink. Raises ValueError if semel cannot read it."""
        if not sink.in_folder:
            place = sink.whereabouts()
            why = "not to a folder" if sink.in_files else "whose rows have no stable order"
            raise ValueError(
                f"{self.pipeline!r} writes to {place}, {why}; a source of type pipeline reads only "
                "a folder of files"
            )
        if sink.format != self.format:
            raise ValueError(
                f"{self.pipeline!r} writes {sink.format}; a source of type pipeline reads only a "
                f"sink with format: {self.format}"
            )
        return self.model_copy(update={"path": sink.path, "archive": sink.archive})

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

    def reads_from(self, place: Location) -> bool:
        """Whether a location is the folder of that output."""
        return place == self.place()

    def folder(self) -> Path | None:
        """The folder of that output. Returns None before that pipeline's file was read."""
        return None if self.path is None else settings.allowed(self.path, "source.path")

    def markers(self) -> Path | None:
        """The declared archive: the folder of its markers and backups."""
        return None if self.archive is None else settings.allowed(self.archive, "source.archive")

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
        form = source_format(self.format)
        for name, text in self.columns.items():
            if why := form.refuses.get(ddl.parse(text).word):
                yield ("schema", name), f"{text}: {why}"
        if self.unknown is not Unknown.IGNORE:
            yield ("unknown",), f"{self.unknown} does not apply here: {form.unknown}; leave it out"
        if self.csv != CsvOptions():
            yield ("csv",), "does not apply here; leave it out"


DECLARED = (PipelineSourceSpec,)
