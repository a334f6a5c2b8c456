"""A pipeline's spool: receivers write parts in `open/`, and finished segments are in `sealed/`.

In an object store there are no parts: each segment is sealed.

    <spool>/<pipeline>/open/<uuid>.part
    <spool>/<pipeline>/open/<uuid>.torn                  bytes cut from a part, for a person
    <spool>/<pipeline>/sealed/<time in UTC>-<uuid>.seg
    <spool>/<pipeline>/removed/<content>                 collect has removed the segment
    <spool>/<pipeline>/queue                             only in a store: the last queue's address
"""

import errno
import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from semel.declare.wording import count
from semel.errors import CorruptionError, UnavailableError
from semel.model.batch import Log
from semel.sources.queue.segment import (
    OpenSegment,
    SegmentWriter,
    StoredSegments,
    is_locked,
    read_foot,
    read_head,
    recover_part,
    torn_path,
)
from semel.storage import (
    ArchivePath,
    StorePath,
    check_guarantees,
    make_folder,
    sync_folder,
    write_new,
)

_REMOVED, _QUEUE = "removed", "queue"

_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors on writing another user's file, or to a read-only mount."""


@dataclass(frozen=True, kw_only=True)
class RecoveryReport:
    """The result of recovering the parts of dead receivers. `sealed`: the new segments.
    `torn_ends`: files with the bytes cut from parts. `damaged`: parts that cannot be sealed, each
    with its defect. `unwritable`: parts that this user may not seal, each with the reason.
    """

    sealed: list[Path] = field(default_factory=list)
    torn_ends: list[Path] = field(default_factory=list)
    damaged: dict[Path, str] = field(default_factory=dict)
    unwritable: dict[Path, str] = field(default_factory=dict)

    def describe(self) -> list[str]:
        """Lines about the sealed and the unwritable parts. Callers report the damaged ones."""
        lines = []
        if self.sealed:
            messages = sum(read_foot(path).messages for path in self.sealed)
            lines.append(
                f"recovered {count(len(self.sealed), 'segment')} with "
                f"{count(messages, 'message')} from receivers that ended early"
            )
        lines += [f"saved a receiver's incomplete last write as {path}" for path in self.torn_ends]
        lines += [
            f"refused: {path}: this user may not write there ({why}). Its messages wait until its "
            "owner runs receive again"
            for path, why in self.unwritable.items()
        ]
        return lines


@dataclass(frozen=True)
class Spool:
    """The spool of one pipeline. `path`: its folder."""

    path: ArchivePath

    @property
    def open(self) -> ArchivePath:
        """The folder of the parts."""
        return self.path / "open"

    @property
    def sealed(self) -> ArchivePath:
        """The folder of the segments."""
        return self.path / "sealed"

    def create_folders(self) -> None:
        """Durably create missing folders. Raises UnavailableError if that fails, and TerminalError
        if a store lacks a guarantee.
        """
        try:
            check_guarantees(self.path)
            make_folder(self.open)
            make_folder(self.sealed)
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> UnavailableError:
        return UnavailableError(
            f"cannot create the spool {self.path} ({error.strerror}). Let this user write there, "
            "or correct source.spool"
        )

    def has_begun(self) -> bool:
        """Whether receive has ever run, of a spool in a store."""
        return (self.path / _QUEUE).exists()

    def new_segment(self, pipeline: str, address: str) -> SegmentWriter:
        """Begin to write messages. Raises OSError."""
        now = datetime.now(UTC)
        if isinstance(self.path, StorePath):
            return StoredSegments(self.sealed, pipeline, address, now)
        return OpenSegment.create(self.open, pipeline, address, now)

    def free_bytes(self) -> int | None:
        """The free space of its disk. None: a store has no limit."""
        if isinstance(self.path, StorePath):
            return None
        disk = os.statvfs(self.open)
        return disk.f_bavail * disk.f_frsize

    def parts(self) -> list[Path]:
        """The parts of living and dead receivers; empty without a spool, and in a store. Raises
        OSError if they cannot be listed.
        """
        if isinstance(self.path, StorePath):
            return []
        with suppress(FileNotFoundError, NotADirectoryError):
            paths = (self.open / name for name in sorted(os.listdir(self.open)))
            return [path for path in paths if path.suffix == ".part" and path.is_file()]
        return []

    def last_address(self) -> str | None:
        """The address of the queue of the last receive. Returns None if that cannot be read."""
        with suppress(OSError, ValueError, CorruptionError):
            if isinstance(self.path, StorePath):  # It may have very many segments.
                return (self.path / _QUEUE).read_bytes().decode()
            return read_head(self.sealed / max(os.listdir(self.sealed))).address
        return None

    def note_address(self, address: str) -> None:
        """Note the address of the queue, in a store. Raises UnavailableError if that fails."""
        if isinstance(self.path, StorePath):
            try:
                (self.path / _QUEUE).write_bytes(address.encode())
            except OSError as error:
                raise self._unwritable(error) from error

    def was_removed(self, content: str) -> bool:
        """Whether collect has removed the segment with a content."""
        return (self.path / _REMOVED / content).exists()

    # Keeps Q5.
    def remove(self, name: str, content: str) -> None:
        """Durably note that a segment is removed, then remove it. Raises OSError if that fails."""
        note = self.path / _REMOVED / content
        make_folder(note.parent)
        with suppress(FileExistsError):
            write_new(note, b"")
        (self.sealed / name).unlink()
        sync_folder(self.sealed)

    # Keeps Q2.
    def recover(self, log: Log) -> RecoveryReport:
        """Seal the parts of dead receivers. Reports damaged parts and parts that this user may not
        write, and leaves them as they are.

        Raises UnavailableError if a part cannot be read or written for another reason.
        """
        report = RecoveryReport()
        try:
            parts = self.parts()
        except OSError as error:
            report.unwritable[self.open], parts = error.strerror, []
        for part in parts:
            try:
                segment = recover_part(part, self.sealed)
            except CorruptionError as error:
                report.damaged[part] = str(error)
                log(f"refused: {error}")
                continue
            except OSError as error:
                if error.errno not in _FORBIDDEN:
                    raise UnavailableError(
                        f"{part}: cannot recover the messages of a receiver that ended early "
                        f"({error.strerror}). Free some space, or repair the disk"
                    ) from error
                if not is_locked(part):
                    report.unwritable[part] = error.strerror
                continue
            if segment is not None:
                report.sealed.append(segment)
            if torn_path(part).exists() and not part.exists():
                report.torn_ends.append(torn_path(part))
        for line in report.describe():
            log(line)
        return report
