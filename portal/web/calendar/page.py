"""The calendar: what is held and planned on every device, by day or week."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_safe

from portal.common.errors import Invalid
from portal.fleet.models import Device, DeviceModel, Node
from portal.leases.calendar import CalendarEntry, CalendarFilter, devices_of, entries
from portal.leases.ical import as_ical, own_leases
from portal.teams.models import Role
from portal.teams.selectors import Rights, visible_teams
from portal.web.access import person, rights_of
from portal.web.calendar.availability import free_rows
from portal.web.calendar.rows import lines, rows, span_of, ticks

NODES_A_PAGE = 6
ASKS = (Role.RESEARCHER, Role.ADMIN)


def _select() -> forms.Select:
    return forms.Select({"class": "form-select"})


class CalendarForm(forms.Form):
    """What to show; a value that makes no sense is ignored."""

    view = forms.ChoiceField(
        label=_("Show"), choices=(("week", _("Week")), ("day", _("Day"))), required=False, widget=_select()
    )
    on = forms.CharField(
        label=_("From"),
        max_length=10,
        required=False,
        widget=forms.DateInput({"class": "form-control", "type": "date"}),
    )
    node = forms.ChoiceField(label=_("Node"), required=False, widget=_select())
    model = forms.ChoiceField(label=_("Device model"), required=False, widget=_select())
    team = forms.ChoiceField(label=_("Team"), required=False, widget=_select())

    def __init__(self, data: Any, *, rights: Rights) -> None:
        super().__init__(data)
        nodes = [(name, name) for name in Node.objects.values_list("name", flat=True)]
        teams = [(team.slug, team.name) for team in visible_teams(rights)]
        models = list(
            DeviceModel.objects.filter(devices__isnull=False).distinct().values_list("slug", "name")
        )
        for name, choices in (
            ("node", [("", _("Every node")), *nodes]),
            ("model", [("", _("Every model")), *models]),
            ("team", [("", _("Every team")), *teams]),
        ):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = choices

    def chosen(self) -> dict[str, str]:
        """Return the filters that can be used."""
        self.is_valid()
        return {name: value for name, value in self.cleaned_data.items() if value}


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show the calendar; own work in colour, strangers' without names."""
    rights, now = rights_of(request), timezone.now()
    form = CalendarForm(request.GET, rights=rights)
    chosen = form.chosen()
    span = span_of(chosen.get("view", ""), chosen.get("on", ""), now=now)
    names = {name: chosen.get(name, "") for name in ("node", "model", "team")}
    wanted = CalendarFilter(span.since, span.until, **names)
    page, devices = _paged(devices_of(wanted), request)
    problem = ""
    found: list[CalendarEntry] = []
    try:
        found = entries(rights, wanted, devices, now=now)
    except Invalid as error:
        problem = " ".join(str(text) for text in error.fields.values())
    # Units are counted over the whole fleet: no answer to one node or one team.
    is_whole = page.number == 1 and not names["node"] and not names["team"]
    free = free_rows(span, model=names["model"], now=now) if is_whole else []
    context = {
        "form": form,
        "span": span,
        "ticks": ticks(span, now=now),
        "rows": rows(devices, found, span),
        "lines": lines(found),
        "free": free,
        "page": page,
        "problem": problem,
        "now_at": span.column(now) if span.since <= now < span.until else None,
        "zone": timezone.get_current_timezone_name(),
        "may_ask": rights.has_anywhere(*ASKS),
        "may_plan": rights.is_operator,
    }
    return render(request, "web/calendar.html", context)


@require_safe
def mine(request: HttpRequest) -> HttpResponse:
    """Give one's own bookings and leases as a file for calendar programs."""
    text = as_ical(own_leases(person(request)), host=request.get_host(), now=timezone.now())
    headers = {"Content-Disposition": 'attachment; filename="berth.ics"', "Cache-Control": "no-store"}
    return HttpResponse(text, content_type="text/calendar; charset=utf-8", headers=headers)


def _paged(devices: QuerySet[Device], request: HttpRequest) -> tuple[Any, list[Device]]:
    """Return the page of nodes asked for, or the nearest, and its devices."""
    nodes = list(dict.fromkeys(devices.values_list("node_id", flat=True)))
    page = Paginator(nodes, NODES_A_PAGE).get_page(request.GET.get("page"))
    return page, list(devices.filter(node__in=page.object_list))
