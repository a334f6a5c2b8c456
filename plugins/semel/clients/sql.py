"""Load the named statements of sql/queries/, and quote names and texts for SQL."""

import re
from dataclasses import fields
from functools import cache

import sqlalchemy as sa

from semel import settings
from semel.model.batch import Counts

LOCK_TIMEOUT_MS = 30_000
"""How long a statement waits for a lock of the ledger before it fails, and semel retries it."""

IDLE_IN_TRANSACTION_MS = 60_000
"""Postgres ends a transaction that is idle for longer, so that a dead client does not block."""


@cache
def query(verb: str, name: str) -> sa.TextClause:
    """The statement `-- name: <name>` of sql/queries/<verb>.sql.

    `{a.<count>}` expands to all counts of an account: `a.records_read, a.survivors, ...`.
    `{failed b}` expands to the condition `failed` of batch.sql for the row `b` of a batch, and
    `{may_pack b}` likewise.
    """
    return _queries(verb)[name]


@cache
def _queries(verb: str) -> dict[str, sa.TextClause]:
    text = (settings.sql_dir() / "queries" / f"{verb}.sql").read_text(encoding="utf-8")
    text = re.sub(r"\{([^{}]*<count>[^{}]*)\}", _counts, text)
    text = re.sub(r"\{(failed|may_pack) (\w+)\}", _condition, text)
    statements = {}
    for part in text.split("-- name: ")[1:]:
        name, _, body = part.partition("\n")
        statements[name.strip()] = sa.text(body.strip().rstrip(";"))
    return statements


def quote_text(text: str) -> str:
    """An SQL literal of a text."""
    return "'" + text.replace("'", "''") + "'"


def column(name: str) -> str:
    """A column's name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _condition(match: re.Match[str]) -> str:
    conditions = {"failed": query("batch", "failed"), "may_pack": query("batch", "may_pack")}
    return conditions[match[1]].text.replace("<b>", match[2])


def _counts(match: re.Match[str]) -> str:
    return ", ".join(match[1].replace("<count>", field.name) for field in fields(Counts))
