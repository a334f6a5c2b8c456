"""`semel demo --queue`: a week of real flights through a queue, compared with the truth.

1. The demo starts a NATS server and the stack, with a pipeline that receives the stream `flights`.
2. It publishes the days. Between them, a consumer pulls messages and forgets them, and a receiver
   dies after it has made messages durable and before it acknowledges them. The server delivers
   both again.
3. Airflow runs the pipeline.
4. The demo compares the output with the flights themselves, and audits it. It counts redelivered
   messages in the spool, so that each received message is accounted for.
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
from semel.errors import TerminalError
from semel.pipeline.spec import Spec
from semel_local import stack
from semel_local.demo import airflow_api, exact, flights, follow
from semel_local.demo.progress import DemoProgress, next_week
from semel_local.demo.stream import declare
from semel_local.demo.week import show_verdict
from semel_local.stack import layout

if TYPE_CHECKING:  # DuckDB and the client of NATS take a moment to import.
    from semel.audit import AuditVerdict
    from semel_local.demo.publisher import DemoStream

PIPELINE = "flights_queue"

NAME = "demo-queue"
"""The name of this demo's file of progress."""

FILE = Path(__file__).parent / "pipelines" / f"{PIPELINE}.yaml"
"""The pipeline."""

FORGOTTEN_MESSAGES = 200
"""Messages that a consumer pulls after a week's first day, and forgets."""

KILLED_MESSAGES = 500
"""Messages that a receiver puts into the spool after the fourth day, before it dies."""

RECEIVE_SECONDS_MAX = 120
"""How long that receiver may take. It takes about two seconds."""


@dataclass(kw_only=True)
class SpoolContents:
    """The messages in the spool. `copies`: the number of copies, by number in the stream.
    `redelivered`: the messages that the server marked as delivered before.
    """

    copies: Counter[int] = field(default_factory=Counter)
    redelivered: int = 0

    @property
    def again(self) -> Counter[int]:
        """The number of further copies of each message."""
        return self.copies - Counter(dict.fromkeys(self.copies, 1))


def run_queue(*, as_json: bool) -> None:
    """Publish the next week, run the pipeline, compare, audit. Raises typer.Exit(1) if one is
    wrong.
    """
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
    stream, api = _stream(address), airflow_api.stack_api(ends)
    # 2.
    DemoProgress(week=week, done=False).save(NAME)
    _publish(week, stream)
    # 3.
    run_id = f"demo-week-{week:02d}"
    tasks = follow.run_all(api, [PIPELINE], run_id)
    DemoProgress(week=week).save(NAME)
    # 4.
    spool = read_spool(_sealed(spec))
    true = spool_truth(week, spool) | {"left_in_the_queue": 0}
    actual = exact.pipeline_numbers(spec, exact.rows_of_files(spec), exact.true_rows(week))
    actual["left_in_the_queue"] = stream.count_pending()
    verdict = audit(spec)
    ok = actual == true and verdict.ok
    payload = {
        "ok": ok,
        "week": week,
        "days": flights.days_of(week),
        "found": actual,
        "truth": true,
        "came": spool_numbers(week, spool, true),
        "seconds": follow.seconds(tasks[PIPELINE]) | {"all": round(time.monotonic() - began, 1)},
        "audit": verdict.to_json(),
        "nats": address,
        "output": spec.sink_path(),
        "airflow": airflow_api.run_links(ends, api, PIPELINE, run_id),
    }
    console.emit(payload, as_json=as_json, render=lambda: _show(payload, verdict))
    if not ok:
        raise typer.Exit(1)


def _stream(server: str) -> "DemoStream":
    from semel_local.demo.publisher import DemoStream

    stream = DemoStream(server)
    stream.make()
    return stream


def _next_week(spec: Spec) -> int:
    return next_week([spec], [_sealed(spec)], NAME, "*.seg")


def _sealed(spec: Spec) -> Path:
    return spec.source.spool_of(spec.name) / "sealed"


