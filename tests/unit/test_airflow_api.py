"""The demo's client of Airflow's API, against a server that answers as Airflow does."""

import json
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from semel.errors import TerminalError, UnavailableError
from semel_local.demo import airflow_api
from semel_local.demo.airflow_api import AirflowApi, DagRun, TaskState

Answer = tuple[int, Any]


class Airflow:
    """A server of answers: by method and path, each call in turn; the last one stays."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.calls: list[tuple[str, Any]] = []
        self.connections = 0
        self.given("POST /auth/token", (201, {"access_token": "t0"}))
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # keeps connections, as Airflow's server does

            def setup(self) -> None:
                outer.connections += 1
                super().setup()

            def answer(self) -> None:
                call = f"{self.command} {self.path}"
                raw = self.rfile.read(int(self.headers["Content-Length"] or 0))
                outer.calls.append((call, json.loads(raw) if raw else None))
                known = outer.answers.get(call, [(404, {"detail": "not found"})])
                code, body = known.pop(0) if len(known) > 1 else known[0]
                if call != "POST /auth/token" and self.headers["Authorization"] != "Bearer t0":
                    code, body = 401, {"detail": "who is it?"}
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(code)
                if code == 307:
                    self.send_header("Location", body)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_PUT = answer

            def log_message(self, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def given(self, call: str, *answers: Answer) -> None:
        """What `call` (METHOD PATH) is answered, one after the other."""
        self.answers[call] = list(answers)

    def said(self, call: str) -> list[Any]:
        """The bodies of the calls of this method and path."""
        return [body for made, body in self.calls if made == call]


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Airflow]:
    """A server on loopback; waits are short."""
    monkeypatch.setattr(airflow_api, "POLL_SECONDS", 0.01)
    found = Airflow()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


@pytest.fixture
def api(airflow: Airflow) -> AirflowApi:
    """Logged in."""
    return AirflowApi(airflow.url + "/", "admin", "secret")


def test_it_logs_in_and_shows_its_token(airflow, api):
    """The password is said once; each later call has the token of the answer."""
    airflow.given("GET /api/v2/dags/d/dagRuns/r", (200, {"state": "running"}))
    assert api.run_state("d", "r") == "running"
    assert airflow.said("POST /auth/token") == [{"username": "admin", "password": "secret"}]


def test_each_call_has_a_connection_of_its_own(airflow, api):
    """The server closes idle connections; a call is never lost with one."""
    airflow.given("GET /api/v2/dags/d/dagRuns/r", (200, {"state": "running"}))
    api.run_state("d", "r")
    api.run_state("d", "r")
    assert airflow.connections == len(airflow.calls) == 3


def test_no_proxy_is_asked_for_this_machine(airflow, monkeypatch):
    """A proxy that the environment names sees neither the password nor the calls."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    AirflowApi(airflow.url, "admin", "secret")
    assert len(airflow.calls) == 1


def test_a_call_that_is_sent_elsewhere_is_followed(airflow, api):
    """An api-server behind another one may redirect; the token goes along."""
    airflow.given("GET /api/v2/dags/d/dagRuns/r", (307, "/there"))
    airflow.given("GET /there", (200, {"state": "queued"}))
    assert api.run_state("d", "r") == "queued"


def test_a_new_dag_is_waited_for_and_unpaused(airflow, api):
    """A DAG that Airflow has not read yet answers 404; one that is paused is set going."""
    missing = (404, {"detail": "no such DAG"})
    airflow.given("GET /api/v2/dags/d", missing, missing, (200, {"is_paused": True}))
    airflow.given("PATCH /api/v2/dags/d", (200, {}))
    api.wait_for_dag("d")
    assert len(airflow.said("GET /api/v2/dags/d")) == 3
    assert airflow.said("PATCH /api/v2/dags/d") == [{"is_paused": False}]


