"""Pools by kind of work: parts that change with the hour, honoured when they compete, idle parts for others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine import plan
from scheduler.engine.model import PolicyRules, Running
from scheduler.engine.order import ORDERS
from scheduler.engine.policy import WORKS, Pools, PoolTime
from scheduler.engine.pools import parts_at
from tests.engine.builder import NOON, Cluster

WEEKDAYS = (0, 1, 2, 3, 4)
BY_DAY = (("interactive", 6), ("training", 3), ("inference", 1))
BY_NIGHT = (("training", 3), ("inference", 1))
NIGHTS = Pools(BY_DAY, (PoolTime(WEEKDAYS, 22 * 60, 7 * 60, BY_NIGHT),), "Europe/Berlin")


def served(cluster: Cluster, pools: Pools, order: str = "priority_fifo", **more: object) -> Counter[str]:
    """How many of each kind of work start."""
    snapshot = replace(cluster.snapshot(), **more)  # type: ignore[arg-type]
    work = {claim.id: claim.work for claim in snapshot.queue}
    return Counter(
        work[grant.claim_id] for grant in plan(snapshot, PolicyRules(order=order, pools=pools)).grants
    )


@pytest.mark.parametrize("order", sorted(ORDERS))
def test_parts_are_honoured_when_all_compete(cluster: Cluster, order: str) -> None:
    cluster.node("a", devices=8)
    cluster.node("b", devices=2)
    for number in range(60):
        work = WORKS[number // 20]
        cluster.request(str(number), work=work, user_id=number)

    assert served(cluster, Pools(BY_DAY), order) == {"interactive": 6, "training": 3, "inference": 1}


def test_what_runs_counts_towards_its_pool(cluster: Cluster) -> None:
    node = cluster.node("a", devices=4)
    node.hold(0)
    node.hold(1)
    until = NOON + timedelta(hours=1)
    running = tuple(Running(n, n, 1, 1, 1, NOON, until, 1000, work="training") for n in (1, 2))
    for number in range(4):
        cluster.request(f"training {number}", work="training")
    cluster.request("late", work="interactive")

    found = served(cluster, Pools((("interactive", 1), ("training", 1))), running=running)

    assert found == {"interactive": 1, "training": 1}


def test_what_is_larger_than_its_pool_goes_after_what_fits_and_before_what_is_over(cluster: Cluster) -> None:
    cluster.node("a", devices=8)
    cluster.request("gang", count=4, work="training")
    cluster.request("over", work="inference")
    cluster.request("within", count=2, work="interactive")
    cluster.policy = PolicyRules(pools=Pools((("interactive", 3), ("training", 1))))

    assert list(cluster.plan().grants) == ["within", "gang", "over"]


def test_idle_parts_are_used_by_others(cluster: Cluster) -> None:
    cluster.node("a", devices=8)
    for number in range(9):
        cluster.request(str(number), work="inference")

    assert served(cluster, Pools(BY_DAY)) == {"inference": 8}


def test_priority_counts_inside_a_pool_not_across(cluster: Cluster) -> None:
    cluster.node("a", devices=2)
    for number in range(4):
        cluster.request(f"urgent {number}", work="training", priority=50)
    cluster.request("calm", work="interactive")

    found = served(cluster, Pools((("interactive", 1), ("training", 1))))

    assert found == {"interactive": 1, "training": 1}


def test_who_waits_over_its_part_is_told_so(cluster: Cluster) -> None:
    cluster.node("a", devices=2)
    for number in range(3):
        cluster.request(f"training {number}", work="training")
    for number in range(3):
        cluster.request(f"interactive {number}", work="interactive")
    cluster.policy = PolicyRules(pools=Pools((("interactive", 1), ("training", 1))))

    turn = cluster.plan()

    assert list(turn.grants) == ["training 0", "interactive 0"]
    assert turn.codes("training 1")[0] == "behind"
    assert turn.reason("training 1", "pool_full").detail == {
        "work": "training",
        "part_milli": 1000,
        "used_milli": 1000,
        "wanted_milli": 1000,
    }


def test_whom_only_the_quota_keeps_out_is_not_told_of_a_pool(cluster: Cluster) -> None:
    cluster.node("a", devices=4)
    cluster.team("vision", ceiling=1000)
    cluster.request("training 0", work="training")
    cluster.request("training 1", work="training")
    cluster.request("interactive", work="interactive", team="speech")
    cluster.policy = PolicyRules(pools=Pools((("interactive", 3), ("training", 1))))

    assert cluster.plan().codes("training 1") == ["quota_ceiling"]


def test_nobody_is_told_of_a_pool_when_nobody_below_its_part_was_there(cluster: Cluster) -> None:
    cluster.node("a")
    for number in range(3):
        cluster.request(str(number), work="inference")
    cluster.policy = PolicyRules(pools=Pools((("interactive", 1),)))

    assert "pool_full" not in cluster.plan().codes("2")


@pytest.mark.parametrize(
    ("at", "parts"),
    [
        (datetime(2026, 3, 2, 12, tzinfo=UTC), BY_DAY),  # Monday, 13:00 in Berlin
        (datetime(2026, 3, 2, 20, 59, tzinfo=UTC), BY_DAY),
        (datetime(2026, 3, 2, 21, 0, tzinfo=UTC), BY_NIGHT),  # 22:00
        (datetime(2026, 3, 3, 5, 59, tzinfo=UTC), BY_NIGHT),  # 06:59 of the next day
        (datetime(2026, 3, 3, 6, 0, tzinfo=UTC), BY_DAY),
        (datetime(2026, 3, 7, 1, 0, tzinfo=UTC), BY_NIGHT),  # Friday's night ends on Saturday
        (datetime(2026, 3, 7, 22, 0, tzinfo=UTC), BY_DAY),  # Saturday has no night of its own
        (datetime(2026, 7, 6, 20, 0, tzinfo=UTC), BY_NIGHT),  # 22:00 in summer
        (datetime(2026, 7, 7, 5, 30, tzinfo=UTC), BY_DAY),
    ],
)
def test_parts_follow_the_clock_of_their_zone(at: datetime, parts: tuple[tuple[str, int], ...]) -> None:
    whole = sum(part for _, part in parts)

    assert parts_at(NIGHTS, at) == {work: dict(parts).get(work, 0) / whole for work in WORKS}


def test_without_pools_nobody_has_a_part() -> None:
    assert parts_at(Pools(), NOON) == {}


@given(
    st.lists(st.sampled_from(WORKS), min_size=1, max_size=40),
    st.integers(1, 12),
    st.tuples(*[st.integers(0, 5)] * 3).filter(any),
)
def test_no_kind_of_work_gets_less_than_its_part_while_it_waits_and_nothing_stays_idle(
    works: list[str], boards: int, sizes: tuple[int, int, int]
) -> None:
    cluster = Cluster()
    for number in range(boards):
        cluster.node(str(number))
    for number, work in enumerate(works):
        cluster.request(str(number), work=work)

    found = served(cluster, Pools(tuple(zip(WORKS, sizes, strict=True))))

    assert found.total() == min(boards, len(works))
    for work, size in zip(WORKS, sizes, strict=True):
        assert found[work] >= min(works.count(work), boards * size // sum(sizes))
