"""Colours of tokens.css as numbers: WCAG contrast, and distance in OKLab as colour-blind people see.

The matrices are those of Machado, Oliveira and Fernandes (2009) at full severity, on linear RGB.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

TOKENS = Path(__file__).resolve().parents[2] / "static" / "css" / "tokens.css"
Colour = tuple[float, float, float]

VISION: dict[str, tuple[Colour, Colour, Colour]] = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def linear(code: str) -> Colour:
    """Linear RGB of "#rrggbb"."""
    parts = [int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return r, g, b


def tokens(theme: str) -> dict[str, Colour]:
    """Every token with a light and a dark value, as linear RGB of one theme."""
    pairs = re.findall(
        r"--([a-z0-9-]+):\s*light-dark\((#[0-9a-f]{6}),\s*(#[0-9a-f]{6})\);", TOKENS.read_text("utf-8")
    )
    return {name: linear(dark if theme == "dark" else light) for name, light, dark in pairs}


def luminance(colour: Colour) -> float:
    """Relative luminance, 0 to 1."""
    return 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]


def contrast(one: Colour, other: Colour) -> float:
    """Contrast ratio of WCAG 2, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def seen(colour: Colour, vision: str) -> Colour:
    """The colour as this kind of vision sees it, as linear RGB."""
    r, g, b = (sum(m * c for m, c in zip(row, colour, strict=True)) for row in VISION[vision])
    return min(1, max(0, r)), min(1, max(0, g)), min(1, max(0, b))


def oklab(colour: Colour) -> Colour:
    """Lightness and two opponent axes after Ottosson (2020)."""
    r, g, b = colour
    lms = (
        math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b),
        math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b),
        math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b),
    )
    long, middle, short = lms
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def mixed(front: Colour, back: Colour, share: float) -> Colour:
    """What ``color-mix(in oklab, front share, back)`` gives, as linear RGB."""
    lightness, a, b = (share * f + (1 - share) * k for f, k in zip(oklab(front), oklab(back), strict=True))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
    )


def distance(one: Colour, other: Colour, vision: str = "usual") -> float:
    """How far apart two colours look (OKLab; 0.02 is just noticeable side by side)."""
    return math.dist(oklab(seen(one, vision)), oklab(seen(other, vision)))
