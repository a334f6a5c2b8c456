"""A DuckDB that lives as long as one command, and spills to a temporary folder of its own."""

import tempfile
from typing import Any, Self

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from semel.clients.sql import query
from semel.declare.ddl import ColumnType

TYPES = {
    "string": "VARCHAR", "bigint": "BIGINT", "int": "INTEGER", "smallint": "SMALLINT",
    "double": "DOUBLE", "float": "FLOAT", "boolean": "BOOLEAN", "timestamp": "TIMESTAMP",
    "date": "DATE", "binary": "BLOB",
}  # fmt: skip


class DuckEngine:
    """Runs the statements of sql/queries/<verb>.sql, `tables` first. `config` is DuckDB's."""

    def __init__(self, verb: str, **config: str) -> None:
        self._verb = verb
        self._folder = tempfile.TemporaryDirectory(prefix=f"semel-{verb}-")
        config |= {"temp_directory": self._folder.name, "preserve_insertion_order": False}
        self.connection = duckdb.connect(config=config)
        self.run("tables")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.connection.close()
        self._folder.cleanup()

    def run(
        self,
        name: str,
        incoming: pa.Table | None = None,
        braces: dict[str, Any] | None = None,
        **values: Any,
    ) -> duckdb.DuckDBPyConnection:
        """Run a statement over the rows `incoming`, with its `braces` filled. Its own rows can be
        fetched until the next one is run.
        """
        text = query(self._verb, name).text
        self.connection.unregister("incoming")
        if incoming is not None:
            self.connection.register("incoming", zoneless(incoming))
        return self.connection.execute(text.format_map(braces) if braces else text, values or None)

    def rows(
        self, name: str, braces: dict[str, Any] | None = None, **values: Any
    ) -> list[dict[str, Any]]:
        """The rows of a statement, with its `braces` filled."""
        found = self.run(name, braces=braces, **values)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def duck_type(kind: ColumnType) -> str:
    """DuckDB's name of a scalar type. Times are without zone there, in UTC."""
    if kind.word == "decimal":
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return TYPES[kind.word]


def zoneless(table: pa.Table) -> pa.Table:
    """Times in UTC without their zone, which DuckDB would show in the zone of the machine."""
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz:
            plain = pc.cast(table.column(at), pa.timestamp(field.type.unit))
            table = table.set_column(at, field.name, plain)
    return table
