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
    """Run the pending migrations of the ledger at `dsn`, in one transaction. Returns its revision.

    Several processes may do this at once: each waits for an advisory lock (sql/migrations/env.py).
    Raises UnavailableError if the ledger does not answer, TerminalError if it is newer than this
    version of semel or its user may not migrate it.
    """
    config = Config()
    config.set_main_option("script_location", str(settings.sql_dir() / "migrations"))
    with Ledger(dsn) as ledger:
        with ledger.transaction():
            pass  # Raises UnavailableError if the ledger does not answer.
        config.attributes["ledger"] = ledger
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise TerminalError(
                f"the ledger {ledger} cannot be migrated: {error}. Another version of semel made "
                "it; install that version or a newer one. To recreate the local stack's ledger, "
                "run `make reset`"
            ) from error
        except sa.exc.ProgrammingError as error:
            if not isinstance(error.orig, pg.InsufficientPrivilege):
                raise
            raise TerminalError(
                f"the ledger {ledger} cannot be migrated: {error.orig}. Its user must own the "
                "database, or an administrator must create the schema `semel` and the extension "
                "btree_gist for it"
            ) from error
        with ledger.engine.connect() as connection:
            return connection.exec_driver_sql("SELECT version_num FROM semel_alembic").scalar_one()


def roles() -> str:
    """The SQL that gives executors' role its rights, for the ledger's owner. Running it twice is
    harmless."""
    return (settings.sql_dir() / "roles.sql").read_text(encoding="utf-8")


def revisions(ledger: Ledger) -> tuple[str | None, list[str]]:
    """The revision of a ledger (None: an empty database), and the known ones, newest first."""
    scripts = ScriptDirectory(str(settings.sql_dir() / "migrations"))
    with ledger.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "semel_alembic"})
        revision = context.get_current_revision()
    return revision, [script.revision for script in scripts.walk_revisions()]
