"""The notes in `semel_batch`: the batches whose rows a table has."""

from typing import Any, NamedTuple

from semel.errors import AGAIN, TerminalError
from semel.model.manifest import Kind, Published
from semel.sinks import BatchNote, CommittedBatch, DamagedNote, MiscountError, Notes
from semel.sinks.note_comparison import compare, refuse_foreign
from semel.sinks.postgres.link import Connection, fill_query, row_rights, table_exists
from semel.sinks.postgres.target import PostgresTarget

_NUMBERS = ("batch_id", "commit_seq", "fence", "rows", "refused")


def read_notes(
    connection: Connection, target: PostgresTarget, newest: tuple[str, int] | None = None
) -> Notes:
    """The notes on a table, from any pipeline. `newest` (pipeline, count) limits them to the newest
    of that pipeline and at most two of others.
    """
    if not table_exists(connection, target.batches):
        return Notes(())
    statement = fill_query("notes", **notes_location(target))
    if newest is not None:
        pipeline, count = newest
        statement = fill_query(
            "newest_notes", pipeline=pipeline, newest=count, **notes_location(target)
        )
    notes, damaged = [], []
    for row in connection.execute(statement).fetchall():
        values = [row.get(name) for name in _NUMBERS]
        if all(isinstance(value, int) for value in values):
            batch_id, commit_seq, fence, *counts = values
            notes.append(
                BatchNote(
                    pipeline=row["pipeline"],
                    batch_id=batch_id,
                    commit_seq=commit_seq,
                    fence=fence,
                    rows=sum(counts),
                    ledger=row.get("ledger"),
                )
            )
            continue
        what = (
            f"the row of {target.batches.as_string()} of table {target.names[1]}, pipeline "
            f"{row['pipeline']}, batch {row['batch_id']} is not a valid note: "
            f"{', '.join(_NUMBERS)} are not all numbers; restore it"
        )
        damaged.append(DamagedNote(batch_id=row["batch_id"], what=what))
    return Notes(tuple(notes), complete=not damaged, damaged=tuple(damaged))


def refuse_other_owners(
    connection: Connection, target: PostgresTarget, won: CommittedBatch
) -> None:
    """Raises TerminalError if another pipeline, or one of another ledger, has written rows.

    The schema lock serialises two pipelines that publish their first batches at once.
    """
    if not _has_own_notes(connection, target, won):
        connection.execute(fill_query("lock_schema", schema=target.names[0]))
        if not _has_own_notes(connection, target, won) and not won.replaces:
            refuse_unnoted(connection, target)


def _has_own_notes(connection: Connection, target: PostgresTarget, won: CommittedBatch) -> bool:
    """Whether the table has notes of the pipeline. Raises TerminalError if others have notes."""
    notes = read_notes(connection, target, (won.pipeline, 1))
    differences = compare(won.pipeline, won.ledger, (), notes.batch_notes)
    refuse_foreign(target.address, won.pipeline, differences.foreign)
    return bool(notes.batch_notes or notes.damaged)


def refuse_unnoted(connection: Connection, target: PostgresTarget) -> None:
    """Raises TerminalError if the table has rows of batches, and semel_batch lacks notes on it."""
    rights = row_rights(connection, target)
    if not (rights and rights["may_find"]):
        return
    unnoted = fill_query("unnoted", table=target.identifier)
    if connection.execute(unnoted).fetchone()["there"]:
        raise TerminalError(
            f"{target.address} has rows of batches (see its column _semel_batch), and "
            f"{target.batches.as_string()} has no notes on them: they were removed, or the table "
            "was copied without them. Nothing was written. Restore the notes, or name a table "
            "without such rows"
        )


def refuse_unnoted_batch(
    connection: Connection, target: PostgresTarget, won: CommittedBatch
) -> None:
    """Raises TerminalError if the table has the batch's rows without its note. Checks only with an
    index on `_semel_batch`.
    """
    if target.key:
        return  # An upsert of the same rows changes nothing.
    rights = row_rights(connection, target)
    if not (rights["may_find"] and rights["indexed"]):
        return
    if count := count_rows(connection, target, won):
        raise TerminalError(
            f"batch {won.batch_id}: {target.address} has {count} of its rows, and "
            f"{target.batches.as_string()} has no note on it: its note was removed. The batch "
            f"stays committed, and nothing was written. Delete the rows: DELETE FROM "
            f"{target.sql_name} WHERE _semel_batch = {won.batch_id} AND _semel_seq = "
            f"{won.commit_seq}; then run finalize again",
            next=AGAIN,
        )


def count_rows(connection: Connection, target: PostgresTarget, won: CommittedBatch) -> int:
    """The number of a batch's rows in the table."""
    values = {"table": target.identifier, "batch_id": won.batch_id, "commit_seq": won.commit_seq}
    return connection.execute(fill_query("rows_there", **values)).fetchone()["rows"]


class TableNotes(NamedTuple):
    """The notes that concern one batch. `rows`: the number published; None without a note.
    `newest`: the newest batch with its commit_seq. `later`: later upserts may have replaced rows.
    """

    rows: int | None
    newest: int
    later: bool


def read_table_notes(
    connection: Connection, target: PostgresTarget, marker: Published
) -> TableNotes:
    if not table_exists(connection, target.batches):
        return TableNotes(None, 0, False)
    statement = fill_query(
        "told",
        pipeline=marker.pipeline,
        batch_id=marker.writer_id,
        commit_seq=marker.commit_seq,
        **notes_location(target),
    )
    return TableNotes(**connection.execute(statement).fetchone())


# Keeps PG11.
def check_count(target: PostgresTarget, marker: Published, notes: TableNotes, count: int) -> None:
    """Raises MiscountError if the table does not have as many rows of a batch as were published,
    and TerminalError if the batch lacks a note.
    """
    if notes.rows is None:
        if not sum(file.records for file in marker.of_kind(Kind.DATA)):
            return
        raise TerminalError(
            f"{target.address} has no note on batch {marker.writer_id}, and its marker is "
            f"{marker.path}: the table was restored to an earlier time, or this is another table. "
            "Restore it with its notes"
        )
    wanted = notes.rows - marker.erased_rows
    if count == wanted or (notes.later and count < wanted):
        return
    erased = ", erased rows excluded" if marker.erased_rows else ""
    what = (
        f"{target.address} has {count} rows of batch {marker.writer_id}, and semel published "
        f"{wanted}{erased}: another program has changed them"
    )
    if target.key:
        raise MiscountError(f"{what}. Restore them")
    raise MiscountError(
        f"{what}. Replay the batch to restore them",
        next=f"semel replay {marker.pipeline} --batches {marker.batch_id} "
        f"--request mend-{marker.writer_id}",
    )


def notes_location(target: PostgresTarget) -> dict[str, Any]:
    """The parameters that locate a table's notes, for a statement."""
    return {"batches": target.batches, "table": target.names[1]}
