"""semel in an Airflow that it did not start, from its wheel: LocalExecutor, then Celery.

That Airflow is plain, in folders of its own.
"""

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

from airflow_rest import Airflow
from fix_wheel import Installed
from fixtures.airflow.dags import documented
from fixtures.airflow.receivers import HttpServer, MailServer, StatsdServer
from fixtures.batches.workbench import Workbench, events
from fixtures.postgres.server import database, free_port
from fixtures.wait import wait_for
from semel.ledger.migrate import migrate
from semel_local.stack.states import Endpoints

# Two executors, minutes of a core; test_dags.py has what a DAG is made of.
pytestmark = pytest.mark.proof

START_SECONDS_MAX = 240
STOP_SECONDS_MAX = 30
PASSWORD = secrets.token_hex(12)
LINEAGE, HOOK = "/api/v1/lineage", "/hook"
"""Paths of the HTTP server: for OpenLineage's events, and for what failed."""

DAGS = {"shop", "strict", "late", "semel_collect", "clicks_and_more"}

READ = """
import json, sys
from semel.reader import dataset
print(json.dumps(sorted(dataset(sys.argv[1]).to_table(["n"])["n"].to_pylist())))
"""


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


def output(own: OwnAirflow) -> list[int]:
    """The column n of what readers see, sorted."""
    sink = str(own.bench.data / "out" / "shop")
    done = own.installed.call("python", "-c", READ, sink, folder=own.bench.folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tell(airflow: Airflow, own: OwnAirflow) -> None:
    """Make the connections and Variables, as one does in the UI."""
    ledger = sa.make_url(own.bench.ledger)
    connections = [
        {
            "connection_id": "semel_ledger", "conn_type": "postgres", "host": ledger.host,
            "port": ledger.port, "login": ledger.username, "password": ledger.password,
            "schema": ledger.database,
        },
        {"connection_id": "spark_default", "conn_type": "spark", "host": "local[2]"},
    ]  # fmt: skip
    for connection in connections:
        airflow.call("POST", "/api/v2/connections", connection)
    variable = {"key": "semel_data_roots", "value": str(own.bench.data)}
    airflow.call("POST", "/api/v2/variables", variable)


def declare(own: OwnAirflow, name: str, source: str, rest: str = "") -> None:
    (own.bench.pipelines / f"{name}.yaml").write_text(
        f"name: {name}\n"
        "source:\n"
        f"  {{type: files, {source}, format: jsonl,\n"
        "   schema: {id: string, n: bigint, at: timestamp}}\n"
        "record_id: [id]\n"
        f"sink: {{type: files, path: out/{name}, format: parquet}}\n"
        f"{rest}"
    )


def heard(own: OwnAirflow) -> None:
    """What a run of `shop` told StatsD and OpenLineage's receiver. Nobody heard of a failure."""
    found = own.statsd.arrived()
    counted = {name: value for name, value, kind in found if kind == "c"}
    expected = {"read": 1200, "new": 1100, "repeated": 100, "quarantined": 0, "late": 0}
    for name, value in expected.items():
        assert counted[f"semel.records_{name}"] == value
        assert counted[f"semel.records_{name}.shop"] == value
    assert len([one for one in found if one[2] == "c"]) == 10, "a batch is counted once"
    took = {name: value for name, value, kind in found if kind == "ms"}
    for verb in ("plan", "stage", "commit", "finalize"):
        assert took[f"semel.duration.shop.{verb}"] > 0
    lags = [value for name, value, kind in found if (name, kind) == ("semel.lag.shop", "g")]
    assert max(lags) > 0 and lags[-1] == 0

    def told() -> list[dict]:
        events = [body for path, _, body in own.web.bodies if path == LINEAGE]
        return [
            event for event in events
            if event["job"]["name"] == "shop.finalize" and event["eventType"] == "COMPLETE"
        ]  # fmt: skip

    [event] = wait_for(told, "OpenLineage's event")
    [source], [sink] = event["inputs"], event["outputs"]
    assert (source["namespace"], source["name"]) == ("file", str(own.bench.data / "in"))
    assert (sink["namespace"], sink["name"]) == ("file", str(own.bench.data / "out" / "shop"))
    assert [f["name"] for f in sink["facets"]["schema"]["fields"]] == ["id", "n", "at"]
    assert source["inputFacets"]["inputStatistics"]["rowCount"] == 1200
    assert sink["outputFacets"]["outputStatistics"]["rowCount"] == 1100
    assert event["run"]["facets"]["semel_batch"]["url"] == f"{own.url}/semel/dags/shop/batches/1"
    assert not [path for path, _, _ in own.web.bodies if path == HOOK]


def told_of_failure(own: OwnAirflow, airflow: Airflow) -> None:
    """A run of `strict` fails at plan, once; both connections hear of it, with the same words."""
    run = airflow.trigger("strict")
    assert airflow.ended("strict", run) == "failed"
    assert airflow.tasks("strict", run)["plan"].tries == 1

    def bodies() -> list[dict]:
        return [body for path, _, body in own.web.bodies if path == HOOK]

    [body] = wait_for(bodies, "the failure at the hook")
    assert (body["pipeline"], body["task"], body["run"]) == ("strict", "plan", run)
    assert "strict: the source shows nothing to read, and source.on_empty is fail" in body["error"]
    assert body["log"].startswith(f"{own.url}/dags/strict/runs/")
    [mail] = wait_for(lambda: own.mail.mails, "the mail of the failure")
    assert mail["Subject"] == body["title"] == "semel: strict: plan failed"
    said = airflow.log("strict", run, "plan")
    assert any("notified the connection hook" in line for line in said)
    assert not any(own.web.url + HOOK in line for line in said), "an address may be a secret"


def told_of_late_run(own: OwnAirflow, airflow: Airflow) -> None:
    """A run that waits for its file longer than `deadline` is told of while it waits."""
    own.start("triggerer", "triggerer", "--skip-serve-logs")
    run = airflow.trigger("late")

    def bodies() -> list[dict]:
        own.alive()
        return [body for _, _, body in own.web.bodies if body.get("pipeline") == "late"]

    [body] = wait_for(bodies, "the late run at the hook", 120)
    assert body["title"] == "semel: late: a run is not finished after 3 seconds"
    assert (body["run"], body["task"]) == (run, "")
    assert body["log"].startswith(f"{own.url}/dags/late/runs/manual__")
    assert "the run is running, 3 seconds after it was queued" in body["text"]
    airflow.fail("late", run, "plan")
    assert airflow.ended("late", run) == "failed"
    own.stop("triggerer")


@pytest.fixture(scope="module")
def airflow(own_airflow: OwnAirflow) -> Airflow:
    """A client, once Airflow knows the connections and the DAGs. The first file has landed."""
    own = own_airflow
    declare(own, "shop", "path: in/*.jsonl", "notify: [hook, post]\ndeadline: 1 hour\n")
    declare(own, "late", "path: none/*.jsonl, on_empty: wait", "notify: [hook]\ndeadline: 3 s\n")
    declare(own, "strict", "path: none/*.jsonl, on_empty: fail", "notify: [hook, post]\n")
    own.bench.write("in/a.jsonl", [*events(0, 1000), *events(900, 1100)])
    airflow = own.client()
    tell(airflow, own)
    own.start("dag-processor", "dag-processor")
    wait_for(lambda: own.alive() or airflow.dags() >= DAGS, "the DAGs")
    assert airflow.import_errors() == {}
    return airflow


def test_local_executor(own_airflow: OwnAirflow, airflow: Airflow) -> None:
    """A DAG file of two lines, connections and a Variable: a triggered run is exact. Its metrics
    and its lineage arrive where Airflow's own do; failures and late runs at whom `notify` names.
    """
    own = own_airflow
    own.start(
        "scheduler", "scheduler", "--skip-serve-logs", AIRFLOW__CORE__EXECUTOR="LocalExecutor"
    )
    airflow.run("shop")
    assert output(own) == list(range(1100))
    heard(own)
    told_of_failure(own, airflow)
    told_of_late_run(own, airflow)
    own.stop("scheduler")


def test_celery_executor(own_airflow: OwnAirflow, airflow: Airflow) -> None:
    """The DAG by hand of the documents, in a Celery worker with Postgres as its broker: exact.

    It goes on where LocalExecutor ended, if that was run: what the other DAG has read is not read
    again.
    """
    own = own_airflow
    own.bench.write("in/b.jsonl", [*events(1000, 2000)])
    own.start(
        "worker", "celery", "worker", "--skip-serve-logs", "--without-mingle", "--without-gossip",
        AIRFLOW__CORE__EXECUTOR="CeleryExecutor",
    )  # fmt: skip
    own.start(
        "scheduler", "scheduler", "--skip-serve-logs", AIRFLOW__CORE__EXECUTOR="CeleryExecutor"
    )
    wait_for(lambda: own.alive() or " ready." in own.log("worker"), "the worker")
    airflow.call("PATCH", "/api/v2/dags/clicks_and_more", {"is_paused": False})
    airflow.run("clicks_and_more")
    assert output(own) == list(range(2000))
    # The four tasks ran in the worker, which says so of the last one a little after Airflow does.
    wait_for(lambda: own.log("worker").count("succeeded in") == 4, "four tasks in the worker")
