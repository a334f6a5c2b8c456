"""The reader under fire: whole batches by their markers, as docs/protocol.md (R1 to R4) has it.

`watcher.py SEED SINK...`, to SIGTERM. It ends with exit code 1 at the first record that is seen
twice, or that was seen and is gone, and prints what it saw as one JSON object.
"""

import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from beside import BrokenPromise, Going
from semel.archive.marker import Marker, marker_paths, read_marker
from semel.model.manifest import Kind
from semel.sinks.spec import archive_of

PASS_SECONDS = 1.0

Sight = tuple[int, int, int]
"""What a file is known by: inode, size, time of its last change."""


@dataclass(kw_only=True)
class Seen:
    """How much was read."""

    passes: int = 0
    batches: int = 0
    records: int = 0
    read_again: int = 0
    """Batches that were read whole once more, long after they had been seen."""


class Watch:
    """All that was ever seen of one sink, held against what is there now."""

    def __init__(self, sink: Path, seen: Seen) -> None:
        self.sink = sink
        self.seen = seen
        self.sights: dict[Path, Sight] = {}
        self.markers: list[Marker] = []
        self.batch_of: dict[str, int] = {}

    def look(self, dice: random.Random) -> None:
        """One pass: nothing of before is gone, and what is new was not there before."""
        for path, before in self.sights.items():
            if _sight(path) != before:
                raise BrokenPromise(f"{path} was seen, and is gone or another file now")
        if self.markers:
            self._read(dice.choice(self.markers))
            self.seen.read_again += 1
        for path in marker_paths(archive_of(self.sink)):
            if path not in self.sights:
                self._take(path)

    def _take(self, path: Path) -> None:
        marker = read_marker(path, self.sink)
        for record_id in self._read(marker):
            before = self.batch_of.setdefault(record_id, marker.batch_id)
            if before != marker.batch_id:
                raise BrokenPromise(
                    f"{self.sink}: {record_id} is in batch {before} and in {marker.batch_id}"
                )
            self.seen.records += 1
        self.markers.append(marker)
        listed = [marker.path_of(file) for file in marker.files]
        self.sights |= {file: _sight(file) for file in [path, *listed]}
        self.seen.batches += 1

    def _read(self, marker: Marker) -> list[str]:
        """The ids of a batch, each of them once, from files that are what the marker says."""
        found: list[str] = []
        for file in marker.of_kind(Kind.DATA):
            data = (self.sink / file.path).read_bytes()
            if xxhash.xxh3_128_hexdigest(data) != file.checksum:
                raise BrokenPromise(f"{marker.path} lists {file.path} with another checksum")
            found += pq.read_table(pa.BufferReader(data), columns=["id"])["id"].to_pylist()
        if len(found) != marker.counts.survivors or len(set(found)) != len(found):
            raise BrokenPromise(
                f"{marker.path} counts {marker.counts.survivors} records, its files hold "
                f"{len(found)} with {len(set(found))} ids"
            )
        return found


def _sight(path: Path) -> Sight | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def main() -> int:
    """Look until SIGTERM, and once more after it."""
    going = Going()
    dice, seen, broken = random.Random(int(sys.argv[1])), Seen(), ""
    watches = [Watch(Path(sink), seen) for sink in sys.argv[2:]]
    try:
        last = False
        while not last:
            last = not going
            for watch in watches:
                watch.look(dice)
            seen.passes += 1
            time.sleep(0 if last else PASS_SECONDS)
    except (BrokenPromise, FileNotFoundError) as error:
        broken = str(error)
    print(json.dumps({**asdict(seen), "broken": broken}), flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
