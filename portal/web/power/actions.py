"""What operators do about a node's power: wake it, keep it awake, let it sleep."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from portal.common.errors import Conflict, Invalid, NotFound
from portal.fleet import power
from portal.fleet.models import Node
from portal.web.access import done, person, refused, require_operator
from portal.web.power.forms import WakeForm


@require_POST
def wake(request: HttpRequest, name: str) -> HttpResponse:
    """Wake a node and keep it awake for a while."""
    require_operator(request)
    node, form, now = _node(name), WakeForm(request.POST), timezone.now()
    try:
        if not form.is_valid():
            raise Invalid(fields={field: str(errors[0]) for field, errors in form.errors.items()})
        power.wake(node=node, actor=person(request), now=now, until=now + form.time())
    except Invalid as error:
        return refused(request, error, "web:node", name)
    return done(request, _("%(node)s wakes and stays awake.") % {"node": name}, "web:node", name)


@require_POST
def let_sleep(request: HttpRequest, name: str) -> HttpResponse:
    """Let a node sleep as soon as it holds nothing."""
    require_operator(request)
    try:
        power.let_sleep(node=_node(name), actor=person(request), now=timezone.now())
    except Conflict as error:
        return refused(request, error, "web:node", name)
    said = _("%(node)s sleeps as soon as it holds nothing, and wakes when it is needed.") % {"node": name}
    return done(request, said, "web:node", name)


def _node(name: str) -> Node:
    node = Node.objects.filter(name=name).first()
    if node is None:
        raise NotFound
    return node
