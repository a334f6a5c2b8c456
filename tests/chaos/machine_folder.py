"""A folder as producers and tools treat it, and a model that knows which file is which.

The model holds records, not bytes: of each file (a *life*: from its making to its end, whatever it
is called and whether it is packed) the records that were written to it, in order.
"""

import gzip
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(eq=False)
class Life:
    """One file. `records` are all that are in it now, `path` is None once it is deleted.

    A `copy` has the records of another one, and nobody writes to it.
    """

    path: Path | None
    records: list[str] = field(default_factory=list)
    packed: bool = False
    copy: bool = False


def line(record: str) -> bytes:
    return json.dumps({"id": record, "n": len(record), "at": None}).encode() + b"\n"


class Folder:
    """The files of one source. Every operation is what a tool does, in its order of steps."""

    def __init__(self, folder: Path, long: bool) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.pad = "x" * (300 if long else 0)  # So that a file has 4 KiB soon, or hardly ever.
        self.lives: list[Life] = []
        self.made = 0
        self.clock = 1_767_225_600_000_000_000
        self.deleted: list[Life] = []

    def there(self) -> list[Life]:
        return [life for life in self.lives if life.path is not None]

    def plain(self) -> list[Life]:
        """What is written to."""
        return [life for life in self.there() if not life.packed and not life.copy]

    def new_records(self, count: int) -> list[str]:
        self.made += count
        return [f"r{n:05d}{self.pad}" for n in range(self.made - count, self.made)]

    def tick(self, path: Path) -> None:
        """Writes have times of their own, some nanoseconds apart, as a clock gives them."""
        self.clock += 1_000_000_007
        os.utime(path, ns=(self.clock, self.clock))

    def live(self, name: str) -> Life | None:
        path = self.folder / name
        return next((life for life in self.there() if life.path == path), None)

    # What producers do.

    def write(self, name: str, count: int) -> None:
        """Append to a file, or make it."""
        life = self.live(name)
        if life is None:
            life = Life(path=self.folder / name)
            self.lives.append(life)
        self.append(life, count)

    def append(self, life: Life, count: int) -> None:
        records = self.new_records(count)
        with life.path.open("ab") as file:
            file.write(b"".join(map(line, records)))
        life.records += records
        self.tick(life.path)

    def rewrite(self, life: Life, count: int) -> Life:
        """Another file is renamed over it: all of it is new."""
        self.unlink(life)
        records = self.new_records(count)
        other = self.folder / ".tmp"
        other.write_bytes(b"".join(map(line, records)))
        other.replace(life.path)
        new = Life(path=life.path, records=records)
        self._end(life)
        self.lives.append(new)
        self.tick(new.path)
        return new

    def rsync(self, life: Life, count: int) -> None:
        """The same file with more in it, written anew and renamed over the old one."""
        self.unlink(life)
        records = self.new_records(count)
        other = self.folder / f".{life.path.name}.Xy12"
        other.write_bytes(life.path.read_bytes() + b"".join(map(line, records)))
        other.replace(life.path)
        life.records += records
        self.tick(life.path)

    # What logrotate does.

    def rotate(self, name: str, keep: int, how: str, compress: str) -> None:
        """Delete the oldest, move the others up, move or copy the log itself, and pack."""
        log = self.live(name)
        if log is None or log.packed:
            return
        for number in range(keep, 0, -1):
            for ending in ("", ".gz"):
                old = self.live(f"{name}.{number}{ending}")
                if old is None:
                    continue
                if number == keep:
                    self.delete(old)
                else:
                    self.rename(old, f"{name}.{number + 1}{ending}")
        if how == "rename":
            self.rename(log, f"{name}.1")
        else:
            copy = self.folder / f"{name}.1"
            shutil.copyfile(log.path, copy)
            size = log.path.stat().st_size
            os.truncate(log.path, 0)
            if how == "hole":  # The writer keeps its place.
                os.truncate(log.path, size)
            self.tick(copy)
            self.tick(log.path)
            self.lives.append(Life(path=log.path))
            log.path = copy
        packed = {"none": None, "compress": 1, "delay": 2}[compress]
        if packed and (old := self.live(f"{name}.{packed}")):
            self.gzip(old)

    def rename(self, life: Life, name: str) -> None:
        target = self.folder / name
        there = self.live(name)
        if there is life:
            return
        life.path.rename(target)
        if there is not None:
            self._end(there)
        life.path = target

    def gzip(self, life: Life) -> None:
        packed = life.path.with_name(life.path.name + ".gz")
        # gzip refuses links. A small copy, once it is packed, is another file of unknown content.
        if life.packed or life.copy or packed.exists() or life.path.stat().st_nlink > 1:
            return
        packed.write_bytes(gzip.compress(life.path.read_bytes(), mtime=0))
        shutil.copystat(life.path, packed)
        life.path.unlink()
        life.path, life.packed = packed, True

    def delete(self, life: Life) -> None:
        self.unlink(life)
        life.path.unlink()
        self._end(life)

    def _end(self, life: Life) -> None:
        life.path = None
        self.deleted.append(life)

    # What others do.

    def touch(self, life: Life) -> None:
        self.tick(life.path)

    def archive(self, life: Life, attic: Path) -> None:
        """Moved out of the folder."""
        self.unlink(life)
        attic.mkdir(exist_ok=True)
        life.path.rename(attic / f"{len(self.deleted)}-{life.path.name}")
        self._end(life)

    def copy(self, life: Life) -> None:
        """A second file with the same content and time."""
        path = self.folder / f"copy-{len(self.lives)}-{life.path.name}"
        shutil.copy2(life.path, path)
        self.lives.append(Life(path=path, records=list(life.records), copy=True))

    def link(self, life: Life) -> Path:
        """A second name, for a while."""
        other = self.folder / f"link-{life.path.name}"
        if not other.exists():
            other.hardlink_to(life.path)
        return other

    def unlink(self, life: Life) -> None:
        """Its other names go: what a tool leaves of them is a file of its own, and a copy."""
        for other in self.folder.glob("link-*"):
            if other.samefile(life.path):
                other.unlink()
