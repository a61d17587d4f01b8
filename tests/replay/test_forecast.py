from __future__ import annotations

import argparse
import random
from pathlib import Path

import pytest

from scheduler.engine.order.rules import policy_named
from scheduler.replay import forecast, predict, rows
from scheduler.replay.__main__ import main
from scheduler.replay.jobs import read
from scheduler.replay.tables import BadTrace


def written(path: Path, count: int) -> Path:
    """So many jobs of two teams on a few boards: many have to wait."""
    draw = random.Random(3)
    lines = ["seq,submit_s,duration_s,gpus,vc"]
    at = 0
    for number in range(count):
        at += draw.randrange(0, 120)
        lines.append(
            f"{number},{at},{int(draw.lognormvariate(6, 1.2)) + 1},{draw.choice((1, 1, 2, 4))},t{number % 2}"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written(tmp_path / "jobs.csv", 200)


def options(trace: Path, **more: object) -> argparse.Namespace:
    return argparse.Namespace(
        **{
            "jobs": trace, "nodes": 2, "gpus_per_node": 4, "policy": "default", "estimates": None,
            "sample": 1000, **more,
        }
    )  # fmt: skip


# A queue in order of arrival grows and grows: there it takes twice as many jobs to learn by how much.
@pytest.mark.parametrize(
    ("policy", "jobs"), [("default", 200), ("default_no_preemption", 200), ("fifo", 400)]
)
def test_most_starts_come_before_the_shown_p90(tmp_path: Path, policy: str, jobs: int) -> None:
    found = forecast.run(options(written(tmp_path / "jobs.csv", jobs), policy=policy))

    assert found["samples"] >= 50
    assert found["share_before_p90"] >= 0.85
    assert 0.2 <= found["share_before_p50"] <= 0.95


def shown_by(trace: Path) -> list[tuple[int, float, int, int]]:
    jobs = read(trace, 8)
    watch = forecast.Forecaster(jobs, None, every=5)
    rows.play(jobs, policy_named("default"), [4, 4], None, watch=watch)
    return [(one.made, one.raw_s, one.p50_s, one.p90_s) for one in watch.shown]


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


def test_looking_on_changes_nothing(trace: Path) -> None:
    jobs = read(trace, 8)
    plain = rows.play(jobs, policy_named("default"), [4, 4], None)
    watched = rows.play(
        jobs, policy_named("default"), [4, 4], None, watch=forecast.Forecaster(jobs, None, every=3)
    )

    assert plain.ended.tolist() == watched.ended.tolist()
    assert plain.preemptions == watched.preemptions


def test_bad_options_are_refused(trace: Path) -> None:
    with pytest.raises(BadTrace, match="--sample 0"):
        forecast.run(options(trace, sample=0))
    with pytest.raises(BadTrace, match="--every-h 0"):
        predict.run(argparse.Namespace(jobs=trace, every_h=0, no_estimates=False))


def test_predictions_are_judged_on_what_came_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = written(tmp_path / "jobs.csv", 400)

    assert main(["predict", "--jobs", str(trace), "--every-h", "1", "--json"]) == 0

    assert '"team"' in capsys.readouterr().out
    found = predict.run(argparse.Namespace(jobs=trace, every_h=1, no_estimates=False))
    assert 0 < found["judged"] < 400 - predict.LEAST
    assert found["asked"] is None
    assert found["predicted"]["median"] >= 1
