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
    """The finalized batches of another pipeline, each taken whole."""

    unit: ClassVar[str] = "rows"
    page: ClassVar[str] = "chain"
    part: ClassVar[str] = "batch"
    complete: ClassVar[str] = "row"
    awaited: ClassVar[str] = "batches that have claimed an output"
    dated: ClassVar[bool] = False
    expires: ClassVar[str] = (
        "a replay of the pipeline that was read has replaced some of its output"
    )
    limits: ClassVar[str] = "limits.records_per_batch_max"
    begins_anywhere: ClassVar[bool] = False
    format: ClassVar[str] = "parquet"

    type: Literal["pipeline"]
    """The kind of source."""
    pipeline: str = Field(pattern=NAME)
    """The name of the pipeline whose output is read. Its sink is files, in format: parquet."""
    path: Text | None = None
    """The folder of that output; null: as the pipeline's own file, beside this one, declares it."""
    archive: Text | None = None
    """The folder of its markers, where its sink declares one."""

    @property
    def upstream(self) -> str:
        """The pipeline that it reads."""
        return self.pipeline

    def fed_by(self, sink: SinkSpec) -> Self:
        """The same, reading what a sink writes. ValueError: it cannot, and why."""
        if not sink.in_folder:
            place = sink.whereabouts()
            why = "not to a folder" if sink.in_files else "whose rows come in no order that stays"
            raise ValueError(
                f"{self.pipeline!r} writes to {place}, {why}; only the output of a folder "
                "of files can be read so"
            )
        if sink.format != self.format:
            raise ValueError(
                f"{self.pipeline!r} writes {sink.format}, and only a sink with format: "
                f"{self.format} can be read so"
            )
        return self.model_copy(update={"path": sink.path, "archive": sink.archive})

    @property
    def unparsed_columns(self) -> dict[str, str]:
        """All columns: a row has no text."""
        return {name: f"column {name}" for name in self.columns}

    @property
    def on_refused_or_default(self) -> OnRefused:
        """What is declared: by default a run takes the other batches."""
        return self.on_refused or OnRefused.WARN

    def describe(self) -> str:
        """Whose output."""
        return f"the finalized batches of `{self.pipeline}`"

    def selection_rule(self) -> str:
        """Nothing: all is taken as it arrives."""
        return "its arrival"

    def folder_problem(self) -> str | None:
        """An archive that cannot be read."""
        try:
            self.markers()
        except TerminalError as error:
            return str(error)
        return None

    def reads_from(self, place: Location) -> bool:
        """Whether it is the folder of that output."""
        return place == self.place()

    def folder(self) -> Path | None:
        """The folder of that output; None: the pipeline's file was not found yet."""
        return None if self.path is None else settings.allowed(self.path, "source.path")

    def markers(self) -> Path | None:
        """The declared folder of its markers and all else that is kept."""
        return None if self.archive is None else settings.allowed(self.archive, "source.archive")

    @field_validator("path", "archive")
    @classmethod
    def _path(cls, path: str | None) -> str | None:
        return checked_folder(path)

    def _problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        yield from super()._problems()
        if self.select is not Select.ARRIVAL:
            yield ("select",), (
                "must be arrival: a batch of another pipeline is taken when it is finalized"
            )
        if self.archive is not None and self.path is None:
            yield ("archive",), "has no meaning without path: both are found by the pipeline's name"
        form = source_format(self.format)
        for name, text in self.columns.items():
            if why := form.refuses.get(ddl.parse(text).word):
                yield ("schema", name), f"{text}: {why}"
        if self.unknown is not Unknown.IGNORE:
            yield ("unknown",), f"{self.unknown} has no meaning here: {form.unknown}; leave it out"
        if self.csv != CsvOptions():
            yield ("csv",), "has no meaning here; leave it out"


DECLARED = (PipelineSourceSpec,)
