"""Who hears of a task that failed: real servers of HTTP and mail, told by Airflow's callbacks."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.airflow.receivers import HttpServer, MailServer
from fixtures.airflow.tasks import task_ends
from fixtures.batches.account import committed
from fixtures.batches.workbench import Workbench, events
from fixtures.commands.shell import answer_in
from semel.cli import main
from semel.errors import SpecError, UnavailableError
from semel.ledger import Ledger

KEY = "airflow:events:r1"
SECRET = "s3cr3t-0f-the-h00k"
LOG = "http://127.0.0.1:8080/dags/events/runs/r1/tasks/finalize?try_number=1"


@pytest.fixture(autouse=True)
def project(
    airflow: None, bench: Workbench, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow's tasks find this project."""
    monkeypatch.setenv("SEMEL_HOME", str(bench.folder))


def connect(patch: pytest.MonkeyPatch, name: str, kind: str, **fields: Any) -> None:
    """Make an Airflow connection."""
    text = json.dumps({"conn_type": kind, **fields})
    patch.setenv(f"AIRFLOW_CONN_{name.upper()}", text)


def hook(patch: pytest.MonkeyPatch, web: HttpServer, name: str = "hook") -> None:
    """A connection to the HTTP server, whose path is its secret."""
    extra = {"X-From": "semel"}
    connect(patch, name, "http", host=f"{web.url}/{SECRET}", login="u", password="p", extra=extra)


def failing(name: str = "finalize", **given: Any) -> None:
    """Run a task that fails as Airflow does: execute, then its callbacks. `given`: its exception,
    None as of a process that was killed; then nothing is executed.
    """
    from semel.airflow import operators

    kind = getattr(operators, f"{name.capitalize()}Operator")
    task = kind(task_id=name, pipeline="events")
    run = SimpleNamespace(dag_id="events", run_id="r1", run_type="manual")
    ti = SimpleNamespace(
        task_id=name, dag_id="events", run_id="r1", log_url=LOG, try_number=1, max_tries=0
    )
    context = {"dag_run": run, "params": {}, "task": task, "ti": ti, "outlet_events": {}}
    if not given:
        with task_ends() as ended:
            kind.execute.__wrapped__(task, context)
        given = {"exception": ended.value}
    for callback in task.on_failure_callback:
        callback(context | given)


