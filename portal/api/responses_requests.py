"""The shapes of requests, quotes and offers (see ``responses``)."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.api.responses import Money, ResponseShape
from portal.api.responses_advice import SizeAdviceAnswer
from portal.budgets.models import BudgetAction
from portal.leases.models import PromiseOutcome
from portal.leases.requests import LOAD_PATTERNS, PRIORITIES
from portal.leases.states import Opening, RequestState, WorkloadKind


class ReasonAnswer(ResponseShape):
    """Why a request waits: a stable code, its figures and a sentence.

    Of leases the figures tell how many; `known` names those that the caller may see.
    """

    code = s.CharField()
    figures = s.DictField()
    sentence = s.CharField()


class OfferAnswer(ResponseShape):
    """Another request that would start earlier."""

    kind = s.ChoiceField(("smaller", "other", "fewer", "shorter", "later", "preemptible"))
    flavor = s.SlugField()
    count = s.IntegerField()
    duration_s = s.IntegerField()
    starts_at = s.DateTimeField(help_text="The likely start: half of such requests start before.")
    starts_by = s.DateTimeField(allow_null=True, help_text="Nine of ten start before; null is unknown.")
    is_now = s.BooleanField()
    is_preemptible = s.BooleanField(help_text="Costs less and may be preempted.")
    booked_at = s.DateTimeField(allow_null=True, help_text="Ask with this `starts_at` for a certain start.")
    price = Money()


class BudgetRule(ResponseShape):
    """What a budget would say to a request that is sent now."""

    action = s.ChoiceField(BudgetAction.choices)
    is_refused = s.BooleanField()
    sentence = s.CharField()


class WalletHoldAnswer(ResponseShape):
    """The wallet that would pay, what is there now, and what of it would be held."""

    team = s.SlugField()
    balance = Money()
    hold = Money()


class QuoteDiscount(ResponseShape):
    """A discount of some of the time that was quoted."""

    name = s.CharField()
    percent = s.FloatField(help_text="What is paid less of the price.")


class QuoteElectricity(ResponseShape):
    """What the electricity of a request would probably cost, beside its price."""

    amount = Money()
    kwh = s.FloatField(help_text="With the energy of the building, where its PUE is known.")
    is_most = s.BooleanField(
        help_text="Nobody knows what such leases draw: it is what devices may draw at most."
    )


class QuoteAnswer(ResponseShape):
    """What a request would cost and when it would start. Null is unknown."""

    team = s.SlugField()
    flavor = s.SlugField()
    count = s.IntegerField()
    duration_s = s.IntegerField()
    price = Money()
    price_per_hour = Money()
    usual_price = Money(help_text="What it would be without discounts.")
    discounts = QuoteDiscount(many=True)
    minimum = Money(allow_null=True, help_text="The minimum charge, where the time alone would cost less.")
    electricity = QuoteElectricity(allow_null=True, help_text="Null: electricity has no price then.")
    is_now = s.BooleanField(allow_null=True)
    starts_at = s.DateTimeField(allow_null=True, help_text="The likely start: half start before.")
    starts_by = s.DateTimeField(allow_null=True, help_text="Nine of ten such requests start before.")
    position = s.IntegerField(allow_null=True)
    is_impossible = s.BooleanField()
    reasons = ReasonAnswer(many=True)
    offers = OfferAnswer(many=True)
    budget = BudgetRule(allow_null=True, help_text="Null: neither a budget nor a balance stands in the way.")
    wallet = WalletHoldAnswer(allow_null=True, help_text="Null: it is invoiced.")
    advice = SizeAdviceAnswer(
        allow_null=True, help_text="From your own earlier leases; null: there are none, or you dismissed it."
    )


class RequestAnswer(ResponseShape):
    """A request for GPU time."""

    id = s.CharField()
    state = s.ChoiceField(RequestState.choices)
    team = s.SlugField()
    author = s.CharField()
    flavor = s.SlugField()
    count = s.IntegerField()
    duration_s = s.IntegerField()
    remaining_s = s.IntegerField()
    priority = s.ChoiceField(tuple(PRIORITIES))
    name = s.CharField(allow_blank=True)
    purpose = s.CharField(allow_blank=True)
    load_pattern = s.ChoiceField(LOAD_PATTERNS)
    work = s.ChoiceField(WorkloadKind.choices)
    is_preemptible = s.BooleanField()
    price_milli = s.IntegerField(help_text="What it pays of the price, in thousandths.")
    least_duration_s = s.IntegerField(help_text="How short it may be cut; 0 is not at all.")
    starts_at = s.DateTimeField(allow_null=True, help_text="The start asked for; null: as soon as possible.")
    nodes = s.IntegerField(
        help_text="Nodes with `count` units each; 0: `count` in all on as few as possible."
    )
    most_count = s.IntegerField(help_text="What it may grow to while devices idle; 0 is not at all.")
    opens = s.ChoiceField(Opening.choices, help_text="What its page offers first once it is active.")
    is_job = s.BooleanField(help_text="A batch job runs in its lease.")
    quote = Money()
    reasons = ReasonAnswer(many=True)
    submitted_at = s.DateTimeField()
    queued_at = s.DateTimeField(allow_null=True)
    decided_by = s.CharField(allow_null=True)
    decided_for = s.CharField(allow_null=True, help_text="In whose place a deputy decided.")
    decided_at = s.DateTimeField(allow_null=True)
    decision_note = s.CharField(allow_blank=True)


class RequestListed(RequestAnswer):
    """A request in a list, with its place in the queue."""

    position = s.IntegerField(allow_null=True)


class ApprovalAnswer(ResponseShape):
    """One person's approval: what was asked for until then, and what they let through."""

    by = s.CharField()
    on_behalf_of = s.CharField(allow_null=True, help_text="In whose place a deputy approved.")
    at = s.DateTimeField()
    note = s.CharField(allow_blank=True)
    asked_count = s.IntegerField()
    asked_duration_s = s.IntegerField()
    count = s.IntegerField()
    duration_s = s.IntegerField()


class PromiseAnswer(ResponseShape):
    """The start that Berth promised to a wait."""

    by = s.DateTimeField()
    outcome = s.ChoiceField(PromiseOutcome.choices)
    started_at = s.DateTimeField(allow_null=True)
    why = s.CharField(allow_null=True, help_text="The wait reason that excuses it.")


class RequestDetail(RequestListed):
    """A request with what is known of its start, and its leases, newest first."""

    estimated_start = s.DateTimeField(allow_null=True, help_text="The likely start: half start before.")
    estimated_start_by = s.DateTimeField(allow_null=True, help_text="Nine of ten such requests start before.")
    promise = PromiseAnswer(allow_null=True, help_text="The start promised to this wait; null: none.")
    leases = s.ListField(child=s.CharField())
    terms = s.CharField(help_text="A mark of what it asks for, to approve just that.")
    approvals_needed = s.IntegerField(help_text="How many people still have to approve.")
    approvals = ApprovalAnswer(many=True)
