"""A chart of lines as SVG, in light and in dark, without a library."""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 70, 60
COLOURS = ("#0b62c4", "#c2410c", "#15803d", "#7e22ce")
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.title { font-size: 16px; font-weight: 600; }
.grid { stroke: #d0d7de; }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .grid { stroke: #444c56; } .ground { fill: #0d1117; } }
"""
LOGARITHMIC_FROM = 20
"""How many times the least value the largest is where the values get a logarithmic axis."""


def drawn(title: str, along: str, unit: str, sizes: Sequence[int], lines: Mapping[str, Sequence[float]]) -> str:
    """Return the picture of some lines over the same sizes, which stand at equal distances; values are at least 0."""
    values = [value for line in lines.values() for value in line]
    ticks = list(_ticks(min(values), max(values)))
    logarithmic = ticks[0] > 0

    def x(place: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (place + 0.5) / len(sizes)

    def y(value: float) -> float:
        least, most, at = (math.log10(v) if logarithmic else v for v in (ticks[0], ticks[-1], value))
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (at - least) / (most - least)

    said = "; ".join(
        f"{name}: " + ", ".join(f"{value:.3g} at {size:,}" for size, value in zip(sizes, line, strict=True))
        for name, line in lines.items()
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title><desc>{escape(f'{unit}. {said}')}</desc><style>{STYLE}</style>",
        '<rect class="ground" width="100%" height="100%" fill="#ffffff"/>',
        f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>',
        f'<text x="{LEFT}" y="{TOP - 12}">{escape(unit)}</text>',
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 14}" text-anchor="middle">{escape(along)}</text>',
    ]
    for tick in ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:,g}</text>')
    for place, size in enumerate(sizes):
        parts.append(f'<text x="{x(place):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{size:,}</text>')
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = [(x(place), y(value)) for place, value in enumerate(line)]
        along_line = " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
        parts.append(f'<polyline points="{along_line}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts.extend(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4" fill="{colour}"/>' for left, top in points)
        beside = LEFT + 170 + 180 * number
        parts.append(f'<circle cx="{beside}" cy="{TOP - 16}" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{beside + 10}" y="{TOP - 12}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _ticks(least: float, most: float) -> Iterator[float]:
    """Yield the values that the axis names: the powers of ten around all, or round ones from 0 on."""
    if least > 0 and most / least >= LOGARITHMIC_FROM:
        for power in range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1):
            yield 10.0**power
        return
    step = 10.0 ** math.floor(math.log10(most / 2)) if most > 0 else 1.0
    step *= next(times for times in (1, 2, 5, 10) if most / (step * times) <= 5)
    for number in range(math.ceil(most / step) + 1 if most > 0 else 2):
        yield number * step
