"""The view that merges the partial rows of windows, and the two tables that it needs beside them.

Partial rows land in `<table>_parts`; the view has the declared name. `<table>_windows` says which
slices of time make which window, so that the server computes no calendar; `semel_complete` has
what is complete of a table, and grows in the transaction of a batch's rows.
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
from semel.declare.aggregate import END, START
from semel.errors import TerminalError
from semel.formats.merged import SLICE, merge_query
from semel.model.windows import UTC_TIME
from semel.sinks import CommittedBatch
from semel.sinks.postgres.link import Connection, filled, is_there
from semel.sinks.postgres.target import COMPLETE, PostgresTarget

_COLUMNS = {
    "windows": [SLICE, START, END],
    "complete": ["table_name", "covered", "delay"],
}
"""Of the two tables beside the view."""

_SECOND = 1_000_000
"""Microseconds: each slice begins at a whole second."""

_COMMENT = "The windows of a pipeline of semel, merged from its partial rows."


# Keeps AG5.
def check(connection: Connection, target: PostgresTarget) -> None:
    """TerminalError: something that semel did not make has the name of the view, or of a table
    beside it.
    """
    schema = target.names[0]
    names = {"schema": schema, "view": target.view_name, "parts": target.shown}
    found = connection.execute(query("postgres", "view").text, names).fetchone()
    if found and not (found["kind"] == "v" and found["reads_parts"]):
        raise TerminalError(
            f"{target.view.as_string()} is there, and is no view that semel made: aggregate makes "
            f"one of that name, over {target.shown}; give sink.table another name"
        )
    names = {target.windows_name: "windows", COMPLETE: "complete"}
    values = {"schema": schema, "names": list(names)}
    for there in connection.execute(query("postgres", "beside").text, values).fetchall():
        if there["columns"] != _COLUMNS[names[there["name"]]]:
            raise TerminalError(
                f"{sql.Identifier(schema, there['name']).as_string()} is there, and is no table "
                f"that semel made: aggregate makes one of that name, beside {target.shown}; "
                "rename it, or give sink.table another name"
            )


def make(connection: Connection, target: PostgresTarget, schema: pa.Schema) -> None:
    """Make what is missing. The table of partial rows is there, and may have rows already: of a
    target that was moved or restored without the other tables.
    """
    names = {"windows": target.windows, "complete": _complete(target)}
    connection.execute(filled("create_windows", **names))
    if is_there(connection, target.view):
        return
    start = sql.Identifier(START)
    connection.execute(filled("forget_complete", complete=names["complete"], table=target.names[1]))
    connection.execute(filled("create_start_index", table=target.identifier, start=start))
    merged = merge_query(
        target.counting.aggregate,
        target.counting.windows,
        parts=target.shown,
        windows=filled("windows", table=target.names[1], **names).as_string(),
        texts=[field.name for field in schema if pa.types.is_string(field.type)],
    )
    text = merged.replace("{", "{{").replace("}", "}}")  # A name may have them.
    connection.execute(filled("create_view", view=target.view, merged=sql.SQL(text).format()))
    connection.execute(filled("comment_view", view=target.view, comment=_COMMENT))
    slices = connection.execute(filled("slices", table=target.identifier, start=start)).fetchall()
    known = np.array([row["seconds"] for row in slices], np.int64)
    _note_windows(connection, target, known * _SECOND)


# Keeps AG5.
def unmerged(connection: Connection, target: PostgresTarget) -> int:
    """How many partial rows the view passes over, because no window has their slice."""
    if not target.counting or not is_there(connection, target.view):
        return 0
    names = {"table": target.identifier, "windows": target.windows, "start": sql.Identifier(START)}
    return connection.execute(filled("unmerged", **names)).fetchone()["rows"]


def rows(
    connection: Connection,
    target: PostgresTarget,
    level: int,
    since: datetime,
    until: datetime | None,
    count: int,
) -> list[dict[str, Any]]:
    """Rows of the view, the newest first; none while it is not there."""
    if not is_there(connection, target.view):
        return []
    asked = {"level": level, "since": since, "until": until, "count": count}
    return connection.execute(filled("counted", view=target.view, **asked)).fetchall()


# Keeps AG5.
def note(connection: Connection, target: PostgresTarget, won: CommittedBatch) -> None:
    """Say which windows a batch's rows are of, and what is complete now."""
    names = {"windows": target.windows, "complete": _complete(target)}
    starts = [pq.read_table(file.staged_path, columns=[START])[START] for file in won.files]
    slices = pc.unique(pa.chunked_array([c for s in starts for c in s.chunks], UTC_TIME))
    _note_windows(connection, target, np.sort(slices.cast(pa.int64()).to_numpy()))
    covered = [Range(*ends, "[)") for ends in won.complete]
    delay = target.counting.windows.delay.total_seconds()
    values = {"table": target.names[1], "covered": Multirange(covered), "delay": delay}
    connection.execute(filled("note_complete", **names, **values))


def _note_windows(connection: Connection, target: PostgresTarget, slices: np.ndarray) -> None:
    """Say which windows slices are part of. `slices`: their starts in microseconds, ascending."""
    if not len(slices):
        return
    edges, places = target.counting.windows.of(slices)
    values = {"edges": (edges // _SECOND).tolist(), "places": (places + 1).tolist()}
    names = {"windows": target.windows, "count": target.counting.windows.count}
    connection.execute(filled("note_windows", **names, **values))


def _complete(target: PostgresTarget) -> sql.Identifier:
    return sql.Identifier(target.names[0], COMPLETE)
