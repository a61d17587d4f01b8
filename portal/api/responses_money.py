"""The shapes of answers about prices, usage and invoices."""

from __future__ import annotations

from rest_framework import serializers as s

from portal.api.responses import Money, ResponseShape
from portal.api.responses_advice import SizeAdviceAnswer
from portal.api.responses_energy import EnergyUseAnswer
from portal.api.responses_requests import PromiseAnswer
from portal.billing.energy import EnergyBasis
from portal.billing.models import NoteState, PeriodState, RefundCause
from portal.billing.rehearsal import DifferenceKind


class RefundRuleAnswer(ResponseShape):
    """What a cause gives back, while it is in force."""

    id = s.IntegerField()
    cause = s.ChoiceField(RefundCause.choices)
    credit_percent = s.IntegerField(help_text="100: no charge at all.")
    most_s = s.IntegerField(allow_null=True, help_text="Only of the last seconds before the lease stopped.")
    within_s = s.IntegerField(allow_null=True, help_text="How soon after its start a lease has to fail.")
    valid_from = s.DateTimeField()
    valid_until = s.DateTimeField(allow_null=True)


class DiscountAnswer(ResponseShape):
    """What leases pay less of the price, while it is in force; without `days` at all times."""

    id = s.IntegerField()
    name = s.CharField()
    percent = s.FloatField()
    team = s.SlugField(allow_null=True, help_text="For this team and those below it; null: for everybody.")
    only_preemptible = s.BooleanField()
    days = s.ListField(child=s.IntegerField(), help_text="0 is Monday.")
    from_time = s.CharField(allow_null=True, help_text="As `HH:MM`, by the clocks in `zone`.")
    to_time = s.CharField(allow_null=True, help_text="On the next day where it is earlier.")
    zone = s.CharField(allow_null=True)
    valid_from = s.DateTimeField()
    valid_until = s.DateTimeField(allow_null=True)


class ReceiptJob(ResponseShape):
    """One of several jobs' part of a lease."""

    id = s.CharField()
    attempt = s.IntegerField()
    outcome = s.CharField(help_text="How it ended, in words.")
    seconds = s.IntegerField()
    amount = Money()


class ReceiptAnswer(ResponseShape):
    """What a lease cost."""

    id = s.CharField()
    is_counted = s.BooleanField(help_text="All its seconds are counted: it is over.")
    seconds = s.IntegerField(help_text="Billed so far.")
    agent_seconds = s.FloatField(allow_null=True, help_text="By the node's own clock; null is unknown.")
    total = Money(allow_null=True)
    refunded = Money(allow_null=True, help_text="What a rule gave back; null: none applied.")
    refund = s.ChoiceField(RefundCause.choices, allow_null=True)
    minimum = Money(allow_null=True, help_text="The minimum charge that it came to; null: it cost its time.")
    promise = PromiseAnswer(allow_null=True, help_text="The start that was promised to it; null: none.")
    scratch = s.CharField(allow_blank=True, help_text="The scratch folder on its node that went with it.")
    energy = EnergyUseAnswer()
    advice = SizeAdviceAnswer(allow_null=True, help_text="About its size; null: it is not judged.")
    jobs = ReceiptJob(many=True, help_text="Where several jobs followed each other in it.")


class UsageAnswer(ResponseShape):
    """A billed interval in whole seconds, under one rate."""

    id = s.IntegerField()
    lease = s.CharField()
    team = s.SlugField()
    user = s.CharField()
    flavor = s.SlugField()
    starts_at = s.DateTimeField()
    ends_at = s.DateTimeField()
    seconds = s.IntegerField()
    share_milli = s.IntegerField()
    share_milli_seconds = s.IntegerField()
    price_per_hour = Money(help_text="Of a whole device with its memory, as it is paid.")
    price_per_gib_hour = Money(
        help_text="What its rate asks for a GiB of device memory, which is in the price."
    )
    discount = s.CharField(allow_null=True, help_text="Name of the discount that lowered its price.")
    refund = s.ChoiceField(
        RefundCause.choices,
        allow_null=True,
        help_text="The cause by whose rule it is charged in part or not at all.",
    )
    minimum = Money(allow_null=True, help_text="The minimum charge that its lease came to.")
    adjusts = s.CharField(allow_null=True, help_text="The earlier, closed month that it belongs to.")


