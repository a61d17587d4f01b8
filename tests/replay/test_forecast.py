from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import pytest

from scheduler.engine.learning.lengths import LEAST
from scheduler.replay import forecast, predict
from scheduler.replay.__main__ import main
from scheduler.replay.jobs import read
from scheduler.replay.predict import LengthLearner
from scheduler.replay.queue import rules_of
from scheduler.replay.trace_files import BadTrace
from scheduler.replay.turns import Cluster, PlayedQueue, Turns


def written(path: Path, count: int) -> Path:
    """So many jobs of two teams on a few boards: many have to wait."""
    draw = random.Random(3)
    lines = ["seq,submit_s,duration_s,gpus,vc"]
    at = 0
    for number in range(count):
        at += draw.randrange(0, 360)
        lines.append(
            f"{number},{at},{int(draw.lognormvariate(6, 1.2)) + 1},{draw.choice((1, 1, 2, 4))},t{number % 2}"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written(tmp_path / "jobs.csv", 150)


def options(trace: Path, **more: object) -> argparse.Namespace:
    return argparse.Namespace(
        **{
            "jobs": trace, "nodes": 2, "gpus_per_node": 4, "policy": "default", "estimates": "none",
            "consent": "none", "notice": 120, "backfill": "easy", "place": "binpack", "every": 1,
            "keep_short": 0.0, "keep_apart": 0.0, "installed": False, **more,
        }
    )  # fmt: skip


@pytest.mark.deep
@pytest.mark.parametrize("policy", ["default", "priority_fifo"])
def test_most_starts_come_before_the_shown_p90(tmp_path: Path, policy: str) -> None:
    found = forecast.run(options(written(tmp_path / "jobs.csv", 240), policy=policy, estimates="perfect"))

    assert found["samples"] >= 50
    # Few samples: nine of ten, and three standard errors either way.
    assert found["share_before_p90"] >= 0.8
    assert 0.2 <= found["share_before_p50"] <= 0.95


def shown_by(trace: Path) -> list[tuple[int, float, int, int]]:
    jobs = read(trace, 8)
    watch = forecast.ForecastRecorder(jobs, every=10)
    played(trace, watch)
    return [(one.made, one.raw_s, one.p50_s, one.p90_s) for one in watch.shown]


def played(trace: Path, watch: forecast.ForecastRecorder | None) -> PlayedQueue:
    jobs = read(trace, 8)
    policy, _ = rules_of(options(trace))
    return Turns(
        jobs, policy, Cluster(2, 4), predictor=LengthLearner(jobs), watches=(watch,) if watch else ()
    ).play()


@pytest.mark.deep
def test_a_forecast_knows_nothing_of_what_comes_later(trace: Path, tmp_path: Path) -> None:
    lines = trace.read_text().splitlines()
    cut = 125
    until = int(lines[cut].split(",")[1])
    other = tmp_path / "other.csv"
    later = [f"{n},{until + n},5000,4,t1" for n in range(cut, cut + 25)]
    other.write_text("\n".join([*lines[:cut], *later]) + "\n")

    before = [one for one in shown_by(trace) if one[0] < until]

    assert before
    assert [one for one in shown_by(other) if one[0] < until] == before


@pytest.mark.deep
def test_looking_on_changes_nothing(trace: Path) -> None:
    plain = played(trace, None)
    watched = played(trace, forecast.ForecastRecorder(read(trace, 8), every=10))

    assert plain.preemptions
    assert plain == watched


def test_lengths_are_learned_on_the_way_by_the_products_model(tmp_path: Path) -> None:
    jobs = read(written(tmp_path / "jobs.csv", 400), 8)
    learner = LengthLearner(jobs)

    before = learner.guess([300])
    learner.learn([(row, jobs.submit[row] + jobs.duration[row], jobs.duration[row]) for row in range(300)])

    assert before == [0]
    assert learner.guess([300, 310]) == learner.guess([300]) + learner.guess([310])
    assert 100 < learner.guess([300])[0] < 2_000


def test_as_newly_installed_its_rules_count_and_waits_are_told(trace: Path) -> None:
    found = forecast.run(options(trace, installed=True, notice=0, backfill="none", every=150))

    assert (found["notice_s"], found["backfill"], found["jobs"]) == (120, "easy", 150)
    assert found["mean_wait_s"] > 0


def test_bad_options_are_refused(trace: Path) -> None:
    with pytest.raises(BadTrace, match="--every 0"):
        forecast.run(options(trace, every=0))
    with pytest.raises(BadTrace, match="--nodes 0"):
        forecast.run(options(trace, nodes=0))
    with pytest.raises(BadTrace, match="--every-h 0"):
        predict.run(argparse.Namespace(jobs=trace, every_h=0, no_estimates=False))


@pytest.mark.deep
def test_predictions_are_judged_on_what_came_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = written(tmp_path / "jobs.csv", 400)

    assert main(["predict", "--jobs", str(trace), "--every-h", "1", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["team"]["median"] >= 1
    assert 0 < found["judged"] < 400 - LEAST
    assert found["asked"] is None
    assert found["predicted"]["median"] >= 1