def _publish(week: int, stream: "DemoStream") -> None:
    """Publish the missing messages of the week. The two faults happen once, on the way."""
    days = flights.days_of(week)
    end = sum(flights.truth_of(number).counts.records_read for number in range(1, week))
    published = stream.published()
    for at, day in enumerate(days):
        lines = flights.lines_of(day)[0]
        first, end = end, end + len(lines)
        if published >= end:
            continue
        last = max(published, first)
        stream.publish(lines[last - first :], last)
        console.say(f"published {day}: {end - last:,} messages to the stream flights")
        if at == 0:
            forgotten = stream.forget(FORGOTTEN_MESSAGES)
            console.say(f"  a consumer pulled {forgotten:,} messages, and forgot them")
        if at == min(3, len(days) - 1):
            _kill_a_receiver()


def _kill_a_receiver() -> None:
    """Let a receiver die when its messages are durable, before it acknowledges one."""
    words = ["receive", PIPELINE, "--messages", str(KILLED_MESSAGES)]
    process = subprocess.run(
        [layout.python(), "-c", "import sys; from semel.cli import main; sys.exit(main())", *words],
        env=os.environ | {"SEMEL_FAULTS": "receive.before_ack:exit"},
        capture_output=True, text=True, timeout=RECEIVE_SECONDS_MAX, check=False,
    )  # fmt: skip
    if process.returncode not in (0, failpoints.EXIT_CODE):
        raise TerminalError(f"semel {' '.join(words)} failed: {process.stderr.strip()[-2000:]}")
    killed = "was killed before it acknowledged"
    outcome = killed if process.returncode else "found nothing to receive"
    console.say(f"  semel {' '.join(words)} {outcome}")


def read_spool(sealed: Path) -> SpoolContents:
    """The messages in the segments of a spool."""
    from semel.sources.queue.segment import read_groups

    contents = SpoolContents()
    for path in sorted(sealed.glob("*.seg")):
        for _, batch in read_groups(path):
            ids = batch.column("message_id").to_pylist()
            contents.copies.update(int(one.partition("-")[0]) for one in ids)
            contents.redelivered += sum(n > 1 for n in batch.column("attempt").to_pylist())
    return contents


def spool_truth(week: int, spool: SpoolContents) -> exact.Numbers:
    """The true numbers of all messages of the weeks 1 to `week`, including further copies. A copy
    of a broken message is a dead letter; any other copy is a repeat.
    """
    true, broken = exact.weeks_truth(week), _broken(week)
    for number, times in spool.again.items():
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


def spool_numbers(week: int, spool: SpoolContents, true: exact.Numbers) -> exact.Numbers:
    """The numbers of messages, for the demo's output."""
    once, again = exact.weeks_truth(week), spool.again.total()
    return {
        "published": once["messages_read"],
        "flights": once["new"],
        "redelivered": spool.redelivered,
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
    title = exact.weeks_title(payload["week"])
    show(exact.table(title, {PIPELINE: payload["found"]}, payload["truth"]))
    show(follow.seconds_line(payload["seconds"]))
    show_verdict(PIPELINE, verdict)
    show()
    if payload["ok"]:
        show(_proof_text(payload), markup=False)
    else:
        show("THIS IS NOT THE KNOWN TRUTH: this is a bug in semel")
    airflow = payload["airflow"]
    show(airflow_api.login_line(airflow))
    show(f"the DAG: {airflow['dag']}, this run: {airflow['run']}")
    show(f"NATS: {payload['nats']}, stream flights, consumer semel")


def _proof_text(payload: dict[str, Any]) -> str:
    came, true = payload["came"], payload["truth"]
    return (
        f"Exact. {came['published']:,} messages were published, of {came['flights']:,} flights: "
        f"{came['repeated_by_the_publisher']:,} that the publisher sent again, and\n"
        f"{came['cannot_be_read']:,} that are broken. Deadlines lapsed, so the server delivered\n"
        f"{came['redelivered']:,} messages again, and "
        f"{came['received_again']:,} of these were in the spool already.\n"
        f"{came['received']:,} received = {true['new']:,} new + {true['repeats']:,} repeats "
        f"({came['repeated_by_the_publisher']:,} of the publisher, "
        f"{came['repeated_by_the_queue']:,} of the queue)\n+ {true['quarantined']:,} quarantined "
        f"({came['cannot_be_read']:,}, and {came['quarantined_again']:,} further copies).\n"
        f"Each flight, with all its values, is once in {payload['output']}."
    )
