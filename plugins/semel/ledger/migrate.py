"""`semel migrate`: bring a ledger to this version's schema (alembic, running plain SQL)."""

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from psycopg import errors as pg

from semel import settings
from semel.errors import TerminalError
from semel.ledger import Ledger


def migrate(dsn: str) -> str:
    """Run the migrations that the ledger at `dsn` lacks. Returns the revision that it is at now.

    Several processes at once are safe: each waits for the same advisory lock (see
    sql/migrations/env.py). All that is pending is one transaction.
    UnavailableError: the ledger does not answer. TerminalError: it is newer than this semel, or its
    user may not do this.
    """
    config = Config()
    config.set_main_option("script_location", str(settings.sql_dir() / "migrations"))
    with Ledger(dsn) as ledger:
        with ledger.transaction():
            pass  # It answers.
        config.attributes["ledger"] = ledger
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise TerminalError(
                f"the ledger {ledger} cannot be migrated: {error}; it was made by another "
                "version of semel: install that one or a newer one. The ledger of a local stack "
                "that was made from an earlier checkout begins anew with `make reset`"
            ) from error
        except sa.exc.ProgrammingError as error:
            if not isinstance(error.orig, pg.InsufficientPrivilege):
                raise
            raise TerminalError(
                f"the ledger {ledger} cannot be migrated: {error.orig}; its user must own the "
                "database, or an administrator must create the schema `semel` and the extension "
                "btree_gist for it"
            ) from error
        with ledger.engine.connect() as connection:
            return connection.exec_driver_sql("SELECT version_num FROM semel_alembic").scalar_one()


def revisions(ledger: Ledger) -> tuple[str | None, list[str]]:
    """The revision that a ledger is at, None without any; and those known here, newest first."""
    scripts = ScriptDirectory(str(settings.sql_dir() / "migrations"))
    with ledger.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "semel_alembic"})
        found = context.get_current_revision()
    return found, [script.revision for script in scripts.walk_revisions()]