def test_a_dag_that_does_not_come_is_told_with_the_import_errors(airflow, api, monkeypatch):
    """After its time the message names the file that Airflow cannot read."""
    monkeypatch.setattr(airflow_api, "PARSED_SECONDS_MAX", 0)
    error = {"filename": "d.yaml", "stack_trace": "SpecError: line 3"}
    airflow.given("GET /api/v2/importErrors", (200, {"import_errors": [error]}))
    match = r"(?s)loaded the DAG d after 0 s.*d\.yaml:\nSpecError: line 3"
    with pytest.raises(TerminalError, match=match):
        api.wait_for_dag("d")


def test_a_failed_run_is_cleared_where_it_failed(airflow, api):
    """A run of this id that is there (409) and failed goes on; one that works is left alone."""
    runs, cleared = "/api/v2/dags/d/dagRuns", "POST /api/v2/dags/d/clearTaskInstances"
    airflow.given(f"POST {runs}", (409, {"detail": "is there"}))
    airflow.given(f"GET {runs}/r", (200, {"state": "running"}), (200, {"state": "failed"}))
    airflow.given(cleared, (200, {}))
    api.start_run("d", "r")
    assert airflow.said(cleared) == []
    api.start_run("d", "r")
    assert airflow.said(cleared) == [{"dag_run_id": "r", "dry_run": False, "only_failed": True}]


FIRST, LAST = date(2013, 1, 1), date(2013, 1, 7)
BACKFILLS = "/api/v2/backfills"
OTHERS = f"GET {BACKFILLS}?dag_id=d&order_by=-id"


def backfill(number: int, last: str, completed: str | None) -> dict[str, Any]:
    days = {"from_date": "2013-01-01T00:00:00Z", "to_date": f"{last}T00:00:00Z"}
    return {"id": number, "completed_at": completed, **days}


def test_a_backfill_waits_for_another_one(airflow, api):
    """Airflow takes one of a DAG at a time, and notes late that one has ended."""
    busy, begun = (409, {"detail": "already running"}), (200, {"id": 7})
    airflow.given(f"POST {BACKFILLS}", busy, begun)
    airflow.given(OTHERS, (200, {"backfills": [backfill(6, "2013-01-03", None)]}))
    assert api.begin_backfill("d", FIRST, LAST) == 7
    [_, asked] = airflow.said(f"POST {BACKFILLS}")
    assert asked == {
        "dag_id": "d", "from_date": "2013-01-01T00:00:00Z", "to_date": "2013-01-07T00:00:00Z",
        "reprocess_behavior": "failed", "max_active_runs": 1,
    }  # fmt: skip


def test_a_backfill_of_the_same_days_is_gone_on_with(airflow, api, monkeypatch):
    """A demo that died has left it at work; one that has ended is none, and is not waited for
    without end.
    """
    airflow.given(f"POST {BACKFILLS}", (409, {"detail": "already running"}))
    ended = backfill(5, "2013-01-07", "2013-02-01T00:00:00Z")
    going = backfill(6, "2013-01-07", None)
    airflow.given(OTHERS, (200, {"backfills": [ended, going]}), (200, {"backfills": [ended]}))
    assert api.begin_backfill("d", FIRST, LAST) == 6
    monkeypatch.setattr(airflow_api, "BACKFILL_SECONDS_MAX", -1)
    with pytest.raises(UnavailableError, match="another backfill of d is still running"):
        api.begin_backfill("d", FIRST, LAST)


@pytest.mark.parametrize("code", [200, 409])
def test_a_backfill_is_ended(airflow, api, code):
    """Also where Airflow has noted its end by itself."""
    airflow.given(f"PUT {BACKFILLS}/6/cancel", (code, {}))
    api.end_backfill(6)
    assert len(airflow.said(f"PUT {BACKFILLS}/6/cancel")) == 1


def test_runs_of_days(airflow, api):
    """Each with the day that its interval begins with, and how long it took once it has ended."""
    days = "logical_date_gte=2013-01-01T00:00:00Z&logical_date_lte=2013-01-07T00:00:00Z"
    times = {"data_interval_start": "2013-01-01T01:00:00+01:00", "end_date": None}
    begun = times | {"start_date": "2013-02-01T00:00:00Z"}
    ended = begun | {"end_date": "2013-02-01T00:00:02Z"}
    rows = [
        {"dag_run_id": "a", "state": "success", **ended},
        {"dag_run_id": "b", "state": "queued", **times, "start_date": None},
    ]
    airflow.given(f"GET /api/v2/dags/d/dagRuns?limit=100&{days}", (200, {"dag_runs": rows}))
    assert api.runs_of("d", FIRST, LAST) == [
        DagRun(run_id="a", state="success", date=FIRST, seconds=2.0),
        DagRun(run_id="b", state="queued", date=FIRST, seconds=None),
    ]


