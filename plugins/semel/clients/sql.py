"""The named statements of sql/queries/: of the ledger, and of a Postgres that is a sink."""

from functools import cache

import sqlalchemy as sa

from semel import settings

LOCK_TIMEOUT_MS = 30_000
"""How long a statement waits for a lock of the ledger before it fails and is retried."""

IDLE_IN_TRANSACTION_MS = 60_000
"""Postgres ends our transaction when we hold it idle for longer: a dead client must not block."""


@cache
def query(verb: str, name: str) -> sa.TextClause:
    """The statement `-- name: <name>` of sql/queries/<verb>.sql."""
    return _queries(verb)[name]


@cache
def _queries(verb: str) -> dict[str, sa.TextClause]:
    text = (settings.sql_dir() / "queries" / f"{verb}.sql").read_text(encoding="utf-8")
    found = {}
    for part in text.split("-- name: ")[1:]:
        name, _, body = part.partition("\n")
        found[name.strip()] = sa.text(body.strip().rstrip(";"))
    return found
