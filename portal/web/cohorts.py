"""Cohorts as operators see them: which teams lend each other, what is borrowed, and whether guarantees can be kept."""

from __future__ import annotations

from dataclasses import dataclass

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from portal.common.errors import BerthError, Forbidden, Invalid
from portal.quotas.cohorts import (
    MOST_NAME,
    CohortShare,
    CohortStanding,
    Promises,
    cohorts,
    create_cohort,
    delete_cohort,
    promises,
    rename_cohort,
)
from portal.teams.selectors import SEES_TEAM, Rights
from portal.web.access import done, person, refused, rights_of
from portal.web.figures import gpus
from portal.web.quota_bars import QuotaBar


class CohortForm(forms.Form):
    """The name of a cohort."""

    name = forms.CharField(
        label=gettext_lazy("Name of the cohort"),
        max_length=MOST_NAME,
        widget=forms.TextInput({"class": "form-control", "autocomplete": "off"}),
    )


@dataclass(frozen=True, slots=True)
class CohortTeamRow:
    """A team of a cohort: its bar, what it borrows, what it lends now and at most."""

    name: str
    slug: str
    bar: QuotaBar
    borrowed: str | None
    lendable: str | None
    limit: str | None


@dataclass(frozen=True, slots=True)
class CohortCard:
    """A cohort with its sums and the teams in sight; ``hidden`` counts the others."""

    key: int
    name: str
    rows: list[CohortTeamRow]
    hidden: int
    borrowed: str | None
    lendable: str | None
    form: CohortForm


@dataclass(frozen=True, slots=True)
class PromiseNote:
    """What all guarantees need at once against the fleet, as text."""

    guaranteed: str | None
    capacity: str | None
    is_too_much: bool


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """List the cohorts; a POST makes one."""
    _require_operator(request)
    form = CohortForm(request.POST or None) if request.method == "POST" else CohortForm()
    if form.is_bound and form.is_valid():
        try:
            made = create_cohort(
                actor=person(request), rights=rights_of(request), name=form.cleaned_data["name"], now=timezone.now()
            )  # fmt: skip
        except Invalid as error:
            form.add_error("name", str(error.fields["name"]))
        else:
            said = _("Cohort %(name)s is made. Put teams into it on their quota pages.") % {"name": made.name}
            return done(request, said, "web:cohorts")
    status = 422 if request.method == "POST" else 200
    context = {
        "cards": [cohort_card(found, rights_of(request)) for found in cohorts()],
        "form": form,
        "promise": promise_note(promises()),
    }
    return render(request, "web/cohorts.html", context, status=status)


@require_POST
def rename(request: HttpRequest, key: int) -> HttpResponse:
    """Give a cohort another name."""
    _require_operator(request)
    name = request.POST.get("name", "")
    try:
        row = rename_cohort(
            actor=person(request), rights=rights_of(request), cohort_id=key, name=name, now=timezone.now()
        )
    except BerthError as error:
        return _not_done(request, error)
    return done(request, _("The cohort is called %(name)s now.") % {"name": row.name}, "web:cohorts")


@require_POST
def remove(request: HttpRequest, key: int) -> HttpResponse:
    """Remove a cohort that no team is in."""
    _require_operator(request)
    try:
        delete_cohort(actor=person(request), rights=rights_of(request), cohort_id=key, now=timezone.now())
    except BerthError as error:
        return _not_done(request, error)
    return done(request, _("The cohort is gone."), "web:cohorts")


def cohort_card(found: CohortStanding, rights: Rights) -> CohortCard:
    """Return a cohort as its card shows it to this person: teams out of sight count, but are not named."""
    seen = [share for share in found.shares if rights.has(share.team, *SEES_TEAM)]
    return CohortCard(
        key=found.cohort.pk,
        name=found.cohort.name,
        rows=[member_row(share) for share in seen],
        hidden=len(found.shares) - len(seen),
        borrowed=gpus(found.borrowed_milli),
        lendable=gpus(found.lendable_milli),
        form=CohortForm(initial={"name": found.cohort.name}, auto_id=f"id_{found.cohort.pk}_%s"),
    )


def member_row(share: CohortShare) -> CohortTeamRow:
    """Return a team of a cohort; its bar is measured by its guarantee, and longer where it uses more."""
    return CohortTeamRow(
        name=share.team.name,
        slug=share.team.slug,
        bar=QuotaBar(
            label=share.team.name,
            used=share.used_milli - share.borrowed_milli,
            guaranteed=share.guaranteed_milli or None,
            ceiling=share.guaranteed_milli,
            borrowed=share.borrowed_milli,
            scale=max(share.used_milli, share.guaranteed_milli, 1000),
            used_text=gpus(share.used_milli),
            guaranteed_text=gpus(share.guaranteed_milli),
            ceiling_text=gpus(share.guaranteed_milli),
        ),
        borrowed=gpus(share.borrowed_milli) if share.borrowed_milli else None,
        lendable=gpus(share.lendable_milli),
        limit=gpus(share.lending_milli),
    )


def promise_note(found: Promises) -> PromiseNote:
    """Return what all guarantees need at once against the fleet, as text."""
    return PromiseNote(
        gpus(found.guaranteed_milli),
        gpus(found.capacity_milli) if found.capacity_milli else None,
        found.is_too_much,
    )


def _require_operator(request: HttpRequest) -> None:
    if not rights_of(request).is_operator:
        raise Forbidden(_("Only operators work on cohorts."))


def _not_done(request: HttpRequest, error: BerthError) -> HttpResponse:
    if error.status in (403, 404):
        raise error
    return refused(request, error, "web:cohorts")
