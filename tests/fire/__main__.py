"""Kill the live stack at random while it works, and prove that its output is exact all the same.

Airflow, Spark Connect and Postgres are brought up as `semel up` does, in a new folder below the
temporary one, so that your own stack and data stay as they are. Three pipelines run each 20
seconds, one of them is also backfilled, and collect runs each 2 minutes. A producer appends, starts
files, redelivers, and rotates a log as logrotate does. A reader looks on, and fails at the first
record that it sees twice or that it saw and that is gone. In the end all that was produced must be
in the output once, or be accounted for as a duplicate or a dead letter.

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
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from killer import AWAY, WEIGHTS, Killer
from livestack import (
    ARRIVALS,
    HERE,
    ROTATED,
    WINDOW_NAME,
    WINDOW_SECONDS,
    WINDOWS,
    LiveStack,
    wait_for,
)
from producer import BACKFILL_WINDOWS
from report import Outcome, show
from semel.errors import SemelError
from verdict import judge, unread_bytes

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
    stack = LiveStack()
    _say(f"everything of this run is in {stack.folder}")
    outcome = Outcome(
        seed=arguments.seed, kills=[], runs=[], verdicts=[], watched={}, seconds=0, broken=[]
    )
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
    killer = Killer(stack, dice, arguments.kinds)
    outcome.kills = killer.done
    now = datetime.now(UTC).replace(microsecond=0, second=0)
    past = now - timedelta(days=BACKFILL_DAYS_AGO)
    seed = str(arguments.seed)
    # 1.
    source = [stack.data, seed, past.isoformat()]
    sinks = [stack.data / "out" / name for name in (ARRIVALS, WINDOWS, ROTATED)]
    with _beside("watcher.py", seed, *sinks) as watcher:
        with _beside("producer.py", *source) as producer:
            stack.start(_say)
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
                _still(watcher, producer)
            outcome.seconds = time.monotonic() - began
            _end(producer)
        # 3.
        _drain(stack, killer, watcher)
        outcome.runs = stack.runs()
        outcome.watched = _end(watcher)
    # 4.
    _say("judging")
    outcome.verdicts = [judge(spec) for spec in stack.specs.values()]
    if outcome.watched["broken"]:
        outcome.broken.append(f"the reader: {outcome.watched['broken']}")
    seen, there = outcome.watched["records"], sum(v.records for v in outcome.verdicts)
    if seen != there:
        outcome.broken.append(f"the reader saw {seen} records, and {there} are there")


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


def _drain(stack: LiveStack, killer: Killer, watcher: subprocess.Popen[str]) -> None:
    """Run the pipelines until nothing is unread; give the runs of killed tasks time to end."""
    _say("no more kills: letting the rest run dry")
    deadline, asked, dry = time.monotonic() + DRAIN_SECONDS_MAX, 0.0, 0.0
    while True:
        left = {name: n for name, spec in stack.specs.items() if (n := unread_bytes(spec))}
        now = time.monotonic()
        dry = dry or (0.0 if left else now)
        if not left and (not killer.waiting() or now > dry + MEND_SECONDS_MAX):
            return
        if now > deadline:
            raise TimeoutError(f"after {DRAIN_SECONDS_MAX} s there are unread bytes: {left}")
        if left and now > asked + RETRY_DRAIN_SECONDS:
            asked = now
            _say(f"unread bytes: {left}")
            _trigger(stack, list(left))
        _still(watcher)
        killer.measure()
        time.sleep(3)


def _trigger(stack: LiveStack, names: list[str]) -> None:
    soon = datetime.now(UTC) + timedelta(days=1)
    every = {"interval_start": "2000-01-01T00:00:00Z", "interval_end": soon.isoformat()}
    for name in names:
        try:
            stack.airflow.trigger(name, **(every if name == WINDOWS else {}))
        except AWAY as error:
            _say(f"{name} is not triggered: {error}")


@contextmanager
def _beside(script: str, *words: object) -> Iterator[subprocess.Popen[str]]:
    """A process of ours beside the stack; it is gone at the end, whatever happens."""
    command = [sys.executable, str(HERE / script), *map(str, words)]
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
    return json.loads(said) if said.startswith("{") else {}


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
