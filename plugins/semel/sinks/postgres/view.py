"""The view that merges the partial rows of windows, and the two tables that it needs.

Partial rows land in `<table>_parts`; the view has the declared name. `<table>_windows` maps slices
of time to windows, so that the server does not need a calendar. `semel_complete` has the complete
ranges of each table; finalize extends them in the transaction of a batch's rows.
"""

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from psycopg import sql
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from semel.clients.sql import query
from semel.storage import at, readable
from semel.declare.aggregate import END, START
from semel.errors import TerminalError
from semel.formats.windowsql import SLICE, merge_query
from semel.model.arrow import UTC_TIME
from semel.sinks import CommittedBatch
from semel.sinks.postgres.link import Connection, fill_query, table_exists
from semel.sinks.postgres.target import COMPLETE, PostgresTarget

_COLUMNS = {"windows": [SLICE, START, END], "complete": ["table_name", "covered", "delay"]}
"""The columns of the two tables."""

_SECOND = 1_000_000
"""Microseconds: each slice begins at a whole second."""

_COMMENT = "The windows of a pipeline of semel, merged from its partial rows."


# Keeps AG5.
def check_names(connection: Connection, target: PostgresTarget) -> None:
    """Raises TerminalError if the name of the view or of its tables belongs to something else."""
    schema = target.names[0]
    names = {"schema": schema, "view": target.view_name, "parts": target.sql_name}
    relation = connection.execute(query("postgres", "view").text, names).fetchone()
    if relation and not (relation["kind"] == "v" and relation["reads_parts"]):
        raise TerminalError(
            f"{target.view.as_string()} exists, and semel did not create it: aggregate needs this "
            f"name for its view over {target.sql_name}. Give sink.table another name"
        )
    names = {target.windows_name: "windows", COMPLETE: "complete"}
    values = {"schema": schema, "names": list(names)}
    for table in connection.execute(query("postgres", "beside").text, values).fetchall():
        if table["columns"] != _COLUMNS[names[table["name"]]]:
            raise TerminalError(
                f"{sql.Identifier(schema, table['name']).as_string()} exists, and semel did not "
                f"create it: aggregate needs this name for a table next to {target.sql_name}. "
                "Rename it, or give sink.table another name"
            )


def create_view(connection: Connection, target: PostgresTarget, schema: pa.Schema) -> None:
    """Create the missing view and tables. The table of partial rows exists. It may have rows, if
    someone moved or restored the target without the other tables.
    """
    names = {"windows": target.windows, "complete": _complete(target)}
    connection.execute(fill_query("create_windows", **names))
    if table_exists(connection, target.view):
        return
    start = sql.Identifier(START)
    connection.execute(
        fill_query("forget_complete", complete=names["complete"], table=target.names[1])
    )
    connection.execute(fill_query("create_start_index", table=target.identifier, start=start))
    merged = merge_query(
        target.counting.aggregate,
        target.counting.windows,
        parts=target.sql_name,
        windows=fill_query("windows", table=target.names[1], **names).as_string(),
        texts=[field.name for field in schema if pa.types.is_string(field.type)],
    )
    text = merged.replace("{", "{{").replace("}", "}}")  # A name may have braces.
    connection.execute(fill_query("create_view", view=target.view, merged=sql.SQL(text).format()))
    connection.execute(fill_query("comment_view", view=target.view, comment=_COMMENT))
    slices = connection.execute(
        fill_query("slices", table=target.identifier, start=start)
    ).fetchall()
    starts = np.array([row["seconds"] for row in slices], np.int64)
    _note_windows(connection, target, starts * _SECOND)


# Keeps AG5.
def count_unmerged(connection: Connection, target: PostgresTarget) -> int:
    """The number of partial rows that the view omits, because no window has their slice."""
    if not target.counting or not table_exists(connection, target.view):
        return 0
    names = {"table": target.identifier, "windows": target.windows, "start": sql.Identifier(START)}
    return connection.execute(fill_query("unmerged", **names)).fetchone()["rows"]


def read_windows(
    connection: Connection,
    target: PostgresTarget,
    level: int,
    since: datetime,
    until: datetime | None,
    count: int,
) -> list[dict[str, Any]]:
    """Rows of the view, newest first. Returns [] if the view does not exist."""
    if not table_exists(connection, target.view):
        return []
    values = {"level": level, "since": since, "until": until, "count": count}
    return connection.execute(fill_query("counted", view=target.view, **values)).fetchall()


# Keeps AG5.
def note_batch(connection: Connection, target: PostgresTarget, won: CommittedBatch) -> None:
    """Write the windows of a batch's rows, and the ranges that are complete now."""
    names = {"windows": target.windows, "complete": _complete(target)}
    starts = [pq.read_table(readable(at(file.staged_path)), columns=[START])[START] for file in won.files]
    slices = pc.unique(pa.chunked_array([c for s in starts for c in s.chunks], UTC_TIME))
    _note_windows(connection, target, np.sort(slices.cast(pa.int64()).to_numpy()))
    covered = [Range(*ends, "[)") for ends in won.complete]
    delay = target.counting.windows.delay.total_seconds()
    values = {"table": target.names[1], "covered": Multirange(covered), "delay": delay}
    connection.execute(fill_query("note_complete", **names, **values))


def _note_windows(connection: Connection, target: PostgresTarget, slices: np.ndarray) -> None:
    """Write the windows of slices. `slices`: their starts in microseconds, ascending."""
    if not len(slices):
        return
    edges, places = target.counting.windows.of(slices)
    values = {"edges": (edges // _SECOND).tolist(), "places": (places + 1).tolist()}
    names = {"windows": target.windows, "count": target.counting.windows.count}
    connection.execute(fill_query("note_windows", **names, **values))


def _complete(target: PostgresTarget) -> sql.Identifier:
    return sql.Identifier(target.names[0], COMPLETE)
