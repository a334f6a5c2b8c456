"""`semel demo --queue`: a week of real flights through a queue, compared with the truth.

1. A NATS server, the stack, and a pipeline that receives the stream `flights`.
2. The days are published. Amid them a consumer takes messages and forgets them, and a receiver is
   killed after it has made messages durable and before it acknowledges them: the server delivers
   both again.
3. Airflow runs the pipeline.
4. Its output is held against the flights themselves, and audited. What was delivered twice is
   counted in the spool, so that each message that came is accounted for.
"""

import os
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from semel import console, failpoints, settings
from semel_local import stack
from semel_local.demo import airflow_api, exact, flights, follow
from semel_local.demo.progress import DemoProgress, next_week
from semel_local.demo.stream import declare
from semel_local.demo.week import show_verdict
from semel.errors import TerminalError
from semel.pipeline.spec import Spec
from semel_local.stack import layout

if TYPE_CHECKING:  # DuckDB and the client of NATS take a moment to import.
    from semel.audit import AuditVerdict
    from semel_local.demo.publisher import DemoStream

PIPELINE = "flights_queue"

NAME = "demo-queue"
"""The name of this demo's file of progress."""

FILE = Path(__file__).parent / "pipelines" / f"{PIPELINE}.yaml"
"""The pipeline."""

FORGOTTEN = 200
"""Messages that a consumer takes after a week's first day, and forgets."""

KILLED = 500
"""Messages that a receiver has in the spool when it is killed, after the fourth day."""

RECEIVE_SECONDS_MAX = 120
"""How long that receiver may take: some two seconds."""


@dataclass(kw_only=True)
class Came:
    """What came into the spool. `copies`: by a message's number in the stream, how often it did.
    `redelivered`: of all that came, what the server said that it had delivered before.
    """

    copies: Counter[int] = field(default_factory=Counter)
    redelivered: int = 0

    @property
    def again(self) -> Counter[int]:
        """How often each message came beyond its first time."""
        return self.copies - Counter(dict.fromkeys(self.copies, 1))


def run_queue(*, as_json: bool) -> None:
    """Publish the next week, run the pipeline, compare, audit. typer.Exit(1): one is not right."""
    from semel import pipeline
    from semel.audit import audit

    began = time.monotonic()
    # 1.
    stack.fetch_server("nats", echo=console.say)
    declare(settings.pipelines_dir(), [FILE])
    spec = pipeline.find(PIPELINE)
    week = _next_week(spec)
    stack.up(echo=console.progress.print, nats=True)
    ends, address = stack.connection(), stack.server_address("nats")
    stream, api = _stream(address), airflow_api.of_stack(ends)
    # 2.
    DemoProgress(week=week, done=False).save(NAME)
    _publish(week, stream)
    # 3.
    run_id = f"demo-week-{week:02d}"
    tasks = follow.run_all(api, [PIPELINE], run_id)
    DemoProgress(week=week).save(NAME)
    # 4.
    came = came_to(_sealed(spec))
    true = true_of(week, came) | {"left_in_the_queue": 0}
    found = exact.of_pipeline(spec, exact.rows_of_files(spec), exact.true_rows(week))
    found["left_in_the_queue"] = stream.left()
    verdict = audit(spec)
    ok = found == true and verdict.ok
    payload = {
        "ok": ok,
        "week": week,
        "days": flights.days_of(week),
        "found": found,
        "truth": true,
        "came": numbers_of(week, came, true),
        "seconds": follow.seconds(tasks[PIPELINE]) | {"all": round(time.monotonic() - began, 1)},
        "audit": verdict.to_json(),
        "nats": address,
        "output": spec.sink_path(),
        "airflow": airflow_api.of_run(ends, api, PIPELINE, run_id),
    }
    console.emit(payload, as_json=as_json, render=lambda: _show(payload, verdict))
    if not ok:
        raise typer.Exit(1)


def _stream(server: str) -> "DemoStream":
    from semel_local.demo.publisher import DemoStream

    made = DemoStream(server)
    made.make()
    return made


def _next_week(spec: Spec) -> int:
    return next_week([spec], [_sealed(spec)], NAME, "*.seg")


def _sealed(spec: Spec) -> Path:
    return spec.source.spool_of(spec.name) / "sealed"


def _publish(week: int, stream: "DemoStream") -> None:
    """Publish what is not there yet of the week; what befalls it happens once, as it comes."""
    days = flights.days_of(week)
    end = sum(flights.truth_of(number).counts.records_read for number in range(1, week))
    there = stream.published()
    for at, day in enumerate(days):
        lines = flights.lines_of(day)[0]
        first, end = end, end + len(lines)
        if there >= end:
            continue
        after = max(there, first)
        stream.publish(lines[after - first :], after)
        console.say(f"published {day}: {end - after:,} messages to the stream flights")
        if at == 0:
            taken = stream.forget(FORGOTTEN)
            console.say(f"  a consumer took {taken:,} messages, and forgot them")
        if at == min(3, len(days) - 1):
            _kill_a_receiver()


