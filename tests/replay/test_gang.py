from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.engine.columns import WHOLE
from scheduler.engine.place.policy import policy_named
from scheduler.replay import gang, openb
from scheduler.replay.__main__ import main

TRACES = Path(os.environ.get("TRACES", "nowhere"))
TIMES = {"p50_ms", "p99_ms", "max_ms", "p99_cpu_ms", "wall_s"}
SMALL = ["--gpus", "250", "--gangs", "12", "--nodes", "3", "--boards", "4", "--live", "3", "--between", "4"]


@pytest.fixture(autouse=True)
def without_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACES", raising=False)


def replay(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["gang", "--json", *SMALL, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_gangs_are_placed_and_timed_on_the_sample(capsys: pytest.CaptureFixture[str]) -> None:
    found = replay(capsys, "--load", "0.2")

    assert (found["gangs"], found["placed"], found["trace"]) == (12, 12, "sample of openb")
    assert found["gpus"] >= 250
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]
    assert found["mean_racks"] >= 1


def test_the_same_gangs_get_the_same_places_again(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = replay(capsys), replay(capsys)

    assert {k: v for k, v in first.items() if k not in TIMES} == {
        k: v for k, v in second.items() if k not in TIMES
    }


@pytest.mark.parametrize("nodes", ["3", "0"])
def test_no_board_is_ever_given_twice_and_refused_gangs_hold_nothing(nodes: str) -> None:
    parser = argparse.ArgumentParser()
    gang.add_arguments(parser)
    options = parser.parse_args(
        [*SMALL, "--load", "0.9", "--nodes", nodes, "--boards", "12", "--live", "100"]
    )
    trace = openb.scaled(openb.read(**gang._files(None)), 2)
    hall = gang.RackedCluster(trace, policy_named("best_fit"), options)
    hall.fill(options.load)
    at = hall.decider.at
    before = int(at.free[at.free > 0].sum())
    options.between = 0

    _, racks = hall.serve(options)

    given = len(racks) * 12 * max(int(nodes), 1) * WHOLE
    assert len(racks) < options.gangs
    assert before - int(at.free[at.free > 0].sum()) == given
    assert np.isin(at.free, [-1, *range(WHOLE + 1)]).all()
    assert (at.cpu >= 0).all()


@pytest.mark.parametrize("words", [["--boards", "0"], ["--nodes", "-1"], ["--rack", "0"]])
def test_figures_that_make_no_sense_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gang", "--json", *words]) != 0

    assert "1 or more" in capsys.readouterr().err


@pytest.mark.skipif(not TRACES.is_dir(), reason="TRACES names no folder with the full traces")
def test_a_gang_of_64_on_the_large_cluster_is_decided_within_10_ms(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["gang", "--json", "--traces", str(TRACES), "--gangs", "300"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert (found["gpus"], found["nodes"], found["placed"]) == (99_392, 19_408, 300)
    assert found["p99_cpu_ms"] <= 10
