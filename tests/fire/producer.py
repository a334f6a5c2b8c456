"""The producer under fire: appends, starts files, redelivers, rotates a log, until SIGTERM.

`producer.py DATA SEED PAST`: the windows that are backfilled begin at PAST.

The truth needs no word of its own: which records there are can be read from the source files. A
record's id is given once, and each copy of it is the same line, in whatever file it comes again. In
the log that is rotated nothing comes again: what is there twice was read twice.
"""

import gzip
import json
import os
import random
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from beside import Going

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

COPYTRUNCATE = 0.3
"""How often the log is copied and cut, and not moved."""

COPIED_AT_ONCE = 8192
"""Bytes, as logrotate copies them."""

LINGER_SECONDS_MAX = 0.5
"""How long a state lasts that a slow disk makes last: half a copy, half a gzip file."""


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


class RotatedLog:
    """`app.log`, `app.log.1`, `app.log.2.gz`, `app.log.3.gz`, ...: no old file is ever deleted.

    So the truth can be read from the folder in the end. The newest old file stays plain, the others
    are gzip files (delaycompress). What is written here is never lost by the rotation itself:
    nothing is written between the copy and the truncation of copytruncate.
    """

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.path = folder / "app.log"
        self.dice = dice
        self.file = self.path.open("ab", buffering=0)
        self.old = 0
        self.torn = b""
        """What is still to be written of a line, always to the file that has its beginning."""

    def write(self, text: bytes) -> None:
        """Append; the end may be torn in the middle of a line, until the next call."""
        cut = self.dice.randrange(len(text) + 1)
        self.file.write(self.torn + text[:cut])
        self.torn = text[cut:]

    def complete(self) -> None:
        """Make the last line whole."""
        self.file.write(self.torn)
        self.torn = b""

    def rotate(self, late: bytes) -> None:
        """As logrotate does. `late`: what is written meanwhile, into a moved log too.

        1. The old files go up by one. 2. The log becomes the first of them. 3. The second one is
        compressed.
        """
        self.torn += late
        if not os.fstat(self.file.fileno()).st_size:
            return  # notifempty
        # 1.
        for number in range(self.old, 0, -1):
            self._name(number).rename(self._name(number, up=1))
        self.old += 1
        # 2.
        if self.dice.random() < COPYTRUNCATE:
            self._copy_and_truncate()
        else:
            self.path.rename(self._name(1))
            self._linger()
            self.complete()
            self.file.close()
            self.file = self.path.open("ab", buffering=0)
        # 3.
        if self.old > 1:
            self._pack(self.path.with_name("app.log.2"))

    def _copy_and_truncate(self) -> None:
        self.complete()
        whole = self.path.read_bytes()
        with self._name(1).open("wb", buffering=0) as copy:
            copy.write(whole[:COPIED_AT_ONCE])
            self._linger()
            copy.write(whole[COPIED_AT_ONCE:])
        self._linger()
        os.truncate(self.path, 0)

    def _pack(self, path: Path) -> None:
        """As gzip does: under the last name at once, then the time of the other, which goes."""
        status, packed = path.stat(), gzip.compress(path.read_bytes())
        half = len(packed) // 2
        with path.with_name(f"{path.name}.gz").open("wb", buffering=0) as file:
            file.write(packed[:half])
            self._linger()
            file.write(packed[half:])
            os.utime(file.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
        self._linger()
        path.unlink()

    def _name(self, number: int, up: int = 0) -> Path:
        """Where an old file is, or where it goes: it is packed only when it is there."""
        packed = ".gz" if number > 1 else ""
        return self.path.with_name(f"app.log.{number + up}{packed}")

    def _linger(self) -> None:
        time.sleep(self.dice.uniform(0, LINGER_SECONDS_MAX))


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
