"""Forms of contact points: a new one, and how one wants to be told there."""

from __future__ import annotations

from datetime import time
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from portal.notifications.contact_points import LONGEST_ADDRESS, LONGEST_NAME, has_mail
from portal.notifications.models import ContactKind, ContactPoint, Topic


def _text(**more: Any) -> forms.TextInput:
    return forms.TextInput({"class": "form-control", "autocomplete": "off", "spellcheck": "false", **more})


class NewContactForm(forms.Form):
    """Where to, and what one calls it."""

    kind = forms.ChoiceField(
        label=pgettext_lazy("contact point", "Kind"), widget=forms.Select({"class": "form-select"})
    )
    address = forms.CharField(
        label=_("Address"),
        max_length=LONGEST_ADDRESS,
        help_text=_(
            "A mailbox, or the address that Slack, Feishu, DingTalk, WeCom or your own program gave you. "
            "Of an address on the web only the end is shown afterwards."
        ),
        widget=_text(placeholder="https://…"),
    )
    secret = forms.CharField(
        label=_("Signing secret"),
        max_length=200,
        required=False,
        help_text=_("Only of Feishu and DingTalk robots that check signatures."),
        widget=_text(),
    )
    name = forms.CharField(
        label=_("Name"),
        max_length=LONGEST_NAME,
        required=False,
        help_text=_("The kind where you leave it empty."),
        widget=_text(),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["kind"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [one for one in ContactKind.choices if has_mail() or one[0] != ContactKind.EMAIL]


class ContactForm(forms.Form):
    """Which news, and when."""

    name = forms.CharField(label=_("Name"), max_length=LONGEST_NAME, widget=_text())
    topics = forms.MultipleChoiceField(
        label=_("Tell me about"), choices=Topic.choices, required=False, widget=forms.CheckboxSelectMultiple
    )
    digest_at = forms.TimeField(
        label=_("Once a day, all together, at"),
        required=False,
        help_text=_("Empty: each thing when it happens."),
        widget=forms.TimeInput({"class": "form-control", "type": "time"}, format="%H:%M"),
    )
    quiet_from = forms.TimeField(
        label=_("Quiet from"),
        required=False,
        widget=forms.TimeInput({"class": "form-control", "type": "time"}, format="%H:%M"),
    )
    quiet_until = forms.TimeField(
        label=_("Quiet until"),
        required=False,
        help_text=_("What happens in quiet hours is told when they end."),
        widget=forms.TimeInput({"class": "form-control", "type": "time"}, format="%H:%M"),
    )
    is_on = forms.BooleanField(label=_("Switched on"), required=False, widget=forms.CheckboxInput())

    @classmethod
    def of(cls, row: ContactPoint) -> ContactForm:
        """Return the form as the contact point is now."""
        return cls(
            initial={
                "name": row.name,
                "topics": [topic for topic in Topic.values if topic not in row.muted],
                "digest_at": _clock(row.digest_at),
                "quiet_from": _clock(row.quiet_from),
                "quiet_until": _clock(row.quiet_until),
                "is_on": row.is_on,
            }
        )

    def changes(self) -> dict[str, Any]:
        """Return what to store; the form must be valid."""
        given = self.cleaned_data
        return {
            "name": given["name"],
            "muted": [topic for topic in Topic.values if topic not in given["topics"]],
            "digest_at": _minute(given.get("digest_at")),
            "quiet_from": _minute(given["quiet_from"]),
            "quiet_until": _minute(given["quiet_until"]),
            "is_on": given["is_on"],
        }


def _clock(minute: int | None) -> time | None:
    return None if minute is None else time(minute // 60, minute % 60)


def _minute(clock: time | None) -> int | None:
    return None if clock is None else clock.hour * 60 + clock.minute
