"""Which formats there are, and what each can hold: the one table, for sources and for sinks.

A format is an entry here and the module that the entry names; every other place asks. What is not
in the table is an error, never another format. Nothing heavy is imported before `code` is asked: a
declaration is checked, and a DAG made of it, without Arrow.
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
"""Bytes of rows in memory (Arrow) that one CSV file is made of at most: a reader parses it at once,
which takes some four times its size."""

OUTPUT_FILE_BYTES = 512 << 20
"""Bytes of rows in memory (Arrow) that one output file is made of at most."""

_NESTED = "a CSV field cannot hold an array, a map or a struct"
_WRITE_OTHERS = "; declare format: parquet or jsonl, or take the column apart in a transform"


class SourceCode(Protocol):
    """What the module of a source format has."""

    def declared(self, context: "Context") -> "Format":
        """The parser's side of `source.format`. Driver and task, often: it must cost little."""


class SinkCode(Protocol):
    """What the module of a sink format has. Each function is pure but for the file it names."""

    def refusal(self, kind: "pa.DataType") -> str | None:
        """Why no column of this type can be written, None where it can. Driver, before any row."""

    def read_back_type(self, kind: "pa.DataType") -> "pa.DataType | None":
        """The type as which pyarrow reads such a column back; None: it reads none."""

    def write(self, table: "pa.Table", file: Any) -> None:
        """Write rows to a new file, in a task. TerminalError: a value that the format does not
        hold, with the column's name."""

    def dataset_format(self, path: Path | None, size: int) -> "ds.FileFormat":
        """How pyarrow reads this file, of `size` bytes as its marker says. None: it is elsewhere.
        OSError."""

    def count_rows(self, path: Path) -> int:
        """How many rows a file has, whatever wrote it. OSError, ArrowException."""


@dataclass(frozen=True, kw_only=True)
class SourceFormat:
    """How the files of a source are written.

    `header`: each file begins with a line that names its columns. `refuses`: the words of types
    that no field holds, each with the reason. `whole`: whether a file is read once, as one range,
    because no byte of it tells where a record begins. `sealed`: files are whole when they appear,
    and hold rows in place of text. `unit`: what positions count. `unknown`: why nothing can be said
    of columns that the schema does not name.
    """

    module: str
    header: bool
    refuses: Mapping[str, str] = field(default_factory=dict)
    whole: Callable[[Any], bool] = lambda declared: False
    sealed: bool = False
    unit: str = "bytes"
    unknown: str = ""

    def code(self) -> Any:
        """Its module, a `SourceCode`, unless it is `sealed`; with `header` it has `read_header`."""
        return import_module(self.module)


@dataclass(frozen=True, kw_only=True)
class SinkFormat:
    """How the files of a sink are written.

    `refuses`: the words of declared types that no file holds, each with the reason: what `refusal`
    of the code says of their Arrow types. `held_bytes_max`: bytes of rows in memory (Arrow) that
    one file is made of at most.
    """

    name: str
    module: str
    refuses: Mapping[str, str] = field(default_factory=dict)
    held_bytes_max: int = OUTPUT_FILE_BYTES

    @property
    def suffix(self) -> str:
        """How the files' names end."""
        return f".{self.name}"

    def code(self) -> SinkCode:
        """Its module."""
        return import_module(self.module)  # type: ignore[return-value]

    # Keeps S22.
    def check(self, schema: "pa.Schema", partition_by: tuple[str, ...] = ()) -> None:
        """Look at the columns before a row is written; those that become folders are not asked.

        TerminalError: files of this format cannot hold one.
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
        whole=lambda declared: declared.csv.multiline,
        unknown="a file whose header does not name exactly the schema's columns is refused",
    ),
    "parquet": SourceFormat(
        module="semel.formats.parquet",
        header=False,
        refuses={"json": "a column of Parquet is text; declare it as string"},
        sealed=True,
        unit="rows",
        unknown="its columns that the schema does not name are not read",
    ),
}
"""The formats of sources, by what `source.format` says."""

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
"""The formats of sinks, by what `sink.format` says."""


def source_format(name: str) -> SourceFormat:
    """The entry of a source's format. TerminalError: there is none."""
    return _entry(SOURCES, "source", name)


def sink_format(name: str) -> SinkFormat:
    """The entry of a sink's format. TerminalError: there is none."""
    return _entry(SINKS, "sink", name)


def _entry(table: Mapping[str, Any], side: str, name: str) -> Any:
    if name not in table:
        raise TerminalError(
            f"{side}.format {name!r} is not one of those that this semel knows: "
            f"{', '.join(table)}; declare one of them, or take the semel that wrote it"
        )
    return table[name]
