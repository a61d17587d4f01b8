"""Maintenance windows: operators plan, see first whom it reaches, change and take back."""

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

from portal.common.clock import db_now
from portal.common.errors import BerthError, Forbidden, Invalid
from portal.common.moments import span
from portal.fleet import maintenance as windows
from portal.fleet.models import MaintenanceWindow, Node
from portal.leases import maintenance
from portal.leases.maintenance import AffectedLease
from portal.web.access import done, person, refused, rights_of
from portal.web.fields import MomentField
from portal.web.figures import what_text


class TimesForm(forms.Form):
    """From when to when."""

    starts_at = MomentField(label=gettext_lazy("Begins"))
    ends_at = MomentField(label=gettext_lazy("Ends"))


class WindowForm(TimesForm):
    """Which nodes, when and why."""

    nodes = forms.MultipleChoiceField(
        label=gettext_lazy("Nodes"),
        help_text=gettext_lazy("Hold Ctrl or Cmd to choose several."),
        error_messages={"required": gettext_lazy("Choose at least one node.")},
        widget=forms.SelectMultiple({"class": "form-select", "size": 6}),
    )
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=200,
        help_text=gettext_lazy("People whose leases end because of it read this."),
        widget=forms.TextInput({"class": "form-control", "autocomplete": "off"}),
    )
    field_order = ("nodes", "starts_at", "ends_at", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["nodes"]
        assert isinstance(field, forms.MultipleChoiceField)
        field.choices = [(name, name) for name in Node.objects.values_list("name", flat=True)]


@dataclass(frozen=True)
class AffectedRow:
    """A lease or booking that a window reaches, ready to show."""

    uid: str
    what: str
    who: str
    team: str
    node: str
    state: str
    ends_at: datetime
    loses: str
    is_booking: bool


@dataclass(frozen=True)
class WindowRow:
    """A window, ready to show."""

    uid: str
    nodes: str
    starts_at: datetime
    ends_at: datetime
    reason: str
    made_by: str
    is_on: bool


def require_operator(request: HttpRequest) -> None:
    """Raise Forbidden for everybody but operators."""
    if not rights_of(request).is_operator:
        raise Forbidden(_("Only operators plan maintenance."))


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """List the windows to come and plan one: first a preview of whom it reaches, then the word."""
    require_operator(request)
    if request.method != "POST":
        return _shown(request, WindowForm())
    form = WindowForm(request.POST)
    if not form.is_valid():
        return _shown(request, form, status=422)
    data, now = form.cleaned_data, db_now()
    try:
        windows.check_window(data["starts_at"], data["ends_at"], data["reason"], now=now)
        nodes = windows.nodes_named(data["nodes"])
        if "confirmed" not in request.POST:
            ids = [node.pk for node in nodes]
            found = maintenance.affected(ids, data["starts_at"], data["ends_at"], now=now)
            return _shown(request, form, affected=[affected_row(row) for row in found])
        made = maintenance.plan_window(
            nodes=nodes,
            starts_at=data["starts_at"],
            ends_at=data["ends_at"],
            reason=data["reason"],
            actor=person(request),
            now=now,
        )
    except Invalid as error:
        for name, text in error.fields.items():
            form.add_error(name if name in form.fields else None, str(text))
        return _shown(request, form, status=422)
    return done(request, _("Planned. Everybody affected is being told."), "web:window", made.uid)


@require_safe
def window(request: HttpRequest, uid: str) -> HttpResponse:
    """Show one window, whom it reaches, and what can still be done about it."""
    require_operator(request)
    found, now = windows.window_named(uid), timezone.now()
    form = TimesForm(initial={"starts_at": found.starts_at, "ends_at": found.ends_at})
    ids = [node.pk for node in found.nodes.all()]
    reached = maintenance.affected(ids, found.starts_at, found.ends_at, now=now)
    context = {
        "row": _window_row(found, now),
        "form": form,
        "affected": [affected_row(row) for row in reached if row.lease.wanted_until or row.loses_s],
        "is_open": found.cancelled_at is None and found.ends_at > now,
        "is_cancelled": found.cancelled_at is not None,
    }
    return render(request, "web/maintenance_window.html", context)


@require_POST
def change(request: HttpRequest, uid: str) -> HttpResponse:
    """Give a window another time."""
    require_operator(request)
    found, form = windows.window_named(uid), TimesForm(request.POST)
    try:
        if not form.is_valid():
            raise Invalid(fields={name: str(errors[0]) for name, errors in form.errors.items()})
        maintenance.change_window(window=found, actor=person(request), now=db_now(), **form.cleaned_data)
    except BerthError as error:
        return refused(request, error, "web:window", uid)
    return done(request, _("Changed. The leases it reaches end accordingly."), "web:window", uid)


@require_POST
def cancel(request: HttpRequest, uid: str) -> HttpResponse:
    """Take a window back."""
    require_operator(request)
    found = windows.window_named(uid)
    try:
        maintenance.cancel_window(window=found, actor=person(request), now=db_now())
    except BerthError as error:
        return refused(request, error, "web:window", uid)
    return done(request, _("Cancelled. Leases get their ends again."), "web:maintenance")


def _shown(
    request: HttpRequest, form: WindowForm, *, affected: list[AffectedRow] | None = None, status: int = 200
) -> HttpResponse:
    now = timezone.now()
    context = {
        "form": form,
        "affected": affected,
        "is_preview": affected is not None,
        "rows": [_window_row(row, now) for row in windows.windows_to_come(now=now)[:200]],
    }
    return render(request, "web/maintenance.html", context, status=status)


def _window_row(row: MaintenanceWindow, now: datetime) -> WindowRow:
    return WindowRow(
        uid=row.uid,
        nodes=", ".join(node.name for node in row.nodes.all()),
        starts_at=row.starts_at,
        ends_at=row.ends_at,
        reason=row.reason,
        made_by=str(row.made_by or ""),
        is_on=row.starts_at <= now < row.ends_at and row.cancelled_at is None,
    )


def affected_row(row: AffectedLease) -> AffectedRow:
    """Return a lease or booking that a window or a drain reaches, ready to show."""
    lease = row.lease
    return AffectedRow(
        uid=lease.uid,
        what=lease.request.name or what_text(lease.flavor.shown_name, lease.count),
        who=str(lease.user),
        team=lease.team.name,
        node=lease.node.name,
        state=lease.state,
        ends_at=lease.wanted_until or lease.not_after,
        loses=span(row.loses_s) or "",
        is_booking=row.is_booking,
    )
