"""Line charts as SVG text, for docs: panels side by side, one legend, no dependencies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#1f6feb", "#d1570a", "#1a7f37", "#8250df", "#6e7781", "#bf3989")
WIDTH, HEIGHT = 380, 300  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 34, 44
LEGEND_ROW = 20
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)

Series = Mapping[str, Sequence[tuple[float, float]]]  # name -> (x, y), in order of x


@dataclass(frozen=True)
class Panel:
    """One chart.

    Attributes:
        title: Above it.
        x_label: Below it.
        series: Lines; a name has the same colour in every panel.
    """

    title: str
    x_label: str
    series: Series


def svg(panels: Sequence[Panel]) -> str:
    """Draw panels: x on a scale of doublings with a tick for each value, y linear from zero.

    Args:
        panels: From left to right; every x > 0 and every y >= 0.
    """
    names = list(dict.fromkeys(name for panel in panels for name, line in panel.series.items() if line))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    width, height = WIDTH * len(panels), HEIGHT + LEGEND_ROW * -(-len(names) // 2) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#1f2328">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i, panel in enumerate(panels):
        lines += _panel(panel, WIDTH * i, colours)
    for i, name in enumerate(names):
        x, y = LEFT + (i % 2) * width // 2, HEIGHT + LEGEND_ROW * (i // 2) + 10
        lines.append(f'<path d="M{x} {y}h22" stroke="{colours[name]}" stroke-width="2"/>')
        lines.append(f'<text x="{x + 28}" y="{y + 4}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def top_and_step(most: float) -> tuple[float, float]:
    """A round end of the y axis at or above `most`, and the step of its ticks, about five of them."""
    if most <= 0:
        return 1.0, 0.5
    power = 10.0 ** math.floor(math.log10(most / 5))
    step = next(s * power for s in STEPS if s * power * 5 >= most * (1 - 1e-12))
    return math.ceil(most / step - 1e-9) * step, step


def _panel(panel: Panel, at: int, colours: Mapping[str, str]) -> Iterator[str]:
    points = [point for line in panel.series.values() for point in line]
    xs = sorted({x for x, _ in points})
    top, step = top_and_step(max((y for _, y in points), default=0.0))
    low, high = math.log2(xs[0]) if xs else 0.0, math.log2(xs[-1]) if xs else 1.0
    left, right, bottom = at + LEFT, at + WIDTH - RIGHT, HEIGHT - BOTTOM

    def place_x(x: float) -> float:
        return left + (right - left) * ((math.log2(x) - low) / (high - low) if high > low else 0.5)

    def place_y(y: float) -> float:
        return bottom - (bottom - TOP) * y / top

    yield f'<text x="{left}" y="20" font-weight="bold">{escape(panel.title)}</text>'
    for i in range(round(top / step) + 1):
        y = place_y(i * step)
        yield f'<path d="M{left} {y:.1f}H{right}" stroke="#d0d7de"/>'
        yield f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{i * step:g}</text>'
    for x in xs:
        yield f'<text x="{place_x(x):.1f}" y="{bottom + 18}" text-anchor="middle">{x:g}</text>'
    middle = (left + right) / 2
    yield f'<text x="{middle:.1f}" y="{bottom + 36}" text-anchor="middle">{escape(panel.x_label)}</text>'
    for name, line in panel.series.items():
        if not line:
            continue
        path = "L".join(f"{place_x(x):.1f} {place_y(y):.1f}" for x, y in line)
        yield f'<path d="M{path}" fill="none" stroke="{colours[name]}" stroke-width="2"/>'
        for x, y in line:
            yield f'<circle cx="{place_x(x):.1f}" cy="{place_y(y):.1f}" r="3" fill="{colours[name]}"/>'
