"""What operators do with nodes: look, take out of service, bring back, clear health, enrol."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from portal.agents.services import create_enrol_token, revoke_node
from portal.common.clock import db_now
from portal.common.errors import Invalid, NotFound
from portal.common.models import InvariantCheck
from portal.fleet import services as fleet
from portal.fleet.models import Node
from portal.fleet.pauses import pauses_in_force
from portal.leases.draining import bring_back
from portal.leases.selectors import standing_on
from portal.web.access import done, person, refused, require_operator
from portal.web.nodes.forms import CordonForm, EnrolForm
from portal.web.nodes.lifecycle import enrol_effects
from portal.web.nodes.pauses import pause_rows
from portal.web.nodes.rows import enrol_command, node_rows, open_events
from portal.web.power.rows import fleet_saving


@require_safe
def nodes(request: HttpRequest) -> HttpResponse:
    """List all nodes and what their devices complain about."""
    require_operator(request)
    return render(request, "web/operator_nodes.html", _nodes_context(EnrolForm()))


@require_POST
@never_cache
def enrol(request: HttpRequest) -> HttpResponse:
    """Prepare a node's enrolment and show its one-time token: here and never again."""
    require_operator(request)
    form = EnrolForm(request.POST)
    if not form.is_valid():
        return render(request, "web/operator_nodes.html", _nodes_context(form), status=422)
    again = _leases_at_stake(form.cleaned_data["name"])
    if again and "confirmed" not in request.POST:
        return render(request, "web/operator_enrol_again.html", again)
    try:
        new = create_enrol_token(
            node_name=form.cleaned_data["name"], actor=person(request), now=timezone.now()
        )
    except Invalid as error:
        for field, text in error.fields.items():
            form.add_error(field, text)
        return render(request, "web/operator_nodes.html", _nodes_context(form), status=422)
    context = {
        "node": new.node,
        "secret": new.secret,
        "command": enrol_command(request, new.node.name, new.secret),
    }
    return render(request, "web/operator_enrolled.html", context)


@require_POST
def cordon(request: HttpRequest, name: str) -> HttpResponse:
    """Take a node out of service, with a reason for the people who wait."""
    require_operator(request)
    node = _node(name)
    form = CordonForm(request.POST)
    try:
        if not form.is_valid():
            raise Invalid(fields={field: str(errors[0]) for field, errors in form.errors.items()})
        reason = form.cleaned_data["reason"]
        fleet.cordon(node=node, actor=person(request), reason=reason, now=timezone.now())
    except Invalid as error:
        return refused(request, error, "web:node", name)
    return done(
        request, _("%(node)s takes no new work. Running leases go on.") % {"node": name}, "web:node", name
    )


@require_POST
def uncordon(request: HttpRequest, name: str) -> HttpResponse:
    """Bring a node back into service."""
    require_operator(request)
    bring_back(node=_node(name), actor=person(request), now=db_now())
    return done(request, _("%(node)s takes new work again.") % {"node": name}, "web:node", name)


@require_POST
def revoke(request: HttpRequest, name: str) -> HttpResponse:
    """Forget a node's key, so that its agent must be enrolled again."""
    require_operator(request)
    revoke_node(node=_node(name), actor=person(request), now=timezone.now())
    return done(
        request,
        _("The key of %(node)s is revoked. Enrol it again to use it.") % {"node": name},
        "web:node",
        name,
    )


def _leases_at_stake(name: str) -> dict[str, object]:
    """Return what a page has to say before a node with leases is enrolled again; empty where none are on it."""
    node = Node.objects.filter(name=name).first()
    count = len(standing_on(node)) if node else 0
    if node is None or not count:
        return {}
    said = ngettext("%(n)d lease is on this node", "%(n)d leases are on this node", count) % {"n": count}
    return {"node": node, "count_text": said, "effects": enrol_effects(node)}


def _node(name: str) -> Node:
    node = Node.objects.filter(name=name).first()
    if node is None:
        raise NotFound
    return node


def _nodes_context(form: EnrolForm) -> dict[str, object]:
    now = timezone.now()
    return {
        "rows": node_rows(now=now),
        "events": open_events(),
        "form": form,
        "is_enrolling": form.is_bound,
        "saving": fleet_saving(now=now),
        "pauses": pause_rows(pauses_in_force(now=now), is_operator=True),
        "check": InvariantCheck.objects.first(),
    }
