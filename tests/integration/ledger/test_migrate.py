"""`semel migrate` and sql/schema.sql make the same ledger."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from fixtures.postgres.server import database
from semel import settings
from semel.errors import TerminalError, UnavailableError
from semel.ledger.migrate import migrate

CATALOG = {
    "columns": """
        SELECT table_name, rank() OVER (PARTITION BY table_name ORDER BY ordinal_position),
               column_name, data_type, is_nullable, column_default,
               is_identity, identity_generation
        FROM information_schema.columns WHERE table_schema = 'semel'""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid),
               condeferrable, condeferred
        FROM pg_constraint WHERE connamespace = 'semel'::regnamespace""",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'semel'",
    "views": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'semel'",
    "other objects": """
        SELECT relname, relkind, relpersistence, reloptions
        FROM pg_class WHERE relnamespace = 'semel'::regnamespace""",
    "triggers": """
        SELECT tgrelid::regclass::text, tgname FROM pg_trigger
        WHERE NOT tgisinternal""",
    "functions": """
        SELECT proname, prosrc, prosecdef, proconfig,
               has_function_privilege('public', oid, 'EXECUTE')
        FROM pg_proc WHERE pronamespace = 'semel'::regnamespace""",
    "types": """
        SELECT typname, typtype FROM pg_type WHERE typnamespace = 'semel'::regnamespace""",
    "extensions": "SELECT extname, extnamespace::regnamespace::text FROM pg_extension",
}


@pytest.fixture
def empty(postgres: str) -> Iterator[str]:
    """The DSN of a database of this test's own, with nothing in it."""
    with database(postgres) as dsn:
        yield dsn


def shape(dsn: str) -> dict[str, list[tuple]]:
    """All that the schema is made of, as Postgres' own catalog tells it."""
    with psycopg.connect(dsn) as connection:
        return {
            what: sorted(connection.execute(asked).fetchall(), key=repr)
            for what, asked in CATALOG.items()
        }


def test_schema_is_the_sum_of_the_migrations(empty: str, ledger_dsn: str) -> None:
    """A ledger that was migrated and one made from schema.sql differ in nothing."""
    migrate(empty)
    made, whole = shape(empty), shape(ledger_dsn)
    assert whole["columns"] and whole["constraints"], "schema.sql made nothing to compare"
    for what in CATALOG:
        only_migrated = [item for item in made[what] if item not in whole[what]]
        only_whole = [item for item in whole[what] if item not in made[what]]
        assert not only_migrated and not only_whole, (
            f"{what}: only by migrations {only_migrated}; only in sql/schema.sql {only_whole}; "
            "write the change into both"
        )


def test_migrating_again_changes_nothing(empty: str) -> None:
    """A second migrate finds the newest revision and leaves what is there, data included."""
    first = migrate(empty)
    with psycopg.connect(empty) as connection:
        connection.execute(
            "INSERT INTO semel.pipeline (name, sink_address, archive_path, identity, shards, "
            "bucket_seconds) VALUES ('p', 's', 'a', '{}', 1, 60)"
        )
    assert migrate(empty) == first
    with psycopg.connect(empty) as connection:
        assert connection.execute("SELECT name FROM semel.pipeline").fetchall() == [("p",)]


def test_two_at_once_are_safe(empty: str) -> None:
    """Two processes that start together both end with the newest revision, and no error."""
    program = (
        "import os; from semel.ledger.migrate import migrate; print(migrate(os.environ['DSN']))"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "DSN": empty},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert said[0] == said[1]


def test_what_cannot_be_migrated_is_said(empty: str) -> None:
    """A ledger of a newer semel, and one that does not answer, are errors that say what to do."""
    migrate(empty)
    with psycopg.connect(empty) as connection:
        connection.execute("UPDATE semel_alembic SET version_num = '9999'")
    with pytest.raises(TerminalError, match="Another version of semel made it"):
        migrate(empty)
    with pytest.raises(UnavailableError, match="does not answer"):
        migrate("postgresql://nobody:x@127.0.0.1:1/nowhere")


def test_a_migration_that_fails_leaves_nothing(empty: str, tmp_path: Path, monkeypatch) -> None:
    """All pending migrations are one transaction: half of a schema never stays."""
    copied = tmp_path / "sql" / "migrations"
    (copied / "versions").mkdir(parents=True)
    source = settings.sql_dir() / "migrations"
    for path in [*source.glob("*.*"), *source.glob("versions/*.py")]:
        (copied / path.relative_to(source)).write_bytes(path.read_bytes())
    with next(copied.glob("0001_*.sql")).open("a") as file:
        file.write("\nSELECT 1 / 0;\n")
    monkeypatch.setattr(settings, "sql_dir", lambda: tmp_path / "sql")
    with pytest.raises(sa.exc.DataError):
        migrate(empty)
    with psycopg.connect(empty) as connection:
        found = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'semel'").fetchall()
        assert found == []