class RateAnswer(ResponseShape):
    """The price of a whole device for an hour, while it is in force."""

    id = s.IntegerField()
    device_model = s.CharField()
    price_per_hour = Money()
    price_per_gib_hour = Money(help_text="Of a GiB of device memory, beside the price of the device.")
    minimum = Money(help_text="What a lease that begins under it comes to at least.")
    valid_from = s.DateTimeField(allow_null=True)
    valid_until = s.DateTimeField(allow_null=True)


class TeamAtPriceAnswer(ResponseShape):
    """A team's last month of a device model: what it was charged, and what it would be at the price tried."""

    team = s.SlugField()
    name = s.CharField()
    charged = Money()
    then = Money()


class RatePreviewAnswer(ResponseShape):
    """The last whole month of a device model at another price, the most affected team first."""

    device_model = s.SlugField()
    price_per_hour = Money()
    price_per_gib_hour = Money()
    minimum = Money()
    month = s.CharField(allow_null=True)
    charged = Money()
    then = Money()
    teams = TeamAtPriceAnswer(many=True)


class PeriodAnswer(ResponseShape):
    """A month of accounts."""

    month = s.CharField()
    state = s.ChoiceField(PeriodState.choices)
    zone = s.CharField(help_text="The time zone that its days and bounds are in.")
    starts_at = s.DateTimeField()
    ends_at = s.DateTimeField()
    closed_at = s.DateTimeField(allow_null=True)


class CloseCheck(ResponseShape):
    """One thing to look at before a month is closed."""

    code = s.CharField()
    is_met = s.BooleanField()
    must = s.BooleanField(help_text="A must that is not met keeps the month open.")
    figure = s.IntegerField()
    sentence = s.CharField(help_text="How it stands, in the caller's language, with the places named.")


class PeriodDetail(PeriodAnswer):
    """A month with what has to hold before it is closed."""

    checks = CloseCheck(many=True)


class DifferenceAnswer(ResponseShape):
    """A part of the difference to the month before."""

    kind = s.ChoiceField(DifferenceKind.choices)
    amount = Money()
    share_milli_seconds = s.IntegerField(help_text="More or less, of usage.")
    sentence = s.CharField()


class RehearsedInvoiceAnswer(ResponseShape):
    """What a close would issue to a team; the differences add up to the amount less that of the month before."""

    team = s.SlugField()
    lines = s.IntegerField()
    share_milli_seconds = s.IntegerField()
    amount = Money()
    notes = Money(help_text="Of it, credit and debit notes.")
    before = Money(allow_null=True)
    differences = DifferenceAnswer(many=True)


class RehearsalAnswer(ResponseShape):
    """A close that was not carried out. Give `seen` to the close: it refuses if the month comes to anything else."""

    month = s.CharField()
    compared_with = s.CharField(allow_null=True)
    seen = s.CharField()
    can_close = s.BooleanField()
    records = s.IntegerField(help_text="Usage records so far.")
    unmetered = s.IntegerField(help_text="Records that the close would write first.")
    total = Money(help_text="Of all invoices.")
    ledger = Money(help_text="By usage and notes themselves.")
    checks = CloseCheck(many=True)
    invoices = RehearsedInvoiceAnswer(many=True)


class InvoiceRow(ResponseShape):
    """A team's month."""

    team = s.SlugField()
    month = s.CharField()
    number = s.CharField(allow_null=True)
    is_draft = s.BooleanField()
    total = Money()


class CorrectedLine(ResponseShape):
    """What a note corrects."""

    invoice = s.CharField()
    month = s.CharField()
    line = s.IntegerField(help_text="The position of the line.")
    person = s.CharField()
    flavor = s.CharField()
    lease = s.CharField(allow_null=True, help_text="If it is about one lease of the line.")


class NoteAnswer(ResponseShape):
    """A credit or debit note: what corrects a line of an issued invoice, on an invoice of a later month."""

    id = s.CharField()
    number = s.CharField(allow_null=True, help_text="Since it was issued.")
    kind = s.ChoiceField(("credit", "debit"))
    state = s.ChoiceField(NoteState.choices)
    team = s.SlugField()
    amount = Money(help_text="Below zero for a credit.")
    reason = s.CharField()
    corrects = CorrectedLine()
    proposed_by = s.CharField()
    proposed_at = s.DateTimeField()
    decided_by = s.CharField(allow_null=True)
    decided_at = s.DateTimeField(allow_null=True)
    decision_note = s.CharField(allow_blank=True)
    month = s.CharField(allow_null=True, help_text="Where it is billed, once it is approved.")
    billed_on = s.CharField(allow_null=True, help_text="The number of the invoice that bills it.")


