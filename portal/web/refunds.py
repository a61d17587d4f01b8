"""Refund rules: what a lost node, a fault or maintenance gives back, from a date on; finance sets the next rule."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from portal.billing.models import RefundCause, RefundRule
from portal.billing.refunds import set_refund_rule, withdraw_refund_rule
from portal.common.errors import BerthError, Forbidden, Invalid
from portal.common.moments import span
from portal.web.access import done, person, refused, rights_of
from portal.web.fields import DurationField, MomentField, text_field

FIELD_OF = {"credit_percent": "percent", "most_s": "most", "within_s": "within"}


@dataclass(frozen=True, slots=True)
class RefundRuleRow:
    """One rule, in words; ``state`` is planned, in_force or past."""

    key: int
    cause: str
    text: str
    starts_at: datetime
    ends_at: datetime | None
    state: str


class RefundRuleForm(forms.Form):
    """A new rule of a cause from a date on."""

    cause = forms.ChoiceField(
        label=gettext_lazy("Cause"),
        choices=RefundCause.choices,
        widget=forms.Select({"class": "form-select"}),
    )
    percent = forms.IntegerField(
        label=gettext_lazy("Given back"),
        min_value=0,
        max_value=100,
        help_text=gettext_lazy("100 % is no charge at all, 0 % the whole charge."),
        widget=forms.NumberInput({"class": "form-control", "inputmode": "numeric"}),
    )
    most = text_field(
        gettext_lazy("Only of the last"),
        40,
        gettext_lazy("Such as 2 h, before the lease stopped. Left empty: all of it."),
        required=False,
    )
    within = text_field(
        gettext_lazy("Failed within"),
        40,
        gettext_lazy("Of its start, such as 10 min: for failed starts."),
        required=False,
    )
    starts_at = MomentField(
        label=gettext_lazy("From"), required=False, hint=gettext_lazy("Left empty: from now on.")
    )

    def clean_most(self) -> int | None:
        """Return the seconds, None for all."""
        return self._seconds("most")

    def clean_within(self) -> int | None:
        """Return the seconds, None where it was left empty."""
        return self._seconds("within")

    def _seconds(self, name: str) -> int | None:
        text = self.cleaned_data[name]
        return DurationField().clean(text) if text else None


def rule_text(rule: RefundRule) -> str:
    """Return what a rule gives back, in the reader's language."""
    if not rule.credit_milli:
        return _("charged in full")
    whole = rule.credit_milli == 1000
    percent = f"{rule.credit_milli / 10:g}"
    if rule.most_s is not None:
        length = span(rule.most_s)
        text = (
            _("the last %(length)s are not charged") % {"length": length}
            if whole
            else _("%(percent)s %% of the last %(length)s are given back")
            % {"percent": percent, "length": length}
        )
    else:
        text = _("not charged") if whole else _("%(percent)s %% are given back") % {"percent": percent}
    if rule.within_s is None:
        return text
    return _("%(what)s, if it fails within %(length)s") % {"what": text, "length": span(rule.within_s)}


def refund_rule_rows(*, now: datetime) -> list[RefundRuleRow]:
    """Return all rules by cause, the latest of each first."""
    rules = RefundRule.objects.order_by("cause", "-valid")
    order = list(RefundCause)
    rows = [
        RefundRuleRow(
            key=rule.pk,
            cause=str(RefundCause(rule.cause).label),
            text=rule_text(rule),
            starts_at=rule.valid.lower,
            ends_at=rule.valid.upper,
            state="planned"
            if rule.valid.lower > now
            else "past"
            if rule.valid.upper is not None and rule.valid.upper <= now
            else "in_force",
        )
        for rule in sorted(rules, key=lambda rule: order.index(RefundCause(rule.cause)))
    ]
    return rows


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Show the rules to everybody; a POST by finance sets a new one."""
    is_finance = rights_of(request).is_finance
    form = RefundRuleForm(request.POST or None, initial={"percent": 100})
    if request.method == "POST":
        if not is_finance:
            raise Forbidden(_("Only finance works on billing periods and prices."))
        if form.is_valid() and _stored(request, form):
            return done(request, _("The rule is set."), "web:refunds")
    context: dict[str, Any] = {
        "rows": refund_rule_rows(now=timezone.now()),
        "form": form,
        "is_finance": is_finance,
    }
    return render(request, "web/refunds.html", context, status=422 if form.is_bound else 200)


@require_POST
def withdraw(request: HttpRequest, key: int) -> HttpResponse:
    """Take back a rule that has not begun."""
    if not rights_of(request).is_finance:
        raise Forbidden(_("Only finance works on billing periods and prices."))
    try:
        withdraw_refund_rule(rule_id=key, actor=person(request))
    except BerthError as error:
        return refused(request, error, "web:refunds")
    return done(request, _("The planned rule is withdrawn."), "web:refunds")


def _stored(request: HttpRequest, form: RefundRuleForm) -> bool:
    """Set the rule; False when it was refused, with the reason on the form."""
    data = form.cleaned_data
    try:
        set_refund_rule(
            cause=data["cause"],
            credit_milli=data["percent"] * 10,
            most_s=data["most"],
            within_s=data["within"],
            starts_at=data["starts_at"],
            actor=person(request),
        )
    except Invalid as error:
        for field, text in error.fields.items():
            form.add_error(FIELD_OF.get(field, field), text)
        return False
    except BerthError as error:
        form.add_error(None, str(error.detail))
        return False
    return True
