"""Plots as numbers for an SVG: bars or lines of windows, and stacked bars of days.

Widths are percentages and heights pixels, so that a plot fills any page and its text keeps its
size.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from semel.airflow.page.text import cell, is_number
from semel.model.batch import Counts
from semel.model.complete import WindowState
from semel.reports.window_rows import CountedWindow

HEIGHT = 260
"""Pixels from the top to the lower edge of the dates."""

LINES_MAX = 8
"""Keys that have a line: those with the largest sums."""

_TOP, _BOTTOM = 10, 40
_TICKS = 4
_BAR_MAX = 6.0
_LABEL_PIXELS = 84
_RANK_PIXELS = (1100, 560, 240)
"""Plot widths from which labels of a rank are visible; semel.css has the same."""
_PLAIN_MAX = 10**9
_ROUNDING = 1e-9

Show = Callable[[datetime], str]


@dataclass(frozen=True)
class Mark:
    """A value as a bar or a point. `x` is its left edge, or the point's place; `y` its upper edge,
    or the point's height; `colour` the number of its colour.
    """

    x: float
    y: float
    width: float
    height: float
    title: str
    final: bool
    colour: int = 0


@dataclass(frozen=True)
class PlotLine:
    """The values of one key, the oldest first. `parts` join values of adjacent windows only, as
    `x1, y1, x2, y2`.
    """

    label: str
    marks: tuple[Mark, ...]
    parts: tuple[tuple[float, float, float, float], ...]


@dataclass(frozen=True)
class Label:
    """The name of a window below the plot, in two lines. A narrow plot shows high ranks only."""

    x: float
    text: str
    below: str
    rank: int


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A drawing. `ticks`: a height on the axis, and its number. `left_out`: keys without a line."""

    bars: tuple[Mark, ...] = ()
    lines: tuple[PlotLine, ...] = ()
    ticks: tuple[tuple[float, str], ...]
    labels: tuple[Label, ...]
    zero: float
    left_out: int = 0


class _Axes:
    """Places of some values on a plot of `count` windows."""

    def __init__(self, values: Sequence[float], count: int) -> None:
        lowest, highest = min(0.0, *values), max(0.0, *values)
        self._step = _step(highest - lowest)
        self._low = self._step * math.floor(lowest / self._step + _ROUNDING)
        self._high = self._step * math.ceil(highest / self._step - _ROUNDING)
        if self._high <= self._low:
            self._high = self._low + self._step
        self._slot = 100 / count
        self.width = round(min(0.8 * self._slot, _BAR_MAX), 3)

    def x(self, place: int) -> float:
        return round(self._slot * (place + 0.5), 3)

    def y(self, value: float) -> float:
        share = (self._high - value) / (self._high - self._low)
        return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * share, 1)

    def bar(
        self, place: int, start: float, end: float, title: str, *, final: bool, colour: int = 0
    ) -> Mark:
        top, bottom = sorted((self.y(start), self.y(end)))
        left_edge = round(self.x(place) - self.width / 2, 3)
        return Mark(left_edge, top, self.width, round(bottom - top, 1), title, final, colour)

    def ticks(self) -> tuple[tuple[float, str], ...]:
        count = round((self._high - self._low) / self._step) + 1
        values = (self._low + self._step * n for n in range(count))
        return tuple((self.y(value), _axis_number(value)) for value in values)

    def labels(self, starts: Sequence[datetime], show: Show) -> tuple[Label, ...]:
        """Labels for as many windows as fit at each width of the plot without an overlap."""
        steps: list[int] = []
        for pixels in _RANK_PIXELS:
            least = math.ceil(len(starts) * _LABEL_PIXELS / pixels)
            finer = steps[-1] if steps else 1
            steps.append(finer * math.ceil(least / finer))
        labels: list[Label] = []
        last_day = ""
        for place in range(0, len(starts), steps[0]):
            rank = max(rank for rank, step in enumerate(steps) if place % step == 0)
            day, _, clock = show(starts[place]).partition(" ")
            new_day = day != last_day or rank == len(steps) - 1
            below = day if clock and new_day else ""
            labels.append(Label(self.x(place), clock or day, below, rank))
            last_day = day
        return tuple(labels)


