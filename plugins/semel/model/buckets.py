"""Sets of buckets of record time: of a batch's ids, of an id run, or of forgotten ids.

A set is exact up to BUCKET_RANGES_MAX ranges. Beyond that it also includes its smallest gaps, so
that a run's header, a marker and the pipeline's row stay small for any record times. An extra
bucket costs one needless look-up. In a set of forgotten buckets, its records count as late.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Protocol, Self

import numpy as np

BUCKET_RANGES_MAX = 1_000
"""Ranges in a stored set of buckets, 20 kB. A year of working hours has 260. Beyond that, the
smallest gaps count as part of the set."""

_DENSE = 16
"""Up to this many buckets per record, a mask is faster than sorting."""


class _TimeRange(Protocol):
    """A range as the ledger returns it, its end exclusive."""

    lower: int
    upper: int


@dataclass(frozen=True)
class Buckets:
    """A set of buckets. `bounds` ascend: the set has bounds[0] up to but excluding bounds[1],
    bounds[2] up to bounds[3], and so on.
    """

    bounds: tuple[int, ...] = ()

    @classmethod
    def of(cls, numbers: np.ndarray) -> Self:
        """The set of some buckets (int64), which may repeat, in any order."""
        if not len(numbers):
            return cls()
        low = int(numbers.min())
        span = int(numbers.max()) - low + 1
        if span <= _DENSE * len(numbers):
            mask = np.zeros(span + 1, bool)
            mask[numbers - low] = True
            return cls._bounded(low + np.flatnonzero(np.diff(mask, prepend=False)))
        once = np.unique(numbers)
        gaps = np.diff(once) > 1
        starts, ends = once[np.append(True, gaps)], once[np.append(gaps, True)] + 1
        return cls._bounded(np.stack([starts, ends], axis=1).ravel())

    @classmethod
    def of_ranges(cls, ranges: Iterable[Iterable[int]]) -> Self:
        """The set with these `ranges`. Raises ValueError if they touch, or do not ascend."""
        bounds = tuple(int(bound) for start, end in ranges for bound in (start, end))
        if any(one >= two for one, two in pairwise(bounds)):
            raise ValueError(f"its ranges of buckets are not in order: {bounds[:20]}")
        return cls(bounds)

    @classmethod
    def from_ledger(cls, multirange: Iterable[_TimeRange]) -> Self:
        """The set in a column of type int8multirange."""
        return cls.of_ranges((part.lower, part.upper) for part in multirange)

    @classmethod
    def _bounded(cls, bounds: np.ndarray) -> Self:
        gaps = bounds[2::2] - bounds[1:-1:2]
        excess = len(gaps) + 1 - BUCKET_RANGES_MAX
        if excess > 0:
            smallest = 2 * np.argpartition(gaps, excess - 1)[:excess]
            bounds = np.delete(bounds, np.concatenate([smallest + 1, smallest + 2]))
        return cls(tuple(bounds.tolist()))

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The set's ranges, ascending, with exclusive ends. They do not touch."""
        return list(zip(self.bounds[::2], self.bounds[1::2], strict=True))

    @property
    def end(self) -> int | None:
        """The bucket after the newest one. None if the set is empty."""
        return self.bounds[-1] if self.bounds else None

    def to_ledger(self) -> str:
        """The set as the text of an int8multirange."""
        return "{" + ",".join(f"[{start},{end})" for start, end in self.ranges) + "}"

    def __or__(self, other: "Buckets") -> "Buckets":
        if not (self.bounds and other.bounds):
            return self if self.bounds else other
        at = np.unique([*self.bounds, *other.bounds])
        inside = self.has(at) | other.has(at)
        return self._bounded(at[np.diff(inside, prepend=False)])

    def has(self, numbers: np.ndarray) -> np.ndarray:
        """A mask of the buckets that are in the set."""
        if not self.bounds:
            return np.zeros(len(numbers), bool)
        return np.searchsorted(self.bounds, numbers, side="right") % 2 == 1

    def overlaps(self, other: "Buckets") -> bool:
        """True if a bucket is in both sets."""
        bounds, others = np.array(self.bounds), np.array(other.bounds)
        # The first bucket in both sets is the start of a range in one set.
        return bool(self.has(others[::2]).any() or other.has(bounds[::2]).any())


def union(sets: Iterable[Buckets | None]) -> Buckets | None:
    """The union of some sets. Returns None if all are None, since the batches lack buckets."""
    present = [each for each in sets if each is not None]
    return reduce(Buckets.__or__, present) if present else None
