"""The named statements of sql/queries/, and names and texts as SQL has them."""

import re
from dataclasses import fields
from functools import cache

import sqlalchemy as sa

from semel import settings
from semel.model.batch import Counts

LOCK_TIMEOUT_MS = 30_000
"""How long a statement waits for a lock of the ledger before it fails and is retried."""

IDLE_IN_TRANSACTION_MS = 60_000
"""Postgres ends our transaction when we hold it idle for longer: a dead client must not block."""


@cache
def query(verb: str, name: str) -> sa.TextClause:
    """The statement `-- name: <name>` of sql/queries/<verb>.sql.

    `{a.<count>}` becomes a list of all counts of an account: `a.records_read, a.survivors, ...`.
    `{failed b}` becomes the condition `failed` of batch.sql about the row `b` of a batch.
    """
    return _queries(verb)[name]


@cache
def _queries(verb: str) -> dict[str, sa.TextClause]:
    text = (settings.sql_dir() / "queries" / f"{verb}.sql").read_text(encoding="utf-8")
    text = re.sub(r"\{([^{}]*<count>[^{}]*)\}", _counts, text)
    text = re.sub(r"\{failed (\w+)\}", _failed, text)
    found = {}
    for part in text.split("-- name: ")[1:]:
        name, _, body = part.partition("\n")
        found[name.strip()] = sa.text(body.strip().rstrip(";"))
    return found


def quoted(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def column(name: str) -> str:
    """A column's name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def _failed(found: re.Match[str]) -> str:
    return query("batch", "failed").text.replace("<b>", found[1])


def _counts(found: re.Match[str]) -> str:
    return ", ".join(found[1].replace("<count>", field.name) for field in fields(Counts))
