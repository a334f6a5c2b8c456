"""A pipeline's spool: `open/` has the parts that receivers write to, `sealed/` the segments.

    <spool>/<pipeline>/open/<uuid>.part
    <spool>/<pipeline>/open/<uuid>.torn                  what was cut from a part, for a person
    <spool>/<pipeline>/sealed/<time in UTC>-<uuid>.seg
    <spool>/<pipeline>/removed/<content>                 says that collect has removed that segment
"""

import errno
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from semel.declare.wording import count
from semel.errors import CorruptionError, UnavailableError
from semel.model.batch import Log
from semel.sources.queue.segment import is_held, read_foot, read_head, recover, torn
from semel.storage import make_folder, sync_folder, write_new

_REMOVED = "removed"

_NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)
"""What another user's file, or a mount that is only to be read, answers who would write to it."""


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """`sealed`: segments of receivers that had died. `torn`: files with what was cut from them.
    `damaged`: of parts that cannot be sealed, by their paths, what is wrong with each. `left`:
    parts that this user may not seal, and why.
    """

    sealed: list[Path] = field(default_factory=list)
    torn: list[Path] = field(default_factory=list)
    damaged: dict[Path, str] = field(default_factory=dict)
    left: dict[Path, str] = field(default_factory=dict)

    def told(self) -> list[str]:
        """What was sealed, and what was left, in words; of what is damaged others tell."""
        said = []
        if self.sealed:
            messages = sum(read_foot(path).messages for path in self.sealed)
            said.append(
                f"sealed {count(len(self.sealed), 'segment')} with {count(messages, 'message')}, "
                "which receivers left when they ended"
            )
        said += [f"what is behind its last whole group is kept as {path}" for path in self.torn]
        said += [
            f"refused: {path}: not sealed, as this user may not write there ({why}); what a "
            "receiver left in it waits for the next receive of its owner"
            for path, why in self.left.items()
        ]
        return said


@dataclass(frozen=True)
class Spool:
    """`path`: the pipeline's folder in the spool."""

    path: Path

    @property
    def open(self) -> Path:
        """The folder of the parts."""
        return self.path / "open"

    @property
    def sealed(self) -> Path:
        """The folder of the segments."""
        return self.path / "sealed"

    def make(self) -> None:
        """Make the folders that are not there, durably. UnavailableError: they cannot be made."""
        try:
            make_folder(self.open)
            make_folder(self.sealed)
        except OSError as error:
            raise UnavailableError(
                f"the spool {self.path} cannot be made ({error.strerror}); let this user write "
                "there, or correct source.spool"
            ) from error

    def parts(self) -> list[Path]:
        """Parts of receivers, of those that live too. Where there is no spool there are none.
        OSError: they cannot be listed.
        """
        with suppress(FileNotFoundError, NotADirectoryError):
            found = (self.open / name for name in sorted(os.listdir(self.open)))
            return [path for path in found if path.suffix == ".part" and path.is_file()]
        return []

    def last_address(self) -> str | None:
        """The queue's address in the newest segment. None: there is no segment that can be read."""
        with suppress(OSError, ValueError, CorruptionError):
            return read_head(self.sealed / max(os.listdir(self.sealed))).address
        return None

    def was_removed(self, content: str) -> bool:
        """Whether collect has removed the segment of a content."""
        return (self.path / _REMOVED / content).exists()

    # Keeps Q5.
    def remove(self, name: str, content: str) -> None:
        """Remove a segment; that it was is written down before, durably. OSError: it cannot be."""
        note = self.path / _REMOVED / content
        make_folder(note.parent)
        with suppress(FileExistsError):
            write_new(note, b"")
        os.unlink(self.sealed / name)
        sync_folder(self.sealed)

    # Keeps Q2.
    def recover(self, log: Log) -> Recovered:
        """Seal what dead receivers left. What is damaged, or may not be written by this user, is
        told, and left as it is.

        UnavailableError: one cannot be read or written for another reason.
        """
        found = Recovered()
        try:
            parts = self.parts()
        except OSError as error:
            found.left[self.open], parts = error.strerror, []
        for part in parts:
            try:
                segment = recover(part, self.sealed)
            except CorruptionError as error:
                found.damaged[part] = str(error)
                log(f"refused: {error}")
                continue
            except OSError as error:
                if error.errno not in _NO_RIGHT:
                    raise UnavailableError(
                        f"{part}, which a receiver left when it ended, cannot be sealed "
                        f"({error.strerror}); make room, or mend the disk"
                    ) from error
                if not is_held(part):
                    found.left[part] = error.strerror
                continue
            if segment is not None:
                found.sealed.append(segment)
            if torn(part).exists() and not part.exists():
                found.torn.append(torn(part))
        for line in found.told():
            log(line)
        return found
