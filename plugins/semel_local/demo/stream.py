"""`semel demo --kafka`: a week of real flights through a Kafka broker, compared with the truth.

1. The demo starts the broker and the stack, with two pipelines over the topic `flights`.
2. It sends the first days; `flights_live` follows the topic by its schedule.
3. It sends the other days, and aborts a transaction. The schedule reads the new messages, and
   Airflow backfills `flights_by_date` over the days.
4. The demo compares both outputs with the flights themselves, and audits them.
"""

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from semel import console, settings
from semel.archive import layout
from semel.archive.marker import marker_paths
from semel.declare import wording
from semel.errors import TerminalError, UnavailableError
from semel.pipeline.spec import Spec
from semel_local import stack
from semel_local.demo import airflow_api, exact, flights, follow
from semel_local.demo.airflow_api import FINISHED, POLL_SECONDS, AirflowApi
from semel_local.demo.progress import DemoProgress, next_week
from semel_local.demo.week import show_verdict

if TYPE_CHECKING:  # DuckDB and Kafka's client take a moment to import: the first line comes before.
    from semel.audit import AuditVerdict
    from semel_local.demo.topics import Sent, DemoTopics

LIVE, BY_DATE = "flights_live", "flights_by_date"

NAME = "demo-kafka"
"""The name of this demo's file of progress."""

FIRST_DAYS = 4
"""The number of a week's days to send before the others."""

FILES = [Path(__file__).parent / "pipelines" / f"{name}.yaml" for name in (LIVE, BY_DATE)]
"""The two pipelines."""


def run_stream(*, as_json: bool) -> None:
    """Send the next week, follow and backfill it, compare, audit. Raises typer.Exit(1) if one is
    wrong.
    """
    from semel import pipeline
    from semel.audit import audit

    began = time.monotonic()
    # 1.
    stack.fetch_server("kafka", echo=console.say)
    declare(settings.pipelines_dir())
    live, by_date = pipeline.find(LIVE), pipeline.find(BY_DATE)
    week = _next_week(live, by_date)
    stack.up(echo=console.progress.print, kafka=True)
    servers, ends = stack.server_address("kafka"), stack.connection()
    topics, api = _topics(servers), airflow_api.stack_api(ends)
    # 2., 3.
    DemoProgress(week=week, done=False).save(NAME)
    days = flights.days_of(week)
    watch = Watch(api=api, live=live, days=days)
    _send_week(week, topics, api, watch)
    DemoProgress(week=week).save(NAME)
    # 4.
    true, rows = exact.weeks_truth(week), exact.true_rows(week)
    actual = {
        LIVE: exact.pipeline_numbers(live, exact.rows_of_topic(live, topics), rows),
        BY_DATE: exact.pipeline_numbers(by_date, exact.rows_of_files(by_date), rows),
    }
    verdicts = {each.name: audit(each) for each in (live, by_date)}
    ok = all(one == true for one in actual.values()) and all(one.ok for one in verdicts.values())
    payload = {
        "ok": ok,
        "week": week,
        "days": days,
        "truth": true,
        "found": actual,
        "batches": {name: one.batches for name, one in verdicts.items()},
        "audit": {name: one.to_json() for name, one in verdicts.items()},
        "seconds": round(time.monotonic() - began, 1),
        "kafka": servers,
        "output": {LIVE: live.sink.topic, BY_DATE: by_date.sink_path()},
        "airflow": airflow_api.login(ends)
        | {
            "runs": {name: f"{api.url}/dags/{name}/runs" for name in actual},
        },
    }
    console.emit(payload, as_json=as_json, render=lambda: _show(payload, verdicts))
    if not ok:
        raise typer.Exit(1)


def declare(folder: Path, files: Sequence[Path] = FILES) -> None:
    """Copy a demo's pipelines into the folder of pipelines, unless they exist. Only the demo does
    this, so that a user without its servers does not see pipelines that need them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for source in files:
        if not (folder / source.name).exists():
            new = folder / f".{source.name}.new"
            shutil.copyfile(source, new)
            new.replace(folder / source.name)


def _topics(servers: str) -> "DemoTopics":
    from semel_local.demo.topics import DemoTopics

    return DemoTopics(servers)


def _next_week(live: Spec, by_date: Spec) -> int:
    return next_week((live, by_date), [by_date.sink_path()], NAME)


def _send_week(week: int, topics: "DemoTopics", api: AirflowApi, watch: "Watch") -> None:
    """Send the week's messages, and wait until both pipelines have read them."""
    from semel_local.demo.topics import ABORTED

    days = flights.days_of(week)
    earlier = sum(flights.truth_of(number).counts.records_read for number in range(1, week))
    records = {day: flights.lines_of(day)[1].counts.records_read for day in days}
    topics.make()
    sent = topics.count_sent()
    api.wait_for_dag(BY_DATE)
    first, others = days[:FIRST_DAYS], days[FIRST_DAYS:]
    _send(topics, first, sent)
    api.wait_for_dag(LIVE)
    console.say(f"Airflow's schedule runs {LIVE} each minute: {api.url}/dags/{LIVE}/runs")
    watch.until(earlier + sum(records[day] for day in first))
    if others:  # The last week of the year has one day.
        _send(topics, others, sent)
    topics.abort(days[-1])
    console.say(f"a transaction of {ABORTED} messages was aborted")
    number = api.begin_backfill(BY_DATE, days[0], days[-1])
    console.say(
        f"Airflow backfills {BY_DATE}, {days[0]} to {days[-1]}: {api.url}/dags/{BY_DATE}/backfills"
    )
    watch.until(earlier + sum(records.values()), backfill=True)
    api.end_backfill(number)
    api.pause(LIVE)


