"""Plots as SVG: bars, spans of time, and lines, over a logarithmic axis where sizes span powers of
ten.
"""

import math
from html import escape
from typing import Any

_WIDTH = 760
_COLORS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#4a5568", "#b7791f", "#319795")
_STYLE = (
    "text{font:13px sans-serif;fill:#1a202c}.t{font-weight:bold;font-size:15px}"
    ".a{fill:#4a5568;font-size:12px}"
)


def svg(plot: dict[str, Any]) -> str:
    """The SVG of a plot as benchmarks describe it: `kind` is `bars`, `lines` or `spans`."""
    return {"bars": _bars, "lines": _lines, "spans": _spans}[plot["kind"]](plot)


def _bars(plot: dict[str, Any]) -> str:
    bars: dict[str, float] = plot["bars"]
    left = 24 + 7.2 * max(map(len, bars))
    room = _WIDTH - left - 80
    most = max(bars.values()) or 1
    parts = []
    for at, (name, value) in enumerate(bars.items()):
        y = 44 + 28 * at
        wide = room * value / most
        parts.append(_text(left - 8, y + 14, name, anchor="end"))
        box = f'x="{left:.1f}" y="{y}" width="{wide:.1f}" height="20"'
        parts.append(f'<rect {box} fill="{_COLORS[0]}"/>')
        parts.append(_text(left + wide + 6, y + 14, _number(value)))
    return _whole(plot["title"], 56 + 28 * len(bars), parts)


def _spans(plot: dict[str, Any]) -> str:
    """A row for each lane, with a box for each span [start, end, name], coloured by its name."""
    left, right, end = 16, _WIDTH - 30, plot["end"] or 1
    names = list(dict.fromkeys(name for lane in plot["lanes"] for *_, name in lane))
    colors = dict(zip(names, _COLORS, strict=False))
    parts = []
    for row, lane in enumerate(plot["lanes"]):
        for start, stop, name in lane:
            x, wide = left + (right - left) * start / end, (right - left) * (stop - start) / end
            box = f'x="{x:.1f}" y="{44 + 26 * row}" width="{wide:.1f}" height="22"'
            parts.append(f'<rect {box} fill="{colors[name]}" stroke="#fff"/>')
    bottom = 44 + 26 * len(plot["lanes"])
    parts.append(f'<path d="M{left} {bottom}H{right}" stroke="#a0aec0"/>')
    for share in (0, 0.5, 1):
        x = left + (right - left) * share
        parts.append(_text(x, bottom + 16, _number(end * share), anchor="middle", kind="a"))
    for number, name in enumerate(names):
        x = left + 150 * number
        box = f'x="{x}" y="{bottom + 30}" width="14" height="14"'
        parts.append(f'<rect {box} fill="{colors[name]}"/>')
        parts.append(_text(x + 22, bottom + 42, name))
    return _whole(plot["title"], bottom + 60, parts)


def _lines(plot: dict[str, Any]) -> str:
    x, lines = plot["x"], {name: line for name, line in plot["lines"].items() if line}
    logarithmic = min(x) > 0 and max(x) / min(x) >= 50
    top, bottom, left, right = 44, 300, 70, _WIDTH - 30
    most = max(max(line) for line in lines.values()) or 1

    def place(at: float) -> float:
        low, high, value = min(x), max(x), at
        if logarithmic:
            low, high, value = math.log(low), math.log(high), math.log(at)
        return left + (right - left) * (value - low) / ((high - low) or 1)

    parts = [f'<path d="M{left} {top}V{bottom}H{right}" stroke="#a0aec0" fill="none"/>']
    for share in (0, 0.5, 1):
        y = bottom - (bottom - top) * share
        parts.append(_text(left - 8, y + 4, _number(most * share), anchor="end", kind="a"))
    for at in x if len(x) <= 10 else (x[0], x[len(x) // 2], x[-1]):
        parts.append(_text(place(at), bottom + 18, _number(at), anchor="middle", kind="a"))
    for number, (name, line) in enumerate(lines.items()):
        color = _COLORS[number % len(_COLORS)]
        points = [
            f"{place(a):.1f},{bottom - (bottom - top) * value / most:.1f}"
            for a, value in zip(x, line, strict=True)
        ]
        stroke = f'stroke="{color}" stroke-width="2" fill="none"'
        parts.append(f'<polyline points="{" ".join(points)}" {stroke}/>')
        y = bottom + 44 + 20 * number
        parts.append(f'<rect x="{left}" y="{y - 9}" width="14" height="4" fill="{color}"/>')
        parts.append(_text(left + 22, y - 2, name))
    return _whole(plot["title"], bottom + 48 + 20 * len(lines), parts)


def _whole(title: str, height: int, parts: list[str]) -> str:
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>'
    ground = '<rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join([head, ground, _text(16, 24, title, kind="t"), *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> str:
    kind = f' class="{kind}"' if kind else ""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {place}{kind}>{escape(text)}</text>"


def _number(value: float) -> str:
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.3g}"
