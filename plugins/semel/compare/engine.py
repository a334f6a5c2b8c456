"""The compare's engine: a DuckDB of its own that holds keys and hashes of rows, not the rows."""

import tempfile
from typing import Any, Self

import duckdb
import pyarrow as pa

from semel.audit.engine import zoneless
from semel.clients.sql import query

COMPARE_MEMORY_BYTES = 2 << 30
"""Memory in which a compare holds keys and hashes of rows: those of five million. What does not
fit goes to a temporary folder."""

LIVE, OTHER, AGAIN = 0, 1, 2
"""The sides: the live path, what it is compared with, and the batch path run once more."""


class Engine:
    """Runs the statements of differences.sql. Spills to a temporary folder when memory runs short.
    """

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

    def run(
        self,
        name: str,
        incoming: pa.Table | None = None,
        braces: dict[str, object] | None = None,
        **values: Any,
    ) -> duckdb.DuckDBPyConnection:
        """Run a statement over the rows `incoming`, with its `braces` filled. Its own rows can be
        fetched until the next one is run.
        """
        text = query("differences", name).text
        if incoming is not None:
            self._connection.register("incoming", zoneless(incoming))
        return self._connection.execute(text.format_map(braces) if braces else text, values or None)

    def rows(self, name: str, **values: Any) -> list[dict[str, Any]]:
        """The rows of a statement."""
        found = self.run(name, **values)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
