"""Words can be read in both themes, and slices can be told apart by everybody."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from tests.frontend.colours import TOKENS, VISION, contrast, distance, linear, mixed, tokens

THEMES = ("light", "dark")
INKS = ("ink", "ink-2", "ink-3")
WATER = re.compile(r"\.slice-level \{ fill: color-mix\(in oklab, var\(--tone\) (\d+)%")
LIVE = TOKENS.with_name("live.css")
TONES = ("good", "warn", "bad", "info", "quiet")


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("ground", ["bg", "surface", "sunken", "raised"])
def test_every_ink_reads_on_every_ground(theme, ground):
    colour = tokens(theme)

    for ink in INKS:
        assert contrast(colour[ink], colour[ground]) >= 4.5, (ink, ground)
    assert contrast(colour["accent"], colour[ground]) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("tone", TONES)
def test_a_state_reads_on_its_own_wash_and_on_a_card(theme, tone):
    colour = tokens(theme)

    assert contrast(colour[tone], colour[f"{tone}-soft"]) >= 4.5
    assert contrast(colour[tone], colour["surface"]) >= 4.5
    assert contrast(colour["ink-2"], colour[f"{tone}-soft"]) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_controls_stand_out_from_their_ground(theme):
    colour = tokens(theme)

    assert contrast(colour["accent-ink"], colour["accent"]) >= 4.5
    assert contrast(colour["accent-strong"], colour["accent-soft"]) >= 4.5
    assert contrast(colour["line-strong"], colour["surface"]) >= 3


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("vision", VISION)
def test_any_two_slices_look_apart(theme, vision):
    colour = tokens(theme)
    slices = [colour[f"slice-{n}"] for n in range(1, 9)]

    closest = min(distance(a, b, vision) for a, b in combinations(slices, 2))

    assert closest >= 0.11


def test_the_measure_itself_finds_the_classic_confusion():
    red, green = linear("#b03a2e"), linear("#6b6b00")

    assert distance(red, green, "deutan") < 0.5 * distance(red, green)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("number", range(1, 9))
def test_a_label_reads_on_the_water_of_every_slice(theme, number):
    colour = tokens(theme)
    share = int(WATER.findall(LIVE.read_text("utf-8"))[0])

    water = mixed(colour[f"slice-{number}"], colour["surface"], share / 100)

    assert contrast(colour["ink"], water) >= 4.5
