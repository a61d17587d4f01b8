"""Who may do what, where only the check itself stands between a person and what is not theirs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.accounts.models import ApiToken
from portal.api.models import IdempotencyKey
from portal.common.errors import Conflict, Forbidden, NotFound
from portal.leases.access import way_in
from portal.leases.approvals import approve_request, reject_request
from portal.leases.lifecycle import release_lease
from portal.leases.models import LeaseRequest, Placement
from portal.leases.requests import withdraw_request
from portal.quotas.grants import give_priority, revoke_priority
from portal.teams.models import Membership, Role, Team
from portal.teams.services import add_member, end_role
from portal.telemetry import viewers
from tests.portal.builders import World
from tests.telemetry.test_rights import sign_in

pytestmark = pytest.mark.django_db


def call(secret: str, method: str, path: str, body: Any = None, **headers: str) -> Any:
    client = Client(headers={"Authorization": f"Bearer {secret}", **headers})
    return client.generic(method, f"/api/v1/{path}", body or b"", content_type="application/json")


# --- asking and deciding


def test_only_members_ask_for_a_team_and_others_do_not_learn_of_it(world: World) -> None:
    with pytest.raises(NotFound):
        world.submit("charlie", team="perception")
    with pytest.raises(Forbidden):
        world.submit("finance", team="perception")

    assert not LeaseRequest.objects.exists()


def test_only_a_team_admin_asks_with_high_priority(world: World) -> None:
    with pytest.raises(Forbidden):
        world.submit("bob", priority="high")

    assert world.submit("alice", team="perception", priority="high").priority == 10


def awaiting(world: World, name: str = "bob") -> LeaseRequest:
    Team.objects.filter(slug="perception").update(approval_above_gpu_seconds=1)
    world.teams["perception"].refresh_from_db()
    return world.submit(name, team="perception")


def decide(world: World, request: LeaseRequest, name: str, how: Any = approve_request) -> LeaseRequest:
    found: LeaseRequest = how(
        request=request, actor=world.user(name), rights=world.rights(name), note="so", now=world.now
    )
    return found


def test_a_large_request_is_decided_by_approvers_and_admins_alone(world: World) -> None:
    request = awaiting(world)

    assert request.state == "awaiting_approval"
    with pytest.raises(NotFound):
        decide(world, request, "charlie")
    add_member(team=world.team("perception"), user=world.user("charlie"), role=Role.RESEARCHER, now=world.now)
    for how in (approve_request, reject_request):
        with pytest.raises(Forbidden):
            decide(world, request, "charlie", how)
    request.refresh_from_db()
    assert request.state == "awaiting_approval"


def test_nobody_decides_on_a_request_of_their_own(world: World) -> None:
    request = awaiting(world, "alice")

    for how in (approve_request, reject_request):
        with pytest.raises(Forbidden, match="of their own"):
            decide(world, request, "alice", how)
    request.refresh_from_db()
    assert request.state == "awaiting_approval"


def test_a_decision_is_taken_once(world: World) -> None:
    request = decide(world, awaiting(world), "approver")

    for how in (approve_request, reject_request):
        with pytest.raises(Conflict, match="any more"):
            decide(world, request, "alice", how)


def test_a_request_is_taken_back_by_its_author_an_admin_or_an_operator(world: World) -> None:
    request = world.submit("bob")
    add_member(team=world.team("perception"), user=world.user("charlie"), role=Role.RESEARCHER, now=world.now)

    def withdraw(name: str) -> str:
        rights = world.rights(name)
        return withdraw_request(request=request, actor=world.user(name), rights=rights, now=world.now).state

    with pytest.raises(Forbidden):
        withdraw("charlie")
    Membership.objects.filter(user=world.user("charlie"), team=world.team("perception")).delete()
    with pytest.raises(NotFound):
        withdraw("charlie")
    assert withdraw("operator") == "withdrawn"


# --- roles and priority


def test_a_role_is_ended_in_its_own_team_and_never_one_above_ones_own(world: World) -> None:
    above = add_member(team=world.team("vision"), user=world.user("bob"), role=Role.FINANCE, now=world.now)
    elsewhere = Membership.objects.get(user=world.user("charlie"))

    def end(row: Membership) -> None:
        end_role(team=world.team("vision"), membership_id=row.pk, rights=world.rights("alice"))

    with pytest.raises(NotFound):
        end(elsewhere)
    with pytest.raises(Forbidden):
        end(above)
    assert Membership.objects.filter(pk__in=[above.pk, elsewhere.pk]).count() == 2


def test_a_priority_is_revoked_through_its_own_team(world: World) -> None:
    operator, rights = world.user("operator"), world.rights("operator")
    grant = give_priority(
        team=world.team("language"), actor=operator, rights=rights, steps=1, starts_at=world.now,
        ends_at=world.now + timedelta(days=1), reason="paper", now=world.now,
    )  # fmt: skip

    with pytest.raises(NotFound):
        revoke_priority(
            team=world.team("perception"), grant_id=grant.pk, actor=operator, rights=rights, now=world.now
        )
    grant.refresh_from_db()
    assert grant.revoked_at is None


def test_an_operator_of_a_team_below_does_not_run_the_fleet(world: World) -> None:
    add_member(team=world.team("vision"), user=world.user("bob"), role=Role.OPERATOR, now=world.now)

    assert not world.rights("bob").is_operator


# --- tokens and sessions


@pytest.mark.parametrize("how", ["revoked", "expired", "left"])
def test_a_token_is_dead_once_revoked_expired_or_its_owner_has_left(how: str, world: World) -> None:
    secret = world.token("bob")
    assert call(secret, "GET", "me/").status_code == 200

    if how == "revoked":
        ApiToken.objects.update(revoked_at=timezone.now())
    elif how == "expired":
        ApiToken.objects.update(expires_at=timezone.now())
    else:
        world.user("bob").is_active = False
        world.user("bob").save()

    assert call(secret, "GET", "me/").status_code == 401


def test_a_token_can_do_no_more_than_its_owner_at_this_moment(world: World) -> None:
    secret, lease = world.token("bob"), world.active("bob")
    assert call(secret, "GET", f"leases/{lease.uid}/").status_code == 200

    Membership.objects.filter(user=world.user("bob")).delete()

    assert call(secret, "GET", f"leases/{lease.uid}/").status_code == 404
    assert call(secret, "POST", f"leases/{lease.uid}/release/", b"{}").status_code == 404


def test_a_secret_is_stored_neither_with_its_token_nor_with_a_repeated_answer(world: World) -> None:
    body = b'{"name": "notebook", "scopes": ["read"], "days": 3}'
    made = call(world.token("bob"), "POST", "tokens/", body, **{"Idempotency-Key": "once"}).json()["secret"]

    token, answer = ApiToken.objects.latest("id"), IdempotencyKey.objects.get()
    assert made.startswith("bth_")
    assert made not in str(vars(answer)) + str(vars(token))
    assert made.encode() not in bytes(token.digest)


def test_a_session_opens_a_socket_while_it_lives_and_its_password_is_the_same(world: World) -> None:
    headers, bob, now = sign_in(world, "bob"), world.user("bob"), timezone.now()
    assert viewers.admit(headers, now=now) is not None

    assert viewers.admit(headers, now=now + timedelta(days=365)) is None
    bob.set_password("another secret of bob")
    bob.save()
    assert viewers.admit(headers, now=now) is None


# --- the way in


def test_a_lease_that_was_released_shows_no_way_in(world: World) -> None:
    lease, secret = world.active("bob"), world.token("bob")
    assert len(call(secret, "GET", f"leases/{lease.uid}/access/").json()["slots"]) == 1

    release_lease(lease=lease, actor=world.user("bob"), now=world.now)

    assert call(secret, "GET", f"leases/{lease.uid}/access/").json()["slots"] == []


@pytest.mark.parametrize("told", ["a; touch x", "$(id)", "a b", "-rf", "", None, 7, ["unit"], "x" * 200])
def test_what_a_shell_would_read_never_gets_into_a_command(told: Any) -> None:
    way = way_in([Placement(access={"entrance": {"unit": told, "cdi": told, "env_file": told}})])

    assert (way.unit, way.cdi, way.env_file, way.commands("lse-1")) == ("", "", "", [])
