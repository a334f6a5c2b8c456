"""Delete the rows that a replay replaces, and check beforehand that the table permits it.

The batch number and commit_seq identify the rows, because a table belongs to one pipeline.
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
    fill_query,
    is_refusal,
    reason,
    row_rights,
    table_exists,
)
from semel.sinks.postgres.target import PostgresTarget

_NOT_IDENTIFIED = pg.ObjectNotInPrerequisiteState
"""PostgreSQL's error for a table that replicates deletes and lacks a replica identity."""


class OldRowsRemainError(TerminalError):
    """Rows to be replaced would remain. Nothing was written."""


# Keeps PG10, RP8.
def check_replaceable(
    connection: Connection, target: PostgresTarget, old: ReplacedOutput
) -> tuple[str, ...]:
    """Refuse a replay whose old rows the table would keep. Returns notes for the operator."""
    if target.key or "upsert" in old.modes:
        raise TerminalError(
            f"semel cannot replace batch {old.batches[-1]} in {target.address}, in mode upsert: "
            "its rows may have overwritten rows of earlier batches, which are lost. Declare the "
            "corrected transforms in a pipeline of another name and table, which reads the source "
            "from its start"
        )
    if not examine(connection, target, None).exists:
        return ()
    rights = row_rights(connection, target)
    acting = connection.execute(
        query("postgres", "of_deletes").text, {"oid": rights["oid"]}
    ).fetchall()
    problems = [] if rights["may_delete"] else [_grant_advice(target)]
    problems += [_obstacle_problem(rule) for rule in acting if rule["kind"] != "t"]
    if not problems and table_exists(connection, target.batches):
        problems = _delete_problems(connection, target, old)
    if problems:
        raise TerminalError(
            f"semel cannot replace the rows of batch {old.batches[-1]} in {target.address}: "
            f"{'; '.join(problems)}"
        )
    notes = [
        f"the trigger {rule['name']} of {rule['place']} fires when finalize deletes the old rows"
        for rule in acting
        if rule["kind"] == "t"
    ]
    return (*notes, *([] if rights["indexed"] else [_index_advice(target)]))


# Keeps PG9.
def delete_replaced(connection: Connection, target: PostgresTarget, won: CommittedBatch) -> None:
    """Delete the rows that a replay replaces, within its transaction.

    Raises OldRowsRemainError if some would remain. The caller MUST have inserted the batch's note,
    so that a concurrent finalize waits.
    """
    old = ReplacedOutput(pipeline=won.pipeline, commit_seq=won.commit_seq, batches=won.replaces)
    values = _delete_values(target, old)
    try:
        connection.execute(fill_query("delete", **values))
    except psycopg.Error as error:
        if isinstance(error, _NOT_IDENTIFIED):
            raise _old_rows_error(target, won, first_line(error)) from error
        if is_refusal(error):
            raise _old_rows_error(target, won, reason(error)) from error
        raise
    remaining = connection.execute(fill_query("left", **values)).fetchone()["rows"]
    if remaining:
        raise _old_rows_error(target, won, f"a trigger of the table keeps {remaining} of them")


def _grant_advice(target: PostgresTarget) -> str:
    return f"the user may not delete its rows; GRANT SELECT, DELETE ON {target.sql_name}"


def _obstacle_problem(rule: dict[str, str]) -> str:
    """The problem with a foreign key, or a rule, that acts on deletions."""
    name, place = rule["name"], rule["place"]
    if rule["kind"] == "f":
        drop = f"ALTER TABLE {place} DROP CONSTRAINT {name}"
        return (
            f"the foreign key {name} of {place} references it, and would stop the deletion or "
            f"change {place}; {drop}"
        )
    return f"its rule {name} rewrites DELETE; DROP RULE {name} ON {place}"


def _index_advice(target: PostgresTarget) -> str:
    return (
        "no index is on _semel_batch, so a replay reads the whole table; CREATE INDEX ON "
        f"{target.sql_name} USING brin (_semel_batch) WITH (autosummarize = on)"
    )


def _old_rows_error(target: PostgresTarget, won: CommittedBatch, why: str) -> OldRowsRemainError:
    return OldRowsRemainError(
        f"batch {won.batch_id}: {target.address} does not delete the rows that it replaces "
        f"({why}). The batch stays committed, and nothing was written. Change the table, then run "
        "finalize again",
        next=AGAIN,
    )


def _delete_values(target: PostgresTarget, old: ReplacedOutput) -> dict[str, Any]:
    return {
        "rows": target.identifier,
        "commit_seq": old.commit_seq,
        "replaced": sql.SQL(", ").join(map(sql.Literal, old.batches)),
    }


def _delete_problems(
    connection: Connection, target: PostgresTarget, old: ReplacedOutput
) -> list[str]:
    """The server's own objection to the DELETE, from EXPLAIN."""
    statement = fill_query("delete", **_delete_values(target, old))
    try:
        connection.execute(sql.SQL("EXPLAIN ") + statement)
    except _NOT_IDENTIFIED as error:
        return [f"{first_line(error)}; ALTER TABLE {target.sql_name} REPLICA IDENTITY FULL"]
    return []
