"""Refund rules over HTTP."""

from __future__ import annotations

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Instant, Whole
from portal.api.idempotency import once
from portal.api.representations import Row
from portal.api.responses_money import RefundRuleAnswer
from portal.api.wire import instant
from portal.billing.models import RefundCause, RefundRule
from portal.billing.refunds import MOST_BACK_S, MOST_WITHIN_S, set_refund_rule, withdraw_refund_rule

TAG = "money"


class RefundRuleBody(Body):
    """What a cause gives back, from an instant on."""

    cause = serializers.ChoiceField(RefundCause.choices)
    credit_percent = Whole(least=0, most=100, help_text="100: no charge at all.")
    most_s = Whole(
        least=1, most=MOST_BACK_S, required=False, help_text="Only of the last seconds; left out: all."
    )
    within_s = Whole(
        least=1, most=MOST_WITHIN_S, required=False, help_text="For `failed_start`: how soon after its start."
    )
    starts_at = Instant(required=False, help_text="Left out: from now on.")


class RefundRules(Endpoint):
    """Refund rules."""

    @call("List refund rules", answer=RefundRuleAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List what causes give back: past, present and planned rules."""
        return Response({"next": None, "results": [rule_row(rule) for rule in RefundRule.objects.all()]})

    @call(
        "Set a refund rule", body=RefundRuleBody, answer=RefundRuleAnswer, status=201, refusals=(409, 422),
        tag=TAG,
    )  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Say what a cause gives back from an instant on; it ends the rule before it. Finance."""
        self.require_finance()
        values = self.take(RefundRuleBody)
        made = set_refund_rule(
            cause=values["cause"],
            credit_milli=values["credit_percent"] * 10,
            most_s=values.get("most_s"),
            within_s=values.get("within_s"),
            starts_at=values.get("starts_at"),
            actor=self.person,
        )
        made.refresh_from_db()
        return Response(rule_row(made), status=201, headers={"Location": f"/api/v1/refund-rules/{made.pk}/"})


class OneRefundRule(Endpoint):
    """One refund rule."""

    @call("Withdraw a refund rule", status=204, refusals=(404, 409), tag=TAG)
    def delete(self, request: Request, key: int) -> Response:
        """Take back a rule that has not begun; the one before it goes on. Finance."""
        self.require_finance()
        withdraw_refund_rule(rule_id=key, actor=self.person)
        return Response(status=204)


def rule_row(rule: RefundRule) -> Row:
    """Return a refund rule."""
    return {
        "id": rule.pk,
        "cause": str(rule.cause),
        "credit_percent": rule.credit_milli // 10,
        "most_s": rule.most_s,
        "within_s": rule.within_s,
        "valid_from": instant(rule.valid.lower),
        "valid_until": instant(rule.valid.upper),
    }