def _kill_a_receiver() -> None:
    """Let a receiver die once its messages are durable, before it acknowledges one."""
    words = ["receive", PIPELINE, "--messages", str(KILLED)]
    done = subprocess.run(
        [layout.python(), "-c", "import sys; from semel.cli import main; sys.exit(main())", *words],
        env=os.environ | {"SEMEL_FAULTS": "receive.before_ack:exit"},
        capture_output=True, text=True, timeout=RECEIVE_SECONDS_MAX, check=False,
    )  # fmt: skip
    if done.returncode not in (0, failpoints.EXIT_CODE):
        raise TerminalError(f"semel {' '.join(words)} failed: {done.stderr.strip()[-2000:]}")
    died = "was killed before it acknowledged" if done.returncode else "found nothing to receive"
    console.say(f"  semel {' '.join(words)} {died}")


def came_to(sealed: Path) -> Came:
    """What came, by the segments of a spool."""
    from semel.sources.queue.segment import read_groups

    came = Came()
    for path in sorted(sealed.glob("*.seg")):
        for _, batch in read_groups(path):
            ids = batch.column("message_id").to_pylist()
            came.copies.update(int(one.partition("-")[0]) for one in ids)
            came.redelivered += sum(n > 1 for n in batch.column("attempt").to_pylist())
    return came


def true_of(week: int, came: Came) -> exact.Numbers:
    """What must have become of all messages of the weeks 1 to `week`: of each once, and of what
    came again. A broken one is a dead letter each time; another one is a repeat.
    """
    true, broken = exact.of_weeks(week), _broken(week)
    for number, times in came.again.items():
        reason = broken.get(number)
        names = ("quarantined", f"quarantined:{reason}") if reason else ("repeats",)
        for name in ("messages_read", *names):
            true[name] += times
    return true


def _broken(week: int) -> dict[int, str]:
    """The reason of each broken message, by its number in the stream."""
    days = (day for number in range(1, week + 1) for day in flights.days_of(number))
    lines = (line for day in days for line in flights.lines_of(day)[0])
    return {number: line.broken for number, line in enumerate(lines, 1) if line.broken}


def numbers_of(week: int, came: Came, true: exact.Numbers) -> exact.Numbers:
    """What came, for people."""
    once, again = exact.of_weeks(week), came.again.total()
    return {
        "published": once["messages_read"],
        "flights": once["new"],
        "redelivered": came.redelivered,
        "received_again": again,
        "received": true["messages_read"],
        "repeated_by_the_publisher": once["repeats"],
        "repeated_by_the_queue": true["repeats"] - once["repeats"],
        "cannot_be_read": once["quarantined"],
        "quarantined_again": true["quarantined"] - once["quarantined"],
    }


def _show(payload: dict[str, Any], verdict: "AuditVerdict") -> None:
    show = console.result.print
    show()
    title = exact.weeks_told(payload["week"])
    show(exact.table(title, {PIPELINE: payload["found"]}, payload["truth"]))
    show(follow.seconds_told(payload["seconds"]))
    show_verdict(PIPELINE, verdict)
    show()
    if payload["ok"]:
        show(_what_is_proved(payload), markup=False)
    else:
        show("THIS IS NOT THE KNOWN TRUTH: this is a defect of semel")
    airflow = payload["airflow"]
    show(airflow_api.login_told(airflow))
    show(f"the DAG: {airflow['dag']}, this run: {airflow['run']}")
    show(f"NATS: {payload['nats']}, stream flights, consumer semel")


def _what_is_proved(payload: dict[str, Any]) -> str:
    came, true = payload["came"], payload["truth"]
    return (
        f"Exact. {came['published']:,} messages were published, of {came['flights']:,} flights: "
        f"{came['repeated_by_the_publisher']:,} that the publisher sent again, and\n"
        f"{came['cannot_be_read']:,} that cannot be read. Deadlines lapsed:\n"
        f"{came['redelivered']:,} of what was received had been delivered before, and "
        f"{came['received_again']:,} of that was in the spool already.\n"
        f"{came['received']:,} received = {true['new']:,} new + {true['repeats']:,} repeats "
        f"({came['repeated_by_the_publisher']:,} of the publisher, "
        f"{came['repeated_by_the_queue']:,} of the queue)\n+ {true['quarantined']:,} quarantined "
        f"({came['cannot_be_read']:,}, and {came['quarantined_again']:,} of them again).\n"
        f"Each flight, with all its values, is once in {payload['output']}."
    )
