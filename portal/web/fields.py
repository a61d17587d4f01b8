"""Form fields, and a form, that several pages share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django import forms
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.functional import lazystr
from django.utils.translation import gettext_lazy as _

from portal.common.zones import SkippedTimeError, instant_of, zone_sentence
from portal.web.figures import parse_duration

LOCAL_TIME = "%Y-%m-%dT%H:%M"  # as browsers read and write it in a field


def text_field(
    label: Any, most: int, hint: Any = "", *, required: bool = True, **more: str
) -> forms.CharField:
    """Return a one-line text field; ``more`` are attributes of its input."""
    attributes = {"class": "form-control", "autocomplete": "off", **more}
    return forms.CharField(
        label=label, help_text=hint, max_length=most, required=required, widget=forms.TextInput(attributes)
    )


def password_field(label: Any, kind: str, hint: Any = "") -> forms.CharField:
    """Return a password field; ``kind`` tells password managers what it is for."""
    return forms.CharField(
        label=label,
        help_text=hint,
        max_length=500,
        strip=False,
        widget=forms.PasswordInput({"class": "form-control", "autocomplete": kind}),
    )


class DurationField(forms.CharField):
    """A length of time as people write it ("6 h", "90 min"); cleans to whole seconds."""

    def clean(self, value: Any) -> int:
        """Return the seconds, or refuse text that names no time."""
        seconds = parse_duration(super().clean(value))
        if seconds is None:
            raise forms.ValidationError(_("Write a time such as 6 h, 90 min or 2 d."))
        return seconds


class MaybeDuration(forms.CharField):
    """A length of time that may be left out; cleans to whole seconds, 0 for none."""

    def clean(self, value: Any) -> int:
        """Return the seconds, or refuse text that names no time."""
        text = super().clean(value)
        if not text:
            return 0
        seconds = parse_duration(text)
        if seconds is None:
            raise forms.ValidationError(_("Write a time such as 6 h, 90 min or 2 d."))
        return seconds


class WallTimeField(forms.DateTimeField):
    """A date and a time as clocks show it somewhere; cleans to a datetime without zone, or with the one it names."""

    def __init__(self, **more: Any) -> None:
        widget = forms.DateTimeInput({"class": "form-control", "type": "datetime-local"}, format=LOCAL_TIME)
        super().__init__(widget=widget, **more)

    def to_python(self, value: Any) -> datetime | None:
        """Return what was written, or refuse what is no time."""
        with timezone.override(UTC):  # where every time exists, once
            at: datetime | None = super().to_python(value)
        if at is None or _names_offset(value):
            return at
        return at.replace(tzinfo=None)


class MomentField(WallTimeField):
    """A date and a time in the zone of who writes it, which is named beside it; cleans to the instant.

    A time that clocks skip is refused; of one that comes twice it is the first.
    """

    def __init__(self, *, hint: Any = "", **more: Any) -> None:
        super().__init__(help_text=lazystr(_Hint(hint)), **more)

    def to_python(self, value: Any) -> datetime | None:
        """Return the instant, or refuse what is no time, or none in this zone."""
        at = super().to_python(value)
        if at is None or at.tzinfo is not None:
            return at
        try:
            return instant_of(at, timezone.get_current_timezone())
        except SkippedTimeError as error:
            raise forms.ValidationError(error.sentence) from error
        except OverflowError as error:
            raise forms.ValidationError(self.error_messages["invalid"], code="invalid") from error


class MonthInput(forms.DateField):
    """A month as browsers write it ("2026-11"); cleans to its first day."""

    def __init__(self, **more: Any) -> None:
        widget = forms.DateInput(
            {"class": "form-control", "type": "month", "placeholder": "2026-11", "autocomplete": "off"},
            format="%Y-%m",
        )
        super().__init__(widget=widget, input_formats=["%Y-%m"], **more)


class _Hint:
    """What a field says about itself, and the zone in use when it is shown."""

    def __init__(self, hint: Any) -> None:
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.hint} {zone_sentence()}".strip()


def _names_offset(value: Any) -> bool:
    try:
        at = parse_datetime(value.strip()) if isinstance(value, str) else value
    except ValueError:
        return False
    return isinstance(at, datetime) and at.tzinfo is not None


class NoteForm(forms.Form):
    """A decision on somebody's request."""

    decision = forms.ChoiceField(choices=(("approve", _("Approve")), ("reject", _("Reject"))))
    note = forms.CharField(max_length=300, required=False)
