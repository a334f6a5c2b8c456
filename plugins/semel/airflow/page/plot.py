"""A plot of the rows of windows, as numbers for an SVG: a bar a window, or a line a key."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from semel.airflow.page.text import cell, is_number
from semel.model.complete import State
from semel.reports.counted import Counted

WIDTH, HEIGHT = 900, 260
"""Of the plot, in units of the SVG; the page scales it."""

LINES_MAX = 8
"""Keys that have a line: those with the largest sums."""

LEFT = 80
"""Where the axis is: what is left of it is for its numbers."""

_RIGHT, _TOP, _BOTTOM = 10, 10, 24
_TICKS = 4
_LABELS = 8


@dataclass(frozen=True)
class Mark:
    """The value of a window, as a bar or a point. `y` is its upper edge, or where it is."""

    x: float
    y: float
    width: float
    height: float
    title: str
    final: bool


@dataclass(frozen=True)
class Line:
    """The values of one key, the oldest first."""

    label: str
    marks: tuple[Mark, ...]

    @property
    def points(self) -> str:
        return " ".join(f"{mark.x},{mark.y}" for mark in self.marks)


@dataclass(frozen=True, kw_only=True)
class Plot:
    """What is drawn. `ticks` and `labels`: a place on the axis, and its text. `left_out`: keys that
    have no line.
    """

    bars: tuple[Mark, ...]
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...]
    labels: tuple[tuple[float, str], ...]
    zero: float
    left_out: int


def plot(
    windows: Sequence[Counted], at: int, *, keyed: bool, show: Callable[[datetime], str]
) -> Plot | None:
    """Draw column `at` of some windows, the oldest first. `keyed`: they have a row for each key.
    `show`: what a window is called that begins then. None: nothing in it is a number.
    """
    places = {window.start: n for n, window in enumerate(windows)}
    of_keys: dict[tuple[str, ...], list[tuple[Counted, int | Decimal]]] = defaultdict(list)
    for window in windows:
        for keys, values in window.rows:
            if is_number(values[at]):
                of_keys[tuple(map(cell, keys))].append((window, values[at]))
    if not of_keys:
        return None
    by_sum = sorted(of_keys.items(), key=lambda each: -sum(value for _, value in each[1]))
    shown = by_sum[:LINES_MAX]
    drawn = [float(value) for _, some in shown for _, value in some]
    step = _step(max(0.0, *drawn) - min(0.0, *drawn))
    low, high = (step * n for n in (math.floor(min(0.0, *drawn) / step),
                                    math.ceil(max(0.0, *drawn) / step)))  # fmt: skip
    high = high if high > low else low + step
    slot = (WIDTH - LEFT - _RIGHT) / len(windows)

    def y(value: float) -> float:
        return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low), 1)

    def x(window: Counted) -> float:
        return round(LEFT + slot * (places[window.start] + 0.5), 1)

    def mark(window: Counted, value: int | Decimal, label: str) -> Mark:
        final = window.state is State.COMPLETE
        title = f"{show(window.start)}{label}: {cell(value)}"
        top, bottom = sorted((y(float(value)), y(0)))
        at = (x(window), y(float(value))) if keyed else (round(x(window) - 0.4 * slot, 1), top)
        title += "" if final else f" ({window.state.value})"
        return Mark(*at, round(0.8 * slot, 1), round(bottom - top, 1), title, final)

    lines = []
    for keys, some in shown:
        name = ", ".join(keys)
        label = f" {name}" if keyed else ""
        lines.append(Line(name, tuple(mark(window, value, label) for window, value in some)))
    every = math.ceil(len(windows) / _LABELS)
    return Plot(
        bars=() if keyed else lines[0].marks,
        lines=tuple(lines) if keyed else (),
        ticks=tuple(
            (y(low + step * n), cell(_whole(low + step * n)))
            for n in range(round((high - low) / step) + 1)
        ),
        labels=tuple((x(window), show(window.start)) for window in windows[::every]),
        zero=y(0),
        left_out=len(of_keys) - len(shown),
    )


def _step(span: float) -> float:
    """1, 2 or 5 times a power of ten: _TICKS of them at least make the span."""
    if span <= 0:
        return 1.0
    rough = span / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return max(n * power for n in (1, 2, 5) if n * power <= rough * 1.0000001)


def _whole(value: float) -> int | Decimal:
    return int(value) if value == int(value) else Decimal(f"{value:.6g}")