def test_http(bench: Workbench, web: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection of type http gets the failure as JSON: what failed, the error, the log."""
    hook(monkeypatch, web)
    bench.spec(notify=["hook"])
    failing()
    [(path, headers, body)] = web.bodies
    assert path == f"/{SECRET}"
    assert (headers["X-From"], headers["Authorization"]) == ("semel", "Basic dTpw")
    error = f"{KEY} has not planned a batch\nnext: clear the run's plan task"
    text = f"semel: events: finalize failed\nrun: r1\n\n{error}\n\nlog: {LOG}"
    assert body == {
        "pipeline": "events", "dag": "events", "task": "finalize", "run": "r1", "interval": "",
        "error": error, "log": LOG, "title": "semel: events: finalize failed", "text": text,
    }  # fmt: skip


def test_mail(bench: Workbench, mail: MailServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection of type smtp: its provider's notifier mails the same words."""
    monkeypatch.setenv("AIRFLOW_CONN_POST", json.dumps(mail.connection))
    bench.spec(notify=["post"])
    failing()
    [one] = mail.mails
    assert one["X-RcptTo"] == "ops@x.test" and one["From"] == "semel@x.test"
    assert one["Subject"] == "semel: events: finalize failed"
    [part] = [part for part in one.walk() if part.get_content_type() == "text/html"]
    body = part.get_payload(decode=True).decode()
    error = f"{KEY} has not planned a batch\nnext: clear the run&#x27;s plan task"
    assert error in body and LOG in body


def test_hostile_words_are_only_words(
    bench: Workbench, web: HttpServer, mail: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a file is named is neither a template of Airflow's nor HTML."""
    from semel.airflow.task_failure import TaskFailed
    from semel.errors import SourceError

    hook(monkeypatch, web)
    monkeypatch.setenv("AIRFLOW_CONN_POST", json.dumps(mail.connection))
    bench.spec(notify=["hook", "post"])
    name = "{{ conn.hook.password }}{% raw %}<script>x</script>\r\nBcc: c@x.test"
    error = SourceError(f"the file {name} was replaced")
    failing(exception=TaskFailed(error, str(error)))
    assert name in web.bodies[0][2]["error"]
    [one] = mail.mails
    body = one.get_payload()[0].get_payload(decode=True).decode()
    assert "{{ conn.hook.password }}{% raw %}&lt;script&gt;" in body
    assert one["X-RcptTo"] == "ops@x.test" and one["Bcc"] is None


def test_the_interval_is_told(
    bench: Workbench, web: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that has one, in the words of the log."""
    from semel.airflow import intervals

    hook(monkeypatch, web)
    bench.spec(
        source={"select": "interval", "interval_from": "%Y-%m-%d.jsonl"}, notify=["hook"]
    )
    conf = {"interval_start": "2013-01-01T00:00:00Z", "interval_end": "2013-01-02T00:00:00Z"}
    real = intervals.run_interval
    monkeypatch.setattr(
        intervals, "run_interval", lambda context, spec: real(context | {"params": conf}, spec)
    )
    failing()
    assert web.bodies[0][2]["interval"] == "2013-01-01"


def test_an_unknown_errors_words_are_not_told(
    bench: Workbench, web: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may hold anything: its kind is told, and where to read on. So for a killed process."""
    hook(monkeypatch, web)
    bench.spec(notify=["hook"])
    failing(exception=RuntimeError("postgresql://u:hunter2@db"))
    failing(exception=None)
    failing(exception=UnavailableError("the ledger is away"))  # As of Airflow before 3.3.
    next_ = "next: read the log, then clear the task"
    told = [body["error"] for _, _, body in web.bodies]
    assert told == [f"RuntimeError\n{next_}", f"its process died\n{next_}",
                    "the ledger is away\nnext: semel check events"]  # fmt: skip


def test_one_that_cannot_be_told_stops_no_other(
    bench: Workbench, web: HttpServer, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Each is tried; the log says who was not told and why, without the address."""
    hook(monkeypatch, web, "good")
    connect(monkeypatch, "gone", "http", host=f"http://127.0.0.1:1/{SECRET}")
    connect(monkeypatch, "other", "spark", host="local")
    bench.spec(notify=["gone", "missing", "other", "good"])
    failing()
    assert len(web.bodies) == 1
    said = caplog.text + capsys.readouterr().out
    assert "could not notify the connection gone: " in said
    assert "its address does not answer (ConnectError)" in said
    assert "Airflow has no connection missing; create it in Airflow" in said
    assert "is of type 'spark'; name one of type http, https, slackwebhook, smtp" in said
    assert SECRET not in said
    web.status = 500
    failing()
    said = caplog.text + capsys.readouterr().out
    assert "could not notify the connection good: " in said and "answered 500" in said


def test_nobody_is_told_of_what_went_well(
    bench: Workbench, ledger: Ledger, web: HttpServer, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """plan warns in its log of whom nobody could tell; a task that succeeds tells nobody."""
    from semel.airflow.operators import PlanOperator

    hook(monkeypatch, web)
    bench.spec(notify=["hook", "missing"])
    bench.write("in/a.jsonl", events(0, 3))
    task = PlanOperator(task_id="plan", pipeline="events")
    run = SimpleNamespace(dag_id="events", run_id="r1", run_type="manual")
    PlanOperator.execute.__wrapped__(task, {"dag_run": run, "params": {}, "task": task})
    said = caplog.text + capsys.readouterr().out
    assert "notify: Airflow has no connection missing; create it in Airflow" in said
    assert web.bodies == []


def test_others_callbacks_stay() -> None:
    """A DAG's own callbacks of failures, given or by default, are called too."""
    from airflow.sdk import DAG

    from semel.airflow import task_failure
    from semel.airflow.notify import OnFailure
    from semel.airflow.operators import CollectOperator, FinalizeOperator

    given: list[Any] = []
    with DAG("d", schedule=None, default_args={"on_failure_callback": given.append}):
        default = FinalizeOperator(task_id="a", pipeline="events")
    own = CollectOperator(task_id="b", pipeline="events", on_failure_callback=given.append)
    for task in (default, own):
        theirs, ours, last = task.on_failure_callback
        assert theirs == given.append and isinstance(ours, OnFailure) and last == task_failure.log_no_retry


WRONG = [
    ("spark", {"host": "local"}, "is of type 'spark'", "name one of type http"),
    ("slackwebhook", {}, "whose package is not", "pip install apache-airflow-providers-slack"),
    ("smtp", {"host": "x"}, "lacks from_email and to", 'set its extra field: {"from_email"'),
    ("http", {"host": ""}, "has no http URL", "write the URL into the host field"),
    ("https", {"host": "h.test", "schema": f"services/{SECRET}"}, "has no http URL", "write the"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "fields", "fact", "remedy"), WRONG)
def test_validate_says_what_is_wrong(
    kind: str, fields: dict[str, Any], fact: str, remedy: str, bench: Workbench,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Of connections that the shell has: the fact and what to do. The pipeline stays valid."""
    connect(monkeypatch, "ops", kind, **fields)
    bench.spec(notify=["ops", "elsewhere"])
    assert main(["validate", "--json"]) == 0
    out = capsys.readouterr().out
    [note] = answer_in(out)["files"][0]["notes"]
    assert fact in note and remedy in note and SECRET not in out


def test_check_tells_what_it_sees(monkeypatch: pytest.MonkeyPatch, web: HttpServer) -> None:
    """`semel check` has a line for each: what is wrong, what is right, what only Airflow knows."""
    from semel.airflow import notify

    hook(monkeypatch, web)
    assert notify.describe_in_shell("hook") == ("is of type http", "")
    fact, remedy = notify.describe_in_shell("elsewhere")
    assert "AIRFLOW_CONN_ELSEWHERE is not set here" in fact and not remedy
    monkeypatch.setenv("AIRFLOW_CONN_BAD", f'{{"conn_type": {SECRET}')
    fact, remedy = notify.describe_in_shell("bad")
    assert "AIRFLOW_CONN_BAD is not an Airflow connection" in fact and "unset" in remedy
    assert SECRET not in fact


def test_a_late_run(web: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the triggerer tells of a run whose deadline is over. A name is no path of an address."""
    from semel.airflow.notify import tell_of_late_run

    hook(monkeypatch, web)
    run = {
        "dag_id": "events", "dag_run_id": "by hand/1", "state": "queued",
        "data_interval_start": "2013-01-01T00:00:00Z",
        "data_interval_end": "2013-01-02T00:00:00Z",
    }  # fmt: skip
    for by_interval in (True, False):
        context = {"dag_run": run, "deadline": {}}
        asyncio.run(tell_of_late_run("events", ["gone", "hook"], "2 hours", by_interval, context))
    day, none = [body for _, _, body in web.bodies]
    assert day["title"] == "semel: events: a run is not finished after 2 hours"
    assert day["error"] == "the run is queued, 2 hours after it was queued\nnext: look at its tasks"
    assert (day["interval"], none["interval"]) == ("2013-01-01", "")
    assert day["log"].endswith("/dags/events/runs/by%20hand%2F1")


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"notify": "hook"}, "notify: "),
        ({"notify": ["a b"]}, r"notify\[0\]: "),
        ({"notify": [""]}, r"notify\[0\]: "),
        ({"notify": ["../x"]}, r"notify\[0\]: "),
        ({"notify": ["ops", "ops"]}, "notify: names 'ops' twice"),
        ({"notify": [{"smtp": "x"}]}, r"notify\[0\]: "),
        ({"notify": [], "deadline": "2 hours"}, "deadline: needs notify"),
        ({"notify": ["ops"], "deadline": "0 s"}, "deadline: must be longer than nothing"),
        ({"notify": ["ops"], "deadline": "soon"}, "deadline: "),
    ],
)
def test_a_wrong_declaration(declared: dict[str, Any], why: str, bench: Workbench) -> None:
    """It is refused with file, line and key."""
    with pytest.raises(SpecError, match=rf"yaml:\d+: {why}"):
        bench.spec(**declared)


def test_a_batch_stays_the_one_that_was_planned(bench: Workbench, ledger: Ledger) -> None:
    """Who is told of failures shapes no data: no batch is planned anew for it."""
    before = bench.spec()
    bench.write("in/a.jsonl", events(0, 3))
    committed(ledger, before, KEY)
    assert bench.spec(notify=["hook"], deadline="2 hours").digest() == before.digest()
