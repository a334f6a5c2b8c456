"""The time of an object by its key, and the folders of keys that a window of time may be in."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from semel.sources.formatted import parses_time

MTIME = "mtime"
FOLDERS_MAX = 10_000
"""Folders that are listed one by one; a window that has more is listed as a whole."""

_STEPS = (
    ("%S", timedelta(seconds=1)), ("%M", timedelta(minutes=1)), ("%H", timedelta(hours=1)),
    ("%I", timedelta(hours=1)),
)  # fmt: skip
"""How far the folders of a pattern are apart at least; without any of these, a day."""

_SIGNS = frozenset("%YymdjbBaAHIpMSf")
"""What a pattern may have. Weeks alone say no day, of an offset only that of UTC would be listed,
and how far times of a locale are apart nobody knows.
"""


@dataclass(frozen=True, kw_only=True)
class ObjectTimes:
    """`rule`: as source.interval_from; None: no object has a time."""

    rule: str | None

    def problem(self) -> str | None:
        """What is wrong with the rule."""
        if self.rule in (None, MTIME):
            return None
        # Folders of fractions of a second would be too many to list.
        right = parses_time(self.rule) and _SIGNS.issuperset(re.findall("%(.)", self.rule))
        right = right and "%f" not in self._folder
        if right and not {"", ".", ".."} & {*self.rule.removesuffix("/").split("/")}:
            return None
        return (
            f"{self.rule!r} is not a strptime pattern of a key with a date, down to some unit "
            'without a gap: write one like "dt=%Y-%m-%d/" (how keys begin) or "%Y/%m/%d.jsonl" (whole keys), or "mtime"'
        )

    def of(self, key: str, modified: datetime) -> datetime | None:
        """The time of an object. None: its key does not say one."""
        if self.rule is None or self.rule == MTIME:
            return modified if self.rule else None
        if self.rule.endswith("/"):
            parts = self.rule.count("/")
            key = "".join(f"{part}/" for part in key.split("/")[:-1][:parts])
        found = self._parsed(key)
        # strptime takes 1 for 01, and any case; of a folder so written no listing would be.
        written = found and found.strftime(self._folder) == key.rpartition("/")[0]
        return found if written else None

    @property
    def _folder(self) -> str:
        """The rule up to its last slash."""
        return self.rule.rpartition("/")[0]

    def _parsed(self, text: str) -> datetime | None:
        try:
            return datetime.strptime(text, self.rule).replace(tzinfo=UTC)
        except ValueError:
            return None

    def folders(self, start: datetime, end: datetime) -> tuple[str, ...] | None:
        """The folders, without a slash at the end, that all keys with a time in [start, end) are
        below. None: that cannot be told, or there are too many.
        """
        if self.rule in (None, MTIME) or "/" not in self.rule:
            return None
        folder = self._folder
        if "%" not in folder:
            return (folder,)
        step = next((step for sign, step in _STEPS if sign in self.rule), timedelta(days=1))
        whole = start.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if (end - whole) / step > FOLDERS_MAX:
            return None
        steps = range(int((end - whole) / step) + 1)
        times = [time for n in steps if start <= (time := whole + n * step) < end]
        # A pattern of months gives its first day's time to all, which is in the window or not.
        return tuple(dict.fromkeys(time.strftime(folder) for time in times))


# Keeps OB16.
def outermost(folders: Collection[str]) -> tuple[str, ...] | None:
    """Those that lie in no other one. None: there are too many, or one is the prefix itself."""
    found: list[str] = []
    for folder in sorted(folders, key=lambda one: one.split("/")):
        if not (found and f"{folder}/".startswith(f"{found[-1]}/")):
            found.append(folder)
    return None if len(found) > FOLDERS_MAX or "" in found else tuple(found)
