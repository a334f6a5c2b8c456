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
"""Timeout of a call."""

PARSED_SECONDS_MAX = 120
"""How long a new DAG may take to appear. The dag-processor scans every few seconds."""

POLL_SECONDS = 0.5

BACKFILL_SECONDS_MAX = 300
"""How long to wait for another backfill of the DAG, because Airflow runs one at a time."""

FINISHED = frozenset({"success", "failed"})
"""Final states of a run."""


@dataclass(frozen=True, kw_only=True)
class TaskState:
    """The current state of a run's task. `state` is None until Airflow schedules the task."""

    task_id: str
    state: str | None
    try_number: int
    started: datetime | None
    ended: datetime | None

    @property
    def seconds(self) -> float | None:
        """Its duration until now or until its end. None before its start."""
        if self.started is None:
            return None
        return ((self.ended or datetime.now(UTC)) - self.started).total_seconds()


@dataclass(frozen=True, kw_only=True)
class DagRun:
    """The current state of a DAG's run."""

    run_id: str
    state: str
    date: date | None
    """The first day of its data interval (UTC)."""
    seconds: float | None
    """Its duration. None before its end."""


class _NotFound(TerminalError):
    """The API answered 404."""


class _Conflict(TerminalError):
    """The API answered 409."""


class AirflowApi:
    """The API at `url` (http://HOST:PORT), for one user. Raises UnavailableError if it does not
    answer.
    """

    def __init__(self, url: str, user: str, password: str) -> None:
        self.url = url.rstrip("/")
        self._client = httpx.Client(
            timeout=CALL_SECONDS,
            follow_redirects=True,
            # A proxy in the environment is not for this machine.
            trust_env=False,
            # The server may close a kept connection at the very moment of the next call.
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        login = self._call("POST", "/auth/token", {"username": user, "password": password})
        self._client.headers["Authorization"] = f"Bearer {login['access_token']}"

    def wait_for_dag(self, dag_id: str) -> None:
        """Wait until Airflow has read the DAG's file, then unpause the DAG.

        Raises TerminalError, with Airflow's import errors, if the DAG does not appear.
        """
        deadline = time.monotonic() + PARSED_SECONDS_MAX
        while True:
            try:
                dag = self._call("GET", f"/api/v2/dags/{dag_id}")
                break
            except _NotFound:
                if time.monotonic() > deadline:
                    raise TerminalError(self._why_no_dag(dag_id)) from None
            time.sleep(POLL_SECONDS)
        if dag["is_paused"]:
            self._call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": False})

    def start_run(self, dag_id: str, run_id: str) -> None:
        """Trigger a run with this id. If it exists and has failed, clear its failed tasks."""
        body = {"dag_run_id": run_id, "logical_date": None}
        try:
            self._call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)
        except _Conflict:
            if self.run_state(dag_id, run_id) == "failed":
                body = {"dag_run_id": run_id, "dry_run": False, "only_failed": True}
                self._call("POST", f"/api/v2/dags/{dag_id}/clearTaskInstances", body)

    def run_state(self, dag_id: str, run_id: str) -> str:
        """The state of a run: queued, running, success or failed."""
        return self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}")["state"]

    def tasks(self, dag_id: str, run_id: str) -> dict[str, TaskState]:
        """The tasks of a run, by task id."""
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
        """The log of a task's newest try, without Airflow's marks of foldable groups."""
        path = f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task.task_id}/logs"
        answer = self._call("GET", f"{path}/{task.try_number}?full_content=true")
        lines = [line for entry in answer["content"] for line in _text(entry).splitlines()]
        return [line for line in lines if line.strip() and not line.startswith("::")]

    def pause(self, dag_id: str) -> None:
        """Stop the DAG's schedule."""
        self._call("PATCH", f"/api/v2/dags/{dag_id}", {"is_paused": True})

    def begin_backfill(self, dag_id: str, first: date, last: date) -> int:
        """Run these days, both included, one after the other, except those that have succeeded.

        Returns the number of the backfill, which may be a running backfill of the same days. Raises
        UnavailableError if another backfill does not end.
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
                answer = self._call("GET", f"/api/v2/backfills?dag_id={dag_id}&order_by=-id")
                for backfill in answer["backfills"]:
                    days = [datetime.fromisoformat(backfill[key]).date() for key in _ENDS]
                    if backfill["completed_at"] is None and days == [first, last]:
                        return backfill["id"]
                if time.monotonic() > deadline:
                    raise UnavailableError(
                        f"another backfill of {dag_id} is still running after "
                        f"{BACKFILL_SECONDS_MAX} s. Cancel it at "
                        f"{self.url}/dags/{dag_id}/backfills"
                    ) from error
            time.sleep(POLL_SECONDS)

    def end_backfill(self, number: int) -> None:
        """End a backfill whose runs have ended. Airflow itself would notice only within 30 seconds,
        and until then it refuses another backfill of the DAG.
        """
        try:
            self._call("PUT", f"/api/v2/backfills/{number}/cancel")
        except _Conflict:
            return  # Airflow has already ended it.

    def runs_of(self, dag_id: str, first: date, last: date) -> list[DagRun]:
        """The runs of a daily DAG whose intervals begin on these days."""
        days = f"logical_date_gte={first}T00:00:00Z&logical_date_lte={last}T00:00:00Z"
        return self._runs(dag_id, days)

    def failed_since(self, dag_id: str, since: datetime) -> list[DagRun]:
        """The failed runs that began at or after `since`."""
        began = quote(since.isoformat())
        return self._runs(dag_id, f"state=failed&start_date_gte={began}")

    def _runs(self, dag_id: str, which: str) -> list[DagRun]:
        answer = self._call("GET", f"/api/v2/dags/{dag_id}/dagRuns?limit=100&{which}")
        runs = []
        for row in answer["dag_runs"]:
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
        details = "\n".join(f"{error['filename']}:\n{error['stack_trace']}" for error in errors)
        return (
            f"Airflow has not loaded the DAG {dag_id} after {PARSED_SECONDS_MAX} s. Its import "
            f"errors: {details or 'none'}. `semel status` shows where the dag-processor's log is"
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
        kind = {404: _NotFound, 409: _Conflict}.get(reply.status_code, TerminalError)
        raise kind(f"Airflow answered {reply.status_code} to {method} {path}: {reply.text[:500]}")


def stack_api(ends: Endpoints) -> AirflowApi:
    """The API of the local stack's Airflow, for the stack's user.

    Raises TerminalError if the environment configures other logins.
    """
    if ends.airflow_user is None or ends.airflow_password is None:
        raise TerminalError(
            "the demo needs the Airflow user of the local stack, but the environment configures "
            "other logins. Unset AIRFLOW__CORE__AUTH_MANAGER and "
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS, then run this again"
        )
    return AirflowApi(ends.airflow_url, ends.airflow_user, ends.airflow_password)


def login(ends: Endpoints) -> dict[str, str | None]:
    """Airflow's URL, user and password, for a demo's JSON."""
    user, password = ends.airflow_user, ends.airflow_password
    return {"url": ends.airflow_url, "user": user, "password": password}


def run_links(
    ends: Endpoints, api: AirflowApi, pipeline: str, run_id: str
) -> dict[str, str | None]:
    """The login, and the URLs of a DAG and its run."""
    links = {"dag": f"{api.url}/dags/{pipeline}", "run": api.run_url(pipeline, run_id)}
    return login(ends) | links


def login_line(airflow: Mapping[str, Any]) -> str:
    """The login, on one line."""
    return f"Airflow: {airflow['url']}, user {airflow['user']}, password {airflow['password']}"


_ENDS = ("from_date", "to_date")


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _text(entry: dict[str, Any] | str) -> str:
    """A log entry's message, followed by the exceptions of an error."""
    if isinstance(entry, str):
        return entry
    details = [
        f"{error['exc_type']}: {error['exc_value']}" for error in entry.get("error_detail") or []
    ]
    return "\n".join([str(entry.get("event", "")), *details])
