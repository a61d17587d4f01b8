"""Priority grants: a team's requests go before others for a time. They expire by their dates alone."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common import outbox
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.quotas.models import PriorityGrant
from portal.quotas.selectors import may_set_quota
from portal.teams.models import Team
from portal.teams.selectors import Rights

LEAST_STEPS, MOST_STEPS = 1, 100
MOST_REASON = 200
LONGEST = timedelta(days=366)
TO_COME, IN_FORCE, OVER, REVOKED = "to_come", "in_force", "over", "revoked"


def state_of(grant: PriorityGrant, *, now: datetime) -> str:
    """Return whether a grant is to come, in force, over or revoked."""
    if grant.revoked_at is not None:
        return REVOKED
    if now < grant.starts_at:
        return TO_COME
    return IN_FORCE if now < grant.ends_at else OVER


def grants_of(team: Team) -> QuerySet[PriorityGrant]:
    """Return the grants that reach a team: its own and those of teams above, the latest start first."""
    return PriorityGrant.objects.filter(team_id__in=team.lineage).select_related("team", "made_by")


@transaction.atomic
def give_priority(
    *,
    team: Team,
    actor: User,
    rights: Rights,
    steps: int,
    starts_at: datetime,
    ends_at: datetime,
    reason: str,
    now: datetime,
) -> PriorityGrant:
    """Let a team and those below it go first for a time: an admin of a team above, or an operator.

    Raises Forbidden, or Invalid naming the field.
    """
    _require(rights, team)
    reason = reason.strip()
    fields = {}
    if not LEAST_STEPS <= steps <= MOST_STEPS:
        fields["steps"] = _("From %(least)d to %(most)d.") % {"least": LEAST_STEPS, "most": MOST_STEPS}
    if ends_at <= starts_at:
        fields["ends_at"] = _("It must end after it starts.")
    elif ends_at <= now:
        fields["ends_at"] = _("It must end in the future.")
    elif ends_at - starts_at > LONGEST:
        fields["ends_at"] = _("At most a year.")
    if not 1 <= len(reason) <= MOST_REASON or "\x00" in reason:
        fields["reason"] = _("Say why in at most %(most)d characters: others wait longer for it.") % {
            "most": MOST_REASON
        }
    if fields:
        raise Invalid(fields=fields)
    grant = PriorityGrant.objects.create(
        team=team, steps=steps, starts_at=starts_at, ends_at=ends_at, reason=reason, made_by=actor, created_at=now
    )  # fmt: skip
    record(
        actor, "priority.granted", team.slug, at=now, team_id=team.pk, steps=steps, reason=reason,
        starts_at=starts_at.isoformat(), ends_at=ends_at.isoformat(),
    )  # fmt: skip
    _decide_anew(grant, now)
    return grant


@transaction.atomic
def revoke_priority(
    *, team: Team, grant_id: int, actor: User, rights: Rights, now: datetime
) -> PriorityGrant:
    """End a team's grant now. Raises Forbidden, NotFound, and Conflict when it has ended already."""
    _require(rights, team)
    grant = PriorityGrant.objects.select_for_update().filter(pk=grant_id, team=team).first()
    if grant is None:
        raise NotFound
    if state_of(grant, now=now) in (OVER, REVOKED):
        raise Conflict(_("This priority boost has ended already."))
    grant.revoked_at = now
    grant.save(update_fields=["revoked_at"])
    record(actor, "priority.revoked", team.slug, at=now, team_id=team.pk, steps=grant.steps, grant=grant.pk)
    _decide_anew(grant, now)
    return grant


def _require(rights: Rights, team: Team) -> None:
    if not may_set_quota(rights, team):
        raise Forbidden(_("An admin of a team above decides on priority boosts."))


def _decide_anew(grant: PriorityGrant, now: datetime) -> None:
    outbox.add(outbox.RUN_CYCLE, key=f"priority-{grant.pk}", at=now)
    outbox.nudge_on_commit(outbox.RUN_CYCLE)