def _send(topics: "DemoTopics", days: Sequence[date], sent: "Sent") -> None:
    count = topics.send(days, sent)
    console.say(f"sent {days[0]} to {days[-1]}: {count:,} messages to the topic flights")


@dataclass(kw_only=True)
class Watch:
    """Prints the progress of the two pipelines, line by line."""

    api: AirflowApi
    live: Spec
    days: Sequence[date]
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    _messages: dict[str, int] = field(default_factory=dict)
    """The number of messages of each batch, by the name of its marker."""
    _ended: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._read()

    def until(self, messages: int, *, backfill: bool = False) -> None:
        """Wait until the live pipeline has read this many messages; with `backfill`, until the runs
        of all days have ended, too.

        Raises TerminalError if a run fails, UnavailableError if it takes too long.
        """
        deadline = time.monotonic() + follow.RUN_SECONDS_MAX
        while True:
            read, ended = self._read(tell=True), self._all_days_ended() if backfill else True
            if read >= messages and ended:
                return
            if failed := self.api.failed_since(LIVE, self.began):
                self._fail(LIVE, failed[0].run_id)
            if time.monotonic() > deadline:
                progress = f"{LIVE} has read {read:,} of {messages:,} messages"
                raise UnavailableError(
                    f"after {follow.RUN_SECONDS_MAX} s {progress}, and {len(self._ended)} runs "
                    f"have ended in the backfill of {BY_DATE}. See {self.api.url}, then run this "
                    "again, which resumes both"
                )
            time.sleep(POLL_SECONDS)

    def _read(self, *, tell: bool = False) -> int:
        """The number of messages that the live pipeline has read. Prints its new batches."""
        for path in marker_paths(layout.archive_folder(self.live)):
            if path.name in self._messages:
                continue
            plain = json.loads(path.read_bytes())
            messages = self._messages[path.name] = plain["counts"]["records_read"]
            run = plain["request_key"].rpartition(f"{LIVE}:")[2]
            if tell:
                console.say(f"  {LIVE}: a batch of {messages:,} messages, by the run {run}")
        return sum(self._messages.values())

    def _all_days_ended(self) -> bool:
        """True if a run of each day has ended. Prints the newly ended runs."""
        for run in self.api.runs_of(BY_DATE, self.days[0], self.days[-1]):
            if run.state not in FINISHED or run.run_id in self._ended:
                continue
            if run.state == "failed":
                self._fail(BY_DATE, run.run_id)
            self._ended[run.run_id] = str(run.date)
            took = f" after {run.seconds:.1f} s" if run.seconds else ""
            console.say(f"  {BY_DATE}: {run.date} {run.state}{took}")
        return {str(day) for day in self.days} <= set(self._ended.values())

    def _fail(self, name: str, run_id: str) -> None:
        for task in self.api.tasks(name, run_id).values():
            if task.state == "failed":
                follow.show_log(self.api, name, run_id, task)
        raise TerminalError(
            f"run {run_id} of {name} failed, see {self.api.run_url(name, run_id)}. Run this again, "
            "which resumes the run"
        )


def _show(payload: dict[str, Any], verdicts: dict[str, "AuditVerdict"]) -> None:
    show = console.result.print
    show()
    show(exact.table(exact.weeks_title(payload["week"]), payload["found"], payload["truth"]))
    for name, verdict in verdicts.items():
        show_verdict(name, verdict)
    show()
    if payload["ok"]:
        _print_proof(payload)
    else:
        show("THIS IS NOT THE KNOWN TRUTH: this is a bug in semel")
    airflow = payload["airflow"]
    show(airflow_api.login_line(airflow))
    show(f"the runs: {', '.join(airflow['runs'].values())}")
    show(f"{LIVE} is paused now. Unpause it there to let it follow the topic again")
    show(f"Kafka: {payload['kafka']}, topics flights and {payload['output'][LIVE]}")


def _print_proof(payload: dict[str, Any]) -> None:
    true = payload["truth"]
    batches = {
        name: wording.count(n, "batch", "batches") for name, n in payload["batches"].items()
    }
    console.result.print(
        f"Exact. The topic flights has {true['messages_read']:,} messages of {true['new']:,} "
        f"flights: {true['repeats']:,} that the producer\nsent again, and "
        f"{true['quarantined']:,} that are broken. "
        "Each flight, with all its values, is once\n"
        f"- in the topic {payload['output'][LIVE]}, as a consumer of committed messages sees it: "
        f"{batches[LIVE]}\n  of a live schedule;\n"
        f"- in {payload['output'][BY_DATE]}: {batches[BY_DATE]} of "
        "backfills by date.\n"
        "No message of an aborted transaction is in either.",
        markup=False,
    )
