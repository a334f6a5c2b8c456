"""What the declarations of sources of messages share: a value, and columns beside it."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from semel.declare import ddl
from semel.declare.parts import Limits, Unknown, twice
from semel.formats.table import source_format
from semel.sources.spec import CsvOptions, SourceSpec

ALL = "*"
"""In place of the name of a header or an attribute: all of them, as one column."""

ALL_TYPE = "array<struct<key:string,value:binary>>"
"""The type of a column of all headers: what Spark's own Kafka source gives."""

_ALL = str(ddl.parse(ALL_TYPE))

CONNECTION = r"^[A-Za-z_][A-Za-z0-9_]*$"
"""What the name of an Airflow connection looks like."""

TEXT = "string", "binary"
"""The types of columns that take bytes of a message."""

Problem = tuple[tuple[str, ...], str]


class MessagesSpec(SourceSpec):
    """A record is a message: its value is judged as a line of a file is.

    `json_values`: what `value` says where it is read as JSON.
    """

    limits: ClassVar[str] = "limits.records_per_batch_max or limits.bytes_per_batch_max"
    dated: ClassVar[bool] = False  # The messages of one part are of all times.
    json_values: ClassVar[tuple[str, ...]] = ("json",)

    value: str

    def describe_limit(self, limits: Limits) -> str:
        """By both limits."""
        return f"{limits.records_per_batch_max:,} {self.unit} or about {super().describe_limit(limits)}"

    def _rule_problem(self, column: str) -> str | None:
        """A column that another part of the message fills, and a value without names."""
        if column in self.unparsed_columns:
            return f"has no meaning here: {self.unparsed_columns[column]} fills the column"
        if self.value not in self.json_values:
            return f"has no meaning with value: {self.value}, which names no columns"
        return None

    @property
    def format(self) -> str:
        """The format of a value, as files have it; Avro is read as the JSON that means the same."""
        return "jsonl" if self.value in self.json_values else self.value

    def _value_problems(self) -> Iterator[Problem]:
        """What is wrong with the columns of the value."""
        own = [name for name in self.columns if name not in self.unparsed_columns]
        if not own:
            yield ("schema",), "has no column for the message's value"
        if self.value == "bytes" and [self.columns[name] for name in own] != ["binary"]:
            yield ("schema",), "value: bytes fills one column, of type binary"
        if self.value == "csv":
            refuses = source_format("csv").refuses
            for name in own:
                if why := refuses.get(ddl.parse(self.columns[name]).word):
                    yield ("schema", name), f"{self.columns[name]}: {why}"
            if self.csv.multiline:
                yield ("csv", "multiline"), "has no meaning here: a message is one record"
        elif self.csv != CsvOptions():
            yield ("csv",), f"has no meaning with value: {self.value}; leave it out"
        if self.value not in self.json_values and self.unknown is not Unknown.IGNORE:
            yield ("unknown",), f"has no meaning with value: {self.value}; leave it out"

    def _unparsed_problems(
        self, named: str, wanted: Mapping[tuple[str, ...], tuple[str | None, tuple[str, ...]]]
    ) -> Iterator[Problem]:
        """What is wrong with the columns that are not of the value: by their keys, the name of each
        and the types that it may have. `named`: those keys in words.
        """
        if name := twice(tuple(name for name, _ in wanted.values() if name)):
            yield ("schema", name), f"is filled by two of {named}"
        for key, (name, types) in wanted.items():
            if name is None:
                continue
            if name not in self.columns:
                yield key, f"{name!r} is not a column; the schema has {', '.join(self.columns)}"
            elif self.columns[name] not in types:
                yield key, f"{name!r} is {self.columns[name]}, and not {' or '.join(types)}"

    @staticmethod
    def _metadata_types(
        key: str, named: Mapping[str, str]
    ) -> dict[tuple[str, ...], tuple[str, tuple[str, ...]]]:
        """The columns that take what is `named` in a message, or all of it, and their types."""
        return {
            (key, column): (column, (_ALL,) if name == ALL else TEXT)
            for column, name in named.items()
        }
