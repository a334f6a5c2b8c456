"""Airflow's four processes: their environment, migration and health.

Airflow variables that the user has set override everything here.
"""

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sysconfig
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path
from signal import SIGTERM

from semel import settings
from semel.errors import TerminalError
from semel_local.stack import java, layout, postgres, spark_server
from semel_local.stack.layout import Echo
from semel_local.stack.leader import ChildProcess

USER = "admin"

DATABASE_VARIABLE = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
DAGS_VARIABLE = "AIRFLOW__CORE__DAGS_FOLDER"
WAREHOUSE_VARIABLE = settings.connection_variable(postgres.WAREHOUSE)

COMMANDS = {
    "api-server": ["api-server"],
    # Log servers would listen on all interfaces; the api-server reads the files itself.
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
    "triggerer": ["triggerer", "--skip-serve-logs"],
}
"""The command of each part."""

HEALTH_NAMES = {
    "api-server": "metadatabase",
    "scheduler": "scheduler",
    "dag-processor": "dag_processor",
    "triggerer": "triggerer",
}
"""The name of each part on the health page."""

MIGRATE_SECONDS = 240
"""Limit for `airflow db migrate`, which takes 15 s on two free cores."""

STOP_SECONDS = {"api-server": 5.0, "scheduler": 30.0, "dag-processor": 10.0, "triggerer": 5.0}
"""Time for each part to drain. The scheduler waits for its running tasks; others do not."""


def dags_folder() -> Path:
    """The folder of DAG files: the user's, or else the project's."""
    return Path(os.environ.get(DAGS_VARIABLE) or settings.home() / "dags")


def environment(
    port: int, database: str, ledger_dsn: str, spark_remote: str, warehouse: str | None
) -> dict[str, str]:
    """The variables of all four processes. Variables that the user has set keep their values.

    `warehouse`: the address of the user's database, None for a stack without PostgreSQL.
    """
    url = f"http://127.0.0.1:{port}"
    home = os.environ.get("AIRFLOW_HOME") or str(layout.folder("airflow"))
    ours = {
        "AIRFLOW_HOME": home,
        DATABASE_VARIABLE: database,
        # Airflow's own executor stops for ever if a waiting worker is killed.
        "AIRFLOW__CORE__EXECUTOR": "semel_local.stack.executor.SturdyLocalExecutor",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        DAGS_VARIABLE: str(dags_folder()),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(settings.home() / "plugins"),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__FERNET_KEY": layout.secret("airflow_fernet_key"),
        # Airflow forks this many idle workers; four take 1 GB.
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(_passwords_file()),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": layout.secret("airflow_api_secret_key"),
        "AIRFLOW__API_AUTH__JWT_SECRET": layout.secret("airflow_jwt_secret"),
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(layout.folder("log", "airflow")),
        # A run of four tasks takes 1.6 s, instead of 6 s with the default of one second.
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        # Airflow finds the queued tasks of a killed scheduler after 30 s, instead of 5 minutes.
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
        # Airflow shows a new pipeline as a DAG within ten seconds.
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "8",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "8",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark_server.connection(spark_remote)),
        "PYSPARK_PYTHON": layout.python(),
        "JAVA_HOME": str(java.home()),
        **({WAREHOUSE_VARIABLE: warehouse} if warehouse else {}),
    }
    prefixes = ("AIRFLOW_", "SEMEL_")
    named = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    return {
        **ours,
        **named,
        "SEMEL_HOME": str(settings.home()),
        "SEMEL_STATE_DIR": str(layout.top()),
        "SEMEL_LEDGER_DSN": ledger_dsn,
        "SEMEL_SPARK_REMOTE": spark_remote,
        # Tasks start `spark-submit` by its name.
        "PATH": f"{sysconfig.get_path('scripts')}:{os.environ.get('PATH', os.defpath)}",
        **_without_proxy(),
    }