def test_runs_that_failed_since(airflow, api):
    """A time's plus sign is not taken for a blank."""
    asked = "limit=100&state=failed&start_date_gte=2013-01-01T00%3A00%3A00%2B00%3A00"
    airflow.given(f"GET /api/v2/dags/d/dagRuns?{asked}", (200, {"dag_runs": []}))
    assert api.failed_since("d", datetime(2013, 1, 1, tzinfo=UTC)) == []


def test_a_run_id_may_hold_anything(airflow, api):
    """Blanks, colons and plus signs reach Airflow as they are, and once escaped."""
    escaped = "GET /api/v2/dags/d/dagRuns/manual__2013-01-01T00%3A00%2B00%20%2541"
    airflow.given(escaped, (200, {"state": "success"}))
    assert api.run_state("d", "manual__2013-01-01T00:00+00 %41") == "success"


def test_a_refusal_is_told_with_airflows_words(airflow, api):
    """What Airflow refuses is an error with its code, the call and the answer's beginning."""
    airflow.given("GET /api/v2/dags/d/dagRuns/r", (422, b"bad \xff" + b"x" * 2_000))
    said = "answered 422 to GET /api/v2/dags/d/dagRuns/r: bad \ufffdx"
    with pytest.raises(TerminalError, match=said) as raised:
        api.run_state("d", "r")
    assert len(str(raised.value)) < 700


@pytest.mark.parametrize("body", [b"", b"<html>starting</html>"])
def test_an_answer_that_is_not_airflows_is_no_answer(airflow, api, body):
    """A half-started server's page is an outage, which the caller may try again."""
    airflow.given("GET /api/v2/dags/d/dagRuns/r", (200, body))
    with pytest.raises(UnavailableError, match="does not answer") as raised:
        api.run_state("d", "r")
    assert raised.value.next == "semel status"


def test_nobody_there(airflow):
    """A server that is away is an outage, told with its address."""
    with pytest.raises(UnavailableError, match="http://127.0.0.1:9 does not answer"):
        AirflowApi("http://127.0.0.1:9", "admin", "secret")


def test_a_silent_server_is_bounded(monkeypatch):
    """A server that takes a call and never answers keeps nobody waiting."""
    monkeypatch.setattr(airflow_api, "CALL_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(UnavailableError, match=f":{port} does not answer"):
            AirflowApi(f"http://127.0.0.1:{port}", "admin", "secret")


def test_tasks_and_their_logs(airflow, api):
    """A task's state and times; the log's lines without folds, with what went wrong."""
    base = "/api/v2/dags/d/dagRuns/r/taskInstances"
    times = {"start_date": "2013-01-01T00:00:00Z", "end_date": "2013-01-01T00:00:02.500000Z"}
    rows = [
        {"task_id": "plan", "state": "failed", "try_number": 2, **times},
        {"task_id": "stage", "state": None, "try_number": 0, "start_date": None, "end_date": None},
    ]
    airflow.given(f"GET {base}", (200, {"task_instances": rows}))
    wrong = [{"exc_type": "SpecError", "exc_value": "line 3"}]
    content = ["::group::x", {"event": "one\ntwo"}, {"event": "bad", "error_detail": wrong}, " "]
    airflow.given(f"GET {base}/plan/logs/2?full_content=true", (200, {"content": content}))
    tasks = api.tasks("d", "r")
    assert timedelta(seconds=tasks["plan"].seconds) == timedelta(seconds=2.5)
    assert tasks["stage"] == TaskState(
        task_id="stage", state=None, try_number=0, started=None, ended=None
    )
    assert api.log("d", "r", tasks["plan"]) == ["one", "two", "bad", "SpecError: line 3"]
