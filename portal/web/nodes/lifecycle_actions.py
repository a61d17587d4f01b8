"""What operators do in the life of a node: empty it by a deadline, change its key."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from portal.agents.acceptance import accept_node
from portal.agents.keys import ask_rotation
from portal.common.clock import db_now
from portal.common.errors import Conflict, Invalid, NotFound
from portal.fleet.models import Node
from portal.leases.draining import drain_node, reached_by_drain
from portal.web.access import done, person, refused, require_operator
from portal.web.fields import MomentField
from portal.web.maintenance import affected_row

SPANS = (
    (0, gettext_lazy("Now")),
    (15, gettext_lazy("In 15 minutes")),
    (60, gettext_lazy("In an hour")),
    (240, gettext_lazy("In 4 hours")),
    (1440, gettext_lazy("In a day")),
    (4320, gettext_lazy("In 3 days")),
    (10080, gettext_lazy("In a week")),
)


class DrainForm(forms.Form):
    """By when a node has to be empty, and why. An exact time goes before the span.

    ``until`` is the instant that was previewed: it is what is meant, however long somebody looked at it.
    """

    within = forms.TypedChoiceField(
        label=gettext_lazy("Drain it"),
        coerce=int,
        initial=60,
        choices=SPANS,
        widget=forms.Select({"class": "form-select"}),
    )
    by = MomentField(
        label=gettext_lazy("Or by this time"),
        required=False,
        hint=gettext_lazy("Goes before the choice above."),
    )
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=200,
        help_text=gettext_lazy("People whose leases end because of it read this."),
        widget=forms.TextInput({"class": "form-control", "autocomplete": "off"}),
    )

    until = forms.DateTimeField(required=False, widget=forms.HiddenInput())

    def deadline(self, now: datetime) -> datetime:
        """Return the time that was chosen; call once it is valid."""
        values: dict[str, Any] = self.cleaned_data
        chosen: datetime | None = values["by"]
        return chosen or now + timedelta(minutes=values["within"])

    def confirmed(self, now: datetime) -> datetime:
        """Return the time that was previewed, or that was chosen where nothing was; call once it is valid."""
        seen: datetime | None = self.cleaned_data["until"]
        return seen or self.deadline(now)


@require_http_methods(["GET", "HEAD", "POST"])
def drain(request: HttpRequest, name: str) -> HttpResponse:
    """Ask by when a node has to be empty: first a preview of whom it reaches, then the word."""
    require_operator(request)
    node, now = _node(name), db_now()
    if request.method != "POST":
        return _shown(request, node, DrainForm(initial={"reason": node.cordon_reason}))
    form = DrainForm(request.POST)
    if not form.is_valid():
        return _shown(request, node, form, status=422)
    try:
        if "confirmed" not in request.POST:
            by = max(form.deadline(now), now)
            found = [affected_row(row) for row in reached_by_drain(node, by, now=now)]
            return _shown(request, node, form, affected=found, by=by, until=by.isoformat())
        by, reason = form.confirmed(now), form.cleaned_data["reason"]
        drain_node(node=node, by=by, reason=reason, actor=person(request), now=now)
    except Invalid as error:
        for field, text in error.fields.items():
            form.add_error(field, text)
        return _shown(request, node, form, status=422)
    said = _("%(node)s takes no new work and is being drained. Everybody affected is being told.")
    return done(request, said % {"node": name}, "web:node", name)


@require_POST
def rotate(request: HttpRequest, name: str) -> HttpResponse:
    """Have a node's agent make a new key."""
    require_operator(request)
    try:
        ask_rotation(node=_node(name), actor=person(request), now=timezone.now())
    except Conflict as error:
        return refused(request, error, "web:node", name)
    said = _("%(node)s was asked for a new key. The old one is good until the new one is here.")
    return done(request, said % {"node": name}, "web:node", name)


@require_POST
def accept(request: HttpRequest, name: str) -> HttpResponse:
    """Accept what waits on a node, as it was shown."""
    require_operator(request)
    seen = request.POST.get("seen", "")[:16]
    try:
        accept_node(node=_node(name), actor=person(request), now=db_now(), seen=seen)
    except Conflict as error:
        return refused(request, error, "web:node", name)
    return done(request, _("%(node)s is accepted as it is.") % {"node": name}, "web:node", name)


def _shown(
    request: HttpRequest, node: Node, form: DrainForm, *, status: int = 200, **more: Any
) -> HttpResponse:
    context = {"node": node, "form": form, "is_preview": "affected" in more, **more}
    return render(request, "web/node_drain.html", context, status=status)


def _node(name: str) -> Node:
    node = Node.objects.filter(name=name).first()
    if node is None:
        raise NotFound
    return node
