"""`semel migrate`: bring a ledger to this version's schema (alembic, running plain SQL)."""

from alembic import command
from alembic.config import Config

from semel import paths
from semel.ledger import Ledger


def migrate(dsn: str) -> str:
    """Run the migrations that the ledger at `dsn` lacks. Returns the revision that it is at now.

    Several at once are safe: each waits for the same advisory lock (see sql/migrations/env.py).
    """
    config = Config()
    config.set_main_option("script_location", str(paths.sql_dir() / "migrations"))
    config.attributes["ledger"] = ledger = Ledger(dsn)
    with ledger:
        command.upgrade(config, "head")
        with ledger.engine.connect() as connection:
            return connection.exec_driver_sql("SELECT version_num FROM semel_alembic").scalar_one()
