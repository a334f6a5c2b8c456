"""Some of a split's records, by their offsets: what a replay leaves out, what an admission takes.

Records that are left out are counted and hashed, and not parsed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from semel import limits
from semel.formats.lines import Parser, RecordLines

NONE = np.zeros(0, np.int64)
"""No offsets."""

_SPACE = 32


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """Records by their offsets (int64, ascending). `only`: they are taken, else all the others."""

    offsets: np.ndarray
    only: bool

    def takes(self, offsets: np.ndarray) -> np.ndarray:
        """Which of some ascending offsets are those of records that are taken."""
        return among(offsets, self.offsets) == self.only

    def without(self, offsets: np.ndarray) -> "Selection":
        """The same, where the records at some more offsets, in any order, are left out."""
        combined = np.setdiff1d if self.only else np.union1d
        return replace(self, offsets=combined(self.offsets, offsets))

    # Keeps RP1, RP9.
    def of(self, lines: RecordLines, parser: Parser) -> tuple[RecordLines, np.ndarray]:
        """The lines that are taken, with nothing of the others between them, and the offsets of the
        records that are left out. A blank line is no record. The bytes of the lines are changed.
        """
        taken = self.takes(lines.offsets)
        if taken.all():
            return lines, NONE
        places = np.flatnonzero(~taken)
        others = lines.take(places)
        left_out = _records(others, parser.clean)
        # To overwrite a few costs half of what it costs to move all that is behind the first.
        if parser.skips_line_ends and 2 * len(places) < len(lines):
            others.overwrite()
            return lines.take(taken), left_out
        return lines.compacted(taken), left_out


EVERYTHING = Selection(offsets=NONE, only=False)


def _records(lines: RecordLines, clean: Callable[[bytes], bytes]) -> np.ndarray:
    """The offsets of the lines that are not blank. A line that is too long is a record."""
    codes = np.frombuffer(lines.data, np.uint8)
    padded = (codes[lines.starts] <= _SPACE) & (codes[lines.ends - 1] <= _SPACE)
    padded &= lines.ends - lines.starts <= limits.RECORD_BYTES_MAX
    blank = [at for at in np.flatnonzero(padded).tolist() if not clean(lines.raw(at))]
    return np.delete(lines.offsets, blank) if blank else lines.offsets


def among(offsets: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Which of some offsets are chosen ones; both ascend. The cost is that of the few chosen."""
    found = np.zeros(len(offsets), bool)
    if len(offsets):
        first, behind = np.searchsorted(chosen, [offsets[0], offsets[-1] + 1])
        near = chosen[first:behind]
        at = np.searchsorted(offsets, near)
        found[at[offsets[at] == near]] = True
    return found
