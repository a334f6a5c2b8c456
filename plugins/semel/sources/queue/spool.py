"""A pipeline's spool: `open/` has the parts that receivers write to, `sealed/` the segments.

    <spool>/<pipeline>/open/<uuid>.part
    <spool>/<pipeline>/open/<uuid>.torn                  what was cut from a part, for a person
    <spool>/<pipeline>/sealed/<time in UTC>-<uuid>.seg
    <spool>/<pipeline>/removed/<content>                 says that collect has removed that segment
"""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from semel.errors import CorruptionError, UnavailableError
from semel.model.batch import Log
from semel.sources.queue.segment import recover, torn
from semel.storage import make_folder, sync_folder, write_new

_REMOVED = "removed"


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """`sealed`: segments of receivers that had died. `damaged`: of parts that cannot be sealed, by
    their paths, what is wrong with each.
    """

    sealed: list[Path] = field(default_factory=list)
    damaged: dict[Path, str] = field(default_factory=dict)


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
        """Parts of receivers, of those that live too. Where there is no spool there are none."""
        return sorted(path for path in self.open.glob("*.part") if path.is_file())

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
        """Seal what dead receivers left. What is damaged is told, and left as it is.

        UnavailableError: one cannot be read or written.
        """
        found = Recovered()
        for part in self.parts():
            try:
                segment = recover(part, self.sealed)
            except CorruptionError as error:
                found.damaged[part] = str(error)
                log(f"refused: {error}")
                continue
            except OSError as error:
                raise UnavailableError(
                    f"{part}, which a receiver left when it ended, cannot be sealed "
                    f"({error.strerror}); let this user write there, or make room"
                ) from error
            if segment is not None:
                found.sealed.append(segment)
                log(f"sealed {segment.name}, which a receiver left when it ended")
            if torn(part).exists() and not part.exists():
                log(f"what is behind its last whole group is kept as {torn(part)}")
        return found
