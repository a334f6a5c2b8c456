"""`semel_batch`: what a table says of the batches whose rows it holds."""

from typing import Any, NamedTuple

from semel.errors import AGAIN, TerminalError
from semel.model.manifest import Kind, Published
from semel.sinks import DamagedNote, MiscountError, BatchNote, Notes, CommittedBatch
from semel.sinks.held import compare, refuse_foreign
from semel.sinks.postgres.link import Connection, filled, is_there, rights
from semel.sinks.postgres.target import PostgresTarget

_NUMBERS = ("batch_id", "commit_seq", "fence", "rows", "refused")


def notes_of(
    connection: Connection, target: PostgresTarget, newest: tuple[str, int] | None = None
) -> Notes:
    """The notes of a table, of whichever pipeline. `newest`: of this pipeline so many, and of
    others one.
    """
    if not is_there(connection, target.batches):
        return Notes(())
    statement = filled("notes", **places(target))
    if newest is not None:
        pipeline, most = newest
        statement = filled("newest_notes", pipeline=pipeline, newest=most, **places(target))
    found, damaged = [], []
    for row in connection.execute(statement).fetchall():
        values = [row.get(name) for name in _NUMBERS]
        if all(isinstance(value, int) for value in values):
            batch_id, commit_seq, fence, *counts = values
            found.append(
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
            f"{row['pipeline']}, batch {row['batch_id']} is no note of a batch: "
            f"{', '.join(_NUMBERS)} are not all numbers; restore it"
        )
        damaged.append(DamagedNote(batch_id=row["batch_id"], what=what))
    return Notes(tuple(found), complete=not damaged, damaged=tuple(damaged))


def refuse_others(connection: Connection, target: PostgresTarget, won: CommittedBatch) -> None:
    """TerminalError: another pipeline, or another ledger's, has put rows in.

    Two that publish their first batches at once wait for each other.
    """
    if not _own(connection, target, won):
        connection.execute(filled("lock_schema", schema=target.names[0]))
        if not _own(connection, target, won) and not won.replaces:
            refuse_unnoted(connection, target)


def _own(connection: Connection, target: PostgresTarget, won: CommittedBatch) -> bool:
    """Whether batches of the pipeline have landed. TerminalError: those of others have."""
    found = notes_of(connection, target, (won.pipeline, 1))
    differ = compare(won.pipeline, won.ledger, (), found.batch_notes)
    refuse_foreign(target.address, won.pipeline, differ.foreign)
    return bool(found.batch_notes or found.damaged)


def refuse_unnoted(connection: Connection, target: PostgresTarget) -> None:
    """TerminalError: rows of batches are there, and semel_batch says nothing of any batch."""
    found = rights(connection, target)
    if not (found and found["may_find"]):
        return
    unnoted = filled("unnoted", table=target.identifier)
    if connection.execute(unnoted).fetchone()["there"]:
        raise TerminalError(
            f"{target.address} has rows of batches (its column _semel_batch), and "
            f"{target.batches.as_string()} says of none that it has landed: these notes were "
            "removed, or the table was copied without them. Nothing was written. Bring back the "
            "notes; or name a table without such rows"
        )


def refuse_landed(connection: Connection, target: PostgresTarget, won: CommittedBatch) -> None:
    """TerminalError: the batch's rows are there without its note. Where an index finds them."""
    if target.key:
        return  # Put in again, they change nothing.
    found = rights(connection, target)
    if not (found["may_find"] and found["indexed"]):
        return
    if count := count_of(connection, target, won):
        raise TerminalError(
            f"batch {won.batch_id}: {target.address} has {count} of its rows, and "
            f"{target.batches.as_string()} does not say that it has landed: its note was removed. "
            f"It has committed and stays so, and nothing was written. Take them out: DELETE FROM "
            f"{target.shown} WHERE _semel_batch = {won.batch_id} AND _semel_seq = "
            f"{won.commit_seq}; then run finalize again",
            next=AGAIN,
        )


def count_of(connection: Connection, target: PostgresTarget, won: CommittedBatch) -> int:
    """How many rows of a batch the table has."""
    places = {"table": target.identifier, "batch_id": won.batch_id, "commit_seq": won.commit_seq}
    return connection.execute(filled("rows_there", **places)).fetchone()["rows"]


class TableNotes(NamedTuple):
    """What a table says of a batch: how many rows were put in (None: nothing), the newest batch
    at its place in the order of commits, and whether later ones may have replaced rows of it.
    """

    rows: int | None
    newest: int
    later: bool


def of_marker(connection: Connection, target: PostgresTarget, marker: Published) -> TableNotes:
    if not is_there(connection, target.batches):
        return TableNotes(None, 0, False)
    statement = filled(
        "told",
        pipeline=marker.pipeline,
        batch_id=marker.made_by,
        commit_seq=marker.commit_seq,
        **places(target),
    )
    return TableNotes(**connection.execute(statement).fetchone())


# Keeps PG11.
def check_count(
    target: PostgresTarget, marker: Published, told: TableNotes, count: int
) -> None:
    """MiscountError: a batch has not as many rows in the table as were put in. TerminalError: the
    table does not say that it has landed.
    """
    if told.rows is None:
        if not sum(file.records for file in marker.of_kind(Kind.DATA)):
            return
        raise TerminalError(
            f"{target.address} does not say that batch {marker.made_by} has landed there, whose "
            f"marker is {marker.path}: it was restored to an earlier time, or is another place; "
            "restore it with its notes"
        )
    left = told.rows - marker.erased_rows
    if count == left or (told.later and count < left):
        return
    what = (
        f"{target.address} has {count} rows of batch {marker.made_by}, and {left} were put "
        f"in{' and not erased' if marker.erased_rows else ''}: somebody has changed them"
    )
    if target.key:
        raise MiscountError(f"{what}; restore them")
    raise MiscountError(
        f"{what}; a replay puts them in again",
        next=f"semel replay {marker.pipeline} --batches {marker.batch_id} "
        f"--request mend-{marker.made_by}",
    )


def places(target: PostgresTarget) -> dict[str, Any]:
    """Where the notes of a table are, for a statement."""
    return {"batches": target.batches, "table": target.names[1]}