def plot(windows: Sequence[CountedWindow], at: int, *, keyed: bool, show: Show) -> Plot | None:
    """Draw column `at` of some windows, the oldest first. `keyed`: they have a row for each key.
    `show` names a window by its start. Returns None for a column without numbers.
    """
    of_keys: dict[tuple[str, ...], list[tuple[int, int | Decimal]]] = defaultdict(list)
    for place, window in enumerate(windows):
        for keys, values in window.rows:
            if is_number(values[at]):
                of_keys[tuple(map(cell, keys))].append((place, values[at]))
    if not of_keys:
        return None
    by_sum = sorted(of_keys.items(), key=lambda each: -sum(value for _, value in each[1]))
    drawn = by_sum[:LINES_MAX]
    axes = _Axes([float(value) for _, points in drawn for _, value in points], len(windows))

    def title(place: int, value: int | Decimal, label: str) -> str:
        state = windows[place].state
        suffix = "" if state is WindowState.COMPLETE else f" ({state.value})"
        return f"{show(windows[place].start)}{label}: {cell(value)}{suffix}"

    def is_final(place: int) -> bool:
        return windows[place].state is WindowState.COMPLETE

    def line(keys: tuple[str, ...], points: list[tuple[int, int | Decimal]]) -> PlotLine:
        name = ", ".join(keys)
        marks = tuple(
            Mark(
                axes.x(place), axes.y(float(value)), 0, 0, title(place, value, f" {name}"),
                is_final(place),
            )
            for place, value in points
        )  # fmt: skip
        places = [place for place, _ in points]
        parts = tuple(
            (marks[n].x, marks[n].y, marks[n + 1].x, marks[n + 1].y)
            for n in range(len(places) - 1)
            if places[n + 1] == places[n] + 1
        )
        return PlotLine(name, marks, parts)

    bars = () if keyed else tuple(
        axes.bar(place, 0, float(value), title(place, value, ""), final=is_final(place))
        for place, value in drawn[0][1]
    )  # fmt: skip
    return Plot(
        bars=bars,
        lines=tuple(line(*each) for each in drawn) if keyed else (),
        ticks=axes.ticks(),
        labels=axes.labels([window.start for window in windows], show),
        zero=axes.y(0),
        left_out=len(of_keys) - len(drawn),
    )


DAY_PARTS = {"new": 0, "repeats": 1, "set aside": 3}
"""The parts of a day's bar, from the bottom up, with their colours."""


def plot_days(days: Sequence[tuple[datetime, Counts]], *, show: Show) -> Plot | None:
    """Draw the counts of each day as a stacked bar, the oldest day first. Returns None if no day
    has records.
    """
    starts = [start for start, _ in days]
    parts = [(c.survivors, c.duplicates, c.quarantined + c.late) for _, c in days]
    if not any(map(sum, parts)):
        return None
    axes = _Axes([float(sum(each)) for each in parts], len(days))
    bars = []
    for place, each in enumerate(parts):
        counted = ", ".join(f"{n:,} {name}" for n, name in zip(each, DAY_PARTS, strict=True))
        base = 0
        for colour, count in zip(DAY_PARTS.values(), each, strict=True):
            if count:
                title = f"{show(starts[place])}: {counted}"
                bars.append(
                    axes.bar(place, base, base + count, title, final=True, colour=colour)
                )
            base += count
    labels = axes.labels(starts, show)
    return Plot(bars=tuple(bars), ticks=axes.ticks(), labels=labels, zero=axes.y(0))


def _step(span: float) -> float:
    """1, 2 or 5 times a power of ten, the largest that fits at least _TICKS times into the span."""
    if span <= 0:
        return 1.0
    rough = span / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return max(n * power for n in (1, 2, 5) if n * power <= rough * 1.0000001)


def _axis_number(value: float) -> str:
    if abs(value) >= _PLAIN_MAX:
        return f"{value:.4g}"
    return cell(int(value) if value == int(value) else Decimal(f"{value:.6g}"))
