from __future__ import annotations

from datetime import date, datetime, time, timedelta

from django import forms
from django.core.validators import MaxValueValidator
from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from portal.audit.models import AuditEntry

_TEXT = {"class": "form-control", "autocomplete": "off"}
_DATE = {**_TEXT, "type": "date"}
_SANE = MaxValueValidator(date(9000, 1, 1))  # a day later must still be a date


class AuditFilter(forms.Form):
    """Which audit entries to list; every field narrows."""

    actor = forms.CharField(
        label=pgettext_lazy("audit", "Who"), required=False, max_length=150, widget=forms.TextInput(_TEXT)
    )
    action = forms.CharField(
        label=pgettext_lazy("audit", "What"), required=False, max_length=60, widget=forms.TextInput(_TEXT)
    )
    target = forms.CharField(label=_("On what"), required=False, max_length=80, widget=forms.TextInput(_TEXT))
    since = forms.DateField(
        label=_("From"), required=False, validators=[_SANE], widget=forms.DateInput(_DATE)
    )
    until = forms.DateField(label=_("To"), required=False, validators=[_SANE], widget=forms.DateInput(_DATE))

    def narrow(self, rows: QuerySet[AuditEntry]) -> QuerySet[AuditEntry]:
        """Return the entries asked for; a field that cannot be used narrows nothing and shows its error."""
        self.is_valid()
        asked, zone = self.cleaned_data, timezone.get_current_timezone()
        if asked.get("actor"):
            rows = rows.filter(actor__username__icontains=asked["actor"])
        if asked.get("action"):
            rows = rows.filter(action__icontains=asked["action"])
        if asked.get("target"):
            rows = rows.filter(target__icontains=asked["target"])
        if asked.get("since"):
            rows = rows.filter(at__gte=datetime.combine(asked["since"], time.min, zone))
        if asked.get("until"):
            rows = rows.filter(at__lt=datetime.combine(asked["until"] + timedelta(days=1), time.min, zone))
        return rows
