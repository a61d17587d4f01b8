"""Rules about idle leases: read, set and removed; which one holds for a lease."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.catalog.models import Flavor
from portal.common.errors import Forbidden, Invalid, NotFound
from portal.idle.models import DAY_MIN, MOST_SNOOZES, IdleAction, IdleRule
from portal.leases.models import Lease
from portal.teams.models import Team
from portal.teams.selectors import Rights

# What each figure may be: minutes, or how often.
BOUNDS = {
    "after_min": (15, 240),
    "grace_min": (5, DAY_MIN),
    "snoozes": (0, MOST_SNOOZES),
    "snooze_min": (5, DAY_MIN),
}


def idle_rules() -> list[IdleRule]:
    """Return all rules with their team and flavor, those for more leases first."""
    rows = IdleRule.objects.select_related("team", "flavor", "changed_by")
    return sorted(
        rows, key=lambda rule: (len(rule.team.lineage) if rule.team else 0, bool(rule.flavor), rule.pk)
    )


def rule_for(lease: Lease, rules: Sequence[IdleRule]) -> IdleRule | None:
    """Return the rule that holds for a lease: of the nearest team above it, there the one for its flavor first."""
    lineage = lease.team.lineage
    fitting = [
        rule
        for rule in rules
        if rule.flavor_id in (None, lease.flavor_id) and (rule.team_id is None or rule.team_id in lineage)
    ]

    def nearness(rule: IdleRule) -> tuple[int, bool]:
        return (lineage.index(rule.team_id) if rule.team_id is not None else -1, rule.flavor_id is not None)

    return max(fitting, key=nearness, default=None)


@transaction.atomic
def set_rule(
    *,
    team: Team | None,
    flavor: Flavor | None,
    then: str,
    after_min: int = 60,
    grace_min: int = 30,
    snoozes: int = 2,
    snooze_min: int = 60,
    actor: User,
    rights: Rights,
    now: datetime,
) -> IdleRule:
    """Say what happens to idle leases of a team, a flavor, both or (both None) everybody; the last word counts.

    Operators; raises Forbidden, or Invalid naming the field. What a rule takes back it takes back from the next look
    on: leases are told first in any case.
    """
    _require_operator(rights)
    figures = {"after_min": after_min, "grace_min": grace_min, "snoozes": snoozes, "snooze_min": snooze_min}
    fields = {
        name: _("Between %(least)d and %(most)d.") % {"least": BOUNDS[name][0], "most": BOUNDS[name][1]}
        for name, value in figures.items()
        if not BOUNDS[name][0] <= value <= BOUNDS[name][1]
    }
    if then not in IdleAction.values:
        fields["then"] = _("Choose one of: %(known)s.") % {"known": ", ".join(IdleAction.values)}
    if fields:
        raise Invalid(fields=fields)
    rule, _is_new = IdleRule.objects.update_or_create(
        team=team, flavor=flavor, defaults={**figures, "then": then, "changed_at": now, "changed_by": actor}
    )
    record(actor, "idle.rule_set", _target(rule), at=now, team_id=rule.team_id, then=then, **figures)
    return rule


@transaction.atomic
def remove_rule(*, key: int, actor: User, rights: Rights, now: datetime) -> None:
    """Remove a rule: what it would have done does not happen any more. Operators; raises Forbidden or NotFound."""
    _require_operator(rights)
    rule = (
        IdleRule.objects.select_for_update(of=("self",))
        .select_related("team", "flavor")
        .filter(pk=key)
        .first()
    )
    if rule is None:
        raise NotFound
    record(actor, "idle.rule_removed", _target(rule), at=now, team_id=rule.team_id, then=rule.then)
    rule.delete()


def _require_operator(rights: Rights) -> None:
    if not rights.is_operator:
        raise Forbidden(_("Only operators change rules about idle leases."))


def _target(rule: IdleRule) -> str:
    """Return whom a rule is for, as the audit log names it."""
    return f"{rule.team.slug if rule.team else '*'}/{rule.flavor.slug if rule.flavor else '*'}"
