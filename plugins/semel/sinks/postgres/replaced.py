"""Rows that a replay replaces: whether a table lets go of them, and their deletion.

They are known by the numbers of the batches that wrote them and by their place in the order of
commits: a table has the batches of one pipeline alone.
"""

from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from semel.clients.sql import query
from semel.errors import AGAIN, TerminalError, first_line
from semel.sinks import CommittedBatch, ReplacedOutput
from semel.sinks.postgres.facts import examine
from semel.sinks.postgres.link import (
    Connection,
    filled,
    is_refusal,
    is_there,
    reason,
    rights,
)
from semel.sinks.postgres.target import PostgresTarget

_NOT_IDENTIFIED = pg.ObjectNotInPrerequisiteState
"""A table that is replicated with its deletes, and has nothing that tells its rows apart."""


class StayedError(TerminalError):
    """Rows that are to be replaced would stay. Nothing was written."""


# Keeps PG10, RP8.
def check(connection: Connection, target: PostgresTarget, old: ReplacedOutput) -> tuple[str, ...]:
    """Refuse what can be known to keep rows from being replaced. Returns notes for the operator."""
    if target.key or "upsert" in old.modes:
        raise TerminalError(
            f"batch {old.batches[-1]} cannot be replaced in {target.address}, in mode upsert: its "
            "rows may have replaced those of batches before it, and later ones its own. What these "
            "were is not there any more. Give the corrected transforms to a pipeline of another "
            "name and table: it reads the source from its start"
        )
    if not examine(connection, target, None).exists:
        return ()
    found = rights(connection, target)
    acting = connection.execute(
        query("postgres", "of_deletes").text, {"oid": found["oid"]}
    ).fetchall()
    problems = [] if found["may_delete"] else [_grant(target)]
    problems += [_in_the_way(one) for one in acting if one["kind"] != "t"]
    if not problems and is_there(connection, target.batches):
        problems = _tried(connection, target, old)
    if problems:
        raise TerminalError(
            f"the rows of batch {old.batches[-1]} in {target.address} cannot be replaced: "
            f"{'; '.join(problems)}"
        )
    notes = [
        f"the trigger {one['name']} of {one['place']} runs when the replaced rows are deleted"
        for one in acting
        if one["kind"] == "t"
    ]
    return (*notes, *([] if found["indexed"] else [_index(target)]))


# Keeps PG9.
def delete(connection: Connection, target: PostgresTarget, won: CommittedBatch) -> None:
    """Delete the rows that a replay replaces, within its transaction. StayedError: some would stay.

    The caller has written the batch's note: a twin waits.
    """
    old = ReplacedOutput(pipeline=won.pipeline, commit_seq=won.commit_seq, batches=won.replaces)
    values = _values(target, old)
    try:
        connection.execute(filled("delete", **values))
    except psycopg.Error as error:
        if isinstance(error, _NOT_IDENTIFIED):
            raise _stayed(target, won, first_line(error)) from error
        if is_refusal(error):
            raise _stayed(target, won, reason(error)) from error
        raise
    left = connection.execute(filled("left", **values)).fetchone()["rows"]
    if left:
        raise _stayed(target, won, f"a trigger of the table keeps {left} of them")


def _grant(target: PostgresTarget) -> str:
    return f"the user may not delete its rows; GRANT SELECT, DELETE ON {target.shown}"


def _in_the_way(one: dict[str, str]) -> str:
    """What is said of a foreign key, or a rule, that acts on deleted rows."""
    name, place = one["name"], one["place"]
    if one["kind"] == "f":
        drop = f"ALTER TABLE {place} DROP CONSTRAINT {name}"
        return (
            f"the foreign key {name} of {place} points at it, and would stop the deletion or "
            f"change {place}; {drop}"
        )
    return f"its rule {name} rewrites what deletes rows; DROP RULE {name} ON {place}"


def _index(target: PostgresTarget) -> str:
    return (
        "no index finds the rows of a batch, so a replay reads the whole table; CREATE INDEX ON "
        f"{target.shown} USING brin (_semel_batch) WITH (autosummarize = on)"
    )


def _stayed(target: PostgresTarget, won: CommittedBatch, why: str) -> StayedError:
    return StayedError(
        f"batch {won.batch_id}: the rows that it replaces stay in {target.address} ({why}); it has "
        "committed and stays so, and nothing was written. Change the table, then run finalize "
        "again",
        next=AGAIN,
    )


def _values(target: PostgresTarget, old: ReplacedOutput) -> dict[str, Any]:
    return {
        "rows": target.identifier,
        "commit_seq": old.commit_seq,
        "replaced": sql.SQL(", ").join(map(sql.Literal, old.batches)),
    }


def _tried(connection: Connection, target: PostgresTarget, old: ReplacedOutput) -> list[str]:
    """What the server itself says of such a DELETE, which is planned and not run."""
    statement = filled("delete", **_values(target, old))
    try:
        connection.execute(sql.SQL("EXPLAIN ") + statement)
    except _NOT_IDENTIFIED as error:
        return [f"{first_line(error)}; ALTER TABLE {target.shown} REPLICA IDENTITY FULL"]
    return []
