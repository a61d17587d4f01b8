"""Health of nodes and devices over HTTP, and what runs on their GPUs."""

from __future__ import annotations

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Empty, Text
from portal.api.fleet import TAG, OneNode, shown_device
from portal.api.idempotency import once
from portal.api.representations import Row
from portal.api.responses_fleet import DeviceAnswer, NodeAnswer, ProcessesAnswer
from portal.api.wire import instant
from portal.common.errors import NotFound
from portal.fleet.health import clear_health, clear_node_health
from portal.fleet.models import Device, Node
from portal.leases.health_notices import take_out_of_work
from portal.leases.selectors import uids_on
from portal.telemetry.processes import ProcessList, processes_of


class QuarantineBody(Body):
    """Why the device takes no new work; the holders of its leases are told that it does not."""

    reason = Text(most=200)


class ClearHealth(Endpoint):
    """Let a device take work again."""

    @call("Clear a device's health", body=Empty, answer=DeviceAnswer, refusals=(404, 422), tag=TAG)
    @once
    def post(self, request: Request, uuid: str) -> Response:
        """Close a device's open health events and let it take work again. Operators. Safe to repeat."""
        self.require_operator()
        self.take(Empty)
        device = device_named(uuid)
        clear_health(device=device, actor=self.person, now=timezone.now())
        return Response(shown_device(device))


class Quarantine(Endpoint):
    """Take a device out of work."""

    @call(
        "Put a device in quarantine",
        body=QuarantineBody,
        answer=DeviceAnswer,
        refusals=(404, 409, 422),
        tag=TAG,
    )
    @once
    def post(self, request: Request, uuid: str) -> Response:
        """Place nothing new on one device until it is cleared; running leases go on. Operators. Safe to repeat."""
        self.require_operator()
        reason = self.take(QuarantineBody)["reason"]
        device = device_named(uuid)
        take_out_of_work(device=device, actor=self.person, reason=reason, now=timezone.now())
        return Response(shown_device(device))


class ClearNodeHealth(OneNode):
    """Close what a node said of itself."""

    http_method_names = ["post"]

    @call("Clear a node's health", body=Empty, answer=NodeAnswer, refusals=(404, 422), tag=TAG)
    @once
    def post(self, request: Request, name: str) -> Response:
        """Close the open health events of a node as a whole, not of its devices. Operators. Safe to repeat."""
        node = self.operated(name)
        self.take(Empty)
        clear_node_health(node=node, actor=self.person, now=timezone.now())
        return self.shown(name)


class Processes(OneNode):
    """What runs on a node's GPUs."""

    http_method_names = ["get"]

    @call("Read a node's processes", answer=ProcessesAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, name: str) -> Response:
        """Read the processes that a node's devices listed last; all null when that is unknown. Operators."""
        node = self.operated(name)
        found = processes_of(node.name, now=timezone.now())
        rows = _process_rows(node, found) if found else None
        return Response(
            {
                "node": node.name,
                "at": instant(found.at) if found else None,
                "orphans": found.orphans if found else None,
                "processes": rows,
            }
        )


def _process_rows(node: Node, found: ProcessList) -> list[Row]:
    """Return the processes; a lease is named only where it is one of the node's."""
    known = uids_on(node, {row.lease for row in found.rows})
    return [{**row._asdict(), "lease": row.lease if row.lease in known else ""} for row in found.rows]


def device_named(uuid: str) -> Device:
    """Return a device, or raise NotFound."""
    device = Device.objects.filter(uuid=uuid).first()
    if device is None:
        raise NotFound
    return device
