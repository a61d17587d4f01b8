from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.order import ORDERS
from scheduler.engine.place.policy import POLICIES
from scheduler.engine.policy import (
    WORKS,
    Backfill,
    PolicyRules,
    Pools,
    PoolTime,
    Preempting,
    Sleep,
    SleepTime,
)
from scheduler.engine.policy_body import (
    BACKFILLS,
    BOUNDS,
    DAY_MINUTES,
    WHY,
    BadPolicy,
    Fault,
    body_of,
    policy_from,
)
from tests.engine.builder import Cluster


def faults(body: Any) -> dict[str, str]:
    """Return the faults of a body as code by field."""
    with pytest.raises(BadPolicy) as caught:
        policy_from(body)
    return {fault.field: fault.code for fault in caught.value.faults}


def time(days: list[int], begin: str, end: str, **more: Any) -> dict[str, Any]:
    return {"days": days, "from": begin, "to": end, **more}


def pools(*times: Any, **more: Any) -> dict[str, Any]:
    return {"pools": {"parts": {"training": 1}, "times": list(times), **more}}


def test_a_body_without_rules_is_the_built_in_policy() -> None:
    assert policy_from({}) == PolicyRules()
    assert policy_from(body_of(PolicyRules()), name="x", version=3) == PolicyRules(name="x", version=3)


def test_a_body_names_every_rule_of_the_policy() -> None:
    names = {f.name for f in fields(PolicyRules)} - {"name", "version"}

    assert set(body_of(PolicyRules())) == names
    assert set(body_of(PolicyRules())["preempting"]) == {f.name for f in fields(Preempting)}
    assert set(body_of(PolicyRules())["sleep"]) == {f.name for f in fields(Sleep)}
    assert set(body_of(PolicyRules())["pools"]) == {f.name for f in fields(Pools)}


