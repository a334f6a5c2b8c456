"""The common part of the declarations of files and of objects, whose parts have a format."""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from semel.declare import ddl
from semel.declare.parts import OnRefused, Select, Unknown
from semel.formats.table import source_format
from semel.sources.spec import CsvOptions, SourceSpec


_UNITS = (2013, 11, 23, 17, 48, 59, 123_456), (1, 1, 1, 0, 0, 0, 0)
"""A time whose units are all above their minimum, and each unit's minimum."""


def parses_time(pattern: str) -> bool:
    """True if a strptime pattern recovers a time from the year down to some unit. A pattern of an
    hour without month and day fails: strptime would read it as an hour of the first of January.
    """
    example, lowest = _UNITS
    truncated = [datetime(*example[:n], *lowest[n:]) for n in range(1, len(example) + 1)]
    try:
        text = truncated[-1].strftime(pattern)
        parsed = datetime.strptime(text, pattern).replace(tzinfo=None)
    except (ValueError, re.error):  # strptime builds a regex, which fails for "%Y%Y".
        return False
    return "%Y" in pattern and parsed in truncated and parsed.strftime(pattern) == text


class FormattedSourceSpec(SourceSpec):
    """`pattern_of_time`: the form of `interval_from`, for the message if it is missing."""

    pattern_of_time: ClassVar[str]

    if TYPE_CHECKING:  # Each kind documents these in its own words.
        format: str
        interval_from: str | None

    @property
    def unit(self) -> str:  # type: ignore[override]
        """`bytes`, or `rows` in formats whose records are not byte ranges."""
        return source_format(self.format).unit

    @classmethod
    def unit_of(cls, stored: Mapping[str, Any]) -> str:
        """The unit of a stored declaration."""
        return source_format(stored["format"]).unit

    @property
    def unparsed_columns(self) -> dict[str, str]:
        """All columns, if the format has rows instead of lines."""
        is_rows = source_format(self.format).sealed
        return {name: f"column {name}" for name in self.columns} if is_rows else {}

    @property
    def on_refused_or_default(self) -> OnRefused:
        """The declared value, or the default for `select`."""
        by_interval = self.select is Select.INTERVAL
        return self.on_refused or (OnRefused.FAIL if by_interval else OnRefused.WARN)

    def selection_rule(self) -> str:
        """The declaration's source of a part's time."""
        return f"`{self.interval_from}`"

    def lookback_advice(self) -> str:
        """Advice for mtime without `lookback`."""
        if self.interval_from != "mtime" or self.lookback:
            return ""
        return (
            "interval_from is mtime, and lookback is 0: if a writer completes a part after its "
            "interval ends, a later run reads it, or no run does. Declare source.lookback: the "
            "longest time that a writer takes"
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
                f'is missing: select: interval requires {self.pattern_of_time} or "mtime"'
            )
        if self.select is Select.ARRIVAL and self.interval_from is not None:
            yield ("interval_from",), "does not apply with select: arrival; leave it out"
        form = source_format(self.format)
        for name, text in self.columns.items():
            if why := form.refuses.get(ddl.parse(text).word):
                yield ("schema", name), f"{text}: {why}"
        if form.unknown and self.unknown is not Unknown.IGNORE:
            yield ("unknown",), (
                f"{self.unknown} does not apply to format: {self.format}: {form.unknown}; leave "
                "it out"
            )
        if self.format != "csv" and self.csv != CsvOptions():
            yield ("csv",), f"does not apply to format: {self.format}; leave it out"
