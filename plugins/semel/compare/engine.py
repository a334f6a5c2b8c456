"""The compare's engine: a DuckDB of its own that holds keys and hashes of rows, not the rows."""

import tempfile
from typing import Any, Self

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.clients.sql import query

COMPARE_MEMORY_BYTES = 2 << 30
"""Memory in which a compare holds keys and hashes of rows: those of five million. What does not
fit goes to a temporary folder."""

LIVE, OTHER, AGAIN = 0, 1, 2
"""The sides: the live path, what it is compared with, and the batch path run once more."""


class Engine:
    """Holds what a compare has read. Spills to a temporary folder when memory runs short."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="semel-compare-")
        self._connection = duckdb.connect(
            config={
                "temp_directory": self._folder.name,
                "preserve_insertion_order": False,
                "memory_limit": f"{COMPARE_MEMORY_BYTES >> 20}MiB",
            }
        )
        self.run("tables")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._connection.close()
        self._folder.cleanup()

    def run(self, name: str, **values: Any) -> None:
        """Run a statement of differences.sql that returns nothing."""
        self._connection.execute(_text(name), values or None)

    def rows(self, name: str, **values: Any) -> list[dict[str, Any]]:
        """The rows of a statement."""
        found = self._connection.execute(_text(name), values or None)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def columns(self, name: str) -> dict[str, np.ndarray]:
        """The rows of a statement, by column."""
        return self._connection.execute(_text(name)).fetchnumpy()

    def insert(self, name: str, rows: pa.Table, braces: dict[str, object] | None = None) -> None:
        """Run an insert statement that reads `incoming`, with `braces` filled."""
        self.look(name, rows, braces)

    def look(
        self, name: str, rows: pa.Table, braces: dict[str, object] | None = None, **values: Any
    ) -> list[tuple]:
        """The rows of a statement that reads `incoming`."""
        text = _text(name)
        text = text.format_map(braces) if braces else text
        self._connection.register("incoming", zoneless(rows))
        try:
            return self._connection.execute(text, values or None).fetchall()
        finally:
            self._connection.unregister("incoming")


def _text(name: str) -> str:
    return query("differences", name).text


def zoneless(table: pa.Table) -> pa.Table:
    """Times in UTC without their zone: so their text is the same everywhere."""
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz:
            plain = pc.cast(table.column(at), pa.timestamp(field.type.unit))
            table = table.set_column(at, field.name, plain)
    return table
