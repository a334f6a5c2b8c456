"""A watch over what a machine that loses power would keep: what was fsynced, and nothing else."""

import builtins
import os
from pathlib import Path

import pytest

from semel.storage import checksum


class Disk:
    """Knows of each file and name that this process makes below a folder whether it would last.

    A file lasts with the bytes that it had at its last fsync; a name lasts once its folder was
    fsynced. It sees the calls that semel makes for what shall last, and not pyarrow's spills.
    """

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self._kept: dict[str, str] = {}
        self._volatile: set[str] = set()
        self._going: set[str] = set()
        for module, name, watched in (
            (builtins, "open", self._open),
            (os, "mkdir", self._mkdir),
            (os, "link", self._link),
            (os, "rename", self._rename),
            (os, "unlink", self._unlink),
            (os, "fsync", self._fsync),
        ):
            patch.setattr(module, name, _around(getattr(module, name), watched))

    def keeps(self, path: str | Path) -> bool:
        """Whether the file would be there, under all its folders, with the bytes that it has."""
        path = Path(path)
        names = [str(p) for p in (path, *path.parents) if p.is_relative_to(self.root)]
        return self.holds(path) and not self._volatile & {*names}

    def holds(self, path: str | Path) -> bool:
        """Whether the bytes that the file has would be there, if its name is."""
        return self._kept.get(str(path)) == checksum(path)

    def forgot(self, path: str | Path) -> bool:
        """Whether the file is gone, and would be."""
        return not os.path.lexists(path) and str(path) not in self._going

    def is_open(self, path: str | Path) -> bool:
        """Whether this process has the file open."""
        return str(path) in map(_path_of, os.listdir("/proc/self/fd"))

    def _open(self, path: object, mode: str = "r", *_: object, **__: object) -> None:
        if not isinstance(path, int) and {*mode} & {*"xwa"}:
            self._made(path)

    def _mkdir(self, path: object, *_: object, **__: object) -> None:
        self._made(path)

    def _link(self, source: object, target: object, **_: object) -> None:
        self._made(target)
        self._kept[os.fspath(target)] = self._kept.get(os.fspath(source), "")

    def _rename(self, source: object, target: object, **_: object) -> None:
        self._link(source, target)

    def _unlink(self, path: object, *_: object, dir_fd: int | None = None) -> None:
        if dir_fd is None:  # shutil.rmtree's are of no interest.
            self._going.add(os.fspath(path))

    def _fsync(self, handle: int) -> None:
        path = _path_of(str(handle))
        if os.path.isdir(path):
            for names in (self._volatile, self._going):
                names -= {name for name in names if os.path.dirname(name) == path}
        else:
            self._kept[path] = checksum(path)

    def _made(self, path: object) -> None:
        self._volatile.add(os.fspath(path))


def _around(real, watched):  # noqa: ANN001, ANN202 - any function of the system
    def call(*arguments: object, **options: object) -> object:
        done = real(*arguments, **options)
        watched(*arguments, **options)
        return done

    return call


def _path_of(handle: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{handle}")
    except FileNotFoundError:  # The listing's own, closed by now.
        return ""
