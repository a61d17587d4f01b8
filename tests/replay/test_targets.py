from __future__ import annotations

from tools.bench import curve
from tools.bench.engine import Bounds, TargetRow, forecast_parts, most, placement_parts, queue_parts


def test_a_row_says_whether_its_figure_is_what_it_must_be() -> None:
    assert TargetRow("wait", 1_900.0, most(1_900), most(1_500)).told() == {
        "is": 1_900.0, "must": "≤ 1,900", "aim": "≤ 1,500", "met": "yes",
    }  # fmt: skip
    assert TargetRow("wait", 1_900.1, most(1_900)).told()["met"] == "NO"
    assert TargetRow("share", 0.93, Bounds(0.88, 0.92)).told()["met"] == "NO"
    assert TargetRow("share", None, Bounds(0.88, 0.92)).told()["met"] == "NO"
    assert "met" not in TargetRow("wait", 5.0).told()


def test_without_traces_only_the_samples_are_played() -> None:
    assert list(curve.names(None)) == ["sample"]
    parts = [*queue_parts(None), *placement_parts(None), *forecast_parts(None)]
    assert {len(part) for part in parts} == {2}
    assert sum(part.seconds for part in parts) < 120
