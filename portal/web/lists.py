"""Lists of leases and of requests: mine or my teams', filtered, sorted and paged."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_safe

from portal.leases.lists import LEASE_ORDERS, REQUEST_ORDERS, ListQuery, lease_page, request_page
from portal.leases.states import LIVE_LEASES, OPEN_REQUESTS, LeaseState, RequestState
from portal.teams.selectors import Rights, visible_teams
from portal.web.access import rights_of
from portal.web.leases.rows import lease_rows
from portal.web.requests.rows import request_rows

PER_PAGE = 25
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
        self.teams = list(visible_teams(rights))
        teams = [(team.slug, team.name) for team in self.teams]
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
    """Show leases of the teams this person belongs to."""
    rights = rights_of(request)
    form = ListForm(request.GET, rights=rights, states=[("live", _("Not ended yet")), *LeaseState.choices])
    query = _query(request, form, rights, LEASE_ORDERS, "-started", live=("live", LIVE_LEASES))
    page = lease_page(query)
    context = {
        "form": form,
        "page": page,
        "ordering": query.ordering,
        "rows": lease_rows(page.rows, now=timezone.now()),
        "is_filtered": bool(form.chosen()),
    }
    return render(request, "web/leases.html", context)


@require_safe
def requests(request: HttpRequest) -> HttpResponse:
    """Show requests of the teams this person belongs to."""
    rights = rights_of(request)
    form = ListForm(
        request.GET, rights=rights, states=[("open", _("Not finished yet")), *RequestState.choices]
    )
    query = _query(request, form, rights, REQUEST_ORDERS, "-asked", live=("open", OPEN_REQUESTS))
    page = request_page(query)
    context = {
        "form": form,
        "page": page,
        "ordering": query.ordering,
        "rows": request_rows(page.rows),
        "is_filtered": bool(form.chosen()),
    }
    return render(request, "web/requests.html", context)


def _query(
    request: HttpRequest,
    form: ListForm,
    rights: Rights,
    orders: Collection[str],
    default: str,
    *,
    live: tuple[str, Iterable[str]],
) -> ListQuery:
    """Return what the address asks for; an unknown order falls back, ``live`` is the choice that means several."""
    chosen = form.chosen()
    # Names are looked through from the newest on, in no other order.
    ordering = default if "q" in chosen else request.GET.get("ordering", default)
    state = chosen.get("state", "")
    return ListQuery(
        teams=[team.pk for team in form.teams if chosen.get("team") in (None, team.slug)],
        ordering=ordering if ordering.removeprefix("-") in orders else default,
        size=PER_PAGE,
        user=rights.user.pk if chosen.get("whose") == "mine" else None,
        states=tuple(sorted(live[1])) if state == live[0] else (state,) if state else (),
        text=chosen.get("q", ""),
        after=request.GET.get("after", ""),
        before=request.GET.get("before", ""),
    )
