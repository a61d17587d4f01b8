"""Forms of alerts: a rule, and a silence."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.accounts.models import User
from portal.alerts.metrics import METRICS
from portal.alerts.models import (
    AlertAction,
    AlertAudience,
    AlertComparison,
    AlertGrouping,
    AlertRule,
    AlertSeverity,
)
from portal.alerts.rules import MOST_NAME, MOST_REASON, AlertSpec
from portal.alerts.words import rule_text
from portal.fleet.models import DeviceModel, Node
from portal.teams.models import Team
from portal.web.fields import DurationField, MaybeDuration, text_field


def _select() -> forms.Select:
    return forms.Select({"class": "form-select"})


def _text() -> forms.TextInput:
    return forms.TextInput({"class": "form-control", "autocomplete": "off"})


def _choice(rows: Any, label: Any, empty: Any, by: str, hint: Any = "") -> forms.ModelChoiceField[Any]:
    return forms.ModelChoiceField(
        label=label, queryset=rows, to_field_name=by, required=False, empty_label=empty, help_text=hint,
        widget=_select(),
    )  # fmt: skip


class AlertRuleForm(forms.Form):
    """What a rule watches, for whom, and what comes of it."""

    name = text_field(
        gettext_lazy("Name"), MOST_NAME, gettext_lazy("Left out: the condition itself."), required=False
    )
    metric = forms.ChoiceField(label=gettext_lazy("What is watched"), widget=_select())
    comparison = forms.ChoiceField(
        label=gettext_lazy("Alert when it is"), choices=AlertComparison.choices, widget=_select()
    )
    threshold = forms.FloatField(
        label=gettext_lazy("Threshold"),
        help_text=gettext_lazy("In the unit that stands behind what is watched."),
        widget=forms.NumberInput({"class": "form-control", "inputmode": "decimal", "step": "any"}),
    )
    for_s = MaybeDuration(
        label=gettext_lazy("For at least"), required=False, widget=_text(),
        help_text=gettext_lazy("Such as 5 min; left out: at once."),
    )  # fmt: skip
    severity = forms.ChoiceField(
        label=gettext_lazy("Severity"), choices=AlertSeverity.choices, initial=AlertSeverity.WARNING.value,
        help_text=gettext_lazy("Information is shown here and told to nobody."), widget=_select(),
    )  # fmt: skip
    node = _choice(Node.objects.all(), gettext_lazy("Only on node"), gettext_lazy("Every node"), "name")
    device_model = _choice(
        DeviceModel.objects.all(), gettext_lazy("Only of model"), gettext_lazy("Every model"), "slug"
    )
    team = _choice(
        Team.objects.all(), gettext_lazy("Only of team"), gettext_lazy("Every team"), "slug",
        gettext_lazy("With the teams below it; of a device, of the leases on it."),
    )  # fmt: skip
    audience = forms.ChoiceField(
        label=gettext_lazy("Who is told"), choices=AlertAudience.choices, widget=_select(),
        help_text=gettext_lazy("Team admins then see these alerts as well. Only for figures of a team or a device."),
    )  # fmt: skip
    grouping = forms.ChoiceField(
        label=gettext_lazy("Told together"), choices=AlertGrouping.choices, widget=_select()
    )
    escalate_min = forms.IntegerField(
        label=gettext_lazy("Escalate after minutes"), required=False, min_value=1, max_value=10_080,
        help_text=gettext_lazy("Where nobody has acknowledged it by then; left out: never."),
        widget=forms.NumberInput({"class": "form-control", "inputmode": "numeric"}),
    )  # fmt: skip
    escalate_to = text_field(
        gettext_lazy("Escalate to"),
        150,
        gettext_lazy("A user name; left out: all operators."),
        required=False,
    )
    action = forms.ChoiceField(
        label=gettext_lazy("What Berth does by itself"), choices=AlertAction.choices, widget=_select(),
        help_text=gettext_lazy("At most three times an hour, each on record."),
    )  # fmt: skip
    is_on = forms.BooleanField(
        label=gettext_lazy("On"), required=False, initial=True,
        widget=forms.CheckboxInput(),
    )  # fmt: skip

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        field = self.fields["metric"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [
            (key, f"{one.label} ({one.unit})" if one.unit else str(one.label)) for key, one in METRICS.items()
        ]

    def clean_escalate_to(self) -> User | None:
        """Return the person of this user name."""
        name = self.cleaned_data["escalate_to"]
        if not name:
            return None
        found = User.objects.filter(username=name, is_active=True).first()
        if found is None:
            raise forms.ValidationError(_("There is nobody of this user name."))
        return found

    def spec(self) -> AlertSpec:
        """Return what a valid form says."""
        return AlertSpec(**self.cleaned_data)


def rule_form(rule: AlertRule) -> AlertRuleForm:
    """Return a form that says what a rule says now."""
    names = (
        "name",
        "metric",
        "comparison",
        "threshold",
        "severity",
        "audience",
        "grouping",
        "escalate_min",
        "action",
        "is_on",
    )
    initial: dict[str, Any] = {name: getattr(rule, name) for name in names}
    initial |= {
        "threshold": int(rule.threshold) if rule.threshold.is_integer() else rule.threshold,
        "for_s": f"{rule.for_s} s" if rule.for_s % 60 else f"{rule.for_s // 60} min" if rule.for_s else "",
        "node": rule.node.name if rule.node else "",
        "team": rule.team.slug if rule.team else "",
        "device_model": rule.device_model.slug if rule.device_model else "",
        "escalate_to": rule.escalate_to.username if rule.escalate_to else "",
    }
    return AlertRuleForm(initial=initial)


class _Rules(forms.ModelChoiceField):  # type: ignore[type-arg]
    def label_from_instance(self, obj: Any) -> str:
        """Return the rule's name or condition."""
        return rule_text(obj)


class SilenceForm(forms.Form):
    """Which alerts nobody is told of, for how long and why."""

    rule = _Rules(
        label=gettext_lazy("Rule"), queryset=AlertRule.objects.filter(removed_at=None), required=False,
        empty_label=gettext_lazy("Every rule"), widget=_select(),
    )  # fmt: skip
    node = _choice(Node.objects.all(), gettext_lazy("Node"), gettext_lazy("Every node"), "name")
    team = _choice(Team.objects.all(), gettext_lazy("Team"), gettext_lazy("Every team"), "slug")
    length = DurationField(
        label=gettext_lazy("Silent for"),
        initial="2 h",
        help_text=gettext_lazy("At most 30 days."),
        widget=_text(),
    )
    reason = text_field(gettext_lazy("Reason"), MOST_REASON)

    def ends_at(self, now: datetime) -> datetime:
        """Return when a silence of a valid form ends; one that is far too long is refused by whoever makes it."""
        return now + timedelta(seconds=min(self.cleaned_data["length"], 10**8))
