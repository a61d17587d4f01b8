"""Pictures of hours and days as SVG: columns that stand on each other, and lines, in units of the viewBox."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.utils import timezone
from django.utils.formats import date_format, number_format

WIDTH, HEIGHT = 960, 300
MOST_SEPARATE = 62  # with more columns than this no gap is left between them
STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class PlotLayer:
    """One part of every column: ``values`` from left to right (None: a gap), ``css`` its class in plots.css.

    ``pattern`` is the id of a fill of includes/patterns.html; ``text`` what the legend says beside the name.
    """

    name: str
    css: str
    values: Sequence[float | None]
    pattern: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class DrawnPart:
    """A layer or a line as the template draws it."""

    name: str
    css: str
    path: str
    pattern: str
    text: str


@dataclass(frozen=True, slots=True)
class Column:
    """The ground of one column: what the pointer and the table say of it."""

    x: float
    width: float
    label: str
    cells: list[str]
    title: str


@dataclass(frozen=True, slots=True)
class Plot:
    """All that includes/plot.html needs. ``ticks`` go from the top down, ``marks`` from left to right."""

    title: str
    summary: str
    layers: list[DrawnPart]
    curves: list[DrawnPart]
    columns: list[Column]
    heads: list[str]
    ticks: list[str]
    lines: list[float]
    marks: list[str]
    unit: str = ""
    url: str = ""
    link: str = ""
    band: str = ""
    width: int = WIDTH
    height: int = HEIGHT
    is_empty: bool = False


def nice_top(most: float) -> tuple[float, int]:
    """Return a round number that is not below ``most``, and into how many equal steps it divides well."""
    if most <= 0:
        return 1.0, 2
    power = 10.0 ** (len(str(int(most))) - 1) if most >= 1 else 0.1
    while power > most:
        power /= 10
    for step in STEPS:
        if step * power >= most:
            return step * power, 5 if step in (2.5, 5) else 4 if step in (1, 2) else 5
    return 10 * power, 5


def columns_path(lower: Sequence[float | None], upper: Sequence[float | None], top: float) -> str:
    """Return one path for a layer of all columns, each between its two heights; None and nothing leave a gap."""
    count = max(1, len(upper))
    step = WIDTH / count
    gap = min(step * 0.16, 5.0) if count <= MOST_SEPARATE else 0.0
    parts = []
    for n, (low, high) in enumerate(zip(lower, upper, strict=True)):
        if low is None or high is None or high <= low:
            continue
        x0, x1 = n * step + gap / 2, (n + 1) * step - gap / 2
        y0, y1 = HEIGHT * (1 - low / top), HEIGHT * (1 - min(high, top) / top)
        parts.append(f"M{x0:.1f} {y0:.1f}V{y1:.1f}H{x1:.1f}V{y0:.1f}Z")
    return "".join(parts)


def line_path(values: Sequence[float | None], top: float, *, ends: bool = True) -> str:
    """Return a line through the ends (or middles) of columns; None breaks it."""
    count = max(1, len(values))
    step, parts, is_open = WIDTH / count, [], False
    for n, value in enumerate(values):
        if value is None:
            is_open = False
            continue
        x = (n + 1) * step if ends else (n + 0.5) * step
        parts.append(f"{'L' if is_open else 'M'}{x:.1f} {HEIGHT * (1 - min(max(value, 0), top) / top):.1f}")
        is_open = True
    return "".join(parts)


def band_path(lower: Sequence[float | None], upper: Sequence[float | None], top: float) -> str:
    """Return the closed area between two lines where both are known."""
    known = [
        (n, low, high)
        for n, (low, high) in enumerate(zip(lower, upper, strict=True))
        if low is not None and high is not None
    ]
    if len(known) < 2:
        return ""
    step = WIDTH / len(lower)

    def at(n: int, value: float) -> str:
        return f"{(n + 1) * step:.1f} {HEIGHT * (1 - min(max(value, 0), top) / top):.1f}"

    there = "L".join(at(n, high) for n, _low, high in known)
    back = "L".join(at(n, low) for n, low, _high in reversed(known))
    return f"M{there}L{back}Z"


def stacked(layers: Sequence[PlotLayer], top: float) -> list[DrawnPart]:
    """Return layers as they stand on each other, the first at the bottom."""
    count = len(layers[0].values) if layers else 0
    below: list[float | None] = [0.0] * count
    shown = []
    for layer in layers:
        above = [
            None if base is None or value is None else base + value
            for base, value in zip(below, layer.values, strict=True)
        ]
        shown.append(
            DrawnPart(layer.name, layer.css, columns_path(below, above, top), layer.pattern, layer.text)
        )
        below = above
    return shown


def grounds(labels: Sequence[str], rows: Sequence[Sequence[str]], heads: Sequence[str]) -> list[Column]:
    """Return the ground of every column with what it says, for instance "12:00 – used 12.4, free 3"."""
    step = WIDTH / max(1, len(labels))
    return [
        Column(
            round(n * step, 1),
            round(step, 1),
            label,
            list(row),
            label + "\n" + "\n".join(f"{head}: {text}" for head, text in zip(heads, row, strict=True)),
        )
        for n, (label, row) in enumerate(zip(labels, rows, strict=True))
    ]


def clock(at: datetime) -> str:
    """Return the time of day in the zone of the page: "14:00"."""
    return f"{timezone.localtime(at):%H:%M}"


def weekday(at: datetime) -> str:
    """Return the day of the week in short: "Mon"."""
    return date_format(timezone.localtime(at), "D")


def tick_text(value: float) -> str:
    """Return a number on an axis: "2,500" as the locale writes it, without needless zeros."""
    exact = Decimal(str(round(value, 3))).normalize()
    return number_format(
        exact if exact != exact.to_integral() else int(exact), use_l10n=True, force_grouping=True
    )


def axis_ticks(top: float, parts: int) -> list[str]:
    """Return the numbers of an axis of so many equal parts, from the top down."""
    return [tick_text(top * (parts - part) / parts) for part in range(parts + 1)]


def axis_lines(parts: int) -> list[float]:
    """Return at which height each of these numbers has its line, from the top down."""
    return [round(HEIGHT * part / parts, 1) for part in range(parts + 1)]


@dataclass(frozen=True, slots=True)
class StripCell:
    """One hour of one row: ``text`` is what stands in it, ``level`` 0 to 4 how dark it is, ``kind`` its pattern."""

    text: str
    level: int
    title: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class StripRow:
    """One row of a strip; ``is_own`` marks the one that matters most to the reader."""

    label: str
    cells: list[StripCell]
    note: str = ""
    url: str = ""
    is_own: bool = False


@dataclass(frozen=True, slots=True)
class HourStrip:
    """Rows by hour as includes/hour_strip.html draws them; ``heads`` are the hours, "" where none is written."""

    heads: list[str]
    rows: list[StripRow]
    caption: str
