from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from scheduler.replay import openb
from tools.bench import curve
from tools.bench.engine import (
    STARTS,
    STARTS_WANTED,
    Bounds,
    TargetRow,
    forecast_parts,
    most,
    part_of,
    placement_parts,
    queue_parts,
    starts_of_all,
)


def test_a_row_says_whether_its_figure_is_what_it_must_be() -> None:
    assert TargetRow("wait", 1_900.0, most(1_900), most(1_500)).told() == {
        "is": 1_900.0, "must": "≤ 1,900", "aim": "≤ 1,500", "met": "yes",
    }  # fmt: skip
    assert TargetRow("wait", 1_900.1, most(1_900)).told()["met"] == "NO"
    assert TargetRow("share", 0.93, Bounds(0.88, 0.92)).told()["met"] == "NO"
    assert TargetRow("share", None, Bounds(0.88, 0.92)).told()["met"] == "NO"
    assert "met" not in TargetRow("wait", 5.0).told()


def test_forecasts_of_all_runs_count_by_their_number() -> None:
    rows = [
        TargetRow(STARTS + "a", 0.80, STARTS_WANTED, beside={"samples": 100}),
        TargetRow(STARTS + "b", 0.95, STARTS_WANTED, beside={"samples": 300}),
        TargetRow(STARTS + "nobody waited", None, STARTS_WANTED, beside={"samples": 0}),
        TargetRow("mean wait s, a", 5.0),
    ]

    assert starts_of_all(rows) == TargetRow(
        STARTS + "all runs", 0.9125, STARTS_WANTED, STARTS_WANTED, {"samples": 400}
    )


def test_without_traces_only_the_samples_are_played() -> None:
    assert list(curve.names(None)) == ["sample"]
    parts = [*queue_parts(None), *placement_parts(None), *forecast_parts(None)]
    assert {len(part) for part in parts} == {2}
    assert sum(part.seconds for part in parts) < 120


@pytest.mark.deep
def test_two_rules_by_turns_decide_what_each_decides_alone() -> None:
    ((_, trace),) = curve.workloads(None)

    ours, fgd = curve.played(trace)

    for curve_of, rules in ((ours, openb.ReplayRules()), (fgd, openb.ReplayRules("fgd", knows=True))):
        alone = openb.play(trace, rules).figures
        assert curve_of.allocated[-1] == alone["allocated_percent_at_130"]
        assert round(curve_of.first, 2) == alone["first_refusal_at_percent"]
        assert curve_of.per_s > 0


def test_turns_that_are_told_what_was_learned_decide_as_those_that_learned_it() -> None:
    ((_, trace),) = curve.workloads(None)
    learning = openb.ReplayedInstallation(trace, openb.PLAIN)
    told = openb.ReplayedInstallation(trace, openb.PLAIN, learning.versions)

    for number in range(len(trace.arrivals)):
        for here in (learning, told):
            here.turn((number,), number * openb.GAP_S)

    assert len(learning.versions) == learning.demand.version > 1
    assert told.demand == learning.demand
    assert told.placed.tolist() == learning.placed.tolist()


def test_a_part_of_a_trace_is_every_eighth_job(tmp_path: Path) -> None:
    whole = tmp_path / "jobs.csv.gz"
    whole.write_bytes(gzip.compress(b"seq,submit_s\n" + b"".join(b"%d,0\n" % n for n in range(18))))

    with part_of(whole) as path:
        assert path.read_text(encoding="utf-8") == "seq,submit_s\n0,0\n8,0\n16,0\n"
