"""Discounts: who pays less of the price, when, from a date on; finance adds and ends them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.dates import WEEKDAYS, WEEKDAYS_ABBR
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from portal.catalog.discounts import EVERY_DAY, DiscountHours, add_discount, end_discount, visible_discounts
from portal.catalog.models import Discount
from portal.common.clock import db_now
from portal.common.errors import BerthError, Forbidden, Invalid
from portal.teams.models import Team
from portal.web.access import done, person, refused, rights_of
from portal.web.fields import MomentField, text_field

FIELD_OF = {"from": "from_time"}


@dataclass(frozen=True, slots=True)
class DiscountRow:
    """One discount, in words; ``state`` is planned, in_force or past."""

    key: int
    name: str
    percent: str
    who: str
    when: str
    starts_at: datetime
    ends_at: datetime | None
    state: str


def _clock_field(label: Any, hint: Any = "") -> forms.TimeField:
    return forms.TimeField(
        label=label,
        required=False,
        help_text=hint,
        widget=forms.TimeInput({"class": "form-control", "type": "time"}, format="%H:%M"),
    )


class DiscountForm(forms.Form):
    """A new discount from a date on."""

    name = text_field(gettext_lazy("Name"), 60, gettext_lazy("Receipts name it so."))
    percent = forms.IntegerField(
        label=gettext_lazy("Less to pay"),
        min_value=1,
        max_value=100,
        widget=forms.NumberInput({"class": "form-control", "inputmode": "numeric"}),
    )
    team = forms.ModelChoiceField(
        label=gettext_lazy("Team"),
        queryset=Team.objects.all(),
        to_field_name="slug",
        required=False,
        empty_label=gettext_lazy("Everybody"),
        help_text=gettext_lazy("With the teams below it."),
        widget=forms.Select({"class": "form-select"}),
    )
    only_preemptible = forms.BooleanField(
        label=gettext_lazy("Only preemptible leases"), required=False, widget=forms.CheckboxInput()
    )
    from_time = _clock_field(gettext_lazy("Daily from"))
    to_time = _clock_field(gettext_lazy("Daily until"), gettext_lazy("Both left empty: at all times."))
    days = forms.MultipleChoiceField(
        label=gettext_lazy("On these days"),
        choices=[(str(day), WEEKDAYS[day]) for day in EVERY_DAY],
        required=False,
        widget=forms.CheckboxSelectMultiple,
    )
    starts_at = MomentField(
        label=gettext_lazy("From"), required=False, hint=gettext_lazy("Left empty: in a minute.")
    )
    ends_at = MomentField(
        label=gettext_lazy("Until"), required=False, hint=gettext_lazy("Left empty: until it is ended.")
    )

    def hours(self) -> DiscountHours | None:
        """Return the hours in which it holds, None for all times."""
        given = self.cleaned_data
        if given["from_time"] is None and given["to_time"] is None:
            return None
        return DiscountHours(
            days=tuple(int(day) for day in given["days"]),
            from_minute=_minute(given["from_time"]),
            to_minute=_minute(given["to_time"]),
            zone=timezone.get_current_timezone_name(),
        )


def discount_label(discount: Discount) -> str:
    """Return its name and what is paid less, e.g. "Night, 30 %"."""
    return _("%(name)s, %(percent)s %%") % {"name": discount.name, "percent": f"{discount.off_milli / 10:g}"}


def hours_text(discount: Discount) -> str:
    """Return the hours of a discount in the reader's language, with their zone."""
    if not discount.days:
        return _("at all times")
    whole = len(set(discount.days)) == len(EVERY_DAY)
    days = _("daily") if whole else ", ".join(str(WEEKDAYS_ABBR[day]) for day in sorted(set(discount.days)))
    return _("%(days)s %(from)s–%(to)s (%(zone)s)") % {
        "days": days,
        "from": clock_text(discount.from_minute),
        "to": clock_text(discount.to_minute),
        "zone": discount.zone,
    }


def clock_text(minute: int) -> str:
    """Return a minute of the day as HH:MM."""
    return f"{minute // 60:02}:{minute % 60:02}"


def _row(discount: Discount, now: datetime) -> DiscountRow:
    who = discount.team.name if discount.team else _("Everybody")
    begin, end = discount.valid.lower, discount.valid.upper
    return DiscountRow(
        key=discount.pk,
        name=discount.name,
        percent=f"{discount.off_milli / 10:g}",
        who=_("%(team)s, preemptible leases") % {"team": who} if discount.only_preemptible else who,
        when=hours_text(discount),
        starts_at=begin,
        ends_at=end,
        state="planned" if begin > now else "past" if end is not None and end <= now else "in_force",
    )


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Show people the discounts that may be theirs, finance all of them; a POST by finance adds one."""
    rights = rights_of(request)
    form = DiscountForm(request.POST or None, initial={"days": [str(day) for day in EVERY_DAY]})
    if request.method == "POST":
        if not rights.is_finance:
            raise Forbidden(_("Only finance works on billing periods and prices."))
        if form.is_valid() and _added(request, form):
            return done(request, _("The discount is added."), "web:discounts")
    now = timezone.now()
    context: dict[str, Any] = {
        "rows": [_row(discount, now) for discount in visible_discounts(rights)],
        "form": form,
        "is_finance": rights.is_finance,
    }
    return render(request, "web/discounts.html", context, status=422 if form.is_bound else 200)


@require_POST
def end(request: HttpRequest, key: int) -> HttpResponse:
    """End a discount, or take back one that has not begun."""
    if not rights_of(request).is_finance:
        raise Forbidden(_("Only finance works on billing periods and prices."))
    try:
        ended = end_discount(key=key, actor=person(request), now=db_now())
    except BerthError as error:
        return refused(request, error, "web:discounts")
    said = _("The planned discount is withdrawn.") if ended is None else _("The discount ends in a minute.")
    return done(request, said, "web:discounts")


def _added(request: HttpRequest, form: DiscountForm) -> bool:
    """Add the discount; False when it was refused, with the reason on the form."""
    given = form.cleaned_data
    try:
        add_discount(
            name=given["name"],
            off_milli=given["percent"] * 10,
            team=given["team"],
            only_preemptible=given["only_preemptible"],
            hours=form.hours(),
            starts_at=given["starts_at"],
            ends_at=given["ends_at"],
            actor=person(request),
            now=db_now(),
        )
    except Invalid as error:
        for field, text in error.fields.items():
            name = FIELD_OF.get(field, field)
            form.add_error(name if name in form.fields else None, text)
        return False
    return True


def _minute(clock: time | None) -> int:
    return 0 if clock is None else clock.hour * 60 + clock.minute
