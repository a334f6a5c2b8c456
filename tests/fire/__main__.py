"""Kill the live stack at random while it works, and prove that its output is exact all the same.

Airflow, Spark Connect, Postgres and, where Maven can fetch it, Kafka are brought up as `semel up`
does, in a new folder below the temporary one, so that your own stack and data stay as they are.
Three pipelines of files run each 20 seconds, one of them is also backfilled, and two of a topic, of
which one writes another topic; collect runs each 2 minutes. A producer appends, starts files,
redelivers, and rotates a log as logrotate does; another one sends messages again, and in
transactions that are committed, aborted, or left open. A reader of the files and a consumer of the
topics look on, and fail at the first record that they see twice or that they saw and that is gone.
In the end all that was produced must be in the output once, or be accounted for as a duplicate or a
dead letter.

Progress is on standard error, the report on standard output; its last line is one JSON object.
The exit code is 0 only when the output is exact.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from killer import AWAY, WEIGHTS, Killer
from livestack import ARRIVALS, HERE, ROTATED, WINDOWS, LiveStack, wait_for
from producer import BACKFILL_WINDOWS, WINDOW_NAME, WINDOW_SECONDS
from report import Outcome, show
from semel.errors import SemelError
from semel_local.stack import server_address
from topics import ARRIVED, RELAYED, SOURCE, produced
from verdict import bytes_of, ids_in_output, ids_of_files, judge, unread

KILLS = 30
BACKFILL_DAYS_AGO = 3
FIRST_BATCH_SECONDS_MAX = 420
DRAIN_SECONDS_MAX = 1200
RETRY_DRAIN_SECONDS = 90
MEND_SECONDS_MAX = 180
ENDING_SECONDS_MAX = 120


def main() -> int:
    """The whole fire. Returns the exit code."""
    arguments = _arguments()
    print(f"seed {arguments.seed} (SEED={arguments.seed} draws the same kills)", flush=True)
    # SIGINT too: what a shell starts in the background ignores it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    stack = LiveStack(_say)
    _say(f"everything of this run is in {stack.folder}")
    outcome = Outcome(
        seed=arguments.seed, kills=[], runs=[], verdicts=[], watched={}, consumed={}, seconds=0,
        broken=[],
    )  # fmt: skip
    try:
        _burn(stack, arguments, outcome)
    except (TimeoutError, SemelError, subprocess.SubprocessError, *AWAY) as error:
        outcome.broken.append(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        outcome.broken.append("interrupted")
    finally:
        # A second Ctrl-C must not leave half of the stack running.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        stack.end(_say, keep=arguments.keep or not outcome.exact)
    show(outcome)
    if not outcome.exact:
        _say(f"not exact: sources, output, ledger and logs are kept in {stack.folder}")
    return 0 if outcome.exact else 1


def _burn(stack: LiveStack, arguments: argparse.Namespace, outcome: Outcome) -> None:
    """1. Bring all up. 2. Kill. 3. Let the rest run dry. 4. Judge."""
    dice = random.Random(arguments.seed)
    killer = Killer(stack, dice, [k for k in arguments.kinds if stack.topics or k != "kafka"])
    outcome.kills = killer.done
    now = datetime.now(UTC).replace(microsecond=0, second=0)
    past = now - timedelta(days=BACKFILL_DAYS_AGO)
    seed = str(arguments.seed)
    # 1.
    source = [stack.data, seed, past.isoformat()]
    names = [ARRIVALS, WINDOWS, ROTATED, *([ARRIVED] if stack.topics else ())]
    sinks = [stack.data / "out" / name for name in names]
    with ExitStack() as beside:
        lookers = [beside.enter_context(_beside(HERE / "watcher.py", seed, *sinks))]
        producers = [beside.enter_context(_beside(HERE / "producer.py", *source))]
        stack.start(_say)
        if stack.topics:
            words = [server_address("kafka"), seed, SOURCE]
            consumer = _beside(HERE / "consumer.py", *words, RELAYED)
            lookers.append(beside.enter_context(consumer))
            producers.append(beside.enter_context(_beside(HERE / "messages.py", *words)))
        backfills = Backfills(stack, past)
        backfills.go_on()
        _say("waiting for the first batch")
        wait_for(killer.markers, "the first batch", FIRST_BATCH_SECONDS_MAX)
        # 2.
        began = time.monotonic()
        for number in range(1, arguments.kills + 1):
            kill = killer.kill_one()
            run = " of {} {}".format(*kill.run) if kill.run else ""
            _say(f"kill {number}: {kill.kind} {kill.pid}{run}")
            killer.settle(kill)
            killer.measure()
            backfills.go_on()
            _still(*lookers, *producers)
        outcome.seconds = time.monotonic() - began
        for producer in producers:
            _end(producer)
        # 3.
        _drain(stack, killer, lookers)
        outcome.runs = stack.runs()
        outcome.watched, *consumed = map(_end, lookers)
        outcome.consumed = consumed[0] if consumed else {}
    # 4.
    _say("judging")
    _judge(stack, outcome)


def _judge(stack: LiveStack, outcome: Outcome) -> None:
    """The verdict of each pipeline, and what those say who looked on all the while."""
    files, consumed = 0, outcome.consumed
    for name, spec in stack.specs.items():
        of_files = spec.source.type == "files"
        wanted = ids_of_files(spec) if of_files else set(consumed["source"])
        there = Counter(consumed["sink"]) if name == RELAYED else ids_in_output(spec)
        outcome.verdicts.append(judge(spec, wanted, there))
        files += 0 if name == RELAYED else there.total()
    for who, said in (("reader", outcome.watched), ("consumer", consumed)):
        if said.get("broken"):
            outcome.broken.append(f"the {who}: {said['broken']}")
    if (seen := outcome.watched["records"]) != files:
        outcome.broken.append(f"the reader saw {seen} records, and {files} are there")


class Backfills:
    """One backfill of Airflow after the other, over the windows of the past."""

    def __init__(self, stack: LiveStack, past: datetime) -> None:
        self.stack = stack
        self.past = past

    def go_on(self) -> None:
        """Start the next one when none is under way."""
        try:
            number, going = self.stack.backfills()
            start, end = self._begin(number), self._begin(number + 1)
            last = (end - timedelta(seconds=WINDOW_SECONDS)).strftime(WINDOW_NAME)
            if going is None and (self.stack.data / "windows" / last).exists():
                self.stack.backfill(start, end)
        except AWAY as error:
            _say(f"backfill: later, for {error}")

    def _begin(self, number: int) -> datetime:
        return self.past + number * timedelta(seconds=WINDOW_SECONDS * BACKFILL_WINDOWS)


def _drain(stack: LiveStack, killer: Killer, lookers: list[subprocess.Popen[str]]) -> None:
    """Run the pipelines until nothing is unread; give the runs of killed tasks time to end."""
    _say("no more kills: letting the rest run dry")
    deadline, asked, dry = time.monotonic() + DRAIN_SECONDS_MAX, 0.0, 0.0
    while True:
        left = {name: n for name in stack.specs if (n := _unread(stack, name))}
        now = time.monotonic()
        dry = dry or (0.0 if left else now)
        if not left and (not killer.waiting() or now > dry + MEND_SECONDS_MAX):
            return
        if now > deadline:
            raise TimeoutError(f"after {DRAIN_SECONDS_MAX} s this is unread: {left}")
        if left and now > asked + RETRY_DRAIN_SECONDS:
            asked = now
            _say(f"unread bytes or offsets: {left}")
            _trigger(stack, list(left))
        _still(*lookers)
        killer.measure()
        time.sleep(3)


def _unread(stack: LiveStack, name: str) -> int:
    """Bytes of a pipeline's files, or offsets of its topic, that no finalized batch has read."""
    spec = stack.specs[name]
    of_files = spec.source.type == "files"
    return unread(spec, bytes_of(spec) if of_files else produced())


