"""Alerts, their rules and silences over HTTP. Operators; team admins see what is about their teams."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import User
from portal.alerts.metrics import METRICS
from portal.alerts.models import (
    MOST_ESCALATE_MIN,
    MOST_FOR_S,
    Alert,
    AlertAction,
    AlertAudience,
    AlertComparison,
    AlertGrouping,
    AlertRule,
    AlertSeverity,
    AlertSilence,
)
from portal.alerts.rules import (
    MOST_NAME,
    MOST_REASON,
    AlertSpec,
    acknowledge,
    alert_rule,
    alert_rules,
    change_rule,
    end_silence,
    make_rule,
    remove_rule,
    require_reader,
    resume,
    silence,
)
from portal.alerts.selectors import alert_named, open_alerts, past_alerts
from portal.alerts.telling import Silences, live_silences
from portal.alerts.words import condition_text, evidence_text, rule_text
from portal.api.describe import call, query
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Empty, Flag, Instant, Text, Whole
from portal.api.idempotency import once
from portal.api.representations import Row
from portal.api.responses_alerts import AlertAnswer, AlertMetricAnswer, AlertRuleAnswer, SilenceAnswer
from portal.api.wire import instant
from portal.common.clock import db_now
from portal.common.errors import Invalid
from portal.fleet.models import DeviceModel, Node
from portal.fleet.pauses import paused_by
from portal.teams.models import Team
from portal.teams.selectors import Rights, visible_team

TAG = "operations"
MOST = 1000


class Figure(serializers.FloatField):
    """A finite number, written as a JSON number."""

    def to_internal_value(self, data: Any) -> float:
        """Return the number, or fail for anything that is not one."""
        if (
            isinstance(data, bool)
            or not isinstance(data, (int, float))
            or abs(data) > 1e300
            or not math.isfinite(data)
        ):
            self.fail("invalid")
        return float(data)


def _named(most: int, text: str) -> Text:
    return Text(most=most, required=False, allow_null=True, default=None, help_text=text)


class AlertRuleBody(Body):
    """What a rule says; what is left out is as usual."""

    metric = Text(most=40, help_text="One of `GET /alerts/metrics/`.")
    threshold = Figure()
    comparison = serializers.ChoiceField(AlertComparison.choices, default=AlertComparison.ABOVE.value)
    for_s = Whole(
        least=0, most=MOST_FOR_S, required=False, default=0, help_text="Seconds that it has to hold."
    )
    severity = serializers.ChoiceField(AlertSeverity.choices, default=AlertSeverity.WARNING.value)
    name = Text(
        most=MOST_NAME, required=False, default="", allow_blank=True, help_text="Empty: the condition."
    )
    team = _named(50, "Only for this team and those below it.")
    node = _named(60, "Only on this node.")
    device_model = _named(40, "Only for devices of this model.")
    audience = serializers.ChoiceField(
        AlertAudience.choices, default=AlertAudience.OPERATORS.value,
        help_text="Who is told. both, team: of metrics of a team or a device; admins then see these alerts.",
    )  # fmt: skip
    grouping = serializers.ChoiceField(AlertGrouping.choices, default=AlertGrouping.RULE.value)
    escalate_min = Whole(least=1, most=MOST_ESCALATE_MIN, required=False, allow_null=True, default=None)
    escalate_to = _named(150, "A user name; null: all operators.")
    action = serializers.ChoiceField(AlertAction.choices, default=AlertAction.NOTHING.value)
    is_on = Flag(required=False, default=True)


class SilenceBody(Body):
    """Which alerts nobody is told of: those of all that are named."""

    reason = Text(most=MOST_REASON)
    ends_at = Instant(help_text="At most 30 days away.")
    rule = Whole(least=1, most=2**31 - 1, required=False, allow_null=True, default=None)
    node = _named(60, "Of this node.")
    team = _named(50, "Of this team and those below it.")


class Alerts(Endpoint):
    """Alerts."""

    parameters = frozenset({"state", "team"})

    @call(
        "List alerts", answer=AlertAnswer, is_list=True, refusals=(404, 422), tag=TAG,
        parameters=(
            query("state", "open (the usual one), or past: the last thousand that are resolved"),
            query("team", "only those about this team and the teams below it"),
        ),
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """List alerts that are open, firing ones and the worst first, or those that are resolved.

        Operators see all, team admins those about their teams where the rule tells them.
        """
        require_reader(self.rights)
        state = request.query_params.get("state", "open")
        if state not in ("open", "past"):
            raise Invalid(fields={"state": "Choose open or past."})
        slug = request.query_params.get("team")
        team = None if slug is None else visible_team(self.rights, slug)
        rows = open_alerts(self.rights, team) if state == "open" else past_alerts(self.rights, team)
        now = db_now()
        silences, paused = Silences(now=now), paused_by(now=now)
        return Response({"next": None, "results": [alert_json(row, silences, paused) for row in rows[:MOST]]})


class AcknowledgeAlert(Endpoint):
    """Somebody is at it."""

    @call("Acknowledge an alert", body=Empty, answer=AlertAnswer, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Say that somebody is at it: it is not escalated any more. Operators, and the team admins who see it."""
        require_reader(self.rights)
        self.take(Empty)
        acknowledge(uid=uid, actor=self.person, rights=self.rights, now=db_now())
        return Response(_afresh(self.rights, uid))


