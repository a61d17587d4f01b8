"""What a bench of pairs says of its figures, on those of one real device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.bench.pairs import figures_of

TABLE = Path(__file__).resolve().parents[1] / "data" / "pairs" / "h200-580.json"


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    table = json.loads(TABLE.read_text())
    alone = table["alone"]
    steps = {(a, b): (x * alone[a]["steps"], y * alone[b]["steps"]) for a, b, x, y in table["pairs"]}
    return figures_of(alone, steps)


def test_every_pair_of_twelve_is_told_with_the_speed_of_both(figures: dict[str, Any]) -> None:
    assert len([name for name in figures if " + " in name]) == 12 * 13 // 2
    assert figures["copy + images"] == {"first": 0.18, "second": 0.73, "together": 0.91}


def test_the_pairs_are_summed_up(figures: dict[str, Any]) -> None:
    told = figures["together, of 78 pairs"]

    assert (told["least"], told["most"]) == (0.82, 2.01)
    assert (told["above 1.4"], told["below 1"]) == (28, 27)


def test_the_model_is_nearest_where_activity_is_what_the_device_tells(figures: dict[str, Any]) -> None:
    errors = figures["model by util_percent: mean error of a speed by a"]

    assert min(errors, key=errors.__getitem__) == "1.0"
    assert (
        errors["1.0"]
        < figures["model by bandwidth_percent: mean error of a speed by a"]["1.0"]
        < errors["0.0"]
    )


def test_a_signal_that_a_device_does_not_tell_has_no_model() -> None:
    alone = {"copy": {"steps": 10.0, "util_percent": 90.0, "sm_percent": None, "bandwidth_percent": None}}

    figures = figures_of(alone, {("copy", "copy"): (5.0, 4.0)})

    assert figures["copy + copy"]["together"] == 0.9
    assert [name.split()[2] for name in figures if name.startswith("model")] == ["util_percent:"]