def _trigger(stack: LiveStack, names: list[str]) -> None:
    soon = datetime.now(UTC) + timedelta(days=1)
    every = {"interval_start": "2000-01-01T00:00:00Z", "interval_end": soon.isoformat()}
    for name in names:
        try:
            stack.airflow.trigger(name, **(every if name == WINDOWS else {}))
        except AWAY as error:
            _say(f"{name} is not triggered: {error}")


@contextmanager
def _beside(script: Path, *words: object) -> Iterator[subprocess.Popen[str]]:
    """A process of ours beside the stack; it is gone at the end, whatever happens."""
    command = [sys.executable, str(script), *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _still(*processes: subprocess.Popen[str]) -> None:
    """Producer and reader must be there. The reader ends when it has seen something wrong."""
    for process in processes:
        if process.poll() is not None:
            said = process.stdout.read() if process.stdout else ""
            raise ValueError(f"{Path(process.args[1]).name} has ended: {said.strip()}")


def _end(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Ask it to end. Returns what it said last, when that is JSON."""
    process.terminate()
    said, _ = process.communicate(timeout=ENDING_SECONDS_MAX)
    last = said.strip().rpartition("\n")[2]
    return json.loads(last) if last.startswith("{") else {}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests/fire", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=KILLS, help=f"how many (default: {KILLS})")
    parser.add_argument("--seed", type=int, help="draws the kills of an earlier run")
    parser.add_argument(
        "--kinds",
        type=lambda text: text.split(","),
        default=list(WEIGHTS),
        help="only these, separated by commas: " + ", ".join(WEIGHTS),
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder also of an exact run")
    found = parser.parse_args()
    if unknown := set(found.kinds) - set(WEIGHTS):
        parser.error(f"unknown kinds {sorted(unknown)}; there are: {', '.join(WEIGHTS)}")
    if found.kills < 0:
        parser.error("--kills must not be negative")
    if found.seed is None:
        found.seed = random.SystemRandom().randrange(1 << 32)
    return found


def _interrupted(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


_began = time.monotonic()


def _say(text: str) -> None:
    print(f"[{time.monotonic() - _began:6.0f} s] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