class ResumeIntake(Endpoint):
    """New leases may start again."""

    @call("Resume intake", body=Empty, answer=AlertAnswer, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Let new leases start again where an alert keeps them from it; it does not pause there again. Operators."""
        self.require_operator()
        self.take(Empty)
        resume(uid=uid, actor=self.person, rights=self.rights, now=db_now())
        return Response(_afresh(self.rights, uid))


class AlertMetrics(Endpoint):
    """What rules can watch."""

    @call("List alert metrics", answer=AlertMetricAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List what a rule can watch. Operators."""
        self.require_operator()
        rows = [
            {
                "metric": key,
                "says": str(one.label),
                "unit": one.unit,
                "of": one.of,
                "usual": float(one.usual),
            }
            for key, one in METRICS.items()
        ]
        return Response({"next": None, "results": rows})


class AlertRules(Endpoint):
    """Rules of alerts."""

    @call("List alert rules", answer=AlertRuleAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List what is watched. Operators."""
        self.require_operator()
        return Response({"next": None, "results": [alert_rule_json(rule) for rule in alert_rules()]})

    @call(
        "Make an alert rule", body=AlertRuleBody, answer=AlertRuleAnswer, status=201, refusals=(409, 422), tag=TAG
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Begin to watch something. Operators."""
        self.require_operator()
        spec = _spec(self.take(AlertRuleBody))
        made = make_rule(spec=spec, actor=self.person, rights=self.rights, now=db_now())
        at = f"/api/v1/alerts/rules/{made.pk}/"
        return Response(alert_rule_json(made), status=201, headers={"Location": at})


class OneAlertRule(Endpoint):
    """One rule of alerts."""

    @call("Read an alert rule", answer=AlertRuleAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, key: int) -> Response:
        """Read a rule. Operators."""
        self.require_operator()
        return Response(alert_rule_json(alert_rule(key)))

    @call("Change an alert rule", body=AlertRuleBody, answer=AlertRuleAnswer, refusals=(404, 422), tag=TAG)
    def put(self, request: Request, key: int) -> Response:
        """Let a rule say something else, or switch it; its open alerts end. Operators."""
        self.require_operator()
        alert_rule(key)
        spec = _spec(self.take(AlertRuleBody))
        changed = change_rule(key=key, spec=spec, actor=self.person, rights=self.rights, now=db_now())
        return Response(alert_rule_json(changed))

    @call("Remove an alert rule", status=204, refusals=(404,), tag=TAG)
    def delete(self, request: Request, key: int) -> Response:
        """Watch something no more; its history stays. Operators."""
        self.require_operator()
        remove_rule(key=key, actor=self.person, rights=self.rights, now=db_now())
        return Response(status=204)


class AlertSilences(Endpoint):
    """Silences."""

    @call("List silences", answer=SilenceAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List silences that are in force. Operators."""
        self.require_operator()
        return Response({"next": None, "results": [silence_json(row) for row in live_silences(now=db_now())]})

    @call(
        "Silence alerts", body=SilenceBody, answer=SilenceAnswer, status=201, refusals=(404, 422), tag=TAG
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Tell nobody of some alerts for a time; they are shown, and nothing is done about them. Operators."""
        self.require_operator()
        values = self.take(SilenceBody)
        rule = alert_rule(values["rule"]) if values["rule"] is not None else None
        made = silence(
            rule=rule, node=_one(Node, "node", "name", values["node"]), team=_one(Team, "team", "slug", values["team"]),
            ends_at=values["ends_at"], reason=values["reason"], actor=self.person, rights=self.rights, now=db_now(),
        )  # fmt: skip
        return Response(silence_json(made), status=201)


class EndSilence(Endpoint):
    """One silence."""

    @call("End a silence", body=Empty, answer=SilenceAnswer, refusals=(404, 422), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """End a silence before its time. Operators."""
        self.require_operator()
        self.take(Empty)
        ended = end_silence(uid=uid, actor=self.person, rights=self.rights, now=db_now())
        return Response(silence_json(ended))


def _one(model: Any, field: str, by: str, value: str | None) -> Any:
    """Return what a body names, None for null; raises Invalid for what is not there."""
    if value is None:
        return None
    found = model.objects.filter(**{by: value}).first()
    if found is None:
        raise Invalid(fields={field: "There is none of this name."})
    return found


def _spec(values: dict[str, Any]) -> AlertSpec:
    named = {
        "team": _one(Team, "team", "slug", values["team"]),
        "node": _one(Node, "node", "name", values["node"]),
        "device_model": _one(DeviceModel, "device_model", "slug", values["device_model"]),
        "escalate_to": _one(User, "escalate_to", "username", values["escalate_to"]),
    }
    return AlertSpec(**{**values, **named})


def alert_rule_json(rule: AlertRule) -> Row:
    """Return a rule; what it names must be at hand."""
    return {
        "id": rule.pk,
        "name": rule.name,
        "condition": condition_text(rule.metric, rule.comparison, rule.threshold, rule.for_s),
        "metric": rule.metric,
        "comparison": str(rule.comparison),
        "threshold": rule.threshold,
        "for_s": rule.for_s,
        "severity": str(rule.severity),
        "team": rule.team.slug if rule.team else None,
        "node": rule.node.name if rule.node else None,
        "device_model": rule.device_model.slug if rule.device_model else None,
        "audience": str(rule.audience),
        "grouping": str(rule.grouping),
        "escalate_min": rule.escalate_min,
        "escalate_to": rule.escalate_to.username if rule.escalate_to else None,
        "action": str(rule.action),
        "is_on": rule.is_on,
        "evaluated_at": instant(rule.evaluated_at),
        "matched": rule.matched,
        "folded": rule.folded,
    }


def _afresh(rights: Rights, uid: str) -> Row:
    now = db_now()
    return alert_json(alert_named(rights, uid), Silences(now=now), paused_by(now=now))


def alert_json(alert: Alert, silences: Silences, paused: Mapping[str, datetime]) -> Row:
    """Return an alert; what it names must be at hand. ``paused`` is until when, by alert (``paused_by``)."""
    silenced = silences.of(alert) if alert.resolved_at is None else None
    return {
        "id": alert.uid,
        "rule": alert.rule_id,
        "rule_name": rule_text(alert.rule),
        "severity": str(alert.rule.severity),
        "state": str(alert.state),
        "about": alert.about,
        "node": alert.node.name if alert.node else None,
        "device": alert.device.uuid if alert.device else None,
        "team": alert.team.slug if alert.team else None,
        "value": alert.value,
        "evidence": evidence_text(alert),
        "pending_at": instant(alert.pending_at),
        "firing_at": instant(alert.firing_at),
        "resolved_at": instant(alert.resolved_at),
        "silence": silenced.uid if silenced else None,
        "acknowledged_by": alert.acknowledged_by.username if alert.acknowledged_by else None,
        "acknowledged_at": instant(alert.acknowledged_at),
        "escalated_at": instant(alert.escalated_at),
        "acted_at": instant(alert.acted_at),
        "paused_until": instant(paused.get(alert.uid)),
        "held_back_at": instant(alert.held_back_at),
    }


def silence_json(row: AlertSilence) -> Row:
    """Return a silence; what it names must be at hand."""
    return {
        "id": row.uid,
        "rule": row.rule_id,
        "node": row.node.name if row.node else None,
        "team": row.team.slug if row.team else None,
        "reason": row.reason,
        "starts_at": instant(row.starts_at),
        "ends_at": instant(row.ends_at),
        "ended_at": instant(row.ended_at),
        "made_by": row.made_by.username,
    }
