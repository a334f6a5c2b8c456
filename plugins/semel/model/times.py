"""Sets of time ranges, as in a tstzmultirange of the ledger."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Protocol, Self

YEARS = 100, 9_900
"""The years with windows. In others, a window could end outside of the calendar."""


class _Range(Protocol):
    """A range as the ledger returns it, its end exclusive."""

    lower: datetime
    upper: datetime


@dataclass(frozen=True)
class TimeSet:
    """A set of times: `ranges` [start, end) in UTC, which ascend and do not touch."""

    ranges: tuple[tuple[datetime, datetime], ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[tuple[datetime, datetime]]) -> Self:
        """The union of some ranges, in any order. Empty ranges are ignored."""
        union: list[tuple[datetime, datetime]] = []
        for start, end in sorted((a.astimezone(UTC), b.astimezone(UTC)) for a, b in ranges):
            if start >= end:
                continue
            if union and start <= union[-1][1]:
                union[-1] = union[-1][0], max(end, union[-1][1])
            else:
                union.append((start, end))
        return cls(tuple(union))

    @classmethod
    def from_ledger(cls, multirange: Iterable[_Range]) -> Self:
        """The set in a column of type tstzmultirange."""
        return cls.of((part.lower, part.upper) for part in multirange)

    @classmethod
    def from_plain(cls, plain: Iterable[tuple[str, str]]) -> Self:
        """The set from `to_plain`. Raises ValueError if its ranges touch, or do not ascend."""
        ranges = [(datetime.fromisoformat(start), datetime.fromisoformat(end))
                  for start, end in plain]
        bounds = [bound for pair in ranges for bound in pair]
        if any(one >= two for one, two in pairwise(bounds)):
            raise ValueError(f"its ranges of time are not in order: {list(plain)[:10]}")
        return cls.of(ranges)

    def to_plain(self) -> list[list[str]]:
        """The set as JSON: a list of [start, end], as text with the zone."""
        return [[start.isoformat(), end.isoformat()] for start, end in self.ranges]

    def to_ledger(self) -> str:
        """The set as the text of a tstzmultirange."""
        return "{" + ",".join(f'["{start}","{end}")' for start, end in self.to_plain()) + "}"

    def holes(self, start: datetime, end: datetime) -> tuple[tuple[datetime, datetime], ...]:
        """The parts of [start, end) that are not in the set, as ascending ranges in UTC."""
        holes, at = [], start.astimezone(UTC)
        end = end.astimezone(UTC)
        for low, high in self.ranges:
            if high <= at or low >= end:
                continue
            if low > at:
                holes.append((at, low))
            at = high
        if at < end:
            holes.append((at, end))
        return tuple(holes)
