"""The producer under fire: appends, starts files, redelivers, rotates a log, until SIGTERM.

`producer.py DATA SEED PAST`: the windows that are backfilled begin at PAST.

The truth needs no word of its own: which records there are can be read from the source files. A
record's id is given once, and each copy of it is the same line, in whatever file it comes again. In
the log that is rotated nothing comes again: what is there twice was read twice.
"""

import json
import random
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from beside import Going
from rotatedlog import RotatedLog

WINDOW_SECONDS = 20
WINDOW_NAME = "w-%Y-%m-%dT%H-%M-%S.jsonl"

BACKFILL_WINDOWS = 24
"""Windows of one backfill. So many are there at the start."""

PAST_SECONDS = 8
"""How often one more window of the past arrives."""

RECORDS_PER_SECOND = 120
"""Of each pipeline, in chunks of one second."""

ROTATED = 0.15
"""How often the log is rotated, of each second."""

REDELIVERED = 0.06
BROKEN = 0.002
KNOWN_MAX = 40_000
"""Lines remembered for redelivery."""


class Lines:
    """Makes lines of one pipeline: new ones, copies of earlier ones, broken ones."""

    def __init__(self, letter: str, dice: random.Random, *, by_position: bool = False) -> None:
        """`by_position`: no copies, and each whole record has an id."""
        self.letter = letter
        self.redelivered = 0.0 if by_position else REDELIVERED
        self.broken = [b'{"id": "torn', b"\xff", *([] if by_position else [b'{"n": 1}'])]
        self.dice = dice
        self.made = 0
        self.known: list[bytes] = []

    def some(self, count: int, at: datetime) -> bytes:
        """`count` lines; a new one bears a time of the 20 seconds from `at` on."""
        return b"".join(self._one(at) for _ in range(count))

    def _one(self, at: datetime) -> bytes:
        dice = self.dice.random()
        if dice < BROKEN:
            return self.dice.choice(self.broken) + b"\n"
        if dice < BROKEN + self.redelivered and self.known:
            return self.dice.choice(self.known)
        self.made += 1
        moment = at + timedelta(milliseconds=self.dice.randrange(WINDOW_SECONDS * 1000))
        record = {
            "id": f"{self.letter}{self.made:08d}",
            "n": self.made,
            "at": moment.isoformat(timespec="milliseconds"),
        }
        line = json.dumps(record).encode() + b"\n"
        if len(self.known) < KNOWN_MAX:
            self.known.append(line)
        else:
            self.known[self.dice.randrange(KNOWN_MAX)] = line
        return line


class Producer:
    """Writes the pipelines' sources below one folder."""

    def __init__(self, data: Path, seed: int, start: datetime) -> None:
        self.start = start
        self.windows_made = 0
        self.seconds = 0
        self.dice = random.Random(seed)
        self.arrivals, self.windows = data / "arrivals", data / "windows"
        self.log = RotatedLog(data / "rotated", self.dice)
        self.lines = {
            "a": Lines("a", self.dice),
            "w": Lines("w", self.dice),
            "r": Lines("r", self.dice, by_position=True),
        }
        self.opened = 0
        self.growing: list[Path] = []
        self.torn: tuple[Path, bytes] | None = None

    def past(self) -> None:
        """One more window that will be backfilled. Live ones bring copies of its records."""
        at = self.start + timedelta(seconds=WINDOW_SECONDS * self.windows_made)
        text = self.lines["w"].some(self.dice.randrange(50, 400), at)
        (self.windows / at.strftime(WINDOW_NAME)).write_bytes(text)
        self.windows_made += 1

    def second(self) -> None:
        """What arrives in one second."""
        # What was torn in the middle of a line is completed first.
        if self.torn:
            _append(*self.torn)
            self.torn = None
        self.seconds += 1
        if self.seconds % PAST_SECONDS == 0:
            self.past()
        now = datetime.now(UTC)
        if len(self.growing) < 3 or self.dice.random() < 0.05:
            self.opened += 1
            self.growing = [*self.growing[-2:], self.arrivals / f"part-{self.opened:05d}.jsonl"]
        text = self.lines["a"].some(self.dice.randrange(2 * RECORDS_PER_SECOND), now)
        cut = self.dice.randrange(len(text) + 1)
        path = self.dice.choice(self.growing)
        _append(path, text[:cut])
        self.torn = path, text[cut:]

        window = datetime.fromtimestamp(now.timestamp() // WINDOW_SECONDS * WINDOW_SECONDS, UTC)
        text = self.lines["w"].some(self.dice.randrange(2 * RECORDS_PER_SECOND), window)
        late = timedelta(seconds=WINDOW_SECONDS) if self.dice.random() < 0.1 else timedelta(0)
        _append(self.windows / (window - late).strftime(WINDOW_NAME), text)

        self.log.write(self.lines["r"].some(self.dice.randrange(2 * RECORDS_PER_SECOND), now))
        if self.dice.random() < ROTATED:
            self.log.rotate(self.lines["r"].some(self.dice.randrange(20), now))

    def complete(self) -> None:
        """Make torn lines whole."""
        if self.torn:
            _append(*self.torn)
            self.torn = None
        self.log.complete()


def _append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


def main() -> None:
    """Until SIGTERM; every line is whole then."""
    start = datetime.fromisoformat(sys.argv[3])
    producer = Producer(Path(sys.argv[1]), int(sys.argv[2]), start)
    going = Going()
    for _ in range(BACKFILL_WINDOWS):
        producer.past()
    while going:
        producer.second()
        time.sleep(1)
    producer.complete()


if __name__ == "__main__":
    main()
