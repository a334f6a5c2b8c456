"""The state machine's ledger: a database whose clock a test can move, and a process that can die.

The clock is one for all that the ledger's statements say: a schema that the search path names
before pg_catalog has functions of the same names. So time that passes is not told from real time,
also by spans, buckets and floors, which are numbers and could not be shifted in the tables.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psycopg
import sqlalchemy as sa

from fixtures.postgres.server import EMPTY
from semel.errors import UnavailableError
from semel.ledger import Ledger

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
"""When each example begins, so that a replay meets the same ends of spans and buckets."""

_CLOCK = """
CREATE SCHEMA machine;
CREATE TABLE machine.clock AS SELECT pg_catalog.clock_timestamp() AS real, now() AS shown;
CREATE FUNCTION machine.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT shown + (pg_catalog.clock_timestamp() - real) FROM machine.clock';
CREATE FUNCTION machine.statement_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT machine.clock_timestamp()';
DO $$
DECLARE c record;
BEGIN
    FOR c IN SELECT table_name, column_name FROM information_schema.columns
             WHERE table_schema = 'semel' AND column_default LIKE '%clock_timestamp()%' LOOP
        EXECUTE format('ALTER TABLE semel.%I ALTER COLUMN %I SET DEFAULT machine.clock_timestamp()',
                       c.table_name, c.column_name);
    END LOOP;
    EXECUTE format('ALTER DATABASE %I SET search_path = machine, pg_catalog, public',
                   current_database());
END $$;
"""


class Mortal(Ledger):
    """A ledger that a process which was killed cannot reach any more, to clean up behind it."""

    dead = False

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        if self.dead:
            raise UnavailableError("this process was killed")
        with super().transaction() as connection:
            yield connection


class Killed(BaseException):
    """What stands for the death of a process: no code of semel expects it."""


class Clock:
    """The clock of a ledger in a database of `clocked`."""

    def __init__(self, dsn: str) -> None:
        plain = sa.make_url(dsn).set(drivername="postgresql")
        text = plain.render_as_string(hide_password=False)
        self._connection = psycopg.connect(text, autocommit=True)
        self.passed = timedelta()

    def begin(self) -> None:
        """Empty the ledger, and begin at START."""
        self.passed = timedelta()
        self._connection.execute(EMPTY)
        text = "UPDATE machine.clock SET real = pg_catalog.clock_timestamp(), shown = %s"
        self._connection.execute(text, (START,))

    def advance(self, passed: timedelta) -> None:
        self.passed += passed
        self._connection.execute("UPDATE machine.clock SET shown = shown + %s", (passed,))

    def now(self) -> datetime:
        """The time, but for the few seconds that the machine itself took."""
        return START + self.passed

    def close(self) -> None:
        self._connection.close()


@contextmanager
def clocked(postgres: str, template: str) -> Iterator[str]:
    """The DSN of a database with the schema, whose clock can be moved."""
    name = f"semel_machine_{secrets.token_hex(4)}"
    url = sa.make_url(postgres).set(database=name, drivername="postgresql")
    dsn = url.render_as_string(hide_password=False)
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            with psycopg.connect(dsn, autocommit=True) as made:
                made.execute(_CLOCK)
            yield dsn
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
