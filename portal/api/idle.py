"""Leases that idle, over HTTP: who does, what happens then, and how to put it off."""

from __future__ import annotations

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Text, Whole
from portal.api.idempotency import once
from portal.api.representations import Row
from portal.api.responses_idle import IdleAnswer, IdleRuleAnswer, LeaseIdleAnswer
from portal.api.wire import instant
from portal.catalog.models import Flavor
from portal.common.clock import db_now
from portal.common.errors import Invalid
from portal.idle.models import IdleAction, IdleRule, IdleStanding, IdleState
from portal.idle.rules import BOUNDS, idle_rules, remove_rule, set_rule
from portal.idle.selectors import idle_now, standing_of
from portal.idle.snoozing import MOST_REASON, snooze, snoozes_left
from portal.idle.words import evidence_text
from portal.leases.models import Lease
from portal.leases.selectors import visible_lease
from portal.teams.selectors import visible_team

TAG = "leases"


def _figure(name: str, text: str, usual: int) -> Whole:
    least, most = BOUNDS[name]
    return Whole(
        least=least, most=most, required=False, help_text=f"{text}; left out: {usual}.", default=usual
    )


class IdleRuleBody(Body):
    """What happens to leases that idle; for the same team and flavor the last word counts."""

    then = serializers.ChoiceField(IdleAction.choices)
    team = Text(
        most=50, required=False, allow_null=True, default=None, help_text="With those below it; null: all."
    )
    flavor = Text(most=50, required=False, allow_null=True, default=None, help_text="Null: every flavor.")
    after_min = _figure("after_min", "Minutes without work before anything happens", 60)
    grace_min = _figure("grace_min", "Minutes between the notice and the end", 30)
    snoozes = _figure("snoozes", "How often a holder may put it off", 2)
    snooze_min = _figure("snooze_min", "For how many minutes each", 60)


class SnoozeBody(Body):
    """Why an idle lease is kept."""

    reason = Text(most=MOST_REASON)


class IdleLeases(Endpoint):
    """Leases that idle."""

    @call("List idle leases", answer=IdleAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List running leases in sight that hold a device and compute nothing, the longest idle first."""
        rows = idle_now(self.rights)
        return Response({"next": None, "results": [idle_row(row.lease, row) for row in rows]})


class IdleRules(Endpoint):
    """Rules about idle leases."""

    @call("List idle rules", answer=IdleRuleAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List what happens to leases that idle, for all of them first. Operators."""
        self.require_operator()
        return Response({"next": None, "results": [rule_row(rule) for rule in idle_rules()]})

    @call(
        "Set an idle rule", body=IdleRuleBody, answer=IdleRuleAnswer, status=201, refusals=(404, 422), tag=TAG
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Say what happens to idle leases of a team, a flavor, both or everybody. Operators."""
        self.require_operator()
        values = self.take(IdleRuleBody)
        team = visible_team(self.rights, values["team"]) if values["team"] else None
        flavor = None
        if values["flavor"]:
            flavor = Flavor.objects.filter(slug=values["flavor"]).first()
            if flavor is None:
                raise Invalid(fields={"flavor": "There is no such flavor; GET /api/v1/flavors/ lists them."})
        given = {**values, "team": team, "flavor": flavor}
        made = set_rule(**given, actor=self.person, rights=self.rights, now=db_now())
        return Response(rule_row(made), status=201, headers={"Location": f"/api/v1/idle/rules/{made.pk}/"})


class OneIdleRule(Endpoint):
    """One rule about idle leases."""

    @call("Remove an idle rule", status=204, refusals=(404,), tag=TAG)
    def delete(self, request: Request, key: int) -> Response:
        """Remove a rule: what it would have done does not happen. Operators."""
        self.require_operator()
        remove_rule(key=key, actor=self.person, rights=self.rights, now=db_now())
        return Response(status=204)


class LeaseIdle(Endpoint):
    """Whether one lease idles."""

    @call("Read whether a lease idles", answer=LeaseIdleAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read what a lease was last judged to do, by what, and when it is taken back as things stand."""
        lease = visible_lease(self.rights, uid)
        return Response(lease_idle_row(lease))


class SnoozeIdle(Endpoint):
    """Put off what an idle lease has coming."""

    @call(
        "Put off what an idle lease has coming", body=SnoozeBody, answer=LeaseIdleAnswer,
        refusals=(404, 409, 422), tag=TAG,
    )  # fmt: skip
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Keep an idle lease for the time its rule gives, with a reason; as often as the rule allows."""
        lease = visible_lease(self.rights, uid)
        reason = self.take(SnoozeBody)["reason"]
        snooze(lease=lease, actor=self.person, rights=self.rights, reason=reason, now=db_now())
        return Response(lease_idle_row(lease))


def rule_row(rule: IdleRule) -> Row:
    """Return a rule; its team and flavor must be at hand."""
    return {
        "id": rule.pk,
        "team": rule.team.slug if rule.team else None,
        "flavor": rule.flavor.slug if rule.flavor else None,
        "after_min": rule.after_min,
        "then": rule.then,
        "grace_min": rule.grace_min,
        "snoozes": rule.snoozes,
        "snooze_min": rule.snooze_min,
    }


def idle_row(lease: Lease, row: IdleStanding | None) -> Row:
    """Return what a lease was judged to do; None where it never was."""
    return {
        "lease": lease.uid,
        "team": lease.team.slug,
        "user": lease.user.username,
        "state": str(row.state if row else IdleState.UNKNOWN),
        "why": row.why if row else "unjudged",
        "evidence": evidence_text(row) if row else "",
        "since": instant(row.since) if row else None,
        "judged_at": instant(row.judged_at) if row else None,
        "window_min": row.minutes if row else None,
        "known_min": row.known if row else None,
        "worked_min": row.worked if row else None,
        "util_percent": row.util if row else None,
        "sm_percent": row.sm if row else None,
        "power_w": row.power_w if row else None,
        "memory_mib": row.memory_mib if row else None,
        "processes": row.processes if row else None,
        "then": row.then if row else "",
        "reclaim_at": instant(row.reclaim_at) if row else None,
        "snoozed_until": instant(row.snoozed_until) if row else None,
    }


def lease_idle_row(lease: Lease) -> Row:
    """Return the same of one lease, with how often it may still be put off."""
    left, minutes = snoozes_left(lease)
    return {**idle_row(lease, standing_of(lease)), "snoozes_left": left, "snooze_min": minutes}
