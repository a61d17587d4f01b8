from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from portal.audit.models import AuditEntry
from portal.common.errors import BerthError, Conflict, Forbidden, Invalid, NotFound
from portal.quotas.cohorts import (
    cohort_named,
    cohorts,
    cohorts_for,
    create_cohort,
    delete_cohort,
    promises,
    rename_cohort,
    too_small_for_those_below,
)
from portal.quotas.grants import give_priority, grants_of, revoke_priority, state_of
from portal.quotas.models import Cohort, PriorityGrant, Quota
from portal.quotas.services import set_quota
from scheduler import snapshot
from tests.portal.builders import World


def cohort(world: World, name: str = "shared") -> Cohort:
    return create_cohort(
        actor=world.user("operator"), rights=world.rights("operator"), name=name, now=world.now
    )


def quota(world: World, who: str, slug: str, **more: Any) -> Quota:
    """Set a team's quota as somebody; what is not said stays."""
    team = world.team(slug)
    row = Quota.objects.get(team=team)
    given: dict[str, Any] = {
        "guaranteed_milli": row.guaranteed_milli, "ceiling_milli": row.ceiling_milli, "version": row.version, **more,
    }  # fmt: skip
    return set_quota(team=team, actor=world.user(who), rights=world.rights(who), now=world.now, **given)


def give(world: World, who: str = "alice", slug: str = "perception", **more: Any) -> PriorityGrant:
    given: dict[str, Any] = {
        "steps": 5,
        "starts_at": world.now,
        "ends_at": world.now + timedelta(days=2),
        "reason": "paper deadline",
        **more,
    }
    return give_priority(
        team=world.team(slug), actor=world.user(who), rights=world.rights(who), now=world.now, **given
    )


def test_a_cohort_says_who_borrows_and_who_could_lend(world: World) -> None:
    made = cohort(world)
    quota(world, "operator", "vision", guaranteed_milli=1000, cohort_id=made.pk)
    quota(world, "operator", "language", guaranteed_milli=6000, lending_milli=2500, cohort_id=made.pk)
    Quota.objects.filter(team__slug="vision").update(used_milli=3000)
    Quota.objects.filter(team__slug="language").update(used_milli=500)

    [found] = cohorts()

    assert [(s.team.slug, s.borrowed_milli, s.lendable_milli) for s in found.shares] == [
        ("language", 0, 2500),
        ("vision", 2000, 0),
    ]
    assert (found.borrowed_milli, found.lendable_milli) == (2000, 2500)


@pytest.mark.parametrize("name", ["", "  ", "x" * 81, "a\nb"])
def test_a_cohort_needs_a_name(world: World, name: str) -> None:
    with pytest.raises(Invalid) as refused:
        cohort(world, name)

    assert list(refused.value.fields) == ["name"]
    assert not Cohort.objects.exists()


def test_two_cohorts_never_have_one_name(world: World) -> None:
    first = cohort(world)
    other = cohort(world, "another")

    with pytest.raises(Invalid):
        cohort(world)
    with pytest.raises(Invalid):
        rename_cohort(
            actor=world.user("operator"), rights=world.rights("operator"), cohort_id=other.pk, name=first.name,
            now=world.now,
        )  # fmt: skip
    assert set(Cohort.objects.values_list("name", flat=True)) == {"shared", "another"}


def test_a_cohort_goes_only_when_no_team_is_in_it(world: World) -> None:
    made = cohort(world)
    quota(world, "operator", "vision", cohort_id=made.pk)
    given: dict[str, Any] = {
        "actor": world.user("operator"), "rights": world.rights("operator"), "cohort_id": made.pk, "now": world.now,
    }  # fmt: skip

    with pytest.raises(Conflict):
        delete_cohort(**given)
    quota(world, "operator", "vision", cohort_id=None)
    delete_cohort(**given)
    with pytest.raises(NotFound):
        cohort_named(made.pk)
    assert AuditEntry.objects.filter(action="cohort.deleted").exists()


@pytest.mark.parametrize("who", ["alice", "bob", "charlie", "finance"])
def test_only_operators_make_and_change_cohorts(world: World, who: str) -> None:
    made = cohort(world)
    given: dict[str, Any] = {"actor": world.user(who), "rights": world.rights(who), "now": world.now}

    with pytest.raises(Forbidden):
        create_cohort(name="mine", **given)
    with pytest.raises(Forbidden):
        rename_cohort(cohort_id=made.pk, name="mine", **given)
    with pytest.raises(Forbidden):
        delete_cohort(cohort_id=made.pk, **given)


def test_an_admin_joins_teams_only_with_teams_they_decide_on(world: World) -> None:
    ours, theirs, empty = cohort(world, "ours"), cohort(world, "theirs"), cohort(world, "empty")
    quota(world, "operator", "segmentation", cohort_id=ours.pk)
    quota(world, "operator", "language", cohort_id=theirs.pk)

    offered = cohorts_for(world.rights("alice"), world.team("perception"))
    assert offered == [ours]
    for other in (theirs, empty):
        with pytest.raises(Invalid):
            quota(world, "alice", "perception", cohort_id=other.pk)
    assert quota(world, "alice", "perception", cohort_id=ours.pk).cohort == ours