def parts(env: dict[str, str]) -> list[ChildProcess]:
    """The four parts, for supervisor."""
    return [
        ChildProcess(
            name=name,
            command=[layout.python(), "-m", "airflow", *command],
            env=env,
            directory=env["AIRFLOW_HOME"],
            log=str(layout.folder("log") / f"{name}.log"),
            record=str(layout.folder("supervisor") / f"{name}.record"),
            user=None,
            stop_signal=SIGTERM,
            stop_seconds=STOP_SECONDS[name],
        )
        for name, command in COMMANDS.items()
    ]


def migrate(env: dict[str, str], echo: Echo) -> None:
    """Migrate our metadata database to this Airflow's schema, or check an outside one.

    Records the migration, because even the check takes seconds.
    """
    version = importlib.metadata.version("apache-airflow")
    database = hashlib.sha256(env[DATABASE_VARIABLE].encode()).hexdigest()[:16]
    migration = f"{version} {database}"
    if layout.load().airflow_migrated == migration:
        return
    ours = DATABASE_VARIABLE not in os.environ
    command = ["migrate"] if ours else ["check-migrations", "--migration-wait-timeout", "0"]
    echo("airflow: {} its database".format("migrating" if ours else "checking"))
    log = layout.folder("log") / "airflow-migrate.log"
    with log.open("w") as output:
        result = subprocess.run(
            [layout.python(), "-m", "airflow", "db", *command],
            env=os.environ | env,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=MIGRATE_SECONDS,
            cwd=env["AIRFLOW_HOME"],
        )
    if result.returncode:
        action = (
            "run `semel up` again"
            if ours
            else "`semel up` does not alter an outside database: run `airflow db migrate` yourself"
        )
        last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise TerminalError(
            f"`airflow db {command[0]}` failed with exit code {result.returncode}:\n{last}\n"
            f"See {log}, then {action}"
        )
    layout.update(airflow_migrated=migration)


def write_passwords() -> None:
    """Write the UI user's password where Airflow's simple auth manager reads it."""
    content = json.dumps({USER: layout.secret("airflow_admin_password")})
    if not _passwords_file().exists() or _passwords_file().read_text() != content:
        layout.write_private(_passwords_file(), content)


def login() -> tuple[str, str] | None:
    """User and password of the UI. Returns None if the user has configured other logins."""
    theirs = ("AIRFLOW__CORE__AUTH_MANAGER", "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS")
    if any(os.environ.get(name) for name in theirs):
        return None
    return USER, layout.secret("airflow_admin_password")


def troubles(url: str, started: dict[str, float]) -> dict[str, str]:
    """Why each part of the Airflow at `url` is not healthy, empty for a healthy part.

    `started`: the start of each part, in seconds of the epoch. An earlier heartbeat is from a
    former process.
    """
    # Do not use a proxy from the environment for our own machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/api/v2/monitor/health", timeout=5) as reply:
            health = json.load(reply)
    except (OSError, ValueError) as error:
        return dict.fromkeys(COMMANDS, f"the api-server does not answer ({error})")
    reasons = {}
    for name, key in HEALTH_NAMES.items():
        part = health.get(key) or {}
        beat = part.get(f"latest_{key}_heartbeat")
        if part.get("status") != "healthy":
            reasons[name] = f"Airflow reports its {key} as {part.get('status') or 'unknown'}"
        elif beat and datetime.fromisoformat(beat).timestamp() < started.get(name, 0):
            reasons[name] = "no heartbeat since its start"
        else:
            reasons[name] = ""
    return reasons


def _passwords_file() -> Path:
    return layout.folder("secrets") / "airflow_passwords.json"


def _without_proxy() -> dict[str, str]:
    """Variables that make clients reach loopback directly, even if the user has a proxy."""
    listed = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = ",".join(filter(None, [listed, "127.0.0.1,localhost"]))
    return {"no_proxy": hosts, "NO_PROXY": hosts}
