"""Reservations: bookings that come again; make one, look at its times, cancel it."""

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
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.catalog.models import Flavor
from portal.common.clock import db_now
from portal.common.errors import BerthError, Conflict, Forbidden, Invalid
from portal.common.moments import span
from portal.common.zones import SkippedTimeError, instant_of, zone_named
from portal.leases import reservations
from portal.leases.models import LeaseRequest, Reservation
from portal.leases.reservations import SeriesSpec
from portal.leases.selectors import visible_series
from portal.leases.states import Approval, Repeat
from portal.teams.models import Role, Team
from portal.teams.selectors import visible_teams
from portal.web.access import done, person, refused, rights_of
from portal.web.fields import DurationField, NoteForm, WallTimeField
from portal.web.figures import what_text

FIELD_OF = {"duration_s": "duration"}


class ReservationForm(forms.Form):
    """What comes again, and when."""

    team = forms.ChoiceField(label=gettext_lazy("Team"), widget=forms.Select({"class": "form-select"}))
    flavor = forms.ChoiceField(label=gettext_lazy("Flavor"), widget=forms.Select({"class": "form-select"}))
    count = forms.IntegerField(
        label=gettext_lazy("How many"),
        min_value=1,
        max_value=1000,
        initial=1,
        widget=forms.NumberInput({"class": "form-control", "inputmode": "numeric"}),
    )
    starts_at = WallTimeField(label=gettext_lazy("First time"), help_text=gettext_lazy("In the zone below."))
    zone = forms.CharField(
        label=gettext_lazy("Time zone"),
        max_length=60,
        help_text=gettext_lazy(
            "The hour stays the same there when clocks change. For example Europe/Berlin."
        ),
        widget=forms.TextInput({"class": "form-control", "autocomplete": "off"}),
    )
    duration = DurationField(
        label=gettext_lazy("For how long"),
        max_length=40,
        initial="2 h",
        widget=forms.TextInput({"class": "form-control", "autocomplete": "off"}),
    )
    repeat = forms.ChoiceField(
        label=gettext_lazy("Again"),
        choices=Repeat.choices,
        initial=Repeat.WEEKLY,
        widget=forms.Select({"class": "form-select"}),
    )
    until = forms.DateField(
        label=gettext_lazy("Last day"),
        required=False,
        help_text=gettext_lazy("Left empty it goes on until you cancel it."),
        widget=forms.DateInput({"class": "form-control", "type": "date"}),
    )
    name = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=80,
        required=False,
        widget=forms.TextInput({"class": "form-control", "autocomplete": "off"}),
    )

    def __init__(self, *args: Any, teams: list[Team], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.teams = {team.slug: team for team in teams}
        for name, choices in (
            ("team", [(team.slug, team.name) for team in teams]),
            (
                "flavor",
                [(flavor.slug, flavor.shown_name) for flavor in Flavor.objects.filter(is_active=True)],
            ),
        ):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = choices
        self.fields["zone"].initial = timezone.get_current_timezone_name()

    def spec(self) -> SeriesSpec:
        """Return what a valid form asks for, or raise Invalid for a zone that does not exist.

        What was typed as the first time is meant in the zone that was typed.
        """
        data = self.cleaned_data
        zone = zone_named(data["zone"])
        if zone is None:
            raise Invalid(
                fields={"zone": _("There is no such time zone. Write a name such as Europe/Berlin.")}
            )
        first = data["starts_at"]
        try:
            first = first.astimezone(zone) if first.tzinfo else instant_of(first, zone)
        except SkippedTimeError as error:
            raise Invalid(fields={"starts_at": error.sentence}) from error
        except OverflowError as error:
            said = _("The first time lies in the future, within a year.")
            raise Invalid(fields={"starts_at": said}) from error
        last = data.get("until")
        until = datetime(last.year, last.month, last.day, 23, 59, 59, tzinfo=zone) if last else None
        return SeriesSpec(
            flavor=data["flavor"],
            duration_s=data["duration"],
            starts_at=first,
            repeat=data["repeat"],
            until=until,
            zone=data["zone"],
            count=data["count"],
            name=data["name"],
        )

    def refuse(self, error: Invalid) -> None:
        """Mark the fields that a service could not use."""
        for name, sentence in error.fields.items():
            field = FIELD_OF.get(name, name)
            self.add_error(field if field in self.fields else None, str(sentence))


@dataclass(frozen=True)
class SeriesRow:
    """A reservation, ready to show."""

    uid: str
    title: str
    what: str
    team: str
    author: str
    repeat: str
    starts_at: datetime
    until: datetime | None
    zone: str
    length: str
    state: str
    note: str
    is_cancelled: bool


@dataclass(frozen=True)
class ReservationTimeRow:
    """One time of a reservation and what became of it."""

    uid: str
    starts_at: datetime | None
    state: str
    is_booked: bool


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """List the reservations of one's teams, and make one."""
    rights = rights_of(request)
    teams = list(visible_teams(rights, Role.RESEARCHER, Role.ADMIN).order_by("name"))
    if request.method != "POST":
        filled = {name: request.GET[name] for name in ("flavor", "count", "name") if name in request.GET}
        return _shown(request, ReservationForm(teams=teams, initial=filled) if teams else None)
    if not teams:
        raise Forbidden(_("You are in no team that may ask for GPU time."))
    form = ReservationForm(request.POST, teams=teams)
    if not form.is_valid():
        return _shown(request, form, status=422)
    try:
        made = reservations.create_reservation(
            team=form.teams[form.cleaned_data["team"]],
            actor=person(request),
            rights=rights,
            spec=form.spec(),
            now=db_now(),
        )
    except Invalid as error:
        form.refuse(error)
        return _shown(request, form, status=422)
    except BerthError as error:
        form.add_error(None, f"{error.detail} {error.next_step}")
        return _shown(request, form, status=error.status)
    said = _("Reserved. Each time is booked by itself; you hear if one is taken.")
    if made.approval == Approval.AWAITING:
        said = _("So much time needs an approval. Approvers were told; nothing is booked until then.")
    return done(request, said, "web:reservation", made.uid)


@require_safe
def one(request: HttpRequest, uid: str) -> HttpResponse:
    """Show a reservation and its times."""
    rights, now = rights_of(request), timezone.now()
    series = reservations.series_named(rights, uid)
    times = [_time_row(row) for row in reservations.times_of(series, now=now)]
    context = {
        "row": _row(series),
        "times": times,
        "may_cancel": reservations.may_manage_series(rights, series) and series.cancelled_at is None,
    }
    return render(request, "web/reservation.html", context)


@require_POST
def decide(request: HttpRequest, uid: str) -> HttpResponse:
    """Approve or reject a reservation with a note; deciding twice is answered, not repeated."""
    rights = rights_of(request)
    series = reservations.series_named(rights, uid)
    form = NoteForm(request.POST)
    if not form.is_valid():
        sentences = {name: str(errors[0]) for name, errors in form.errors.items()}
        return refused(request, Invalid(fields=sentences), "web:approvals")
    is_approved, note = form.cleaned_data["decision"] == "approve", form.cleaned_data["note"]
    act = reservations.approve_reservation if is_approved else reservations.reject_reservation
    try:
        act(series=series, actor=person(request), rights=rights, note=note, now=db_now())
    except (Conflict, Forbidden, Invalid) as error:
        return refused(request, error, "web:reservation", uid)
    said = (
        _("Approved. Its times are being booked.")
        if is_approved
        else _("Rejected. Nothing is booked for it.")
    )
    return done(request, said, "web:approvals")


@require_POST
def cancel(request: HttpRequest, uid: str) -> HttpResponse:
    """End a reservation and give up its bookings."""
    rights = rights_of(request)
    series = reservations.series_named(rights, uid)
    try:
        reservations.cancel_reservation(series=series, actor=person(request), rights=rights, now=db_now())
    except Forbidden as error:
        return refused(request, error, "web:reservation", uid)
    return done(
        request, _("Cancelled. Its bookings are given up; nothing is billed for them."), "web:reservations"
    )


def _shown(request: HttpRequest, form: ReservationForm | None, *, status: int = 200) -> HttpResponse:
    found = visible_series(rights_of(request))[:200]
    context = {"form": form, "rows": [_row(series) for series in found]}
    return render(request, "web/reservations.html", context, status=status)


def _row(series: Reservation) -> SeriesRow:
    what = what_text(series.flavor.shown_name, series.count)
    return SeriesRow(
        uid=series.uid,
        title=series.name or what,
        what=what,
        team=series.team.name,
        author=str(series.author),
        repeat=str(Repeat(series.repeat).label),
        starts_at=series.starts_at,
        until=series.until,
        zone=series.zone,
        length=span(series.duration_s) or "",
        state="" if series.approval in (Approval.NOT_NEEDED, Approval.APPROVED) else str(series.approval),
        note=series.decision_note,
        is_cancelled=series.cancelled_at is not None,
    )


def _time_row(request: LeaseRequest) -> ReservationTimeRow:
    states = [lease.state for lease in request.leases.all()]
    is_booked = request.state == "granted" and "booked" in states
    return ReservationTimeRow(
        request.uid, request.starts_at, "booked" if is_booked else request.state, is_booked
    )
