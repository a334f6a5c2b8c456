"""The common part of the declarations of message sources: a value and metadata columns."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from semel.declare import ddl
from semel.declare.parts import Limits, Unknown, twice
from semel.formats.table import source_format
from semel.sources.spec import CsvOptions, SourceSpec

ALL = "*"
"""Instead of the name of a header or an attribute: all headers or attributes, as one column."""

ALL_TYPE = "array<struct<key:string,value:binary>>"
"""The type of a column of all headers, as in Spark's own Kafka source."""

_ALL = str(ddl.parse(ALL_TYPE))

CONNECTION = r"^[A-Za-z_][A-Za-z0-9_]*$"
"""The pattern of an Airflow connection's name."""

TEXT = "string", "binary"
"""The types of columns for bytes of a message."""

Problem = tuple[tuple[str, ...], str]


class MessagesSpec(SourceSpec):
    """A record is a message: the same parsers validate its value as a line of a file.

    `json_values`: the settings of `value` that semel reads as JSON.
    """

    limits: ClassVar[str] = "limits.records_per_batch_max or limits.bytes_per_batch_max"
    dated: ClassVar[bool] = False  # One part has messages of all times.
    json_values: ClassVar[tuple[str, ...]] = ("json",)

    value: str

    def describe_limit(self, limits: Limits) -> str:
        """The limits of records and of bytes."""
        size_limit = super().describe_limit(limits)
        return f"{limits.records_per_batch_max:,} {self.unit} or about {size_limit}"

    def _rule_problem(self, column: str) -> str | None:
        """Rules apply only to columns of a value that names its columns."""
        if column in self.unparsed_columns:
            return f"does not apply: {self.unparsed_columns[column]} fills the column"
        if self.value not in self.json_values:
            return f"does not apply to value: {self.value}, which does not name its columns"
        return None

    @property
    def format(self) -> str:
        """The file format whose parser reads the value; Avro is read as equivalent JSON."""
        return "jsonl" if self.value in self.json_values else self.value

    def _value_problems(self) -> Iterator[Problem]:
        """Problems with the columns of the value."""
        parsed = [name for name in self.columns if name not in self.unparsed_columns]
        if not parsed:
            yield ("schema",), "lacks a column for the message's value"
        if self.value == "bytes" and [self.columns[name] for name in parsed] != ["binary"]:
            yield ("schema",), "value: bytes needs exactly one column, of type binary"
        if self.value == "csv":
            refuses = source_format("csv").refuses
            for name in parsed:
                if why := refuses.get(ddl.parse(self.columns[name]).word):
                    yield ("schema", name), f"{self.columns[name]}: {why}"
            if self.csv.multiline:
                yield ("csv", "multiline"), "does not apply to messages: each is one record"
        elif self.csv != CsvOptions():
            yield ("csv",), f"does not apply to value: {self.value}; leave it out"
        if self.value not in self.json_values and self.unknown is not Unknown.IGNORE:
            yield ("unknown",), f"does not apply to value: {self.value}; leave it out"

    def _unparsed_problems(
        self, named: str, wanted: Mapping[tuple[str, ...], tuple[str | None, tuple[str, ...]]]
    ) -> Iterator[Problem]:
        """Problems with metadata columns. `wanted`: the name and the allowed types by key. `named`:
        the keys in words.
        """
        if name := twice(tuple(name for name, _ in wanted.values() if name)):
            yield ("schema", name), f"belongs to two of {named}; give each its own column"
        for key, (name, types) in wanted.items():
            if name is None:
                continue
            if name not in self.columns:
                yield key, f"{name!r} is not a column; the schema has {', '.join(self.columns)}"
            elif self.columns[name] not in types:
                yield key, f"{name!r} is {self.columns[name]}, expected {' or '.join(types)}"

    @staticmethod
    def _metadata_types(
        key: str, named: Mapping[str, str]
    ) -> dict[tuple[str, ...], tuple[str, tuple[str, ...]]]:
        """The columns of headers or attributes (`named`, by column), and their allowed types."""
        return {
            (key, column): (column, (_ALL,) if name == ALL else TEXT)
            for column, name in named.items()
        }
