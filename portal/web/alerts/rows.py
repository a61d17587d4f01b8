"""Alerts, silences and rules in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from portal.alerts.metrics import FLAVOR, METRICS, TEAM
from portal.alerts.models import (
    Alert,
    AlertAction,
    AlertAudience,
    AlertRule,
    AlertSeverity,
    AlertSilence,
    AlertState,
)
from portal.alerts.selectors import open_alerts
from portal.alerts.telling import Silences
from portal.alerts.words import condition_text, evidence_text, rule_text
from portal.teams.models import Team
from portal.teams.selectors import Rights

# So many are named on the page of a team and on the home of its admins.
MOST_OF_TEAM = 5
TONES = {AlertSeverity.CRITICAL: "bad", AlertSeverity.WARNING: "warn", AlertSeverity.INFO: "info"}


@dataclass(frozen=True, slots=True)
class AlertRow:
    """An alert in words; ``url`` is where one does something about it, ``rule`` "" where its evidence says it all."""

    uid: str
    rule: str
    about: str
    url: str
    evidence: str
    severity: str
    tone: str
    is_firing: bool
    since: datetime
    until: datetime | None
    notes: list[str]
    may_acknowledge: bool
    paused_until: datetime | None
    rule_id: int
    node: str
    team: str


@dataclass(frozen=True, slots=True)
class AlertRuleRow:
    """A rule in words."""

    key: int
    title: str
    condition: str
    scope: str
    audience: str
    severity: str
    tone: str
    does: str
    is_on: bool
    matched: int
    folded: int


@dataclass(frozen=True, slots=True)
class SilenceRow:
    """A silence in words."""

    uid: str
    what: str
    reason: str
    made_by: str
    ends_at: datetime


def silence_row(row: AlertSilence) -> SilenceRow:
    """Return a silence in words; its relations must be at hand."""
    named = [rule_text(row.rule) if row.rule else "", str(row.node or ""), row.team.name if row.team else ""]
    what = pgettext("list", ", ").join(name for name in named if name)
    return SilenceRow(row.uid, what, row.reason, str(row.made_by), row.ends_at)


def alerts_of_team(rights: Rights, team: Team, *, now: datetime) -> list[AlertRow]:
    """Return the worst alerts that fire about a team and those below it, as far as this person sees them."""
    firing = list(open_alerts(rights, team).filter(state=AlertState.FIRING)[:MOST_OF_TEAM])
    if not firing:
        return []
    silences = Silences(now=now)
    return [alert_row(alert, silences) for alert in firing]


def alert_row(
    alert: Alert, silences: Silences | None = None, paused: Mapping[str, datetime] | None = None
) -> AlertRow:
    """Return an alert in words; its relations must be at hand. ``paused``: until when, by alert."""
    rule = alert.rule
    silenced = silences.of(alert) if silences else None
    notes = []
    if silenced:
        notes.append(_("silenced: %(reason)s") % {"reason": silenced.reason})
    if alert.acknowledged_by:
        notes.append(_("acknowledged by %(who)s") % {"who": alert.acknowledged_by})
    if alert.escalated_at:
        notes.append(_("escalated"))
    paused_until = (paused or {}).get(alert.uid)
    if alert.acted_at and rule.action == AlertAction.PAUSE:
        if paused_until is None:
            notes.append(_("new leases may start there again"))
    elif alert.acted_at:
        notes.append(str(AlertAction(rule.action).label))
    if alert.held_back_at:
        notes.append(_("not acted upon: the rule has done so three times this hour"))
    is_firing = alert.state == AlertState.FIRING
    return AlertRow(
        uid=alert.uid,
        rule=rule.name,
        about=alert.about,
        url=alert_url(alert),
        evidence=evidence_text(alert),
        severity=str(AlertSeverity(rule.severity).label),
        tone=TONES[AlertSeverity(rule.severity)] if is_firing else "quiet",
        is_firing=is_firing,
        since=alert.firing_at or alert.pending_at,
        until=alert.resolved_at,
        notes=notes,
        paused_until=paused_until,
        may_acknowledge=is_firing and alert.acknowledged_at is None,
        rule_id=rule.pk,
        node=alert.node.name if alert.node else "",
        team=alert.team.name if alert.team and alert.team.name != alert.about else "",
    )


def alert_url(alert: Alert) -> str:
    """Return the page where one does something about an alert."""
    if alert.node is not None:
        return reverse("web:node", args=[alert.node.name])
    metric = METRICS.get(alert.rule.metric)
    if metric is not None and metric.of == TEAM and alert.team is not None:
        if alert.rule.metric == "team_queue_wait":
            return f"{reverse('web:requests')}?state=queued&team={alert.team.slug}"
        if alert.rule.metric == "team_idle":
            return reverse("web:team", args=[alert.team.slug])
        return reverse("web:team_budget", args=[alert.team.slug])
    if metric is not None and metric.of == FLAVOR:
        return reverse("web:requests") + "?state=queued"
    return reverse("web:cycles" if alert.rule.metric == "outbox" else "web:nodes")


def alert_rule_row(rule: AlertRule) -> AlertRuleRow:
    """Return a rule in words; its relations must be at hand."""
    scope = [
        str(one)
        for one in (rule.node, rule.device_model, rule.team.name if rule.team else None)
        if one is not None
    ]
    does = [] if rule.action == AlertAction.NOTHING else [str(AlertAction(rule.action).label)]
    if rule.escalate_min:
        to = rule.escalate_to or _("all operators")
        does.append(_("after %(n)d min to %(who)s") % {"n": rule.escalate_min, "who": to})
    return AlertRuleRow(
        key=rule.pk,
        title=rule_text(rule),
        condition=condition_text(rule.metric, rule.comparison, rule.threshold, rule.for_s)
        if rule.name
        else "",
        scope=pgettext("list", ", ").join(scope),
        audience=""
        if rule.audience == AlertAudience.OPERATORS
        else _("told to: %(whom)s") % {"whom": AlertAudience(rule.audience).label},
        severity=str(AlertSeverity(rule.severity).label),
        tone=TONES[AlertSeverity(rule.severity)],
        does=pgettext("list", ", ").join(does),
        is_on=rule.is_on,
        matched=rule.matched,
        folded=rule.folded,
    )
