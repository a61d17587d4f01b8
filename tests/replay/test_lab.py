from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import timedelta

import pytest

from scheduler.engine.model import TeamQuota
from scheduler.engine.policy import PolicyRules, Preempting
from scheduler.replay.forecast import ForecastRecorder, ShownForecast
from scheduler.replay.history import (
    History,
    HistoryChanges,
    changed,
    history_from_json,
    history_of_trace,
    history_to_json,
    scene_of,
    what_if_from,
)
from scheduler.replay.jobs import jobs_of_text
from scheduler.replay.lab import play, promises
from scheduler.replay.trace_files import BadTrace
from scheduler.replay.turns import Cluster, Turns

FIFO = PolicyRules(order="priority_fifo", backfill="none", preempting=Preempting(preemptible=False))
GITTINS = PolicyRules(order="default", preempting=Preempting(by_score=True))


def history(*rows: str, nodes: int = 1) -> History:
    text = "seq,submit_s,duration_s,gpus,vc\n" + "\n".join(rows)
    return history_of_trace(jobs_of_text(text, "trace", nodes * 8), Cluster(nodes, 8))


def busy(count: int = 120) -> History:
    draw = random.Random(3)
    rows = [
        f"{n},{n * 400},{int(draw.lognormvariate(7.5, 1.5)) + 1},{draw.choice((1, 2, 4, 8))},{draw.choice('abc')}"
        for n in range(count)
    ]
    return history(*rows)


def test_what_waits_behind_a_full_fleet_waits_until_it_is_free() -> None:
    found = play(history("1,0,600,8,a", "2,60,300,8,b"), FIFO)

    assert found["requests"] == 2
    assert found["waits"]["max_s"] == 540
    assert {row["team"]: row["mean_s"] for row in found["by_team"]} == {"a": 0.0, "b": 540.0}
    assert found["played"]["started"] == [0, 600]


@pytest.mark.deep
def test_two_plays_are_the_same_byte_by_byte() -> None:
    one, other = (json.dumps(play(busy(), GITTINS)) for _ in range(2))

    assert one == other


def test_a_history_reads_back_as_it_was_written() -> None:
    written = busy()

    assert history_from_json(history_to_json(written)) == written


@pytest.mark.deep
def test_policies_differ_in_who_waits() -> None:
    assert play(busy(), FIFO)["waits"] != play(busy(), GITTINS)["waits"]


@pytest.mark.deep
def test_more_demand_is_drawn_by_the_seed() -> None:
    past = busy()

    double = changed(past, HistoryChanges(demand=1.5), seed=1)

    assert 160 < len(double.claims) < 200
    assert [claim.id for claim in double.claims] == list(range(1, len(double.claims) + 1))
    assert double == changed(past, HistoryChanges(demand=1.5), seed=1)
    assert double != changed(past, HistoryChanges(demand=1.5), seed=2)
    assert play(double, FIFO)["waits"]["mean_s"] > play(past, FIFO)["waits"]["mean_s"]


@pytest.mark.deep
def test_one_more_node_shortens_waits_and_the_last_one_stays() -> None:
    past = busy()

    assert (
        play(changed(past, HistoryChanges(nodes=(("n1", 1),)), 1), FIFO)["waits"]["mean_s"]
        < play(past, FIFO)["waits"]["mean_s"]
    )
    with pytest.raises(BadTrace, match="No node would be left"):
        changed(past, HistoryChanges(nodes=(("n1", -1),)), 1)
    with pytest.raises(BadTrace, match="no node gpu-99"):
        changed(past, HistoryChanges(nodes=(("gpu-99", 1),)), 1)


