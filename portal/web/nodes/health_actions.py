"""What operators do about the health of nodes and devices."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from portal.common.errors import BerthError, Invalid, NotFound
from portal.fleet.health import clear_health, clear_node_health
from portal.fleet.models import Device, Node
from portal.leases.health_notices import take_out_of_work
from portal.web.access import done, person, refused, require_operator
from portal.web.nodes.health import QuarantineForm


@require_POST
def put_in_quarantine(request: HttpRequest, name: str) -> HttpResponse:
    """Take one device of a node out of work, and tell the holders of its leases."""
    require_operator(request)
    node = _node(name)
    form = QuarantineForm(request.POST, devices=list(node.devices.select_related("model")))
    if not form.is_valid():
        return refused(request, Invalid(fields={k: v[0] for k, v in form.errors.items()}), "web:node", name)
    device = node.devices.get(uuid=form.cleaned_data["device"])
    try:
        take_out_of_work(
            device=device,
            actor=person(request),
            reason=form.cleaned_data["reason"],
            now=timezone.now(),
        )
    except BerthError as error:
        return refused(request, error, "web:node", name)
    said = _("Device %(index)d of %(node)s takes no new work until it is cleared. Running leases go on.") % {
        "index": device.index,
        "node": name,
    }
    return done(request, said, "web:node", name)


@require_POST
def clear(request: HttpRequest, uuid: str) -> HttpResponse:
    """Close a device's open health events and let it take work again."""
    require_operator(request)
    device = Device.objects.select_related("node").filter(uuid=uuid).first()
    if device is None:
        raise NotFound
    clear_health(device=device, actor=person(request), now=timezone.now())
    said = _("Device %(index)d of %(node)s takes work again.") % {
        "index": device.index,
        "node": device.node.name,
    }
    return done(request, said, "web:node", device.node.name)


@require_POST
def clear_node(request: HttpRequest, name: str) -> HttpResponse:
    """Close the open health events that concern a node as a whole."""
    require_operator(request)
    clear_node_health(node=_node(name), actor=person(request), now=timezone.now())
    return done(request, _("The events of %(node)s itself are cleared.") % {"node": name}, "web:node", name)


def _node(name: str) -> Node:
    node = Node.objects.filter(name=name).first()
    if node is None:
        raise NotFound
    return node
