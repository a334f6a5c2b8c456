"""PostgreSQL's column type for each Arrow type: the table of docs/postgres.md."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types as at

from semel.formats.jsonlsink import is_nested

_INTEGERS = ("smallint", "integer", "bigint")
_TIME = "timestamp with time zone"
_PLAIN_TIME = "timestamp without time zone"
_TEXT = ("text", "character varying")
JSON = ("jsonb", "json")
VARYING = (*_TEXT, "json", "bytea")


@dataclass(frozen=True, kw_only=True)
class ColumnKind:
    """A kind of column and the PostgreSQL types that store it. `created`: the type in a new table.

    `word`: its name in docs/postgres.md.
    """

    word: str
    fits: Callable[[pa.DataType], bool]
    created: str
    also: tuple[str, ...] = ()

    @property
    def takes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.created, *self.also)))


# Keeps PG5.
TYPES = (
    ColumnKind(word="boolean", fits=at.is_boolean, created="boolean"),
    ColumnKind(word="tinyint", fits=at.is_int8, created="smallint", also=(*_INTEGERS, "numeric")),
    ColumnKind(word="smallint", fits=at.is_int16, created="smallint", also=(*_INTEGERS, "numeric")),
    ColumnKind(word="int", fits=at.is_int32, created="integer", also=(*_INTEGERS, "numeric")),
    ColumnKind(word="bigint", fits=at.is_int64, created="bigint", also=(*_INTEGERS, "numeric")),
    ColumnKind(word="float", fits=at.is_float32, created="real", also=("double precision",)),
    ColumnKind(word="double", fits=at.is_float64, created="double precision"),
    ColumnKind(word="decimal(p,s)", fits=at.is_decimal128, created="numeric"),
    ColumnKind(
        word="string",
        fits=lambda kind: at.is_string(kind) or at.is_large_string(kind),
        created="text",
        also=(*_TEXT, *JSON),
    ),
    ColumnKind(
        word="binary",
        fits=lambda kind: at.is_binary(kind) or at.is_large_binary(kind),
        created="bytea",
    ),
    ColumnKind(word="date", fits=at.is_date32, created="date"),
    ColumnKind(word="timestamp", fits=lambda kind: _is_time(kind) and bool(kind.tz), created=_TIME),
    ColumnKind(
        word="timestamp_ntz", fits=lambda kind: _is_time(kind) and not kind.tz, created=_PLAIN_TIME
    ),
    ColumnKind(
        word="array, struct, map",
        fits=lambda kind: is_nested(kind) and _has_text_keys(kind),
        created="jsonb",
        also=("json",),
    ),
)
"""In the order of the document. A `string` declared as `json` becomes jsonb in a new table."""

_WIRE = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "date": pa.date32(),
    _TIME: pa.timestamp("us", "UTC"),
    _PLAIN_TIME: pa.timestamp("us"),
}


def kind_of_column(kind: pa.DataType) -> ColumnKind | None:
    """The kind of a column of this Arrow type. None if no table can store it."""
    return next((entry for entry in TYPES if entry.fits(kind)), None)


def created_type(kind: pa.DataType, *, json: bool) -> str:
    """The column's type in a new table, as DDL. `kind_of_column` MUST have accepted it."""
    name = "jsonb" if json else kind_of_column(kind).created
    return f"numeric({kind.precision},{kind.scale})" if name == "numeric" else name


def wire_type(kind: pa.DataType, name: str) -> pa.DataType:
    """The Arrow type whose encoding is that of PostgreSQL's type `name`."""
    if name == "numeric":
        return kind if at.is_decimal(kind) else pa.decimal128(19, 0)
    if name in _WIRE:
        return _WIRE[name]
    return pa.large_string() if is_nested(kind) else kind


def _has_text_keys(kind: pa.DataType) -> bool:
    """Whether all maps in it have text keys, like JSON objects, and a table can store all parts."""
    if at.is_map(kind):
        return at.is_string(kind.key_type) and _has_text_keys(kind.item_type)
    parts = [kind.field(n).type for n in range(kind.num_fields)] if is_nested(kind) else []
    return (
        all(map(_has_text_keys, parts)) if parts else is_nested(kind) or bool(kind_of_column(kind))
    )


def _is_time(kind: pa.DataType) -> bool:
    return at.is_timestamp(kind) and kind.unit == "us"
