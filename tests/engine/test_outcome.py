from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine.forecast import forecast
from scheduler.engine.learning.lengths import LengthRecord, curves_of
from scheduler.engine.model import Booking, Held, Learned, Running
from scheduler.engine.outcome import LONG, RemainingLengths, outcome
from tests.engine.builder import NOON, Cluster

HOUR = 3600


def running(lease: int, *, ran_s: int, predicted_s: int, left_h: int = 10) -> Running:
    return Running(
        lease, 100 + lease, 1, 1, 1, NOON - timedelta(seconds=ran_s), NOON + timedelta(hours=left_h), 1000,
        predicted_s=predicted_s,
    )  # fmt: skip


def hours_left(held: Held) -> float:
    return (held.until - NOON).total_seconds() / HOUR


def learned(lengths_s: list[float], running_s: list[float] | None = None) -> Learned:
    """What is learned of requests of team 1 that ran so long, beside those that have not ended."""
    record = LengthRecord()
    for length in lengths_s:
        record.note(1, 1, length, length)
    return record.learned(1, [(1, 1, ran) for ran in running_s or ()])


def test_a_lease_ends_when_such_leases_end_and_not_when_it_must(cluster: Cluster) -> None:
    cluster.node("a").hold(0, hours=10, lease=7)
    seen = replace(cluster.snapshot(), running=(running(7, ran_s=0, predicted_s=0),))

    (held,) = outcome(replace(seen, learned=learned([HOUR] * 1000))).held

    assert hours_left(held) == pytest.approx(1, rel=0.2)


def test_those_that_have_not_ended_make_the_outcome_longer(cluster: Cluster) -> None:
    cluster.node("a").hold(0, hours=10, lease=7)
    seen = replace(cluster.snapshot(), running=(running(7, ran_s=0, predicted_s=0),))
    ended = [600.0] * 100

    alone, beside = (
        outcome(replace(seen, learned=learned(ended, others))).held[0] for others in ([], [1e5] * 200)
    )

    assert hours_left(beside) > 5 * hours_left(alone)


def test_a_prediction_counts_as_far_as_predictions_were_right(cluster: Cluster) -> None:
    cluster.node("a").hold(0, hours=1000, lease=7)
    runs = (running(7, ran_s=0, predicted_s=100 * HOUR, left_h=1000),)
    right, wrong = LengthRecord(), LengthRecord()
    for at in range(600):
        length = (HOUR, HOUR, HOUR, 100 * HOUR)[at % 4]
        right.note(1, 1, length, length)
        wrong.note(1, 1, length, 100 * HOUR)
    seen = replace(cluster.snapshot(), running=runs)

    believed, doubted = (outcome(replace(seen, learned=one.learned(1))).held[0] for one in (right, wrong))

    assert hours_left(believed) > 50
    assert hours_left(doubted) < 2


def test_a_lease_without_a_prediction_is_taken_to_run_as_long_as_it_may(cluster: Cluster) -> None:
    cluster.node("a").hold(0, hours=10, lease=7)
    seen = replace(cluster.snapshot(), running=(running(7, ran_s=HOUR, predicted_s=0),))

    assert outcome(seen) == seen


def test_who_outlived_the_prediction_is_not_about_to_end() -> None:
    lengths = RemainingLengths(curves_of(learned([HOUR * 2 ** (at % 9 - 4) for at in range(900)])))
    young, old, older = (lengths.left_s(1, 1, ran, HOUR, 1e9) for ran in (1, 2 * HOUR, 20 * HOUR))

    assert young == pytest.approx(HOUR, rel=0.3)
    assert young < old + 2 * HOUR
    assert old < older


def test_the_long_outcome_is_longer_than_the_expected_one(cluster: Cluster) -> None:
    cluster.node("a").hold(0, hours=10, lease=7)
    seen = replace(cluster.snapshot(), running=(running(7, ran_s=600, predicted_s=HOUR),))

    assert hours_left(outcome(seen, LONG).held[0]) > hours_left(outcome(seen).held[0])


def test_a_claim_runs_as_long_as_predicted_and_never_longer_than_asked(cluster: Cluster) -> None:
    cluster.node("a")
    asked = [
        replace(cluster.request("short", hours=8), predicted_s=HOUR),
        replace(cluster.request("long", hours=2), predicted_s=50 * HOUR),
        cluster.request("unknown", hours=3),
    ]
    seen = replace(cluster.snapshot(), queue=tuple(asked))

    found = outcome(seen)

    assert found.queue == seen.queue
    assert HOUR / 2 < found.likely_s[asked[0].id] < 2 * HOUR
    assert len(found.likely_s) == 1


def test_the_time_asked_for_decides_what_fits_and_the_likely_one_who_starts_after_it(
    cluster: Cluster,
) -> None:
    cluster.node("a").hold(0, hours=1)
    cluster.request("first", hours=8)
    second = cluster.request("second", hours=8)
    booked = Booking(NOON + timedelta(hours=5), replace(cluster.held[0], until=NOON + timedelta(hours=6)))
    seen = replace(cluster.snapshot(), likely_s={1: HOUR})

    sooner = forecast(seen, cluster.policy, [second])[second.id]
    behind = forecast(replace(seen, bookings=(booked,)), cluster.policy, [second])[second.id]

    assert sooner.starts_at == NOON + timedelta(hours=2)
    assert behind.starts_at == NOON + timedelta(hours=7)


def test_a_shared_board_is_free_when_its_last_share_is(cluster: Cluster) -> None:
    cluster.node("a", "l40s-48gb").hold(0, "mps 500 1000", hours=10, lease=7)
    seen = replace(cluster.snapshot(), running=(running(7, ran_s=0, predicted_s=HOUR),))

    assert {round(hours_left(one)) for one in outcome(seen).held} == {1}


@given(
    st.integers(1, 10**6), st.floats(0, 1e7), st.floats(1, 1e7), st.floats(0.05, 0.9), st.floats(0.05, 0.9)
)
def test_what_is_left_is_bounded_and_grows_with_the_level(
    predicted: int, ran: float, most: float, one: float, other: float
) -> None:
    low, high = sorted((one, other))

    curves = curves_of(Learned())
    less, more = (RemainingLengths(curves, level).left_s(1, 1, ran, predicted, most) for level in (low, high))
    assert 0 < less <= more <= most
