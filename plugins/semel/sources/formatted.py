"""Records in parts of a format: what the declarations of files and of objects have alike."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from semel.declare import ddl
from semel.declare.parts import OnRefused, Select, Unknown
from semel.formats.table import source_format
from semel.sources.spec import CsvOptions, SourceSpec


_UNITS = (2013, 11, 23, 17, 48, 59, 123_456), (1, 1, 1, 0, 0, 0, 0)
"""A time of which no unit is the first one, and the first of each unit."""


def parses_time(pattern: str) -> bool:
    """Whether names that are written with a strptime pattern give their time back, from the year
    down to some unit: an hour without its month and day would be one of the first of January.
    """
    given, first = _UNITS
    whole = [datetime(*given[:n], *first[n:]) for n in range(1, len(given) + 1)]
    try:
        text = whole[-1].strftime(pattern)
        found = datetime.strptime(text, pattern).replace(tzinfo=None)
    except (ValueError, re.error):  # strptime makes a regex of it, and says so of "%Y%Y".
        return False
    return "%Y" in pattern and found in whole and found.strftime(pattern) == text


class FormattedSourceSpec(SourceSpec):
    """`pattern_of_time`: what `interval_from` may be, as a person is told who left it out."""

    pattern_of_time: ClassVar[str]

    if TYPE_CHECKING:  # Each kind says in words of its own what they are.
        format: str
        interval_from: str | None

    @property
    def unit(self) -> str:  # type: ignore[override]
        """What positions count: of rows, a part has no bytes that are a record."""
        return source_format(self.format).unit

    @classmethod
    def unit_of(cls, stored: Mapping[str, Any]) -> str:
        """As in `SourceSpec`."""
        return source_format(stored["format"]).unit

    @property
    def unparsed_columns(self) -> dict[str, str]:
        """All columns, where a record is a row and has no text."""
        is_rows = source_format(self.format).sealed
        return {name: f"column {name}" for name in self.columns} if is_rows else {}

    @property
    def on_refused_or_default(self) -> OnRefused:
        """What is declared, or what is right for the selection."""
        by_interval = self.select is Select.INTERVAL
        return self.on_refused or (OnRefused.FAIL if by_interval else OnRefused.WARN)

    def selection_rule(self) -> str:
        """What gives a part its time."""
        return f"`{self.interval_from}`"

    def lookback_advice(self) -> str:
        """As in `SourceSpec`."""
        if self.interval_from != "mtime" or self.lookback:
            return ""
        return (
            "interval_from is mtime, and no run looks back: a part that is still written, or "
            "uploaded, when its interval ends is left to a later run, or stays unread. Declare "
            "source.lookback: as long as that takes"
        )

    def explain_delay(self) -> str:
        """As in `SourceSpec`."""
        if self.interval_from != "mtime":
            return ""
        return (
            "interval_from is mtime, so window.delay must cover the time from a record to the last "
            "write of its file or object. With less, a window is complete before semel reads all of "
            "its records"
        )

    def _problems(self) -> Iterator[tuple[tuple[str, ...], str]]:
        yield from super()._problems()
        if self.select is Select.INTERVAL and self.interval_from is None:
            yield ("interval_from",), (
                f'is missing: select: interval needs {self.pattern_of_time} or "mtime"'
            )
        if self.select is Select.ARRIVAL and self.interval_from is not None:
            yield ("interval_from",), "has no meaning with select: arrival; leave it out"
        form = source_format(self.format)
        for name, text in self.columns.items():
            if why := form.refuses.get(ddl.parse(text).word):
                yield ("schema", name), f"{text}: {why}"
        if form.unknown and self.unknown is not Unknown.IGNORE:
            yield ("unknown",), (
                f"{self.unknown} has no meaning with format: {self.format}: {form.unknown}; leave "
                "it out"
            )
        if self.format != "csv" and self.csv != CsvOptions():
            yield ("csv",), f"has no meaning with format: {self.format}; leave it out"