class ExternalAnswer(ResponseShape):
    """Usage of devices outside Berth that a line bills."""

    source_name = s.CharField()
    id = s.CharField(help_text="Its name at the source.")
    imported_by = s.CharField(help_text="The id of the import.")
    starts_at = s.DateTimeField()
    ends_at = s.DateTimeField()


class ElectricityLineAnswer(ResponseShape):
    """Electricity that a line bills: kWh of devices with the PUE of their site."""

    kwh = s.CharField(help_text="As a decimal text.")
    basis = s.ChoiceField([EnergyBasis.MEASURED, EnergyBasis.ESTIMATED])
    price_per_kwh = Money(help_text="On average over its hours.")
    posted_by = s.CharField(help_text="The id of the import that holds the month's electricity.")
    starts_at = s.DateTimeField(help_text="Of its first hour.")
    ends_at = s.DateTimeField(help_text="Of its last hour.")


class LineLabelAnswer(ResponseShape):
    """What a part of a line is filed under; `share_milli_seconds` is how much of it, 0 for external usage."""

    cost_centre = s.CharField(allow_blank=True, help_text="Empty: that of the team.")
    project = s.CharField(allow_blank=True, help_text="Its code.")
    tags = s.DictField(child=s.CharField())
    share_milli_seconds = s.IntegerField()


class LineAnswer(ResponseShape):
    """One line: a person, a flavor and a price."""

    position = s.IntegerField()
    key = s.CharField()
    person = s.CharField()
    flavor = s.CharField()
    device_model = s.CharField()
    price_per_hour = Money()
    lease_count = s.IntegerField()
    seconds = s.IntegerField()
    share_milli_seconds = s.IntegerField()
    amount = Money()
    adjusts = s.CharField(
        allow_null=True,
        help_text="The earlier, closed month that its usage, or what it corrects, belongs to.",
    )
    note = s.CharField(allow_null=True, help_text="The id of the credit or debit note that the line bills.")
    minimum = Money(allow_null=True, help_text="The minimum charge that each of its leases came to.")
    labels = LineLabelAnswer(many=True, help_text="Empty in months that were closed before lines held them.")
    external = ExternalAnswer(allow_null=True, help_text="What the line bills of devices outside Berth.")
    electricity = ElectricityLineAnswer(allow_null=True, help_text="The electricity that the line bills.")


class InvoiceAnswer(InvoiceRow):
    """A team's month with its lines; `accruing` is what runs now and is on no line yet."""

    issued_at = s.DateTimeField(allow_null=True)
    cost_centre = s.CharField(allow_blank=True)
    accruing = Money()
    lines = LineAnswer(many=True)


class AccountingAnswer(ResponseShape):
    """An ended lease by two clocks: the agent's own and the bill's."""

    lease = s.CharField()
    request = s.CharField()
    team = s.SlugField()
    activated_at = s.DateTimeField(allow_null=True)
    ended_at = s.DateTimeField(allow_null=True)
    clean_at = s.DateTimeField(allow_null=True)
    end_reason = s.CharField()
    agent_active_ms = s.IntegerField(allow_null=True)
    billed_s = s.IntegerField()
    share_milli_seconds = s.IntegerField()
    is_metered = s.BooleanField()


class ReportGroup(ResponseShape):
    """One row of a report; a team's row holds all teams below it."""

    key = s.CharField(help_text="Slug, user name or name, as the rows are.", allow_blank=True)
    name = s.CharField(allow_blank=True)
    parent = s.CharField(allow_null=True, help_text="The team above it in the report.")  # type: ignore[assignment]
    leases = s.IntegerField()
    share_milli_seconds = s.IntegerField()
    amount = Money(help_text="On lines.")
    accruing = Money(help_text="Of what still runs.")
    own = Money(help_text="Of the team alone, accruing too.")
    before = Money(allow_null=True, help_text="The same part of the month before.")


class ReportDay(ResponseShape):
    """What a day of the month came to."""

    day = s.DateField()
    amount = Money()


class ReportAnswer(ResponseShape):
    """A month, rolled up, beside the month before."""

    month = s.CharField()
    by = s.CharField()
    is_closed = s.BooleanField()
    until = s.DateTimeField(help_text="Now, or the end of the month.")
    compared_with = s.CharField(allow_null=True, help_text="The month before, where the books have it.")
    unpriced = s.IntegerField(help_text="Leases that ran while no price was in force: they are in no amount.")
    rows = ReportGroup(many=True)
    total = ReportGroup()
    days = ReportDay(many=True)
