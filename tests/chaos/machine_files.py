"""The source of the state machine: log files as producers and logrotate treat them.

It knows the bytes of every file at any time, so that a claim can be held against them later, when
the file has been cut or replaced. A file that goes is kept elsewhere under another name: a new one
is never given its inode number, so that a replay sees the same. (Inode numbers that come back are
tested in tests/unit.)
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import xxhash

TAIL_BYTES = 4096
BAD = (b"{not json", b'{"id": null, "n": 1}', b'{"id": 7, "n": 1}', b"", b"\xff\xfe")
"""Lines that are no record: quarantined, but for the empty one, which is nothing."""

COLUMNS: dict[str, Any] = {
    "id": {"names": ["key"]}, "n": {"optional": True, "names": ["number", "line"]},
    "at": {"names": ["seen_at"]},
}  # fmt: skip
"""`source.columns` of the pipelines, in the examples that have any."""

Header = dict[str, str | None]
"""The names that a file has for declared columns. None: it lacks the column."""

OWN: Header = {}
HEADERS: tuple[Header, ...] = (
    OWN, {"n": None}, {"n": "number"}, {"id": "key"}, {"n": "line", "at": "seen_at"},
    {"n": None, "id": "key", "at": "seen_at"},
)  # fmt: skip


@dataclass
class File:
    """A file of the source. `torn`: the rest of its last line, which a producer holds back."""

    path: Path
    header: Header
    data: bytes = b""
    torn: bytes = b""

    @property
    def end(self) -> int:
        """Where its last whole line ends."""
        return self.data.rfind(b"\n") + 1


def tail_hash(data: bytes) -> str:
    """What a claim that ends with `data` says of it, by docs/protocol.md."""
    return xxhash.xxh3_128_hexdigest(data[-TAIL_BYTES:])


class Files:
    """All files of the source, and every state that they have had."""

    def __init__(self, folder: Path, attic: Path, headers: Sequence[Header]) -> None:
        """`headers`: of the first file, of the second, and so on, again from the first."""
        self.folder, self.attic, self.headers = folder, attic, headers
        attic.mkdir()
        self.all: list[File] = []
        self.states: dict[tuple[int, str], bytes] = {}
        """By end and hash of the tail, as a claim gives them: the bytes up to there."""
        self.ids: list[tuple[str, str]] = []
        self._lines = self._touched = self._headed = 0
        self._rotations = [0, 0, 0]

    def pick(self, which: int) -> File:
        """One of the files, or a new one of another hour while there are few."""
        if which >= len(self.all) and len(self.all) < 3:
            hour = 9 + len(self.all)
            self.all.append(self._file(self.folder / f"2026-01-01-{hour:02d}-00.jsonl"))
            return self.all[-1]
        return self.all[which % len(self.all)]

    def _file(self, path: Path) -> File:
        return File(path=path, header=self._next_header())

    def _next_header(self) -> Header:
        self._headed += 1
        return self.headers[(self._headed - 1) % len(self.headers)]

    def records(
        self, now: datetime, new: int, again: Iterable[int] = ()
    ) -> list[dict[str, Any]]:
        """Records with new ids, and the same records sent again."""
        sent = [self.ids[-1 - at % len(self.ids)] for at in again if self.ids]
        for _ in range(new):
            sent.append((f"e{len(self.ids):04d}", now.isoformat()))
            self.ids.append(sent[-1])
        records = []
        for ident, at in sent:
            self._lines += 1
            records.append({"id": ident, "n": self._lines, "at": at})
        return records

    def append(
        self, file: File, lines: Iterable[bytes | dict[str, Any]], *, torn: bool = False
    ) -> None:
        """Write lines behind what is there; a torn one is finished first. `torn`: so is the last.
        A record is written with the file's names of columns; bytes are a line as they are.
        """
        written = (
            line if isinstance(line, bytes) else _line(line, file.header) for line in lines
        )
        text = file.torn + b"".join(line + b"\n" for line in written)
        cut = len(text) - 7 if torn and len(text) > 7 else len(text)
        file.torn = text[cut:]
        with open(file.path, "ab") as handle:
            handle.write(text[:cut])
        self._is_now(file, file.data + text[:cut])

    def rotate(self, file: File) -> None:
        """logrotate: rename it; the producer makes a new one when it comes back."""
        aside = self._aside(file)
        file.path.rename(aside)
        self._begin_anew(file, aside)

    def copy_and_cut(self, file: File) -> None:
        """logrotate's copytruncate: the file keeps its inode, and its bytes are elsewhere."""
        aside = self._aside(file)
        aside.write_bytes(file.data)
        os.truncate(file.path, 0)
        self._begin_anew(file, aside)

    def replace(self, file: File, lines: Iterable[bytes | dict[str, Any]]) -> None:
        """Another file under the same name, as an editor or a careless copy makes it."""
        os.link(file.path, self.attic / str(len(os.listdir(self.attic))))
        other = self.attic.parent / "other"
        other.write_bytes(b"")
        other.rename(file.path)
        file.data = file.torn = b""
        file.header = self._next_header()
        self.append(file, lines)

    def _aside(self, file: File) -> Path:
        stem = file.path.name
        hour = int(stem[11:13]) - 9
        self._rotations[hour] += 1
        return self.folder / f"{stem[:14]}{self._rotations[hour]:02d}.jsonl"

    def _begin_anew(self, file: File, aside: Path) -> None:
        torn, file.torn = file.torn, b""
        self.all.append(File(path=aside, header=file.header, data=file.data, torn=torn))
        self._is_now(self.all[-1], file.data)
        file.path.touch()
        file.data = b""
        file.header = self._next_header()

    def _is_now(self, file: File, data: bytes) -> None:
        """Take note of each state with one more line. Times of files follow the order of writes."""
        end = file.data.rfind(b"\n") + 1
        while (end := data.find(b"\n", end) + 1) > 0:
            self.states[end, tail_hash(data[:end])] = data[:end]
        file.data = data
        self._touched += 1
        second = 1_767_225_600 + self._touched
        os.utime(file.path, (second, second))


def _line(record: dict[str, Any], header: Header) -> bytes:
    names = {header.get(column, column): value for column, value in record.items()}
    names.pop(None, None)
    return json.dumps(names).encode()


def parsed(line: bytes) -> dict[str, Any] | None:
    """The row of a line: declared columns, None where the line has none of its names. Returns None
    if it is not a record.
    """
    try:
        record = json.loads(line)
    except ValueError:
        return None
    row = {
        column: next((record[n] for n in (column, *rule["names"]) if n in record), None)
        for column, rule in COLUMNS.items()
    }
    return row if isinstance(row["id"], str) else None
