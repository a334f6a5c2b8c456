"""semel's pages as Airflow serves them: its own app, auth manager and plugin loader, in a process
of their own, for Airflow reads its configuration once per process. One for all tests of a worker,
because it takes ten seconds to start; between two tests it forgets the first one's ledger.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fix_pipelines import Workbench
from semel.airflow.page.common import PAGE_LOOK_SECONDS
from semel.ledger import Ledger

DAGS = ("events", "hidden", "foreign", "big")
"""The DAGs that Airflow knows; of `hidden` the viewer may know nothing."""

SECRET = "k" * 32
"""What the API server signs with."""

OWN_SITE = {"origin": "http://testserver", "sec-fetch-site": "same-origin"}
"""What a browser says of a form of the pages themselves."""

SERVER = """
import json, os, sys
from airflow.api_fastapi import app as api
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.log import Log
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.variable import Variable
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, CronDataIntervalTimetable
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.db import initdb
from airflow.utils.session import create_session
from fastapi import FastAPI
from fastapi.testclient import TestClient

class Picky(SimpleAuthManager):
    def is_authorized_dag(self, *, method, user, access_entity=None, details=None):
        if user.username == "viewer" and details and details.id == "hidden":
            return False
        if user.username == "nologs" and access_entity is DagAccessEntity.TASK_LOGS:
            return False
        return super().is_authorized_dag(
            method=method, user=user, access_entity=access_entity, details=details)

initdb()
with create_session() as session:
    session.add(DagBundleModel(name="b"))
    session.flush()
    for name in json.loads(sys.argv[1]):
        session.add(DagModel(dag_id=name, bundle_name="b", fileloc="/f", is_stale=False))
    session.flush()
    with DAG("events", schedule=CronDataIntervalTimetable("@daily", timezone="UTC")) as dag:
        EmptyOperator(task_id="plan")
    dag.fileloc = os.__file__  # It has to be a file.
    SerializedDagModel.write_dag(
        LazyDeserializedDAG.from_dag(dag), bundle_name="b", session=session)
root = FastAPI()
api._AuthManagerState.instance = manager = Picky()
api.init_plugins(root)
clients = {None: TestClient(root, raise_server_exceptions=False)}
for name, role in (("second", "USER"), ("admin", "ADMIN"), ("viewer", "VIEWER"),
                   ("nologs", "VIEWER")):
    token = manager.generate_jwt(SimpleAuthManagerUser(username=name, role=role))
    clients[name] = TestClient(root, cookies={"_token": token}, raise_server_exceptions=False)
clients["forged"] = TestClient(root, cookies={"_token": token[:-4] + "AAAA"})

def use(address, variables):
    from semel import settings
    from semel.airflow.page import common
    if common._ledger.cache_info().currsize:
        common.ledger().engine.dispose()
        common._ledger.cache_clear()
    common._told_at.cache_clear()
    settings.told.clear()
    common._looks = common.Looks(PAGE_LOOK_SECONDS)
    for name in [name for name in os.environ if name.startswith("SEMEL_")]:
        del os.environ[name]
    with create_session() as session:
        for model in (Connection, Variable, Log, DagRun):
            session.query(model).delete()
        if address is None:
            return
        # As an administrator tells Airflow in its UI; nothing is in the environment.
        session.add(Connection(conn_id="semel_ledger", uri=address))
        for key, value in variables.items():
            session.add(Variable(key=key, val=value))

print("ready", flush=True)
for line in sys.stdin:
    given = json.loads(line)
    if given[0] == "use":
        use(*given[1:])
        print("used", flush=True)
        continue
    if given[0] == "runs":
        with create_session() as session:
            found = [
                [run.run_id, run.run_type, run.conf,
                 str(run.data_interval_start), str(run.data_interval_end)]
                for run in session.query(DagRun)
            ]
        print("runs " + json.dumps(found), flush=True)
        continue
    who, method, path, form, headers = given
    answer = clients[who].request(
        method, path, data=form, headers=headers, follow_redirects=False)
    print("answer " + json.dumps(
        [answer.status_code, dict(answer.headers), answer.text]), flush=True)
"""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


class Pages:
    """Asks the pages as somebody: `admin`, `second` (who may edit too), `viewer`, None without a
    login, `nologs`, a viewer who may not read task logs, `forged`.
    """

    def __init__(self, process: subprocess.Popen[str], home: Path) -> None:
        self.home = home
        self._process = process
        self._told("ready")

    def use(self, address: str | None, variables: dict[str, str]) -> None:
        """Let Airflow know this ledger and these Variables, and forget all before; None: none."""
        self._process.stdin.write(json.dumps(["use", address, variables]) + "\n")
        self._process.stdin.flush()
        self._told("used")

    def runs(self) -> list[list]:
        """The DAG runs that Airflow has: id, type, configuration, start and end of the interval."""
        self._process.stdin.write(json.dumps(["runs"]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._told("runs "))

    def get(self, path: str, who: str | None = "admin", method: str = "GET") -> Answer:
        return self._ask(who, method, path, None, {})

    def send(
        self,
        path: str,
        form: dict[str, str],
        who: str | None = "admin",
        headers: dict[str, str] = OWN_SITE,
    ) -> Answer:
        """A form by POST, as a browser sends it."""
        return self._ask(who, "POST", path, form, headers)

    def _ask(self, *request: object) -> Answer:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Answer(*json.loads(self._told("answer ")))

    def _told(self, word: str) -> str:
        # Airflow writes log lines to standard output too.
        for line in self._process.stdout:
            if line.startswith(word):
                return line.removeprefix(word)
        raise AssertionError("the server of the pages ended")


@pytest.fixture(scope="session")
def pages_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """A server without a ledger. It starts in some ten seconds."""
    home = tmp_path_factory.mktemp("pages") / "airflow"
    variables = {n: v for n, v in os.environ.items() if not n.startswith(("AIRFLOW", "SEMEL"))}
    variables |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,viewer:viewer,nologs:viewer",
        "AIRFLOW__API_AUTH__JWT_SECRET": "x" * 64,
        "AIRFLOW__API__SECRET_KEY": SECRET,
        # What is in the metadata database is found as by an API server.
        "_AIRFLOW_PROCESS_CONTEXT": "server",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, json.dumps(DAGS)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables,
    )  # fmt: skip
    try:
        yield Pages(process, home)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def pages(bench: Workbench, ledger: Ledger, pages_server: Pages) -> Iterator[Pages]:
    """Of the test's own ledger and workbench."""
    said = {
        "semel_data_roots": str(bench.data),
        "semel_pipelines_dir": str(bench.pipelines),
        "semel_transforms_dir": str(bench.transforms),
    }
    address = ledger.dsn.replace("postgresql+psycopg", "postgres")
    pages_server.use(address, said)
    yield pages_server
    pages_server.use(None, {})