def test_a_team_more_has_the_quota_of_its_model_and_copies_of_its_requests() -> None:
    past = history("1,0,600,8,a", "2,60,300,4,b", "3,120,300,4,b")
    past = replace(
        past,
        since=past.zero + timedelta(seconds=30),
        quotas=tuple(replace(one, ceiling_milli=4000) if one.team_id == 3 else one for one in past.quotas),
        claims=(replace(past.claims[0], team_id=3), *past.claims[1:]),
    )

    found = changed(past, HistoryChanges(teams=(("b", 2),)), 1)

    assert found.teams == (*past.teams, "b+1", "b+2")
    assert [one.ceiling_milli for one in found.quotas[3:]] == [4000, 4000]
    assert [one.team_id for one in found.quotas] == [1, 2, 3, 4, 5]
    assert [claim.team_id for claim in found.claims].count(4) == 3
    # What ran when the period began is there from its beginning on, all others come later than their models.
    assert [claim.queued_at for claim in found.claims].count(past.zero) == 3
    assert sorted(found.names)[:3] == ["#1", "#1@1", "#1@2"]
    assert found == changed(past, HistoryChanges(teams=(("b", 2),)), 1)
    with pytest.raises(BadTrace, match="no team c"):
        changed(past, HistoryChanges(teams=(("c", 1),)), 1)


def test_demand_beyond_what_can_be_played_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.replay.history.MOST_REQUESTS", 5)

    with pytest.raises(BadTrace, match="6 requests: at most 5"):
        changed(history("1,0,600,8,a", "2,60,300,8,b", "3,61,1,1,a"), HistoryChanges(demand=2.0), 1)


def test_a_play_tells_of_itself_while_nothing_comes_or_starts() -> None:
    told: list[int] = []

    play(history("1,0,86400,8,a", "2,60,300,8,b"), FIFO, told.append)

    # A turn a minute for a day, and that both have come is told by the second one.
    assert len(told) > 1400
    assert told[1:] == [1000] * (len(told) - 1)


def test_what_never_fits_is_left_out_and_counted() -> None:
    past = history("1,0,600,16,a", "2,60,300,8,b", nodes=2)

    found = play(changed(past, HistoryChanges(nodes=(("n1", -1),)), 1), FIFO)

    assert found["impossible"] == 1
    assert found["requests"] == 1


def test_a_team_at_its_ceiling_waits_though_boards_idle() -> None:
    past = history("1,0,600,4,a", "2,60,300,4,a")
    tight = replace(past, quotas=tuple(replace(one, ceiling_milli=4000) for one in past.quotas))

    assert play(past, FIFO)["waits"]["max_s"] == 0
    assert play(tight, FIFO)["waits"]["max_s"] == 540


def test_use_of_a_team_counts_for_the_teams_above() -> None:
    past = history("1,0,600,4,a", "2,60,300,4,b")
    quotas = (TeamQuota(1, 3, None, 0), TeamQuota(2, 3, None, 0), TeamQuota(3, None, 4000, 0))
    # The trace has no team of its own at place 1: a and b are 2 and 3 there.
    claims = tuple(replace(claim, team_id=claim.team_id - 1) for claim in past.claims)

    found = play(replace(past, quotas=quotas, claims=claims), FIFO)

    assert found["waits"]["max_s"] == 540


def test_the_starved_are_shown() -> None:
    past = history("1,0,864000,8,a", "2,60,60,8,b")

    found = play(past, FIFO)

    assert found["starved"] == 1
    assert [row["starved"] for row in found["by_team"]] == [0, 1]


def test_what_came_before_the_period_fills_the_fleet_and_is_not_counted() -> None:
    past = history("1,0,600,8,a", "2,60,300,8,b")

    found = play(replace(past, since=past.zero + timedelta(seconds=30)), FIFO)

    assert found["requests"] == 1
    assert found["waits"]["mean_s"] == 540.0


def test_the_bill_goes_by_time_run_and_names_what_has_no_price() -> None:
    past = replace(
        history("1,0,3600,8,a", "2,60,1800,8,a", "3,61,60,8,b"), currency="EUR", price_micro=(10, 10, None)
    )

    assert play(past, FIFO)["bill"] == [
        {"team": "a", "micro": 15, "unpriced": 0},
        {"team": "b", "micro": 0, "unpriced": 1},
    ]


