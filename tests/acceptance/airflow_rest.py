"""Airflow as a person uses it: its REST API, in a few verbs."""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fixtures.wait import wait_for
from semel_local.stack.states import Endpoints

RUN_SECONDS_MAX = 300
POLL_SECONDS = 0.5
ENDED = ("success", "failed")


class RefusedError(AssertionError):
    """Airflow answered with an error."""


@dataclass(frozen=True, kw_only=True)
class TaskState:
    """A task of a run: its state and how often it was begun."""

    state: str | None
    tries: int


class Airflow:
    """A logged-in client of the stack's api-server."""

    def __init__(self, endpoints: Endpoints) -> None:
        self.url = endpoints.airflow_url
        self.user, self.password = endpoints.airflow_user, endpoints.airflow_password
        # A proxy named in the environment must not be asked for our own machine.
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.token = ""
        login = {"username": self.user, "password": self.password}
        self.token = self.call("POST", "/auth/token", login)["access_token"]

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON reply of one request. AssertionError with Airflow's words when it refuses."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with self.opener.open(request, timeout=30) as reply:
                text = reply.read()
        except urllib.error.HTTPError as error:
            raise RefusedError(f"{method} {path}: {error.code} {error.read().decode()}") from None
        return json.loads(text) if text else None

    def run_of(self, dag: str, kind: str, when: datetime) -> str | None:
        """The run of a kind (scheduled, backfill) whose interval begins then."""
        for run in self.call("GET", f"/api/v2/dags/{dag}/dagRuns?limit=100")["dag_runs"]:
            start = run["data_interval_start"]
            if run["run_type"] == kind and start and datetime.fromisoformat(start) == when:
                return run["dag_run_id"]
        return None

    def backfilled(self, dag: str, *starts: datetime) -> list[str]:
        """The runs that a backfill makes for these intervals, once all of them are there."""
        return [
            wait_for(lambda at=at: self.run_of(dag, "backfill", at), f"the run of {at}", 60)
            for at in starts
        ]

    def end_backfill(self, number: int) -> None:
        """End a backfill whose runs have ended: Airflow itself notes that twice a minute, and until
        then takes no other one of the DAG.
        """
        try:
            self.call("PUT", f"/api/v2/backfills/{number}/cancel")
        except RefusedError as error:
            if "already completed" not in str(error):
                raise

    def dags(self) -> set[str]:
        """The ids of all DAGs that Airflow has parsed."""
        return {dag["dag_id"] for dag in self.call("GET", "/api/v2/dags?limit=100")["dags"]}

    def import_errors(self) -> dict[str, str]:
        """File name to trace, as the UI's banner shows them."""
        found = self.call("GET", "/api/v2/importErrors")["import_errors"]
        return {error["filename"]: error["stack_trace"] for error in found}

    def runs(self, dag: str) -> set[str]:
        """The ids of a DAG's runs."""
        found = self.call("GET", f"/api/v2/dags/{dag}/dagRuns")["dag_runs"]
        return {run["dag_run_id"] for run in found}

    def trigger(self, dag: str, **conf: Any) -> str:
        """Start a run and return its id."""
        body = {"logical_date": None, "conf": conf}
        return self.call("POST", f"/api/v2/dags/{dag}/dagRuns", body)["dag_run_id"]

    def trigger_for(self, dag: str, start: datetime, end: datetime) -> str:
        """Start a run for an interval, as the form's *Specify Manually* does, and return its id."""
        body = {
            "logical_date": datetime.now(UTC).isoformat(),
            "data_interval_start": start.isoformat(),
            "data_interval_end": end.isoformat(),
        }
        return self.call("POST", f"/api/v2/dags/{dag}/dagRuns", body)["dag_run_id"]

    def backfill(self, dag: str, first: datetime, last: datetime, **how: Any) -> int:
        """Start a backfill over logical dates, both ends included, and return its id."""
        body = {"dag_id": dag, "from_date": first.isoformat(), "to_date": last.isoformat(), **how}
        return self.call("POST", "/api/v2/backfills", body)["id"]

    def run(self, dag: str, **conf: Any) -> str:
        """Start a run, wait for its success, and return its id."""
        run = self.trigger(dag, **conf)
        self.succeeded(dag, run)
        return run

    def succeeded(self, dag: str, run: str) -> None:
        """Wait until the run ends; it must have succeeded."""
        state = self.ended(dag, run)
        assert state == "success", f"{dag} {run} is {state}:\n{self.story(dag, run)}"

    def ended(self, dag: str, run: str) -> str:
        """Wait until the run ends. Returns its state."""
        deadline = time.monotonic() + RUN_SECONDS_MAX
        while not (state := self._state(dag, run)):
            assert time.monotonic() < deadline, f"{dag} {run} does not end:\n{self.story(dag, run)}"
            time.sleep(POLL_SECONDS)
        return state

    def story(self, dag: str, run: str) -> str:
        """The tasks and the last lines of each try's log, for a test that failed."""
        lines = []
        for task, found in self.tasks(dag, run).items():
            lines.append(f"{task}: {found}")
            for attempt in range(1, found.tries + 1):
                log = self.log(dag, run, task, attempt)[-30:]
                lines += [f"    {attempt}: {line}" for line in log]
        return "\n".join(lines)

    def _state(self, dag: str, run: str) -> str | None:
        state = self.call("GET", f"{self._run(dag, run)}")["state"]
        return state if state in ENDED else None

    def tasks(self, dag: str, run: str) -> dict[str, TaskState]:
        """The states of a run's tasks."""
        found = self.call("GET", f"{self._run(dag, run)}/taskInstances")["task_instances"]
        return {t["task_id"]: TaskState(state=t["state"], tries=t["try_number"]) for t in found}

    def clear(self, dag: str, run: str) -> None:
        """Clear all tasks of a run, so that they run again."""
        body = {"dry_run": False, "only_failed": False}
        self.call("POST", f"{self._run(dag, run)}/clear", body)

    def fail(self, dag: str, run: str, task: str) -> None:
        """Mark a task failed, as one does in the UI to end it."""
        path = f"{self._run(dag, run)}/taskInstances/{task}"
        self.call("PATCH", path, {"new_state": "failed"})

    def fail_run(self, dag: str, run: str) -> None:
        """Mark a run failed, which ends its tasks."""
        self.call("PATCH", self._run(dag, run), {"state": "failed"})

    def pause(self, dag: str, *, paused: bool = True) -> None:
        """Keep the scheduler from the DAG's runs, or let it have them."""
        self.call("PATCH", f"/api/v2/dags/{dag}", {"is_paused": paused})

    def delete(self, dag: str, run: str) -> None:
        """Delete a run, as somebody does who wants it out of the way."""
        self.call("DELETE", self._run(dag, run))

    def log(self, dag: str, run: str, task: str, attempt: int = 1) -> list[str]:
        """The lines of a task's log."""
        path = f"{self._run(dag, run)}/taskInstances/{task}/logs/{attempt}"
        found = self.call("GET", path)["content"]
        return [f"{line['event']}{line.get('error_detail') or ''}" for line in found]

    def xcom(self, dag: str, run: str, task: str) -> dict[str, Any]:
        """What a task left for people, and for tasks behind it."""
        path = f"{self._run(dag, run)}/taskInstances/{task}/xcomEntries/return_value"
        return self.call("GET", f"{path}?deserialize=true")["value"]

    def _run(self, dag: str, run: str) -> str:
        return f"/api/v2/dags/{dag}/dagRuns/{urllib.parse.quote(run)}"
