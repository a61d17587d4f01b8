"""Invitations into a team: made, taken and revoked, each written down. Here because the audit list lies above teams."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.accounts.models import User
from portal.accounts.selectors import may_enter
from portal.accounts.services import digest_of
from portal.audit.organisation import make_user, set_new_password
from portal.audit.services import record
from portal.common.errors import BerthError, Conflict, Invalid, NotFound
from portal.teams import services as teams
from portal.teams.models import Membership, Team, TeamInvitation
from portal.teams.selectors import Rights

MOST_DAYS = 30
# How many may be open in one team: each is a door that somebody has to remember.
MOST_OPEN = 100
GONE = gettext_lazy("This invitation was used, revoked, or has ended. Ask who invited you for a new one.")


@dataclass(frozen=True, slots=True)
class NewTeamInvitation:
    """An invitation and the path of its link, which is shown once and never stored."""

    row: TeamInvitation
    path: str


def open_invitations(team: Team, *, now: datetime) -> QuerySet[TeamInvitation]:
    """Return the invitations of a team that can still be used, the newest first."""
    rows = TeamInvitation.objects.filter(team=team, used_at=None, revoked_at=None, expires_at__gt=now)
    return rows.select_related("invited_by")


@transaction.atomic
def invite(
    *,
    team: Team,
    role: str,
    rights: Rights,
    now: datetime,
    days: int = 7,
    role_ends_at: datetime | None = None,
    email: str = "",
) -> NewTeamInvitation:
    """Make a link with which one person takes a role in the team within ``days``, the role until ``role_ends_at``.

    Raises NotFound, Forbidden, and Invalid naming the field, as giving the role would.
    """
    if not 1 <= days <= MOST_DAYS:
        raise Invalid(fields={"days": _("An invitation lives 1 to %(n)d days.") % {"n": MOST_DAYS}})
    _check_may_give(team, role, rights, now, role_ends_at)
    Team.objects.select_for_update().get(pk=team.pk)
    if open_invitations(team, now=now).count() >= MOST_OPEN:
        sentence = _("This team has %(n)d open invitations. Revoke some that nobody needs.")
        raise Conflict(sentence % {"n": MOST_OPEN})
    secret = secrets.token_urlsafe(32)
    row = TeamInvitation.objects.create(
        team=team, role=role, role_ends_at=role_ends_at, digest=digest_of(secret), email=email,
        invited_by=rights.user, created_at=now, expires_at=now + timedelta(days=days),
    )  # fmt: skip
    until = {"until": role_ends_at.isoformat()} if role_ends_at else {}
    sent = {"email": email} if email else {}
    record(
        rights.user, "invitation.made", str(row.pk), at=now, team_id=team.pk, team=team.slug, role=role, **until, **sent
    )  # fmt: skip
    return NewTeamInvitation(row, f"/invitations/{secret}/")


@transaction.atomic
def revoke_invitation(*, team: Team, key: int, rights: Rights, now: datetime) -> None:
    """Close an invitation that nobody has used. Safe to repeat; raises NotFound, Forbidden, Conflict once used."""
    rights.require(team, *teams.GIVES)
    row = TeamInvitation.objects.select_for_update().filter(pk=key, team=team).first()
    if row is None:
        raise NotFound
    if row.used_at is not None:
        raise Conflict(_("This invitation was used already. Take the role away instead."))
    if row.revoked_at is None:
        TeamInvitation.objects.filter(pk=row.pk).update(revoked_at=now)
        record(rights.user, "invitation.revoked", str(row.pk), at=now, team_id=team.pk, team=team.slug)


def invitation_of(secret: str, *, now: datetime) -> TeamInvitation | None:
    """Return the invitation that a link is for; None where it is used, revoked, over or none at all.

    One whose inviter may not give the role any more counts as over.
    """
    row = (
        TeamInvitation.objects.select_related("team", "invited_by")
        .filter(digest=digest_of(secret[:100]), used_at=None, revoked_at=None, expires_at__gt=now)
        .first()
    )
    if row is None or not may_enter(row.invited_by):
        return None
    try:
        teams.check_may_give(
            team=row.team, role=row.role, rights=Rights(row.invited_by), now=now, ends_at=row.role_ends_at
        )
    except BerthError:
        return None
    return row


@transaction.atomic
def accept_team_invitation(secret: str, *, user: User, now: datetime) -> TeamInvitation:
    """Give who opened the link its role; the link is used up by that.

    Raises NotFound for a link that does not work (any more), and Conflict, leaving it open, for somebody who has
    that role in the team.
    """
    found = invitation_of(secret, now=now)
    if found is None:
        raise NotFound(str(GONE))
    # Locked, then looked at again: of two who use one link at once, the second finds it used.
    TeamInvitation.objects.select_for_update().get(pk=found.pk)
    row = invitation_of(secret, now=now)
    if row is None:
        raise NotFound(str(GONE))
    if Membership.objects.filter(user=user, team=row.team, role=row.role).exists():
        raise Conflict(
            _("You have that role in this team already. The invitation stays open for somebody else.")
        )
    teams.give_role(
        team=row.team, user=user, role=row.role, rights=Rights(row.invited_by), now=now, ends_at=row.role_ends_at
    )  # fmt: skip
    TeamInvitation.objects.filter(pk=row.pk).update(used_by=user, used_at=now)
    record(
        user, "invitation.accepted", str(row.pk), at=now,
        team_id=row.team_id, team=row.team.slug, role=row.role, invited_by=row.invited_by.username,
    )  # fmt: skip
    return row


@transaction.atomic
def join_by_invitation(
    secret: str, *, username: str, display_name: str, password: str, now: datetime
) -> User:
    """Make an account for who opened the link, with its role and a password of their own.

    Raises NotFound for a link that does not work (any more), and Invalid naming the field.
    """
    if invitation_of(secret, now=now) is None:
        raise NotFound(str(GONE))
    user = make_user(username, display_name)
    set_new_password(user, password)
    user.save(update_fields=["password"])
    accept_team_invitation(secret, user=user, now=now)
    return user


def _check_may_give(
    team: Team, role: str, rights: Rights, now: datetime, role_ends_at: datetime | None
) -> None:
    try:
        teams.check_may_give(team=team, role=role, rights=rights, now=now, ends_at=role_ends_at)
    except Invalid as error:
        fields = {"role_ends_at" if k == "ends_at" else k: v for k, v in error.fields.items()}
        raise Invalid(fields=fields) from error