def test_energy_goes_by_the_time_held_and_counts_what_nobody_knows() -> None:
    past = history("1,0,3600,8,a", "2,60,1800,8,a", "3,61,60,8,b")

    known = play(replace(past, watts=(1000, 500, None)), FIFO)

    assert known["energy"] == {"wh": 1250, "unknown": 1}
    assert play(past, FIFO)["energy"] is None
    assert history_from_json(history_to_json(replace(past, watts=(1000, 500, None)))).watts == (
        1000,
        500,
        None,
    )
    assert changed(replace(past, watts=(1, 2, 3)), HistoryChanges(demand=2.0), 1).watts.count(3) == 2


def test_those_who_wait_are_forecast_and_promises_are_counted() -> None:
    found = play(history("1,0,600,8,a", "2,60,300,8,b"), FIFO)

    assert found["promises"] == {"forecasts": 1, "kept": 1, "unknown": 0}
    assert play(history("1,0,600,4,a", "2,60,300,4,b"), FIFO)["promises"]["forecasts"] == 0


def test_a_promise_is_kept_by_its_p90_and_a_certain_start_by_its_instant() -> None:
    made = ForecastRecorder(jobs_of_text("seq,submit_s,duration_s,gpus\n1,0,5,1", "trace", 8), every=1)
    made.shown = [ShownForecast(0, 0, 60.0, 60, 90, wait_s) for wait_s in (90, 91, -1)]
    made.certain_kept = [True, False]

    assert promises(made) == {"forecasts": 4, "kept": 2, "unknown": 0}


def test_a_long_queue_is_forecast_ever_more_thinly() -> None:
    rows = [f"{n},{n},600,8,a" for n in range(1, 200)]
    past = history(*rows)
    jobs, scene, _ = scene_of(past, FIFO)
    all_of_them, thin = ForecastRecorder(jobs, every=1), ForecastRecorder(jobs, every=1, thin=10)

    Turns(jobs, FIFO, scene, watches=(all_of_them, thin)).play()

    assert all_of_them.waits == thin.waits == 198
    assert len(all_of_them.shown) + len(all_of_them.certain_kept) == 198
    assert 40 < len(thin.shown) + len(thin.certain_kept) < 80


def test_allocated_is_counted_by_hour() -> None:
    found = play(history("1,0,1800,8,a", "2,3600,3600,4,a", "3,7199,1,1,a"), FIFO)

    assert found["used_by_hour"][0] == 0.5
    assert 0.49 < found["used_by_hour"][1] < 0.51


@pytest.mark.deep
def test_what_was_held_before_a_preemption_counts_as_allocated() -> None:
    past = busy()
    past = replace(past, until=past.zero + timedelta(days=10))

    found = play(past, GITTINS)

    played = found["played"]
    held = sum(
        (ended - int((claim.queued_at - past.zero).total_seconds()) - wait) * claim.count
        for claim, ended, wait in zip(past.claims, played["ended"], played["wait"], strict=True)
    )
    assert found["preemptions"] > 0
    assert sum(found["used_by_hour"]) * 8 * 3600 == pytest.approx(held, rel=0.01)


@pytest.mark.parametrize(
    "body",
    [
        {"demand": 9},
        {"demand": True},
        {"nodes": {"a": "2"}},
        {"nodes": []},
        {"teams": {"a": 0}},
        {"more": 1},
        [],
    ],
)
def test_what_if_refuses_what_it_cannot_play(body: object) -> None:
    with pytest.raises(BadTrace):
        what_if_from(body)


@pytest.mark.parametrize("row", ["1,0,-5,1", "1,,5,1", "1,0,5,99", "1,0,x,1", "1,0,5"])
def test_a_bad_line_of_a_trace_is_named(row: str) -> None:
    with pytest.raises(BadTrace, match="trace, line 2"):
        jobs_of_text("seq,submit_s,duration_s,gpus\n" + row, "trace", 8)


def test_a_head_that_is_no_csv_is_refused() -> None:
    with pytest.raises(BadTrace, match="trace, line 1: field larger than"):
        jobs_of_text("x" * 200_000, "trace", 8)
