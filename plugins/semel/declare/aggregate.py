"""The declaration of an aggregation: the rows of a window, and their aggregates."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from semel.declare.parts import RESERVED_PREFIX, Model, Text, twice
from semel.declare.yaml import Problem, Problems

if TYPE_CHECKING:
    import pyarrow as pa

START, END, FINAL = "window_start", "window_end", "final"
"""The columns of each row of a window next to its keys and aggregates."""

LEVEL = f"{RESERVED_PREFIX}_level"
"""The number of a row's item in aggregate.by, from 0."""

RECORDS = f"{RESERVED_PREFIX}_n"
"""The number of records that a partial row counts."""

LEVELS_MAX = 16

WORDS = ("count", "sum", "min", "max", "distinct")
_FUNCTION = re.compile(rf"({'|'.join(WORDS)})\((.*)\)", re.DOTALL)


@dataclass(frozen=True)
class Function:
    """An aggregate of a window's records: `count()`, or a word and a column, as `sum(amount)`."""

    word: str
    column: str | None = None

    def __str__(self) -> str:
        return f"{self.word}({self.column or ''})"

    # Keeps AG3.
    def problem(self, kind: "pa.DataType") -> str | None:
        """The reason why the function does not work with a column of this type, if any."""
        from pyarrow import types as at

        exact = at.is_integer(kind) or at.is_decimal128(kind)
        text = at.is_string(kind) or at.is_large_string(kind)
        ordered = exact or text or at.is_timestamp(kind) or at.is_date32(kind)
        if at.is_floating(kind) and self.word != "count":
            return (
                f"{self} of a {kind} would depend on the order of the records; declare the column "
                "as decimal(p,s), or cast it in the last transform"
            )
        if self.word == "sum" and not exact:
            return f"{self} adds up whole numbers and decimals, but {self.column} is {kind}"
        if self.word in ("min", "max") and not ordered:
            return f"{self} compares numbers, texts and times, but {self.column} is {kind}"
        if self.word == "distinct" and not (ordered or at.is_boolean(kind)):
            return f"{self} compares numbers, texts and times, but {self.column} is {kind}"
        return None


def _function(value: object) -> Function:
    if isinstance(value, Function):
        return value
    match = _FUNCTION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        functions = ", ".join(f"{word}(column)" for word in WORDS)
        raise ValueError(f"{value!r} is not one of count(), {functions}")
    word, column = match[1], match[2].strip() or None
    if column is None and word != "count":
        raise ValueError(f"{value!r} needs a column, such as {word}(amount)")
    return Function(word, column)


def _levels(value: Any) -> Any:
    """Wrap a single list of columns as one level."""
    plain = isinstance(value, list) and value and all(isinstance(item, str) for item in value)
    return [value] if plain else value


Declared = Annotated[
    Function,
    BeforeValidator(_function),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["count()", "sum(amount)", "distinct(user)"]}),
]


class Aggregate(Model):
    """The aggregates of the records of each window of record_time."""

    by: Annotated[tuple[tuple[Text, ...], ...], BeforeValidator(_levels)] = Field(
        default=((),), min_length=1, max_length=LEVELS_MAX
    )
    """The columns to group by. [user]: a row for each user. [[user], []]: these rows, and one for
    the window. Default: one row for the window."""
    columns: dict[Text, Declared] = Field(min_length=1)
    """The aggregates of a row: count(), count(c), sum(c), min(c), max(c), distinct(c)."""

    @model_validator(mode="after")
    def _check(self) -> "Aggregate":
        if problems := [Problem(key, why) for key, why in self._problems()]:
            raise Problems(problems)
        return self

    def _problems(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        for at, level in enumerate(self.by):
            if name := twice(level):
                yield ("by", at), f"names {name!r} twice"
        if len({frozenset(level) for level in self.by}) < len(self.by):
            yield ("by",), "has the same columns twice"
        reserved = (START, END, FINAL)
        names = (*self.keys, *self.columns, *reserved)
        if name := twice(names):
            yield ("columns",), (
                f"a row would have {name!r} twice: it has the columns in by, those in columns, and "
                f"{', '.join(reserved)}"
            )
        for name in (*self.keys, *self.columns):
            if name.lower().startswith(RESERVED_PREFIX):
                yield ("columns",), (
                    f"{name!r} begins with {RESERVED_PREFIX}, which is reserved for semel's columns"
                )

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of all levels, each once."""
        return tuple(dict.fromkeys(name for level in self.by for name in level))

    @property
    def key_of_parts(self) -> tuple[str, ...]:
        """The key of partial rows: slice, keys, and each value of distinct."""
        values = (name for name, f in self.columns.items() if f.word == "distinct")
        return (START, *self.keys, *values)

    @property
    def columns_read(self) -> tuple[str, ...]:
        """The columns of a record that the aggregation reads, each once."""
        arguments = [f.column for f in self.columns.values() if f.column is not None]
        return tuple(dict.fromkeys([*self.keys, *arguments]))

    def problems(self, schema: "pa.Schema") -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Keys and functions that do not fit the columns of the records."""
        columns = f"the columns are {', '.join(schema.names)}"
        for at, level in enumerate(self.by):
            for name in level:
                if name not in schema.names:
                    yield ("by", at), f"{name!r} is not a column; {columns}"
                elif why := Function("distinct", name).problem(schema.field(name).type):
                    yield ("by", at), why.replace("distinct", "by", 1)
        for name, function in self.columns.items():
            if function.column is None:
                continue
            if function.column not in schema.names:
                yield ("columns", name), f"{function.column!r} is not a column; {columns}"
            elif why := function.problem(schema.field(function.column).type):
                yield ("columns", name), why
