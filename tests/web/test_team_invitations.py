"""Invitations into a team: who makes them, what the link lets in, and that it does so once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from portal.accounts.models import User
from portal.audit.invitations import (
    accept_team_invitation,
    invitation_of,
    invite,
    join_by_invitation,
    revoke_invitation,
)
from portal.audit.models import AuditEntry
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.teams.models import Membership, Role, TeamInvitation
from portal.teams.services import add_member
from tests.cli.conftest import Berth, berth, home, one_connection  # noqa: F401
from tests.portal.builders import World
from tests.web.conftest import SignedIn

pytestmark = pytest.mark.django_db
PASSWORD = "a long one, not common"


def link(world: World, who: str = "alice", **more: object) -> str:
    """Return the secret of a new invitation into perception."""
    values = {"role": "researcher", "now": timezone.now(), **more}
    made = invite(team=world.team("perception"), rights=world.rights(who), **values)  # type: ignore[arg-type]
    return made.path.split("/")[2]


def roles_of(world: World, name: str) -> set[str]:
    rows = Membership.objects.filter(user__username=name, team=world.team("perception"))
    return set(rows.values_list("role", flat=True))


def test_an_admin_makes_a_link_and_somebody_new_joins_by_it(world: World, signed_in: SignedIn) -> None:
    alice, stranger = signed_in("alice"), Client()
    made = alice.post("/teams/perception/invitations/", {"role": "researcher", "days": "7"})
    path = TeamInvitation.objects.get() and made.context["made"].link.removeprefix("http://testserver")

    page = stranger.get(path)
    joined = stranger.post(
        path,
        {"username": "dora", "display_name": "Dora", "password": PASSWORD, "again": PASSWORD},
        follow=True,
    )

    assert "Join Perception" in page.text
    assert "Sign in as dora" in joined.text
    assert roles_of(world, "dora") == {"researcher"}
    assert stranger.get(path).status_code == 404
    assert stranger.login(username="dora", password=PASSWORD)
    assert [e.action for e in AuditEntry.objects.filter(action__startswith="invitation")] == [
        "invitation.made",
        "invitation.accepted",
    ]


def test_who_has_an_account_joins_with_one_click_and_the_role_ends(world: World, signed_in: SignedIn) -> None:
    ends_at = timezone.now() + timedelta(days=3)
    path = f"/invitations/{link(world, role_ends_at=ends_at)}/"
    charlie = signed_in("charlie")

    assert "signed in as Charlie" in charlie.get(path).text
    assert "Welcome to Perception" in charlie.post(path, follow=True).text
    assert (
        Membership.objects.get(user=world.user("charlie"), team=world.team("perception")).ends_at == ends_at
    )


def test_a_link_works_once_until_it_ends_and_not_when_revoked(world: World) -> None:
    now, alice = timezone.now(), world.rights("alice")
    used, ended, revoked = link(world), link(world, days=1), link(world)
    accept_team_invitation(used, user=world.user("charlie"), now=now)
    row = TeamInvitation.objects.latest("id")
    revoke_invitation(team=world.team("perception"), key=row.pk, rights=alice, now=now)

    for secret in (used, revoked, "none-such", ""):
        with pytest.raises(NotFound):
            accept_team_invitation(secret, user=world.user("finance"), now=now)
    with pytest.raises(NotFound):
        accept_team_invitation(ended, user=world.user("finance"), now=now + timedelta(days=2))
    first = TeamInvitation.objects.earliest("id")
    with pytest.raises(Conflict):
        revoke_invitation(team=world.team("perception"), key=first.pk, rights=alice, now=now)


def test_a_link_ends_with_the_right_of_who_made_it(world: World) -> None:
    secret = link(world)
    Membership.objects.filter(user=world.user("alice")).delete()

    assert invitation_of(secret, now=timezone.now()) is None


def test_nobody_invites_to_a_role_above_their_own(world: World) -> None:
    with pytest.raises(Forbidden):
        link(world, "alice", role="operator")
    with pytest.raises(Forbidden):
        link(world, "bob")
    with pytest.raises(NotFound):
        link(world, "charlie")
    with pytest.raises(Invalid) as refused:
        link(world, role_ends_at=timezone.now() - timedelta(days=1))
    assert list(refused.value.fields) == ["role_ends_at"]


def test_a_role_that_one_has_is_never_cut_short_by_a_link(world: World) -> None:
    secret = link(world, role_ends_at=timezone.now() + timedelta(days=1))

    with pytest.raises(Conflict, match="already"):
        accept_team_invitation(secret, user=world.user("bob"), now=timezone.now())

    assert Membership.objects.get(user=world.user("bob"), role="researcher").ends_at is None
    assert invitation_of(secret, now=timezone.now()) is not None


def test_a_name_that_is_taken_leaves_the_link_open(world: World) -> None:
    secret, names = link(world), {"display_name": "", "password": PASSWORD}

    with pytest.raises(Invalid):
        join_by_invitation(secret, username="bob", now=timezone.now(), **names)
    with pytest.raises(Invalid):
        join_by_invitation(secret, username="dora", now=timezone.now(), **{**names, "password": "short"})

    assert not User.objects.filter(username="dora").exists()
    assert join_by_invitation(secret, username="dora", now=timezone.now(), **names).username == "dora"


def test_the_database_keeps_a_link_from_two_people(world: World) -> None:
    secret = link(world)
    accept_team_invitation(secret, user=world.user("charlie"), now=timezone.now())

    with pytest.raises(IntegrityError), transaction.atomic():
        TeamInvitation.objects.update(used_at=None)
    with pytest.raises(IntegrityError), transaction.atomic():
        TeamInvitation.objects.update(revoked_at=timezone.now())


def test_a_link_goes_to_a_mailbox_where_there_is_mail(
    world: World, signed_in: SignedIn, settings: Any
) -> None:
    alice, form = signed_in("alice"), {"role": "researcher", "days": "7", "email": "dora@example.org"}
    assert "sends no mail" in alice.post("/teams/perception/invitations/", form).text
    settings.HAS_MAIL = True

    made = alice.post("/teams/perception/invitations/", form)

    assert "It was sent to dora@example.org" in made.text
    assert made.context["made"].link in mail.outbox[0].body
    assert mail.outbox[0].to == ["dora@example.org"]


def test_only_admins_see_the_page(world: World, signed_in: SignedIn) -> None:
    assert signed_in("bob").get("/teams/perception/invitations/").status_code == 403
    assert signed_in("charlie").get("/teams/perception/invitations/").status_code == 404
    add_member(team=world.team("perception"), user=world.user("charlie"), role=Role.ADMIN, now=world.now)
    assert signed_in("charlie").get("/teams/perception/invitations/").status_code == 200


def test_the_command_line_invites_and_joins(world: World, berth: Berth) -> None:  # noqa: F811
    made = berth("invitation", "create", "--team", "perception", "--until", "2099-01-01T00:00", who="alice")
    url = made.stdout.strip().splitlines()[0]

    assert "by link" in berth("invitation", "list", "--team", "perception", who="alice").stdout
    joined = berth("invitation", "accept", url, who="charlie")

    assert "researcher in perception" in joined.stdout + joined.stderr
    assert roles_of(world, "charlie") == {"researcher"}
