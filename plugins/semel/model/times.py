"""Sets of time: what of it is covered, as a tstzmultirange of the ledger."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Protocol, Self


class _Range(Protocol):
    """A range as the ledger returns it, its end exclusive."""

    lower: datetime
    upper: datetime


@dataclass(frozen=True)
class TimeSet:
    """A set of time: `ranges` [start, end) in UTC, which ascend and do not touch."""

    ranges: tuple[tuple[datetime, datetime], ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[tuple[datetime, datetime]]) -> Self:
        """The union of some ranges, in any order. Those without length count for nothing."""
        found: list[tuple[datetime, datetime]] = []
        for start, end in sorted((a.astimezone(UTC), b.astimezone(UTC)) for a, b in ranges):
            if start >= end:
                continue
            if found and start <= found[-1][1]:
                found[-1] = found[-1][0], max(end, found[-1][1])
            else:
                found.append((start, end))
        return cls(tuple(found))

    @classmethod
    def from_ledger(cls, multirange: Iterable[_Range]) -> Self:
        """The set in a column of type tstzmultirange."""
        return cls.of((part.lower, part.upper) for part in multirange)

    @classmethod
    def from_plain(cls, plain: Iterable[tuple[str, str]]) -> Self:
        """The set that `to_plain` gave. ValueError: its ranges touch, or do not ascend."""
        ranges = [(datetime.fromisoformat(start), datetime.fromisoformat(end))
                  for start, end in plain]
        bounds = [bound for pair in ranges for bound in pair]
        if any(one >= two for one, two in pairwise(bounds)):
            raise ValueError(f"its ranges of time are not in order: {list(plain)[:10]}")
        return cls.of(ranges)

    def to_plain(self) -> list[list[str]]:
        """As JSON: a list of [start, end], as text with the zone."""
        return [[start.isoformat(), end.isoformat()] for start, end in self.ranges]

    def to_ledger(self) -> str:
        """The set as the text of a tstzmultirange."""
        return "{" + ",".join(f'["{start}","{end}")' for start, end in self.to_plain()) + "}"

    def holes(self, start: datetime, end: datetime) -> tuple[tuple[datetime, datetime], ...]:
        """What of [start, end) is not in the set, as ranges in UTC, first ones first."""
        found, at = [], start.astimezone(UTC)
        end = end.astimezone(UTC)
        for low, high in self.ranges:
            if high <= at or low >= end:
                continue
            if low > at:
                found.append((at, low))
            at = high
        if at < end:
            found.append((at, end))
        return tuple(found)
