"""The named statements of sql/queries/: of the ledger, and of a Postgres that is a sink."""

from functools import cache

import sqlalchemy as sa

from semel import settings


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
