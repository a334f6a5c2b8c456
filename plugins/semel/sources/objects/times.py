"""The time of an object by its key, and the folders of keys that a window of time may be in."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from semel.sources.formatted import parses_time

MTIME = "mtime"
FOLDERS_MAX = 10_000
"""Folders that semel lists one by one. For a window with more, it lists the whole prefix."""

_STEPS = (
    ("%S", timedelta(seconds=1)), ("%M", timedelta(minutes=1)), ("%H", timedelta(hours=1)),
    ("%I", timedelta(hours=1)),
)  # fmt: skip
"""The least distance between two folders of a pattern; a day without such a directive."""

_SIGNS = frozenset("%YymdjbBaAHIpMSf")
"""The directives that a pattern may have. A week alone is not a day; semel would list folders of
the offset UTC only; and the distance between two times of a locale is unknown.
"""


@dataclass(frozen=True, kw_only=True)
class ObjectTimes:
    """`rule`: as source.interval_from; None if objects lack a time."""

    rule: str | None

    def problem(self) -> str | None:
        """Why the rule does not work. Returns None if it does."""
        if self.rule in (None, MTIME):
            return None
        # Folders of fractions of a second would be too many to list.
        right = parses_time(self.rule) and _SIGNS.issuperset(re.findall("%(.)", self.rule))
        right = right and "%f" not in self._folder
        if right and not {"", ".", ".."} & {*self.rule.removesuffix("/").split("/")}:
            return None
        return (
            f"{self.rule!r} is not a strptime pattern of a key with a year, month and day, and "
            'each unit down to its smallest one. Write a pattern such as "dt=%Y-%m-%d/" for the '
            'start of keys, "%Y/%m/%d.jsonl" for whole keys, or "mtime"'
        )

    def time_of(self, key: str, modified: datetime) -> datetime | None:
        """The time of an object. Returns None if its key does not have one."""
        if self.rule is None or self.rule == MTIME:
            return modified if self.rule else None
        if self.rule.endswith("/"):
            parts = self.rule.count("/")
            key = "".join(f"{part}/" for part in key.split("/")[:-1][:parts])
        time = self._parsed(key)
        # strptime also accepts 1 for 01, and any case, but semel would not list such a folder.
        is_listed = time and time.strftime(self._folder) == key.rpartition("/")[0]
        return time if is_listed else None

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
        """The folders, without a slash at the end, that contain all keys with a time in
        [start, end). Returns None if they are unknown or too many.
        """
        if self.rule in (None, MTIME) or "/" not in self.rule:
            return None
        folder = self._folder
        if "%" not in folder:
            return (folder,)
        step = next((step for sign, step in _STEPS if sign in self.rule), timedelta(days=1))
        first_day = start.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if (end - first_day) / step > FOLDERS_MAX:
            return None
        steps = range(int((end - first_day) / step) + 1)
        times = [time for n in steps if start <= (time := first_day + n * step) < end]
        # With a pattern of months, all keys of a month have the time of its first day.
        return tuple(dict.fromkeys(time.strftime(folder) for time in times))


# Keeps OB16.
def outermost_folders(folders: Collection[str]) -> tuple[str, ...] | None:
    """The folders that are not inside another one. Returns None if they are too many, or if one is
    the prefix itself.
    """
    outermost: list[str] = []
    for folder in sorted(folders, key=lambda folder: folder.split("/")):
        if not (outermost and f"{folder}/".startswith(f"{outermost[-1]}/")):
            outermost.append(folder)
    return None if len(outermost) > FOLDERS_MAX or "" in outermost else tuple(outermost)