def test_days_and_nights_are_read_as_minutes() -> None:
    day = time([4, 0], "08:00", "18:30", parts={"interactive": 3, "training": 1})
    night = time([0], "22:00", "00:00", parts={"training": 1})

    found = policy_from(pools(day, night, zone="Europe/Berlin"))

    assert found.pools == Pools(
        (("training", 1),),
        (
            PoolTime((0, 4), 480, 1110, (("interactive", 3), ("training", 1))),
            PoolTime((0,), 1320, DAY_MINUTES, (("training", 1),)),
        ),
        "Europe/Berlin",
    )


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        (None, "", "not_object"),
        ([], "", "not_object"),
        ({"colour": 1}, "colour", "unknown"),
        ({"order": "alphabet"}, "order", "not_known"),
        ({"order": ["fifo"]}, "order", "not_text"),
        ({"place": "nowhere"}, "place", "not_known"),
        ({"backfill": "some"}, "backfill", "not_known"),
        ({"share_across_teams": 1}, "share_across_teams", "not_yes_no"),
        ({"mps_across_teams": "no"}, "mps_across_teams", "not_yes_no"),
        ({"repartition": "yes"}, "repartition", "not_yes_no"),
        ({"keep_better": 1.01}, "keep_better", "too_large"),
        ({"keep_better": float("nan")}, "keep_better", "not_number"),
        ({"keep_better": True}, "keep_better", "not_number"),
        ({"keep_short": 1.5}, "keep_short", "too_large"),
        ({"keep_apart": 11}, "keep_apart", "too_large"),
        ({"keep_empty": -1}, "keep_empty", "too_small"),
        ({"keep_empty": 10**400}, "keep_empty", "too_large"),
        ({"depth": 0}, "depth", "too_small"),
        ({"depth": 1.0}, "depth", "not_whole"),
        ({"half_life_s": -1}, "half_life_s", "too_small"),
        ({"reserve_after_s": -1}, "reserve_after_s", "too_small"),
        ({"memory_factors": {"l40s-48gb": 999}}, "memory_factors.l40s-48gb", "too_small"),
        ({"memory_factors": {"l40s-48gb": 10**9}}, "memory_factors.l40s-48gb", "too_large"),
        ({"memory_factors": {"": 1000}}, "memory_factors.", "bad_model"),
        ({"memory_factors": []}, "memory_factors", "not_object"),
        ({"preempting": {"most_evictions": -1}}, "preempting.most_evictions", "too_small"),
        ({"preempting": {"factor": 0.5}}, "preempting.factor", "too_small"),
        ({"preempting": {"by_score": 1}}, "preempting.by_score", "not_yes_no"),
        ({"preempting": {"grace_s": -1}}, "preempting.grace_s", "too_small"),
        ({"preempting": {"mercy": 1}}, "preempting.mercy", "unknown"),
        ({"sleep": {"after_s": 1}}, "sleep.after_s", "too_small"),
        ({"sleep": {"zone": "Mars/Base"}}, "sleep.zone", "bad_zone"),
        ({"sleep": {"times": [time([0], "22:00", "06:00", awake=-1)]}}, "sleep.times[0].awake", "too_small"),
        ({"pools": {"zone": "../etc/passwd"}}, "pools.zone", "bad_zone"),
        ({"pools": {"parts": {"gaming": 1}}}, "pools.parts.gaming", "unknown"),
        ({"pools": {"parts": {"training": 0}}}, "pools.parts", "no_parts"),
        ({"pools": {"parts": {"training": -1}}}, "pools.parts.training", "too_small"),
        (pools(time([0], "8:00", "18:00", parts={"training": 1})), "pools.times[0].from", "bad_time"),
        (pools(time([0], "08:00", "24:01", parts={"training": 1})), "pools.times[0].to", "bad_time"),
        (pools(time([0], "24:00", "06:00", parts={"training": 1})), "pools.times[0].from", "bad_time"),
        (pools(time([0], "08:00", "08:00", parts={"training": 1})), "pools.times[0].to", "no_length"),
        (pools(time([7], "08:00", "09:00", parts={"training": 1})), "pools.times[0].days", "bad_day"),
        (pools(time([1, 1], "08:00", "09:00", parts={"training": 1})), "pools.times[0].days", "day_twice"),
        (pools(time([], "08:00", "09:00", parts={"training": 1})), "pools.times[0].days", "no_days"),
        (pools(time([0], "08:00", "09:00", parts={})), "pools.times[0].parts", "no_parts"),
        (pools(time([0], "08:00", "09:00")), "pools.times[0].parts", "missing"),
        (pools(*([{}] * 51)), "pools.times", "too_many"),
        (
            {"pools": {"times": [time([0], "08:00", "09:00", parts={"training": 1})]}},
            "pools.parts",
            "no_usual_parts",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(body: Any, field: str, code: str) -> None:
    assert faults(body)[field] == code


def test_all_faults_are_named_at_once() -> None:
    found = faults({"depth": 0, "order": "alphabet", "pools": {"parts": {"training": -1}}, "sleep": 7})

    assert found == {
        "depth": "too_small",
        "order": "not_known",
        "pools.parts.training": "too_small",
        "sleep": "not_object",
    }


@pytest.mark.parametrize(
    ("first", "second", "day"),
    [
        (([0, 1], "08:00", "18:00"), ([1], "17:59", "20:00"), "Tuesday"),
        (([0], "22:00", "06:00"), ([1], "05:00", "07:00"), "Tuesday"),
        (([6], "22:00", "06:00"), ([0], "00:00", "00:01"), "Monday"),
        (([0], "00:00", "24:00"), ([6], "23:00", "01:00"), "Monday"),
    ],
)
def test_times_that_overlap_are_refused_also_across_midnight(first: Any, second: Any, day: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        policy_from(pools(*(time(*one, parts={"training": 1}) for one in (first, second))))

    assert caught.value.faults == (Fault("pools.times[1].from", "overlaps", (("day", day), ("other", 1))),)


def test_a_time_that_overlaps_itself_round_the_week_is_only_its_own() -> None:
    every_night = time(list(range(7)), "18:00", "08:00", parts={"training": 1})
    every_day = time(list(range(7)), "08:00", "18:00", parts={"interactive": 1})

    assert len(policy_from(pools(every_night, every_day)).pools.times) == 2


def test_every_fault_has_a_sentence_made_of_its_figures() -> None:
    with pytest.raises(BadPolicy) as caught:
        policy_from({"order": "x", "depth": 99, "keep_better": 2})

    for fault in caught.value.faults:
        assert fault.code in WHY
        assert "{" not in fault.why


KEYS = st.sampled_from(
    [*(f.name for f in fields(PolicyRules)), *BOUNDS, *WORKS, "parts", "times", "zone", "days", "from", "to", "awake",
     "after_s", "preemptible", "borrowed", "grace_s", "least_run_s", "most_evictions", "l40s-48gb"]
)  # fmt: skip
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["08:00", "24:00", "00:00", "UTC", "Europe/Berlin", *ORDERS, *POLICIES, *BACKFILLS, 0, 6, 1000])
)  # fmt: skip
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)


