"""A log that a service writes and logrotate rotates: no old file is ever deleted.

So the truth can be read from the folder in the end. The newest old file stays plain, the others are
gzip files (delaycompress). What is written here is never lost by the rotation itself: nothing is
written between the copy and the truncation of copytruncate.
"""

import gzip
import os
import random
import time
from pathlib import Path

COPYTRUNCATE = 0.3
"""How often the log is copied and cut, and not moved."""

COPIED_AT_ONCE = 8192
"""Bytes, as logrotate copies them."""

LINGER_SECONDS_MAX = 0.5
"""How long a state lasts that a slow disk makes last: half a copy, half a gzip file."""


class RotatedLog:
    """`app.log`, `app.log.1`, `app.log.2.gz`, `app.log.3.gz`, ..."""

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
