"""An Airflow that semel did not start: plain, in folders of its own, with semel from its wheel."""

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
import sqlalchemy as sa

from airflow_rest import Airflow, wait_for
from fix_dags import documented
from fix_pipelines import Workbench
from fix_postgres import database, free_port
from fix_receivers import HttpServer, MailServer, StatsdServer
from fix_wheel import Installed
from semel.ledger.migrate import migrate
from semel.stack import Endpoints

START_SECONDS_MAX = 240
STOP_SECONDS_MAX = 30
PASSWORD = secrets.token_hex(12)
LINEAGE, HOOK = "/api/v1/lineage", "/hook"
"""Paths of the HTTP server: for OpenLineage's events, and for what failed."""


@dataclass(kw_only=True)
class OwnAirflow:
    """Airflow's processes, each with a log file, beside the folders of a project.

    `statsd`, `web`, `mail`: what it tells others arrives there. Its connections `hook` and `post`
    lead to the last two.
    """

    installed: Installed
    bench: Workbench
    url: str
    statsd: StatsdServer
    web: HttpServer
    mail: MailServer
    variables: dict[str, str]
    running: dict[str, subprocess.Popen] = field(default_factory=dict)

    def start(self, name: str, *words: str, **variables: str) -> None:
        """Start one of Airflow's processes."""
        with open(self.bench.folder / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                [self.installed.python, "-m", "airflow", *words], cwd=self.bench.folder,
                env=self.installed.environment(**self.variables | variables),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def stop(self, name: str) -> None:
        """End one of them, with all that it has started."""
        process = self.running.pop(name)
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # It has left nothing behind.
        process.wait()

    def client(self) -> Airflow:
        """A logged-in client, once the api-server answers."""
        ends = Endpoints(
            ledger_dsn="", spark_remote="", airflow_url=self.url, airflow_user="admin",
            airflow_password=PASSWORD,
        )  # fmt: skip

        def login() -> Airflow | None:
            self.alive()
            try:
                return Airflow(ends)
            except OSError:
                return None

        return wait_for(login, "the api-server", START_SECONDS_MAX)

    def alive(self) -> None:
        """AssertionError with the end of its log when a process has ended by itself."""
        ended = [name for name, process in self.running.items() if process.poll() is not None]
        assert not ended, "\n".join(f"{name}: {self.log(name)[-3000:]}" for name in ended)

    def log(self, name: str) -> str:
        """What a process has written."""
        return (self.bench.folder / f"{name}.log").read_text()

    def migrate(self) -> None:
        """Make Airflow's own tables."""
        done = self.installed.call(
            "python", "-m", "airflow", "db", "migrate", folder=self.bench.folder, **self.variables
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def own_airflow(
    installed: Installed, postgres: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OwnAirflow]:
    """A plain Airflow: api-server and DAG processor; connections and folders are not yet known.

    Which executor is used is the business of the tests, who start the scheduler.
    """
    bench = Workbench(tmp_path_factory.mktemp("own"))
    dags = bench.folder / "dags"
    dags.mkdir()
    bench.pipelines.rename(dags / "pipelines")
    bench.pipelines = dags / "pipelines"
    (dags / "ours.py").write_text(documented("import dags"))
    by_hand = documented("PlanOperator").replace('"clicks"', '"shop"').replace('"@daily"', "None")
    (dags / "by_hand.py").write_text(by_hand.replace("/srv/pipelines", str(bench.pipelines)))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    passwords = bench.folder / "passwords.json"
    passwords.write_text(json.dumps({"admin": PASSWORD}))
    with ExitStack() as stack:
        metadata = stack.enter_context(database(postgres))
        broker = stack.enter_context(database(postgres))
        bench.ledger = stack.enter_context(database(postgres))
        statsd, web = StatsdServer(), stack.enter_context(HttpServer().running())
        stack.enter_context(statsd.socket)
        mail = stack.enter_context(MailServer().running())
        migrate(bench.ledger)
        made = OwnAirflow(
            installed=installed,
            bench=bench,
            url=url,
            statsd=statsd,
            web=web,
            mail=mail,
            variables={
                **_told_to(statsd, web, mail),
                "AIRFLOW_HOME": str(bench.folder / "airflow"),
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": _driver(metadata),
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
                "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
                "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
                "AIRFLOW__CORE__FERNET_KEY": "",
                "AIRFLOW__CORE__PARALLELISM": "4",
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
                "AIRFLOW__API__HOST": "127.0.0.1",
                "AIRFLOW__API__PORT": str(port),
                "AIRFLOW__API__BASE_URL": url,
                "AIRFLOW__API__WORKERS": "1",
                "AIRFLOW__API__SECRET_KEY": secrets.token_hex(32),
                "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(64),
                "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
                "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "5",
                "AIRFLOW__CELERY__BROKER_URL": f"sqla+{_driver(broker)}",
                "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{_driver(broker)}",
                "AIRFLOW__CELERY__WORKER_CONCURRENCY": "2",
                "no_proxy": "127.0.0.1,localhost",
            },
        )
        try:
            made.migrate()
            made.start("api-server", "api-server")
            yield made
        finally:
            for name in list(made.running):
                made.stop(name)


def _told_to(statsd: StatsdServer, web: HttpServer, mail: MailServer) -> dict[str, str]:
    transport = {"type": "http", "url": web.url, "endpoint": LINEAGE.strip("/")}
    return {
        **statsd.settings,
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
        "AIRFLOW_CONN_HOOK": json.dumps({"conn_type": "http", "host": web.url + HOOK}),
        "AIRFLOW_CONN_POST": json.dumps(mail.connection),
    }


def _driver(dsn: str) -> str:
    """The address for Airflow and Celery."""
    url = sa.make_url(dsn).set(drivername="postgresql+psycopg2")
    return url.render_as_string(hide_password=False)
