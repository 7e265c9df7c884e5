"""Charts as plain SVG: lines or dots over time, with the faults marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, log10

from .record import Fault

WIDTH, HEIGHT = 900, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 28, 34, 34
COLOURS = ("#2563eb", "#d97706", "#059669", "#7c3aed")
Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Series:
    name: str
    points: Sequence[Point]
    dots: bool = False


def chart(
    title: str,
    unit: str,
    series: Sequence[Series],
    faults: Sequence[Fault],
    until: float,
    *,
    powers: bool = False,
) -> str:
    """`until`: the end of the time axis, in seconds. `powers`: each line is ten times the one
    below, for what is mostly short and sometimes very long."""
    until = max(until, 1.0)
    highest = max((value for one in series for _, value in one.points), default=1.0)
    ticks = _powers(highest) if powers else [_round_up(highest) * step / 4 for step in range(5)]

    def scale(value: float) -> float:
        """From 0 to 1."""
        if not powers:
            return min(value, ticks[-1]) / ticks[-1]
        return log10(max(value, ticks[0])) / log10(ticks[-1])

    def x(at: float) -> float:
        return LEFT + min(at, until) / until * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - scale(value) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' role="img" aria-label="{escape(title)}" font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="16" font-size="13" font-weight="bold">{escape(title)}</text>',
    ]
    for fault in faults:
        end = fault.recovered if fault.recovered is not None else until
        width = max(1.0, x(end) - x(fault.began))
        parts.append(
            f'<rect x="{x(fault.began):.1f}" y="{TOP}" width="{width:.1f}"'
            f' height="{HEIGHT - TOP - BOTTOM}" fill="#dc2626" fill-opacity="0.15">'
            f"<title>{escape(fault.kind)} at {fault.began:.0f} s</title></rect>"
            f'<text transform="translate({x(fault.began) - 2:.1f} {TOP + 2}) rotate(-90)"'
            f' text-anchor="end" font-size="8" fill="#991b1b">{escape(fault.kind)}</text>'
        )
    for value in ticks:
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"'
            ' stroke="#d4d4d8"/>'
            f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    for step in range(5):
        at = until * step / 4
        parts.append(
            f'<text x="{x(at):.1f}" y="{HEIGHT - 14}" text-anchor="middle">{_time(at)}</text>'
        )
    parts.append(f'<text x="6" y="{TOP - 6}">{escape(unit)}</text>')
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        at = LEFT + 260 + number * 130
        parts.append(f'<text x="{at}" y="16" fill="{colour}">■ {escape(one.name)}</text>')
        if one.dots:
            parts += [
                f'<circle cx="{x(when):.1f}" cy="{y(value):.1f}" r="1.2" fill="{colour}"'
                ' fill-opacity="0.5"/>'
                for when, value in one.points
            ]
        elif one.points:
            line = " ".join(f"{x(when):.1f},{y(value):.1f}" for when, value in one.points)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}"/>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _powers(value: float) -> list[float]:
    return [10.0**power for power in range(max(1, ceil(log10(max(value, 1.0)))) + 1)]


def _round_up(value: float) -> float:
    """To 1, 2, 4 or 10 times a power of ten, which divides by four into short numbers."""
    if value <= 0:
        return 1.0
    power = 10.0 ** ceil(log10(value) - 1)
    return next(step * power for step in (1, 2, 4, 10, 20) if step * power >= value)


def _time(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"