@given(ANYTHING)
@settings(max_examples=300, deadline=None)
def test_any_json_is_a_policy_or_says_what_is_wrong(value: Any) -> None:
    try:
        policy = policy_from(value)
    except BadPolicy:
        return

    assert policy_from(body_of(policy)) == policy


PARTS = (
    st.tuples(*(st.integers(0, 100) for _ in WORKS))
    .filter(any)
    .map(lambda parts: tuple(zip(WORKS, parts, strict=True)))
)


@st.composite
def policies(draw: st.DrawFn) -> PolicyRules:
    """Any policy that can be meant: times lie apart, one after another on their own days."""
    days = draw(st.lists(st.integers(0, 6), unique=True, max_size=4))
    spans = [sorted(draw(st.lists(st.integers(0, 1440), min_size=2, max_size=2, unique=True))) for _ in days]
    times = [((day,), begin, end) for day, (begin, end) in zip(days, spans, strict=True)]
    whole = {key: (int(least), int(most)) for key, (least, most) in BOUNDS.items()}
    names = ("half_life_s", "penalty_s", "ageing_s", "depth", "reserve_after_s")
    numbers: dict[str, Any] = {name: draw(st.integers(*whole[name])) for name in names}
    factors = draw(st.dictionaries(st.sampled_from(["a100", "l40s"]), st.integers(1000, 9999)))
    return PolicyRules(
        order=draw(st.sampled_from(sorted(ORDERS))),
        place=draw(st.sampled_from(sorted(POLICIES))),
        share_across_teams=draw(st.booleans()),
        mps_across_teams=draw(st.booleans()),
        memory_factors=tuple(sorted(factors.items())),
        repartition=draw(st.booleans()),
        keep_better=draw(st.floats(0, 1)),
        keep_empty=draw(st.floats(0, 10)),
        keep_short=draw(st.floats(0, 1)),
        promise_p90=draw(st.booleans()),
        keep_apart=draw(st.floats(0, 10)),
        pools=Pools(
            draw(PARTS),
            tuple(PoolTime(*one, draw(PARTS)) for one in times),
            draw(st.sampled_from(["UTC", "Asia/Shanghai"])),
        ),
        backfill=draw(st.sampled_from(get_args(Backfill))),
        preempting=Preempting(
            draw(st.booleans()),
            draw(st.booleans()),
            grace_s=draw(st.integers(*whole["preempting.grace_s"])),
        ),
        sleep=Sleep(
            tuple(SleepTime(*one, draw(st.integers(0, 9))) for one in times),
            draw(st.integers(*whole["sleep.after_s"])),
        ),
        **numbers,
    )


@given(policies())
@settings(max_examples=200, deadline=None)
def test_a_policy_survives_the_way_through_json(policy: PolicyRules) -> None:
    assert policy_from(json.loads(json.dumps(body_of(policy)))) == policy


@given(policies())
@settings(max_examples=40, deadline=None)
def test_every_policy_that_passes_decides_a_turn(policy: PolicyRules) -> None:
    cluster = Cluster(policy=replace(policy, name="tried", version=1))
    cluster.node("a", devices=2)
    cluster.node("b", "l40s-48gb", devices=1)
    cluster.request("one")
    cluster.request("share", "mps 250 8000")
    cluster.request("too many", count=4)

    turn = cluster.decided()

    assert len(turn.grants) + len(turn.waits) == 3
