"""Teams of a cohort use what the others do not need of their guarantees, and never more than those lend."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.model import TeamQuota
from scheduler.engine.quota import Budget, TeamAccount
from tests.engine.builder import Cluster


def quota(team_id: int, guaranteed: int, used: int = 0, **more: object) -> TeamQuota:
    """A team of cohort 1 without a ceiling."""
    figures = {"parent_id": None, "ceiling_milli": None, "cohort_id": 1, **more}
    return TeamQuota(team_id=team_id, used_milli=used, guaranteed_milli=guaranteed, **figures)  # type: ignore[arg-type]


def share(cluster: Cluster, name: str, guaranteed: int, used: int = 0, **more: object) -> None:
    """Put a team into cohort 1."""
    cluster.team(name, used=used)
    cluster.quotas[name] = replace(cluster.quotas[name], guaranteed_milli=guaranteed, cohort_id=1, **more)  # type: ignore[arg-type]


def test_what_one_team_does_not_use_another_may_borrow_but_no_more(cluster: Cluster) -> None:
    share(cluster, "vision", 1000)
    share(cluster, "language", 2000)
    cluster.node("a", devices=8)
    for name in ("own", "lent", "lent too", "too much"):
        cluster.request(name, team="vision")

    turn = cluster.plan()

    assert list(turn.grants) == ["own", "lent", "lent too"]
    detail = turn.reason("too much", "cohort_exhausted").detail
    assert (detail["name"], detail["borrowed_milli"], detail["lendable_milli"]) == ("vision", 2000, 2000)
    assert detail["short_milli"] == 1000


def test_a_team_lends_no_more_than_its_limit(cluster: Cluster) -> None:
    share(cluster, "vision", 0)
    share(cluster, "language", 4000, lending_milli=1000)
    cluster.node("a", devices=8)
    cluster.request("lent", team="vision")
    cluster.request("kept", team="vision")

    turn = cluster.plan()

    assert list(turn.grants) == ["lent"]
    assert turn.code("kept") == "cohort_exhausted"


def test_a_guarantee_that_was_lent_out_waits_for_its_return_and_says_so(cluster: Cluster) -> None:
    share(cluster, "vision", 0, used=1000)
    share(cluster, "language", 1000)
    cluster.node("a", devices=8)
    cluster.request("mine", team="language")

    detail = cluster.plan().reason("mine", "cohort_exhausted").detail

    assert (detail["used_milli"], detail["guaranteed_milli"], detail["short_milli"]) == (0, 1000, 1000)


def test_what_a_whole_cohort_can_never_lend_is_impossible(cluster: Cluster) -> None:
    share(cluster, "vision", 1000)
    share(cluster, "language", 2000, lending_milli=1000)
    cluster.node("a", devices=8)
    cluster.request("too large", count=3, team="vision")

    assert cluster.plan().reason("too large", "above_quota").detail["ceiling_milli"] == 2000


def test_a_subteam_counts_for_the_nearest_team_in_a_cohort(cluster: Cluster) -> None:
    share(cluster, "vision", 1000)
    share(cluster, "language", 1000)
    cluster.team("perception", parent="vision")
    cluster.node("a", devices=8)
    for name in ("one", "two", "three"):
        cluster.request(name, team="perception")

    turn = cluster.plan()

    assert list(turn.grants) == ["one", "two"]
    assert turn.reason("three", "cohort_exhausted").detail["name"] == "vision"


def test_a_ceiling_still_holds_inside_a_cohort(cluster: Cluster) -> None:
    share(cluster, "vision", 1000, ceiling_milli=1000)
    share(cluster, "language", 2000)
    cluster.node("a", devices=8)
    cluster.request("one", team="vision")
    cluster.request("two", team="vision")

    assert cluster.plan().code("two") == "quota_ceiling"


def test_a_cohort_that_is_over_after_a_change_of_guarantees_gets_no_further_over() -> None:
    budget = Budget([quota(1, 0, used=3000), quota(2, 2000, lending_milli=0), quota(3, 1000)])

    assert budget.allows(2, 2000)  # it lends nothing, so taking its own harms nobody
    assert not budget.allows(3, 1)
    assert not budget.allows(1, 1)
    assert budget.allows(1, 0)


MILLI = st.integers(0, 6).map(lambda n: n * 500)


@st.composite
def teams(draw: st.DrawFn) -> list[TeamQuota]:
    """Up to six teams, some below others, in up to two cohorts or in none, nothing used yet."""
    found: list[TeamQuota] = []
    for team_id in range(1, draw(st.integers(2, 6)) + 1):
        guaranteed = draw(MILLI)
        found.append(
            TeamQuota(
                team_id,
                draw(st.sampled_from([None, *(t.team_id for t in found)])),
                draw(st.one_of(st.none(), MILLI.map(lambda extra, g=guaranteed: g + extra))),  # type: ignore[misc]
                0,
                guaranteed_milli=guaranteed,
                lending_milli=draw(st.one_of(st.none(), MILLI.map(lambda n, g=guaranteed: min(n, g)))),  # type: ignore[misc]
                cohort_id=draw(st.sampled_from([None, 1, 2])),
            )
        )
    return found


def sums(rows: list[TeamQuota], used: dict[int, int], cohort_id: int) -> tuple[int, int]:
    """What a cohort borrows and lends, from first principles."""
    borrowed = lent = 0
    for q in (q for q in rows if q.cohort_id == cohort_id):
        borrowed += max(0, used[q.team_id] - q.guaranteed_milli)
        unused = max(0, q.guaranteed_milli - used[q.team_id])
        lent += unused if q.lending_milli is None else min(q.lending_milli, unused)
    return borrowed, lent


def lineage(rows: list[TeamQuota], team_id: int) -> list[int]:
    """The team and everything above it."""
    parents = {q.team_id: q.parent_id for q in rows}
    found = [team_id]
    while (above := parents[found[-1]]) is not None:
        found.append(above)
    return found


@settings(max_examples=150, deadline=None)
@given(teams(), st.lists(st.tuples(st.integers(0, 5), MILLI, st.booleans()), max_size=40))
def test_sums_hold_at_every_step_of_random_grants_and_ends(
    rows: list[TeamQuota], steps: list[tuple[int, int, bool]]
) -> None:
    budget = Budget(rows)
    used = {q.team_id: 0 for q in rows}
    live: list[tuple[int, int]] = []
    for pick, cost, ends in steps:
        team_id = rows[pick % len(rows)].team_id
        if ends and live:
            team_id, cost = live.pop(pick % len(live))
            budget.take(team_id, -cost)
            cost = -cost
        elif budget.allows(team_id, cost):
            room = budget.headroom(team_id)
            assert room is None or cost <= room or cost == 0
            budget.take(team_id, cost)
            live.append((team_id, cost))
        else:
            room = budget.headroom(team_id)
            assert room is not None
            assert cost > room
            continue
        for above in lineage(rows, team_id):
            used[above] += cost
        for cohort_id in (1, 2):
            borrowed, lent = sums(rows, used, cohort_id)
            assert borrowed <= lent
        assert all(q.ceiling_milli is None or used[q.team_id] <= q.ceiling_milli for q in rows)


@pytest.mark.parametrize(("used", "borrowed", "lent"), [(0, 0, 300), (800, 0, 200), (1500, 500, 0)])
def test_an_account_borrows_above_and_lends_below_its_guarantee(used: int, borrowed: int, lent: int) -> None:
    account = TeamAccount(1, "vision", None, used, guaranteed=1000, lending=300, cohort_id=1)

    assert (account.borrows(), account.lends()) == (borrowed, lent)
