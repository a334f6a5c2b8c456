"""An in-memory DuckDB for one command, with its own temporary folder for spilled data."""

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


def connect(config: dict[str, Any] | None = None) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB without its progress bar.

    In a notebook, and in `python -c`, DuckDB writes one to standard output during a slow query, also
    into a pipe. There `--json` MUST print one object.
    """
    connection = duckdb.connect(config=config or {})
    connection.execute("SET enable_progress_bar = false")
    return connection


class DuckEngine:
    """Runs the statements of sql/queries/<verb>.sql, `tables` first. `config`: DuckDB settings."""

    def __init__(self, verb: str, **config: str) -> None:
        self._verb = verb
        self._folder = tempfile.TemporaryDirectory(prefix=f"semel-{verb}-")
        config |= {"temp_directory": self._folder.name, "preserve_insertion_order": False}
        self.connection = connect(config)
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
        """Run the statement `name`, which may select from `incoming`. `braces`: texts for its
        {placeholders}. Fetch its result before you run the next statement.
        """
        text = query(self._verb, name).text
        self.connection.unregister("incoming")
        if incoming is not None:
            self.connection.register("incoming", drop_time_zones(incoming))
        return self.connection.execute(text.format_map(braces) if braces else text, values or None)

    def rows(
        self, name: str, braces: dict[str, Any] | None = None, **values: Any
    ) -> list[dict[str, Any]]:
        """Run a statement, and fetch its rows."""
        result = self.run(name, braces=braces, **values)
        names = [column[0] for column in result.description]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def duck_type(kind: ColumnType) -> str:
    """DuckDB's name of a scalar type. A timestamp is in UTC, without a zone."""
    if kind.word == "decimal":
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return TYPES[kind.word]


def drop_time_zones(table: pa.Table) -> pa.Table:
    """Cast zoned times to UTC without a zone, because DuckDB would show the machine's zone."""
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz:
            utc = pc.cast(table.column(index), pa.timestamp(field.type.unit))
            table = table.set_column(index, field.name, utc)
    return table
