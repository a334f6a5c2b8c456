"""Alembic's entry: one transaction for all, under an advisory lock, so that two may run at once."""

from alembic import context

LOCK = 0x73656D656C  # "semel"

ledger = context.config.attributes["ledger"]
with ledger.engine.connect() as connection, connection.begin():
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
    context.configure(connection=connection, version_table="semel_alembic")
    context.run_migrations()
