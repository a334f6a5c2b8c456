"""A small client of Airflow's REST API: trigger a run, follow its tasks, read a task's log."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import quote

import httpx

from semel.errors import TerminalError, UnavailableError
from semel_local.stack.states import Endpoints

CALL_SECONDS = 30
"""How long one call may take."""

PARSED_SECONDS_MAX = 120
"""How long a new pipeline's DAG may take to show up: the dag-processor looks every few seconds."""

POLL_SECONDS = 0.5

BACKFILL_SECONDS_MAX = 300
"""How long another backfill of the same DAG is waited for: Airflow takes one at a time."""

FINISHED = frozenset({"success", "failed"})
"""States in which a run stays."""


@dataclass(frozen=True, kw_only=True)
class TaskState:
    """A task of a run as Airflow shows it now. `state` is None before it is scheduled."""

    task_id: str
    state: str | None
    try_number: int
    started: datetime | None
    ended: datetime | None

    @property
    def seconds(self) -> float | None:
        """How long it has been running, or ran; None before its start."""
        if self.started is None:
            return None
        return ((self.ended or datetime.now(UTC)) - self.started).total_seconds()


@dataclass(frozen=True, kw_only=True)
class DagRun:
    """A run of a DAG as Airflow shows it now."""

    run_id: str
    state: str
    date: date | None
    """The day that its data interval begins with (UTC)."""
    seconds: float | None
    """How long it took; None before its end."""


class _NoSuchThing(TerminalError):
    """The API answered 404."""


class _Conflict(TerminalError):
    """The API answered 409."""


class AirflowApi:
    """The API at `url` (http://HOST:PORT), as one user. UnavailableError: it does not answer."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.Client(
            timeout=CALL_SECONDS,
            follow_redirects=True,
            # A proxy named in the environment must not be asked for our own machine.
            trust_env=False,
            # The server may close a connection that it has kept just as a call is sent over it.
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        login = self._call("POST", "/auth/token", {"username": user, "password": password})
        self._client.headers["Authorization"] = f"Bearer {login['access_token']}"

    def wait_for_dag(self, dag_id: str) -> None:
        """Wait until Airflow has read the DAG's file; unpause it. TerminalError says why not."""
        deadline = time.monotonic() + PARSED_SECONDS_MAX
        while True:
            try:
                found = self._call("GET", f"/api/v2/dags/{dag_id}")
                break
            except _NoSuchThing:
                if time.monotonic() > deadline:
                    raise TerminalError(self._why_no_dag(dag_id)) from None
            time.sleep(POLL_SECONDS)
        if found["is_paused"]:
            self._call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})

    def start_run(self, dag_id: str, run_id: str) -> None:
        """Trigger a run of this id; where it exists and failed, clear what failed in it."""
        body = {"dag_run_id": run_id, "logical_date": None}
        try:
            self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)
        except _Conflict:
            if self.run_state(dag_id, run_id) == "failed":
                body = {"dag_run_id": run_id, "dry_run": False, "only_failed": True}
                self._call("POST", f"/api/v2/dags/{dag_id}/clearTaskInstances", body)

    def run_state(self, dag_id: str, run_id: str) -> str:
        """queued, running, success or failed."""
        return self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}")["state"]

    def tasks(self, dag_id: str, run_id: str) -> dict[str, TaskState]:
        """The tasks of a run by id."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances"
        return {
            row["task_id"]: TaskState(
                task_id=row["task_id"],
                state=row["state"],
                try_number=row["try_number"],
                started=_time(row["start_date"]),
                ended=_time(row["end_date"]),
            )
            for row in self._call("GET", path)["task_instances"]
        }

    def log(self, dag_id: str, run_id: str, task: TaskState) -> list[str]:
        """The lines that a task's newest try has written, without the marks of Airflow's folds."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task.task_id}/logs"
        answer = self._call("GET", f"{path}/{task.try_number}?full_content=true")
        lines = [line for entry in answer["content"] for line in _text(entry).splitlines()]
        return [line for line in lines if line.strip() and not line.startswith("::")]

    def pause(self, dag_id: str) -> None:
        """Let the DAG's schedule begin no further run."""
        self._call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": True})

    def begin_backfill(self, dag_id: str, first: date, last: date) -> int:
        """Let Airflow make the runs of these days, both included, one after the other, but for
        those that have succeeded. Returns the backfill's number.

        One of the same days that is at work is gone on with. UnavailableError: another one does
        not end.
        """
        body = {
            "dag_id": dag_id,
            "from_date": f"{first}T00:00:00Z",
            "to_date": f"{last}T00:00:00Z",
            "reprocess_behavior": "failed",  # Missing and Errored Runs, in the UI.
            "max_active_runs": 1,
        }
        deadline = time.monotonic() + BACKFILL_SECONDS_MAX
        while True:
            try:
                return self._call("POST", "/api/v2/backfills", body)["id"]
            except _Conflict as error:
                known = self._call("GET", f"/api/v2/backfills?dag_id={dag_id}&order_by=-id")
                for one in known["backfills"]:
                    days = [datetime.fromisoformat(one[key]).date() for key in _ENDS]
                    if one["completed_at"] is None and days == [first, last]:
                        return one["id"]
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"another backfill of {dag_id} does not end; end it at "
                        f"{self.url}/dags/{dag_id}/backfills"
                    ) from error
            time.sleep(POLL_SECONDS)

    def end_backfill(self, number: int) -> None:
        """End a backfill whose runs have ended. Airflow itself notes that twice a minute, and
        until then takes no other one of the DAG.
        """
        try:
            self._call("PUT", f"/api/v2/backfills/{number}/cancel")
        except _Conflict:
            return  # It has noted it.

    def runs_of(self, dag_id: str, first: date, last: date) -> list[DagRun]:
        """The runs of a DAG with a daily schedule, whose intervals begin on these days."""
        days = f"logical_date_gte={first}T00:00:00Z&logical_date_lte={last}T00:00:00Z"
        return self._runs(dag_id, days)

    def failed_since(self, dag_id: str, since: datetime) -> list[DagRun]:
        """The runs that began after a time and have failed."""
        began = quote(since.isoformat())
        return self._runs(dag_id, f"state=failed&start_date_gte={began}")

    def _runs(self, dag_id: str, which: str) -> list[DagRun]:
        found = self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns?limit=100&{which}")["dag_runs"]
        runs = []
        for row in found:
            begins, started = _time(row["data_interval_start"]), _time(row["start_date"])
            ended = _time(row["end_date"]) if row["state"] in FINISHED else None
            run = DagRun(
                run_id=row["dag_run_id"],
                state=row["state"],
                date=begins.astimezone(UTC).date() if begins else None,
                seconds=(ended - started).total_seconds() if ended and started else None,
            )
            runs.append(run)
        return runs

    def run_url(self, dag_id: str, run_id: str) -> str:
        """The run's page in the UI."""
        return f"{self.url}/dags/{dag_id}/runs/{quote(run_id)}"

    def _why_no_dag(self, dag_id: str) -> str:
        errors = self._call("GET", "/api/v2/importErrors")["import_errors"]
        shown = "\n".join(f"{error['filename']}:\n{error['stack_trace']}" for error in errors)
        return (
            f"Airflow has shown no DAG {dag_id} in {PARSED_SECONDS_MAX} s; its import errors: "
            f"{shown or 'none'}. See `semel status` for the log of the dag-processor"
        )

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        try:
            reply = self._client.request(method, self.url + path, json=body)
            if reply.is_success:
                return reply.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise UnavailableError(
                f"Airflow at {self.url} does not answer ({error})", next="semel status"
            ) from error
        kind = {404: _NoSuchThing, 409: _Conflict}.get(reply.status_code, TerminalError)
        said = reply.text[:500]
        raise kind(f"Airflow answered {reply.status_code} to {method} {path}: {said}")


