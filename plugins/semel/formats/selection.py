"""Some of a split's records, by their offsets: a replay leaves some out, an admission takes only
some.

semel counts and hashes the records that are left out, but does not parse them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from semel import limits
from semel.formats.lines import Parser, RecordLines

NO_OFFSETS = np.zeros(0, np.int64)
"""No offsets."""

_SPACE = 32


@dataclass(frozen=True, kw_only=True, eq=False)
class Selection:
    """Records by their offsets (int64, ascending). If `only`, they are taken, else all others."""

    offsets: np.ndarray
    only: bool

    def takes(self, offsets: np.ndarray) -> np.ndarray:
        """A mask of the taken records, for ascending offsets."""
        return membership(offsets, self.offsets) == self.only

    def without(self, offsets: np.ndarray) -> "Selection":
        """A selection that also leaves out the records at these offsets, in any order."""
        combined = np.setdiff1d if self.only else np.union1d
        return replace(self, offsets=combined(self.offsets, offsets))

    # Keeps RP1, RP9.
    def select(self, lines: RecordLines, parser: Parser) -> tuple[RecordLines, np.ndarray]:
        """The taken lines, adjacent, and the offsets of the records that are left out.

        A blank line is not a record. Changes the bytes of `lines`.
        """
        mask = self.takes(lines.offsets)
        if mask.all():
            return lines, NO_OFFSETS
        places = np.flatnonzero(~mask)
        others = lines.take(places)
        left_out = _records(others, parser.clean)
        # Overwriting a few costs half as much as moving all bytes after the first one.
        if parser.skips_line_ends and 2 * len(places) < len(lines):
            others.overwrite()
            return lines.take(mask), left_out
        return lines.compact(mask), left_out


EVERYTHING = Selection(offsets=NO_OFFSETS, only=False)


def _records(lines: RecordLines, clean: Callable[[bytes], bytes]) -> np.ndarray:
    """The offsets of the lines that are not blank. A line that is too long is a record."""
    codes = np.frombuffer(lines.data, np.uint8)
    padded = (codes[lines.starts] <= _SPACE) & (codes[lines.ends - 1] <= _SPACE)
    padded &= lines.ends - lines.starts <= limits.RECORD_BYTES_MAX
    blank = [at for at in np.flatnonzero(padded).tolist() if not clean(lines.raw(at))]
    return np.delete(lines.offsets, blank) if blank else lines.offsets


def membership(offsets: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """A mask of the offsets that are chosen; both ascend. The cost is that of the few chosen."""
    mask = np.zeros(len(offsets), bool)
    if len(offsets):
        first, behind = np.searchsorted(chosen, [offsets[0], offsets[-1] + 1])
        near = chosen[first:behind]
        at = np.searchsorted(offsets, near)
        mask[at[offsets[at] == near]] = True
    return mask
