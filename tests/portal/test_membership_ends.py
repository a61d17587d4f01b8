"""Roles that end at a date: no right from that instant on, whoever is asked; told before; somebody stays."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from portal.api.authentication import bearer
from portal.audit.memberships import end_role, give_role
from portal.audit.models import AuditEntry
from portal.common.errors import Conflict, Invalid
from portal.notifications.memberships import clear_ended_roles, tell_of_ends
from portal.notifications.models import Notification
from portal.teams.models import Membership, Role
from portal.teams.selectors import operators
from tests.portal.builders import World

DAY = timedelta(days=1)


def give(world: World, name: str, team: str, role: str, ends_at: datetime | None) -> bool:
    return give_role(
        team=world.team(team), user=world.user(name), role=role, rights=world.rights("operator"),
        now=timezone.now(), ends_at=ends_at,
    )  # fmt: skip


def let_time_pass(name: str, team: str, role: str, *, by: timedelta) -> None:
    """Move a role into the past, as if so much time had passed."""
    held = Membership.everything.get(user__username=name, team__slug=team, role=role)
    assert held.ends_at is not None
    Membership.everything.filter(pk=held.pk).update(
        created_at=held.created_at - by - DAY, ends_at=held.ends_at - by
    )


def test_a_role_gives_no_right_from_its_end_on_before_anything_cleared_it_away(world: World) -> None:
    end, team, token = timezone.now() + DAY, world.team("vision"), world.token("charlie")
    assert give(world, "charlie", "vision", Role.ADMIN, end)
    assert not give(world, "charlie", "vision", Role.ADMIN, end), "just so already"
    assert world.rights("charlie").has(team, Role.ADMIN)

    let_time_pass("charlie", "vision", Role.ADMIN, by=DAY + timedelta(seconds=1))

    assert not world.rights("charlie").has(team, Role.ADMIN)
    held = bearer(token, now=timezone.now()).held  # type: ignore[union-attr]
    assert (team.pk, "admin") not in held
    assert not team.memberships.filter(user=world.user("charlie")).exists()
    assert give(world, "charlie", "vision", Role.ADMIN, None), "and can be given anew"
    assert world.rights("charlie").has(team, Role.ADMIN)


def test_page_and_api_give_a_role_with_an_end_and_show_it(world: World) -> None:
    end = (timezone.now() + 9 * DAY).replace(microsecond=0, second=0)
    browser, given = Client(), {"username": "charlie", "role": "approver"}
    browser.force_login(world.user("operator"))

    past = browser.post("/teams/vision/members/", {**given, "until": "2020-01-01T00:00"})
    done = browser.post("/teams/vision/members/", {**given, "until": f"{end:%Y-%m-%dT%H:%M}"})
    token = {"HTTP_AUTHORIZATION": f"Bearer {world.token('operator')}"}
    listed = browser.get("/api/v1/teams/vision/members/", **token).json()["results"]  # type: ignore[arg-type]

    assert (past.status_code, done.status_code) == (422, 302)
    assert "Choose a time in the future" in past.text
    assert {row["username"]: row["ends_at"] for row in listed if row["role"] == "approver"} == {
        "charlie": end.isoformat().replace("+00:00", "Z")
    }
    assert end.isoformat() in browser.get("/teams/vision/").text


def test_its_holder_is_told_before_and_when_it_has_ended_and_it_is_written_down(world: World) -> None:
    now = timezone.now()
    give(world, "charlie", "vision", Role.APPROVER, now + 2 * DAY)
    give(world, "bob", "vision", Role.APPROVER, now + 9 * DAY)

    assert [tell_of_ends(now=now), tell_of_ends(now=now)] == [1, 0]
    assert clear_ended_roles(now=now) == 0
    assert clear_ended_roles(now=now + 2 * DAY) == 1
    assert clear_ended_roles(now=now + 2 * DAY) == 0

    told = Notification.objects.filter(user=world.user("charlie"), kind__startswith="role.")
    assert sorted(told.values_list("kind", flat=True)) == ["role.ended", "role.ends_soon"]
    assert not Notification.objects.filter(user=world.user("bob"), kind__startswith="role.").exists()
    entry = AuditEntry.objects.get(action="member.ended")
    assert (entry.actor, entry.target, entry.detail["role"]) == (None, "charlie", "approver")
    assert not Membership.everything.filter(user=world.user("charlie"), role=Role.APPROVER).exists()


def test_the_last_operator_and_the_last_admin_stay(world: World) -> None:
    [operator] = operators()
    root = world.team("vision").lineage[0]
    held = Membership.objects.get(user=operator, role=Role.OPERATOR, team_id=root)
    later, slug = timezone.now() + DAY, held.team.slug
    world.teams[slug] = held.team

    with pytest.raises(Conflict, match="last operator"):
        give(world, operator.username, slug, Role.OPERATOR, later)
    give(world, "charlie", slug, Role.OPERATOR, later)
    with pytest.raises(Conflict, match="last operator"):  # charlie's role ends
        end_role(team=held.team, membership_id=held.pk, rights=world.rights("operator"), now=timezone.now())
    give(world, "charlie", slug, Role.OPERATOR, None)
    assert give(world, operator.username, slug, Role.OPERATOR, later)
    with pytest.raises(Conflict, match="last operator"):
        give(world, "charlie", slug, Role.OPERATOR, later)


def test_an_end_that_has_passed_is_refused_here_and_by_the_database(world: World) -> None:
    with pytest.raises(Invalid):
        give(world, "charlie", "vision", Role.ADMIN, timezone.now())
    held = Membership.objects.filter(user=world.user("bob"))[0]
    with pytest.raises(IntegrityError), transaction.atomic():
        Membership.everything.filter(pk=held.pk).update(ends_at=held.created_at)