def of_stack(ends: Endpoints) -> AirflowApi:
    """The API of the local stack's Airflow, as its own user.

    TerminalError: the user has arranged another way to log in.
    """
    if ends.airflow_user is None or ends.airflow_password is None:
        raise TerminalError(
            "the demo logs in to Airflow as the local stack's own user, and the environment names "
            "another way to log in; unset AIRFLOW__CORE__AUTH_MANAGER and "
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS, then run this again"
        )
    return AirflowApi(ends.airflow_url, ends.airflow_user, ends.airflow_password)


def login(ends: Endpoints) -> dict[str, str | None]:
    """Where Airflow is and how a person logs in, for a demo's answer."""
    user, password = ends.airflow_user, ends.airflow_password
    return {"url": ends.airflow_url, "user": user, "password": password}


def of_run(ends: Endpoints, api: AirflowApi, pipeline: str, run_id: str) -> dict[str, str | None]:
    """The same, and where a run is."""
    where = {"dag": f"{api.url}/dags/{pipeline}", "run": api.run_url(pipeline, run_id)}
    return login(ends) | where


def login_told(airflow: Mapping[str, Any]) -> str:
    """The same on one line."""
    return f"Airflow: {airflow['url']}, user {airflow['user']}, password {airflow['password']}"


_ENDS = ("from_date", "to_date")


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _text(entry: dict[str, Any] | str) -> str:
    """An entry of a log: its message, and of an error what went wrong."""
    if isinstance(entry, str):
        return entry
    details = [
        f"{error['exc_type']}: {error['exc_value']}" for error in entry.get("error_detail") or []
    ]
    return "\n".join([str(entry.get("event", "")), *details])