def test_nobody_lends_more_than_they_are_guaranteed(world: World) -> None:
    with pytest.raises(Invalid) as refused:
        quota(world, "operator", "vision", guaranteed_milli=1000, lending_milli=1001)
    assert list(refused.value.fields) == ["lending"]

    quota(world, "operator", "vision", guaranteed_milli=1000, lending_milli=800)
    assert quota(world, "operator", "vision", guaranteed_milli=500).lending_milli == 500


def test_a_quota_set_without_a_word_on_lending_keeps_it(world: World) -> None:
    made = cohort(world)
    quota(world, "operator", "vision", lending_milli=700, cohort_id=made.pk)

    row = quota(world, "operator", "vision")

    assert (row.lending_milli, row.cohort_id) == (700, made.pk)


def test_guarantees_are_summed_over_the_tree_against_the_fleet(world: World) -> None:
    Quota.objects.update(guaranteed_milli=0)
    before = promises()
    Quota.objects.filter(team__slug="vision").update(guaranteed_milli=5000)
    Quota.objects.filter(team__slug="perception").update(guaranteed_milli=4000)
    Quota.objects.filter(team__slug="segmentation").update(guaranteed_milli=3000)

    found = promises()

    assert before.guaranteed_milli == 0
    assert not before.is_too_much
    assert found.guaranteed_milli == 7000, "the children of vision need more than vision itself"
    assert found.capacity_milli == 12_000
    assert too_small_for_those_below(world.team("vision")) == 7000
    assert too_small_for_those_below(world.team("perception")) is None


def test_a_priority_grant_lifts_the_requests_of_the_team_and_below_while_it_lasts(world: World) -> None:
    world.submit("bob", "h100", count=8)
    give(world, "operator", "vision", starts_at=world.now + timedelta(hours=1))

    def priority(hours: float) -> int:
        [claim] = snapshot.take(now=world.now + timedelta(hours=hours)).queue
        return claim.priority

    assert [priority(0), priority(2), priority(49)] == [0, 5, 0]


def test_a_grant_is_to_come_then_in_force_then_over(world: World) -> None:
    grant = give(world, starts_at=world.now + timedelta(hours=1))

    states = [state_of(grant, now=world.now + timedelta(hours=h)) for h in (0, 1, 47, 48)]

    assert states == ["to_come", "in_force", "in_force", "over"]


def test_a_revoked_grant_counts_no_longer_and_is_written_down(world: World) -> None:
    grant = give(world)
    revoke_priority(
        team=world.team("perception"), grant_id=grant.pk, actor=world.user("alice"), rights=world.rights("alice"),
        now=world.now,
    )  # fmt: skip
    world.submit("bob")

    [claim] = snapshot.take(now=world.now).queue

    assert claim.priority == 0
    actions = AuditEntry.objects.filter(action__startswith="priority.").order_by("id")
    assert list(actions.values_list("action", flat=True)) == ["priority.granted", "priority.revoked"]
    with pytest.raises(Conflict):
        revoke_priority(
            team=world.team("perception"), grant_id=grant.pk, actor=world.user("alice"),
            rights=world.rights("alice"), now=world.now,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 101}, "steps"),
        ({"reason": " "}, "reason"),
        ({"reason": "x" * 201}, "reason"),
        ({"days": 0}, "ends_at"),
        ({"days": -1}, "ends_at"),
        ({"days": 400}, "ends_at"),
    ],
)
def test_a_grant_that_makes_no_sense_names_the_field(world: World, more: dict[str, Any], field: str) -> None:
    days = more.pop("days", None)
    if days is not None:
        more["ends_at"] = world.now + timedelta(days=days)

    with pytest.raises(Invalid) as refused:
        give(world, **more)

    assert list(refused.value.fields) == [field]
    assert not PriorityGrant.objects.exists()


@pytest.mark.parametrize(
    ("who", "slug"),
    [("alice", "vision"), ("bob", "perception"), ("charlie", "perception"), ("alice", "language")],
)
def test_nobody_lets_their_own_team_or_a_strange_one_go_first(world: World, who: str, slug: str) -> None:
    grant = give(world, "operator", slug)

    with pytest.raises(Forbidden):
        give(world, who, slug)
    with pytest.raises(BerthError):
        revoke_priority(
            team=world.team(slug),
            grant_id=grant.pk,
            actor=world.user(who),
            rights=world.rights(who),
            now=world.now,
        )
    assert PriorityGrant.objects.filter(revoked_at=None).count() == 1


def test_a_grant_of_another_team_cannot_be_reached_through_ones_own(world: World) -> None:
    grant = give(world, "operator", "language")

    with pytest.raises(NotFound):
        revoke_priority(
            team=world.team("perception"), grant_id=grant.pk, actor=world.user("alice"),
            rights=world.rights("alice"), now=world.now,
        )  # fmt: skip


def test_grants_of_teams_above_reach_a_team_too(world: World) -> None:
    give(world, "operator", "vision")
    give(world, "operator", "language")

    assert [grant.team.slug for grant in grants_of(world.team("perception"))] == ["vision"]
