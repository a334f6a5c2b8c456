"""The formats and what each can hold: the one table, for sources and for sinks.

A format is an entry here and the module that the entry names; all other code looks it up here. A
format that is not in the table is an error, never another format. Only `code` imports Arrow: semel
checks a declaration and builds its DAG without it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from semel.errors import TerminalError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

    from semel.declare.context import Context
    from semel.formats.lines import Format

CSV_FILE_BYTES = 64 << 20
"""Most bytes of rows in memory (Arrow) in one CSV file. A reader parses it at once, in some four
times its size."""

OUTPUT_FILE_BYTES = 512 << 20
"""Most bytes of rows in memory (Arrow) in one output file."""

_NESTED = "a CSV field cannot hold an array, a map or a struct"
_WRITE_OTHERS = "; declare format: parquet or jsonl, or take the column apart in a transform"


class SourceCode(Protocol):
    """The interface of a source format's module."""

    def declared_format(self, context: "Context") -> "Format":
        """The parser's side of `source.format`. The driver and tasks call it often: it MUST be
        cheap."""


class SinkCode(Protocol):
    """The interface of a sink format's module. Functions are pure, except for the file they name."""

    def refusal(self, kind: "pa.DataType") -> str | None:
        """Why the format cannot write a column of this type. Returns None if it can. Runs in the
        driver, before any row."""

    def read_back_type(self, kind: "pa.DataType") -> "pa.DataType | None":
        """The type as which pyarrow reads such a column back. Returns None if it cannot."""

    def write(self, table: "pa.Table", file: Any) -> None:
        """Write rows to a new file, in a task. Raises TerminalError, with the column's name, for a
        value that the format cannot hold."""

    def dataset_format(self, path: Path | None, size: int) -> "ds.FileFormat":
        """How pyarrow reads this file; its marker has `size`, in bytes. `path` None: the file is
        not on this machine. Raises OSError."""

    def count_rows(self, path: Path) -> int:
        """The number of rows of a file, whatever wrote it. Raises OSError or ArrowException."""


@dataclass(frozen=True, kw_only=True)
class SourceFormat:
    """The format of a source's files.

    `header`: each file begins with a line that names its columns. `refuses`: words of types that no
    field holds, each with the reason. `is_one_range`: whether one range covers a file, because no
    byte shows where a record begins. `sealed`: files are complete when they appear, and hold rows
    instead of text. `unit`: what positions count. `unknown`: why a declaration cannot set
    `source.unknown`.
    """

    module: str
    header: bool
    refuses: Mapping[str, str] = field(default_factory=dict)
    is_one_range: Callable[[Any], bool] = lambda declared: False
    sealed: bool = False
    unit: str = "bytes"
    unknown: str = ""

    def code(self) -> Any:
        """Its module: a `SourceCode` unless `sealed`. With `header` it also has `read_header`."""
        return import_module(self.module)


@dataclass(frozen=True, kw_only=True)
class SinkFormat:
    """The format of a sink's files.

    `refuses`: words of declared types that no file holds, each with the reason; the module's
    `refusal` agrees for Arrow types. `held_bytes_max`: most bytes of rows in memory (Arrow) in one
    file.
    """

    name: str
    module: str
    refuses: Mapping[str, str] = field(default_factory=dict)
    held_bytes_max: int = OUTPUT_FILE_BYTES

    @property
    def suffix(self) -> str:
        """The suffix of the files' names."""
        return f".{self.name}"

    def code(self) -> SinkCode:
        """Its module."""
        return import_module(self.module)  # type: ignore[return-value]

    # Keeps S22.
    def check(self, schema: "pa.Schema", partition_by: tuple[str, ...] = ()) -> None:
        """Check the columns before semel writes a row, except those that become folders.

        Raises TerminalError if files of this format cannot hold one.
        """
        for column in schema:
            why = None if column.name in partition_by else self.code().refusal(column.type)
            if why is not None:
                raise TerminalError(
                    f"the output's column {column.name!r} holds {why}; cast it in the last "
                    "transform's select, or write Parquet"
                )


SOURCES: dict[str, SourceFormat] = {
    "jsonl": SourceFormat(module="semel.formats.jsonl", header=False),
    "csv": SourceFormat(
        module="semel.formats.csv",
        header=True,
        refuses=dict.fromkeys(("array", "map", "struct"), _NESTED)
        | {"json": "a CSV field is text; declare it as string"},
        is_one_range=lambda declared: declared.csv.multiline,
        unknown="semel refuses a file whose header does not name exactly the schema's columns",
    ),
    "parquet": SourceFormat(
        module="semel.formats.parquet",
        header=False,
        refuses={"json": "a column of Parquet is text; declare it as string"},
        sealed=True,
        unit="rows",
        unknown="semel does not read columns that the schema does not name",
    ),
}
"""The formats of sources, by the value of `source.format`."""

SINKS: dict[str, SinkFormat] = {
    form.name: form
    for form in (
        SinkFormat(name="parquet", module="semel.formats.parquetsink"),
        SinkFormat(name="jsonl", module="semel.formats.jsonlsink"),
        SinkFormat(
            name="csv",
            module="semel.formats.csvsink",
            refuses=dict.fromkeys(("array", "map", "struct"), _NESTED + _WRITE_OTHERS),
            held_bytes_max=CSV_FILE_BYTES,
        ),
    )
}
"""The formats of sinks, by the value of `sink.format`."""


def source_format(name: str) -> SourceFormat:
    """The entry of a source's format. Raises TerminalError for an unknown format."""
    return _entry(SOURCES, "source", name)


def sink_format(name: str) -> SinkFormat:
    """The entry of a sink's format. Raises TerminalError for an unknown format."""
    return _entry(SINKS, "sink", name)


def _entry(table: Mapping[str, Any], side: str, name: str) -> Any:
    if name not in table:
        raise TerminalError(
            f"{side}.format: this version of semel does not have {name!r}, only "
            f"{', '.join(table)}. Declare one of them, or use the version that wrote it"
        )
    return table[name]
