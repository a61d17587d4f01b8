"""The cluster map and the page of one node."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from portal.common.errors import NotFound
from portal.fleet.models import Node
from portal.fleet.pauses import pauses_on
from portal.web.access import rights_of
from portal.web.cluster.forms import MapFilter
from portal.web.cluster.map import as_json, fleet_view, narrowed
from portal.web.cluster.node import devices_of, facts_of, leases_on, pool_text
from portal.web.cluster.rows import capacity_of, table_of, teams_of
from portal.web.nodes.forms import CordonForm
from portal.web.nodes.health import QuarantineForm, can_quarantine, event_rows, refusals_of
from portal.web.nodes.lifecycle import life_facts, waiting_rows
from portal.web.nodes.pauses import pause_rows
from portal.web.nodes.processes import process_table
from portal.web.nodes.slice_metrics import silent_devices_text
from portal.web.power.forms import WakeForm
from portal.web.power.rows import power_facts

MOST_ROWS = 100  # of the map as a table: a fleet of a thousand devices would be seconds of them


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show every node, device and slice, narrowed by a filter."""
    fleet = fleet_view(rights_of(request), now=timezone.now())
    form = MapFilter(request.GET, fleet)
    shown = narrowed(fleet, **form.chosen())
    slices = sum(len(device.slots) for device in shown.devices)
    context = {
        "form": form,
        "fleet": shown,
        "map": as_json(shown),
        "capacity": capacity_of(fleet),
        "rows": table_of(shown, MOST_ROWS),
        "more": max(0, slices - MOST_ROWS),
        "teams": teams_of(shown),
        "is_narrowed": shown.nodes != fleet.nodes,
        "is_operator": rights_of(request).is_operator,
    }
    return render(request, "web/cluster.html", context)


@require_safe
def node(request: HttpRequest, name: str) -> HttpResponse:
    """Show one node: devices, health, leases in sight; operators also see what its agent was told."""
    rights = rights_of(request)
    row = Node.objects.filter(name=name).first()
    if row is None:
        raise NotFound
    now = timezone.now()
    fleet = fleet_view(rights, now=now, node_name=name)
    devices = list(row.devices.select_related("model"))
    context = {
        "node": row,
        "view": fleet.nodes[0],
        "topic": f"node:{row.name}",
        "map": as_json(fleet),
        "capacity": capacity_of(fleet),
        "rows": table_of(fleet),
        "teams": teams_of(fleet),
        "devices": devices_of(row, is_operator=rights.is_operator),
        "pool": pool_text(row, devices),
        "silent_text": silent_devices_text(devices),
        "events": event_rows(row, is_operator=rights.is_operator),
        "refusals": refusals_of(devices) if rights.is_operator else [],
        "processes": process_table(row, now=now) if rights.is_operator else None,
        "quarantine_form": QuarantineForm(devices=can_quarantine(devices)),
        "leases": leases_on(rights, row),
        "facts": facts_of(row) if rights.is_operator else None,
        "waiting": waiting_rows(row) if rights.is_operator else None,
        "life": life_facts(row, now=now) if rights.is_operator else None,
        "power": power_facts(row, now=now) if rights.is_operator else None,
        "wake_form": WakeForm(),
        "is_operator": rights.is_operator,
        "pauses": pause_rows(pauses_on(row, now=now), is_operator=rights.is_operator),
        "cordon_form": CordonForm(),
    }
    return render(request, "web/node.html", context)
