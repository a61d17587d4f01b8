"""Rules, silences and acknowledgements: read, made, changed and removed by operators; each on record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import F
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.alerts.metrics import DEVICE, FLEET, METRICS, NODE, TEAM
from portal.alerts.models import (
    MOST_ESCALATE_MIN,
    MOST_FOR_S,
    MOST_THRESHOLD,
    TELLS_TEAMS,
    Alert,
    AlertAction,
    AlertAudience,
    AlertComparison,
    AlertGrouping,
    AlertRule,
    AlertSeverity,
    AlertSilence,
    AlertState,
)
from portal.alerts.selectors import alerts_in_sight
from portal.audit.services import record
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.fleet.models import DeviceModel, Node
from portal.fleet.pauses import forget_pauses, resume_intake
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights

MOST_RULES: Final = 100
MOST_SILENCE: Final = timedelta(days=30)
MOST_NAME, MOST_REASON = 80, 200
KEPT: Final = timedelta(days=90)
# Of which subjects each action can be done to.
ACTS_ON: Final[Mapping[str, tuple[str, ...]]] = {
    AlertAction.CORDON: (NODE, DEVICE),
    AlertAction.QUARANTINE: (DEVICE,),
    # Not a flavor: a long queue would grow for as long as it is paused, so that its alert never ended. Not a team: its
    # budget says by thresholds of its own what no longer starts.
    AlertAction.PAUSE: (NODE, DEVICE, FLEET),
}
# Whose admins can be told: all else is of no team.
OF_A_TEAM: Final = (TEAM, DEVICE)


@dataclass(frozen=True, slots=True)
class AlertSpec:
    """What a rule says; see AlertRule."""

    metric: str
    threshold: float
    comparison: str = AlertComparison.ABOVE
    for_s: int = 0
    severity: str = AlertSeverity.WARNING
    name: str = ""
    team: Team | None = None
    node: Node | None = None
    device_model: DeviceModel | None = None
    audience: str = AlertAudience.OPERATORS
    grouping: str = AlertGrouping.RULE
    escalate_min: int | None = None
    escalate_to: User | None = None
    action: str = AlertAction.NOTHING
    is_on: bool = True


def alert_rules() -> list[AlertRule]:
    """Return all rules with what they name."""
    rows = AlertRule.objects.filter(removed_at=None)
    return list(rows.select_related("team", "node", "device_model", "escalate_to", "changed_by"))


def alert_rule(key: int) -> AlertRule:
    """Return one rule with what it names, or raise NotFound."""
    rows = AlertRule.objects.filter(removed_at=None, pk=key)
    found = rows.select_related("team", "node", "device_model", "escalate_to", "changed_by").first()
    if found is None:
        raise NotFound
    return found


@transaction.atomic
def make_rule(*, spec: AlertSpec, actor: User, rights: Rights, now: datetime) -> AlertRule:
    """Begin to watch something. Operators; raises Forbidden, Conflict at a hundred rules, Invalid naming fields."""
    require_operator(rights)
    _check(spec, None)
    if AlertRule.objects.filter(removed_at=None).count() >= MOST_RULES:
        raise Conflict(_("There are %(n)d rules already. Remove one first.") % {"n": MOST_RULES})
    rule = AlertRule.objects.create(**_columns(spec), changed_at=now, changed_by=actor)
    record(actor, "alert.rule_made", _target(rule), at=now, team_id=rule.team_id, rule=_told(spec))
    return rule


@transaction.atomic
def change_rule(*, key: int, spec: AlertSpec, actor: User, rights: Rights, now: datetime) -> AlertRule:
    """Let a rule say something else; its open alerts end, and those that it means now begin with the next look.

    Operators; raises Forbidden, NotFound, Invalid naming fields.
    """
    require_operator(rights)
    rule = _locked(key)
    _check(spec, key)
    for name, value in _columns(spec).items():
        setattr(rule, name, value)
    rule.changed_at, rule.changed_by = now, actor
    rule.evaluated_at, rule.matched, rule.folded = None, 0, 0
    rule.save()
    _end_alerts(rule, now)
    record(actor, "alert.rule_changed", _target(rule), at=now, team_id=rule.team_id, rule=_told(spec))
    return rule


@transaction.atomic
def switch_rule(*, key: int, is_on: bool, actor: User, rights: Rights, now: datetime) -> AlertRule:
    """Switch a rule on or off; off, its open alerts end. Operators; safe to repeat."""
    require_operator(rights)
    rule = _locked(key)
    if rule.is_on != is_on:
        rule.is_on, rule.matched, rule.folded = is_on, 0, 0
        rule.save(update_fields=["is_on", "matched", "folded"])
        if not is_on:
            _end_alerts(rule, now)
        record(actor, "alert.rule_switched", _target(rule), at=now, team_id=rule.team_id, is_on=is_on)
    return rule


@transaction.atomic
def remove_rule(*, key: int, actor: User, rights: Rights, now: datetime) -> None:
    """Watch something no more; its open alerts end, its history stays. Operators."""
    require_operator(rights)
    rule = _locked(key)
    rule.removed_at, rule.is_on = now, False
    rule.save(update_fields=["removed_at", "is_on"])
    _end_alerts(rule, now)
    record(actor, "alert.rule_removed", _target(rule), at=now, team_id=rule.team_id)


@transaction.atomic
def acknowledge(*, uid: str, actor: User, rights: Rights, now: datetime) -> Alert:
    """Say that somebody is at it: it is not escalated any more.

    Operators, and admins of the team that it is about where its rule tells them; raises NotFound for who cannot see it,
    Conflict for one that is resolved; safe to repeat.
    """
    require_reader(rights)
    alert = alerts_in_sight(rights).select_for_update(of=("self",), no_key=True).filter(uid=uid).first()
    if alert is None:
        raise NotFound
    if alert.state == AlertState.RESOLVED:
        raise Conflict(_("This alert is resolved already."))
    if alert.acknowledged_at is None:
        alert.acknowledged_at, alert.acknowledged_by = now, actor
        alert.save(update_fields=["acknowledged_at", "acknowledged_by"])
        record(actor, "alert.acknowledged", uid, at=now, team_id=alert.team_id, about=alert.about)
    return alert


@transaction.atomic
def resume(*, uid: str, actor: User, rights: Rights, now: datetime) -> Alert:
    """Let new leases start again where an alert keeps them from it; it does not pause there once more. Operators.

    Safe to repeat; raises NotFound for no such alert, Conflict where its pause is over, or it never paused anything.
    """
    require_operator(rights)
    alert = Alert.objects.filter(uid=uid).first()
    if alert is None:
        raise NotFound
    try:
        resume_intake(cause=uid, actor=actor, now=now)
    except (Conflict, NotFound):
        raise Conflict(_("This alert keeps nothing from starting.")) from None
    return alert


@transaction.atomic
def silence(
    *,
    rule: AlertRule | None,
    node: Node | None,
    team: Team | None,
    ends_at: datetime,
    reason: str,
    actor: User,
    rights: Rights,
    now: datetime,
) -> AlertSilence:
    """Tell nobody of alerts of a rule, a node or a team, of all that are named, until ``ends_at``. Operators.

    Raises Forbidden, and Invalid naming fields: nothing named, no reason, an end in the past or beyond 30 days.
    """
    require_operator(rights)
    fields = {}
    if rule is None and node is None and team is None:
        fields["rule"] = _("Name a rule, a node or a team: everything at once is not silenced.")
    if not reason.strip() or len(reason.strip()) > MOST_REASON or not reason.strip().isprintable():
        fields["reason"] = _("Say why, in one line of at most %(most)d characters.") % {"most": MOST_REASON}
    if not now < ends_at <= now + MOST_SILENCE:
        fields["ends_at"] = _("The end lies in the future, and at most 30 days away.")
    if fields:
        raise Invalid(fields=fields)
    made = AlertSilence.objects.create(
        rule=rule, node=node, team=team, reason=reason.strip(), starts_at=now, ends_at=ends_at, made_by=actor
    )
    record(
        actor, "alert.silenced", made.uid, at=now, team_id=team.pk if team else None, rule=rule.pk if rule else None,
        node=node.name if node else None, until=ends_at.isoformat(), reason=reason.strip(),
    )  # fmt: skip
    return made


@transaction.atomic
def end_silence(*, uid: str, actor: User, rights: Rights, now: datetime) -> AlertSilence:
    """End a silence before its time. Operators; safe to repeat; raises NotFound."""
    require_operator(rights)
    found = AlertSilence.objects.select_for_update(of=("self",)).filter(uid=uid).first()
    if found is None:
        raise NotFound
    if found.ended_at is None and found.ends_at > now:
        found.ended_at = now
        found.save(update_fields=["ended_at"])
        record(actor, "alert.silence_ended", uid, at=now, team_id=found.team_id)
    return found


def forget_alerts(*, now: datetime) -> int:
    """Forget alerts that were resolved long ago; returns how many rows went."""
    forget_pauses(before=now - KEPT)
    gone, _models = Alert.objects.filter(resolved_at__lt=now - KEPT).delete()
    return gone


def require_operator(rights: Rights) -> None:
    """Raise Forbidden for everybody but operators."""
    if not rights.is_operator:
        raise Forbidden(_("Only operators set rules and silences."))


def require_reader(rights: Rights) -> None:
    """Raise Forbidden for who runs neither the fleet nor a team: they see no alerts at all."""
    if not (rights.is_operator or rights.has_anywhere(Role.ADMIN)):
        raise Forbidden(_("Only operators and team admins see alerts."))


def _locked(key: int) -> AlertRule:
    rule = (
        AlertRule.objects.select_for_update(of=("self",), no_key=True).filter(pk=key, removed_at=None).first()
    )
    if rule is None:
        raise NotFound
    return rule


def _end_alerts(rule: AlertRule, now: datetime) -> None:
    """End what is open of a rule; its lock is held. Nobody is told: whoever changed it knows."""
    Alert.objects.filter(rule=rule, state=AlertState.PENDING).delete()
    Alert.objects.filter(rule=rule, state=AlertState.FIRING).update(
        state=AlertState.RESOLVED, resolved_at=now, gone_at=now, end_told_at=F("notified_at")
    )


def _check(spec: AlertSpec, key: int | None) -> None:
    """Raise Invalid naming each field that makes no sense."""
    fields: dict[str, str] = {}
    metric = METRICS.get(spec.metric)
    choices = (
        ("metric", spec.metric, METRICS),
        ("comparison", spec.comparison, AlertComparison.values),
        ("severity", spec.severity, AlertSeverity.values),
        ("grouping", spec.grouping, AlertGrouping.values),
        ("action", spec.action, AlertAction.values),
        ("audience", spec.audience, AlertAudience.values),
    )
    for name, value, known in choices:
        if value not in known:
            fields[name] = _("Choose one of: %(known)s.") % {"known": ", ".join(known)}
    if not math.isfinite(spec.threshold) or abs(spec.threshold) > MOST_THRESHOLD:
        fields["threshold"] = _("Give a number that such a figure can have.")
    if not 0 <= spec.for_s <= MOST_FOR_S:
        fields["for_s"] = _("Between %(least)d and %(most)d.") % {"least": 0, "most": MOST_FOR_S}
    if spec.escalate_min is not None and not 1 <= spec.escalate_min <= MOST_ESCALATE_MIN:
        fields["escalate_min"] = _("Between %(least)d and %(most)d.") % {
            "least": 1,
            "most": MOST_ESCALATE_MIN,
        }
    if spec.escalate_to is not None and not spec.escalate_to.is_active:
        fields["escalate_to"] = _("This person cannot sign in any more.")
    name = spec.name.strip()
    if len(name) > MOST_NAME or not name.isprintable():
        fields["name"] = _("One line of at most %(most)d characters.") % {"most": MOST_NAME}
    elif name and AlertRule.objects.filter(name=name, removed_at=None).exclude(pk=key or 0).exists():
        fields["name"] = _("There is a rule of this name already.")
    if metric is not None and metric.of not in ACTS_ON.get(spec.action, (metric.of,)):
        fields["action"] = _("This cannot be done to what the metric is of.")
    if metric is not None and spec.audience in TELLS_TEAMS and metric.of not in OF_A_TEAM:
        fields["audience"] = _("What is watched is of no team. Choose operators.")
    if fields:
        raise Invalid(fields=fields)


def _columns(spec: AlertSpec) -> dict[str, Any]:
    names = AlertSpec.__dataclass_fields__
    return {name: getattr(spec, name) for name in names} | {"name": spec.name.strip()}


def _told(spec: AlertSpec) -> dict[str, Any]:
    """Return the rule as the audit log keeps it."""
    plain = {name: value for name, value in _columns(spec).items() if not hasattr(value, "pk")}
    named = {"node": spec.node and spec.node.name, "team": spec.team and spec.team.slug}
    return plain | {name: value for name, value in named.items() if value}


def _target(rule: AlertRule) -> str:
    return f"alert rule {rule.pk}"
