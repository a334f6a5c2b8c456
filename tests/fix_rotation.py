"""Folders as logrotate, and its like, leave them; and pipelines over them."""

import gzip
import os
import shutil
from pathlib import Path

from fix_account import lines, settled
from fix_pipelines import Workbench
from semel.pipeline import Spec


def position(bench: Workbench, pattern: str = "in/app.log*", **changes: object) -> Spec:
    """A pipeline by position: a record that is read twice shows."""
    source = {"path": pattern, **changes.pop("source", {})}
    return bench.spec(record_id=None, source=source, **changes)


def append(path: Path, start: int, stop: int) -> None:
    """Write `events(start, stop)` behind what is there."""
    with path.open("ab") as file:
        file.write(lines(start, stop))


def output(spec: Spec) -> list[str]:
    """The ids in the output. Sources that are gone cannot be audited."""
    return settled(spec, audited=False).ids


class Rotated:
    """A log that logrotate keeps `keep` old files of, and the records that were written to it."""

    def __init__(self, folder: Path, keep: int, how: str, suffix: str = "") -> None:
        self.log, self.keep, self.how, self.suffix = folder / "app.log", keep, how, suffix
        self.written = 0

    def write(self, count: int) -> None:
        append(self.log, self.written, self.written + count)
        self.written += count

    def rotate(self) -> None:
        """As logrotate does: the oldest goes, the others move up, the log is moved or copied."""
        old = [self._name(number) for number in range(1, self.keep + 1)]
        old[-1].unlink(missing_ok=True)
        for newer, older in reversed(list(zip(old, old[1:], strict=False))):
            if newer.exists():
                newer.rename(older)
        first = self.log.with_name("app.log.1")
        if self.how == "rename":
            self.log.rename(first)
        else:
            copy_and_cut(self.log)
        if self.suffix:
            pack(first)

    def _name(self, number: int) -> Path:
        return self.log.with_name(f"app.log.{number}{self.suffix}")


def rsynced(path: Path, start: int, stop: int) -> None:
    """As rsync does: `events(start, stop)` in a new file, which is renamed over the old one."""
    new = path.with_name(f".{path.name}.Xy12")
    new.write_bytes(lines(start, stop))
    new.replace(path)


def copy_and_cut(log: Path) -> None:
    """As logrotate does with copytruncate."""
    shutil.copyfile(log, log.with_name(f"{log.name}.1"))
    os.truncate(log, 0)


def pack(path: Path) -> Path:
    """As gzip does: the packed file keeps the time of the other, which goes."""
    packed = path.with_name(path.name + ".gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    shutil.copystat(path, packed)
    path.unlink()
    return packed
