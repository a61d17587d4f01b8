"""Who idles, and the rules about it: everybody sees the leases in sight, operators the rules."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from portal.catalog.models import Flavor
from portal.common.clock import db_now
from portal.common.errors import BerthError, Forbidden, Invalid
from portal.idle.models import IDLE, IdleAction, IdleStanding, IdleState
from portal.idle.rules import BOUNDS, idle_rules, remove_rule, set_rule
from portal.idle.selectors import idle_now, standing_of
from portal.idle.snoozing import MOST_REASON, snooze, snoozes_left
from portal.idle.words import evidence_text
from portal.leases.models import Lease
from portal.leases.selectors import may_manage_lease, visible_lease
from portal.leases.states import EndReason
from portal.teams.models import Team
from portal.teams.selectors import Rights
from portal.web.access import done, person, refused, rights_of
from portal.web.fields import text_field
from portal.web.figures import gpus, what_text


@dataclass(frozen=True, slots=True)
class IdleRow:
    """A lease that idles, in words."""

    uid: str
    title: str
    holder: str
    team: str
    what: str
    devices: str | None
    state: str
    since: datetime
    evidence: str
    reclaim_at: datetime | None
    snoozed_until: datetime | None


@dataclass(frozen=True, slots=True)
class IdleCard:
    """What the page of a lease says of its idling; ``snoozes_left`` is 0 for whoever may not put it off."""

    state: str
    is_idle: bool
    since: datetime
    evidence: str
    then: str
    reclaim_at: datetime | None
    snoozed_until: datetime | None
    snoozes_left: int
    snooze_min: int
    form: forms.Form


class SnoozeForm(forms.Form):
    """Why an idle lease is kept."""

    reason = text_field(gettext_lazy("What it is kept for"), MOST_REASON)


def _number(name: str, label: Any, usual: int, hint: Any = "") -> forms.IntegerField:
    least, most = BOUNDS[name]
    widget = forms.NumberInput({"class": "form-control", "inputmode": "numeric"})
    return forms.IntegerField(
        label=label, min_value=least, max_value=most, initial=usual, help_text=hint, widget=widget
    )


class RuleForm(forms.Form):
    """What happens to leases that idle, for whom."""

    team = forms.ModelChoiceField(
        label=gettext_lazy("Team"),
        queryset=Team.objects.all(),
        to_field_name="slug",
        required=False,
        empty_label=gettext_lazy("Everybody"),
        help_text=gettext_lazy("With the teams below it."),
        widget=forms.Select({"class": "form-select"}),
    )
    flavor = forms.ModelChoiceField(
        label=gettext_lazy("Flavor"),
        queryset=Flavor.objects.all(),
        to_field_name="slug",
        required=False,
        empty_label=gettext_lazy("Every flavor"),
        widget=forms.Select({"class": "form-select"}),
    )
    then = forms.ChoiceField(
        label=gettext_lazy("What happens"),
        choices=IdleAction.choices,
        initial=IdleAction.WARN.value,
        widget=forms.Select({"class": "form-select"}),
    )
    after_min = _number("after_min", gettext_lazy("After so many minutes without work"), 60)
    grace_min = _number("grace_min", gettext_lazy("Minutes between the notice and the end"), 30)
    snoozes = _number("snoozes", gettext_lazy("How often the holder may put it off"), 2)
    snooze_min = _number("snooze_min", gettext_lazy("For how many minutes each"), 60)


def idle_row(row: IdleStanding) -> IdleRow:
    """Return a lease that idles, in words; its relations must be at hand."""
    lease = row.lease
    what = what_text(lease.flavor.shown_name, lease.count)
    return IdleRow(
        uid=lease.uid,
        title=lease.request.name or what,
        holder=str(lease.user),
        team=lease.team.name,
        what=what,
        devices=gpus(lease.share_milli),
        state=str(IdleState(row.state).label),
        since=row.since,
        evidence=evidence_text(row),
        reclaim_at=row.reclaim_at,
        snoozed_until=row.snoozed_until,
    )


def idle_card(rights: Rights, lease: Lease) -> IdleCard | None:
    """Return what the page of a lease says of its idling; None where it was never judged, or is over for else."""
    row = standing_of(lease)
    if row is None or (lease.ended_at is not None and lease.end_reason != EndReason.IDLE):
        return None
    left, minutes = snoozes_left(lease) if may_manage_lease(rights, lease) else (0, 0)
    is_open = lease.ended_at is None and row.state in IDLE
    is_off = row.snoozed_until is not None and row.snoozed_until > db_now()
    return IdleCard(
        state=str(IdleState(row.state).label),
        is_idle=row.state in IDLE,
        since=row.since,
        evidence=evidence_text(row),
        then=row.then,
        reclaim_at=row.reclaim_at if lease.ended_at is None else None,
        snoozed_until=row.snoozed_until if is_off else None,
        snoozes_left=left if is_open and not is_off else 0,
        snooze_min=minutes,
        form=SnoozeForm(),
    )


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """Show the leases in sight that idle, operators the rules too; a POST by an operator sets one."""
    rights = rights_of(request)
    form = RuleForm(request.POST or None)
    if request.method == "POST":
        if not rights.is_operator:
            raise Forbidden(_("Only operators change rules about idle leases."))
        if form.is_valid() and _is_set(request, form):
            return done(request, _("The rule is set."), "web:idle")
    context: dict[str, Any] = {
        "rows": [idle_row(row) for row in idle_now(rights)],
        "rules": idle_rules() if rights.is_operator else [],
        "form": form,
        "is_operator": rights.is_operator,
    }
    return render(request, "web/idle.html", context, status=422 if form.is_bound else 200)


@require_POST
def remove(request: HttpRequest, key: int) -> HttpResponse:
    """Remove a rule."""
    try:
        remove_rule(key=key, actor=person(request), rights=rights_of(request), now=db_now())
    except Invalid as error:
        return refused(request, error, "web:idle")
    return done(request, _("The rule is removed. Nothing is taken back by it any more."), "web:idle")


@require_POST
def put_off(request: HttpRequest, uid: str) -> HttpResponse:
    """Put off what an idle lease has coming."""
    rights = rights_of(request)
    lease = visible_lease(rights, uid)
    form = SnoozeForm(request.POST)
    if not form.is_valid():
        sentences = {name: str(errors[0]) for name, errors in form.errors.items()}
        return refused(request, Invalid(fields=sentences), "web:lease", uid)
    try:
        snooze(
            lease=lease, actor=person(request), rights=rights, reason=form.cleaned_data["reason"], now=db_now()
        )  # fmt: skip
    except Forbidden:
        raise
    except BerthError as error:
        return refused(request, error, "web:lease", uid)
    return done(request, _("It is put off. Your lease stays meanwhile."), "web:lease", uid)


def _is_set(request: HttpRequest, form: RuleForm) -> bool:
    """Set the rule; False when it was refused, with the reason on the form."""
    try:
        set_rule(**form.cleaned_data, actor=person(request), rights=rights_of(request), now=db_now())
    except Invalid as error:
        for field, text in error.fields.items():
            form.add_error(field if field in form.fields else None, text)
        return False
    return True
