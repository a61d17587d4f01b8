"""What elastic leases grow by: idle boards only, in turn, never where somebody waits who could use them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine import plan
from scheduler.engine.model import Claim, Outage, Plan
from tests.engine.builder import NOON, Cluster


def growing(
    cluster: Cluster, name: str = "run", *, units: int = 1, hours: float = 2, **more: object
) -> Claim:
    """A claim that runs already and may get so many units on top."""
    cluster.names[number := 900 + len(cluster.names)] = name
    claim = cluster.claim(number, hours=hours, **more)  # type: ignore[arg-type]
    return replace(claim, most_count=units, is_preemptible=True, least_duration_s=600)


def decided(cluster: Cluster, *claims: Claim, outages: tuple[Outage, ...] = ()) -> Plan:
    return plan(replace(cluster.snapshot(), growing=claims, outages=outages), cluster.policy)


def test_idle_boards_are_shared_out_one_by_one(cluster: Cluster) -> None:
    cluster.node("a", devices=3)

    found = decided(cluster, growing(cluster, units=8), growing(cluster, "other", units=8, team="language"))

    assert [grant.claim_id for grant in found.growth] == [900, 901, 900]
    assert found.grants == ()


def test_nobody_gets_more_than_it_may(cluster: Cluster) -> None:
    cluster.node("a", devices=4)

    assert len(decided(cluster, growing(cluster, units=2)).growth) == 2


def test_who_waits_goes_first_and_keeps_what_it_could_use(cluster: Cluster) -> None:
    cluster.node("a", devices=4)
    cluster.request("small", count=1)
    cluster.request("large", count=4)

    found = decided(cluster, growing(cluster, units=4))

    assert [cluster.names[grant.claim_id] for grant in found.grants] == ["small"]
    assert found.growth == ()


def test_who_waits_for_other_boards_or_for_quota_keeps_nobody_small(cluster: Cluster) -> None:
    cluster.node("a", devices=2)
    cluster.node("b", model="a100-80gb", devices=1).hold(0)
    cluster.team("poor", ceiling=0)
    cluster.request("elsewhere", models=("a100-80gb",))
    cluster.request("poor", team="poor")

    found = decided(cluster, growing(cluster, units=2, models=("h100-80gb",)))

    assert len(found.growth) == 2


def test_growth_keeps_to_the_quota(cluster: Cluster) -> None:
    cluster.node("a", devices=4)
    cluster.team("vision", ceiling=3000, used=1000)

    assert len(decided(cluster, growing(cluster, units=4)).growth) == 2


@pytest.mark.parametrize(("begins_s", "gets"), [(300, 0), (3600, 3600)])
def test_growth_ends_before_maintenance_or_is_left_out(cluster: Cluster, begins_s: int, gets: int) -> None:
    cluster.node("a", devices=1)
    begins = NOON + timedelta(seconds=begins_s)

    found = decided(cluster, growing(cluster), outages=(Outage(1, begins, begins + timedelta(hours=1)),))

    assert [grant.duration_s for grant in found.growth] == ([gets] if gets else [])


@settings(max_examples=60, deadline=None)
@given(
    boards=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    asked=st.lists(st.integers(1, 5), max_size=4),
    grows=st.lists(st.integers(1, 5), max_size=3),
    ceiling=st.one_of(st.none(), st.integers(0, 6)),
)
def test_growth_never_takes_a_board_twice_nor_from_who_is_served(
    boards: list[int], asked: list[int], grows: list[int], ceiling: int | None
) -> None:
    cluster = Cluster()
    for number, count in enumerate(boards):
        cluster.node(f"n{number}", devices=count)
    cluster.team("vision", ceiling=None if ceiling is None else ceiling * 1000)
    for number, count in enumerate(asked):
        cluster.request(f"r{number}", count=count)
    claims = [growing(cluster, f"g{number}", units=units) for number, units in enumerate(grows)]

    alone, found = decided(cluster), decided(cluster, *claims)

    assert found.grants == alone.grants
    assert decided(cluster, *claims) == found
    taken = Counter(slot.device_id for grant in (*found.grants, *found.growth) for slot in grant.slots)
    assert all(times == 1 for times in taken.values())
    assert ceiling is None or sum(taken.values()) <= ceiling
    got = Counter(grant.claim_id for grant in found.growth)
    assert all(got[claim.id] <= claim.most_count for claim in claims)
    if found.waits and ceiling is None:
        assert found.growth == ()
