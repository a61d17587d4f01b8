"""Lists of leases and of requests: mine or my teams', filtered, sorted and paged."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.paginator import Page, Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_safe

from portal.leases.selectors import visible_leases, visible_requests
from portal.leases.states import LIVE_LEASES, OPEN_REQUESTS, LeaseState, RequestState
from portal.teams.selectors import Rights, visible_teams
from portal.web.access import rights_of
from portal.web.leases.rows import lease_rows
from portal.web.requests.rows import request_rows

PER_PAGE = 25
LEASE_ORDER = {"started": "starts_at", "ends": "not_after", "team": "team__name", "state": "state"}
REQUEST_ORDER = {"asked": "submitted_at", "team": "team__name", "state": "state", "quote": "quote_micro"}
WHOSE = (("", _("Everybody's")), ("mine", _("Only mine")))


def _select() -> forms.Select:
    return forms.Select({"class": "form-select"})


class ListForm(forms.Form):
    """What to show; a value that makes no sense is marked and ignored."""

    whose = forms.ChoiceField(label=_("Whose"), choices=WHOSE, required=False, widget=_select())
    team = forms.ChoiceField(label=_("Team"), required=False, widget=_select())
    state = forms.ChoiceField(label=_("State"), required=False, widget=_select())
    q = forms.CharField(
        label=_("Name or number"),
        max_length=80,
        required=False,
        widget=forms.TextInput({"class": "form-control", "type": "search", "autocomplete": "off"}),
    )

    def __init__(self, data: Any, *, rights: Rights, states: list[tuple[str, Any]]) -> None:
        super().__init__(data)
        teams = [(team.slug, team.name) for team in visible_teams(rights)]
        for name, choices in (
            ("team", [("", _("Every team")), *teams]),
            ("state", [("", _("Any")), *states]),
        ):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)
            field.choices = choices

    def chosen(self) -> dict[str, str]:
        """Return the filters that can be used."""
        self.is_valid()
        return {name: value for name, value in self.cleaned_data.items() if value}


@require_safe
def leases(request: HttpRequest) -> HttpResponse:
    """Show leases of the teams this person belongs to; one's own live ones on first sight."""
    rights = rights_of(request)
    states = [("live", _("Not ended yet")), *LeaseState.choices]
    form = ListForm(request.GET, rights=rights, states=states)
    chosen = form.chosen()
    rows = _narrowed(visible_leases(rights), chosen, mine=Q(user=rights.user), name="request__name")
    if "state" in chosen:
        live = Q(state__in=LIVE_LEASES)
        rows = rows.filter(live if chosen["state"] == "live" else Q(state=chosen["state"]))
    ordering, page = _ordered_page(request, rows, LEASE_ORDER, "-started")
    context = {
        "form": form,
        "page": page,
        "ordering": ordering,
        "rows": lease_rows(list(page.object_list), now=timezone.now()),
        "is_filtered": bool(chosen),
    }
    return render(request, "web/leases.html", context)


@require_safe
def requests(request: HttpRequest) -> HttpResponse:
    """Show requests of the teams this person belongs to."""
    rights = rights_of(request)
    states = [("open", _("Not finished yet")), *RequestState.choices]
    form = ListForm(request.GET, rights=rights, states=states)
    chosen = form.chosen()
    rows = _narrowed(visible_requests(rights), chosen, mine=Q(author=rights.user), name="name")
    if "state" in chosen:
        still = Q(state__in=OPEN_REQUESTS)
        rows = rows.filter(still if chosen["state"] == "open" else Q(state=chosen["state"]))
    ordering, page = _ordered_page(request, rows, REQUEST_ORDER, "-asked")
    context = {
        "form": form,
        "page": page,
        "ordering": ordering,
        "rows": request_rows(list(page.object_list)),
        "is_filtered": bool(chosen),
    }
    return render(request, "web/requests.html", context)


def _narrowed(rows: QuerySet[Any], chosen: dict[str, str], *, mine: Q, name: str) -> QuerySet[Any]:
    if chosen.get("whose") == "mine":
        rows = rows.filter(mine)
    if "team" in chosen:
        rows = rows.filter(team__slug=chosen["team"])
    if "q" in chosen:
        rows = rows.filter(Q(uid__icontains=chosen["q"]) | Q(**{f"{name}__icontains": chosen["q"]}))
    return rows


def _ordered_page(
    request: HttpRequest, rows: QuerySet[Any], fields: dict[str, str], default: str
) -> tuple[str, Page[Any]]:
    """Return the order in use (an unknown one falls back) and the page asked for, or the nearest."""
    ordering = request.GET.get("ordering", default)
    if ordering.removeprefix("-") not in fields:
        ordering = default
    sign = "-" if ordering.startswith("-") else ""
    ordered = rows.order_by(f"{sign}{fields[ordering.removeprefix('-')]}", f"{sign}id")
    return ordering, Paginator(ordered, PER_PAGE).get_page(request.GET.get("page"))
