"""Nodes and devices over HTTP: what everybody may know, and what operators do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db.models import Prefetch, QuerySet
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from portal.agents.services import create_enrol_token, revoke_node
from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Empty, Text
from portal.api.filters import DeviceFilters
from portal.api.idempotency import once
from portal.api.pagination import MAX_FEED_SIZE, Pages
from portal.api.representations import Row
from portal.api.rescheduling import then_heed
from portal.api.responses_fleet import DeviceAnswer, Enrolment, MapAnswer, NodeAnswer
from portal.api.wire import instant
from portal.common.clock import db_now
from portal.common.errors import NotFound
from portal.fleet import services
from portal.fleet.draining import drain_state
from portal.fleet.health_words import action_text, code_text
from portal.fleet.models import Device, HealthEvent, Node
from portal.fleet.selectors import node_state
from portal.leases.draining import begin_work
from portal.leases.selectors import standing_on
from portal.web.cluster.map import as_json, fleet_view

TAG = "fleet"


class EnrolBody(Body):
    """The name under which a node is known."""

    name = Text(most=60)


class CordonBody(Body):
    """Why nothing new is placed on the node; waiting people are told."""

    reason = Text(most=200)


class Nodes(Endpoint):
    """The nodes."""

    shown_once = ("secret",)

    @call("List nodes", answer=NodeAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List the nodes; operators also see epochs, revisions and versions."""
        now, is_operator = timezone.now(), self.rights.is_operator
        rows = _with_devices(Node.objects.all())[:MAX_FEED_SIZE]
        return Response(
            {"next": None, "results": [node_row(n, is_operator=is_operator, now=now) for n in rows]}
        )

    @call("Enrol a node", body=EnrolBody, answer=Enrolment, status=201, refusals=(422,), tag=TAG)
    @once
    def post(self, request: Request) -> Response:
        """Make a one-time token with which a node's agent introduces itself, within 15 minutes: operators.

        Where `leases_at_stake` is not 0, start the agent on the same host and with its state folder.
        """
        self.require_operator()
        made = create_enrol_token(
            node_name=self.take(EnrolBody)["name"], actor=self.person, now=timezone.now()
        )  # fmt: skip
        at = f"/api/v1/nodes/{made.node.name}/"
        row = {
            "node": made.node.name,
            "secret": made.secret,
            "leases_at_stake": len(standing_on(made.node)),
        }
        return Response(row, status=201, headers={"Location": at})


class OneNode(Endpoint):
    """One node."""

    @call("Read a node", answer=NodeAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, name: str) -> Response:
        """Read one node."""
        return self.shown(name)

    def shown(self, name: str) -> Response:
        """Return the node's answer, or raise NotFound."""
        node = _with_devices(Node.objects.filter(name=name)).first()
        if node is None:
            raise NotFound
        return Response(node_row(node, is_operator=self.rights.is_operator, now=timezone.now()))

    def operated(self, name: str) -> Node:
        """Return a node for an operator to act on; raises Forbidden or NotFound."""
        self.require_operator()
        node = Node.objects.filter(name=name).first()
        if node is None:
            raise NotFound
        return node


class Cordon(OneNode):
    """Place nothing new on a node."""

    http_method_names = ["post"]

    @call("Cordon a node", body=CordonBody, answer=NodeAnswer, refusals=(404, 422), tag=TAG)
    @once
    def post(self, request: Request, name: str) -> Response:
        """Place nothing new on a node; running leases go on. Operators. Safe to repeat."""
        node, values = self.operated(name), self.take(CordonBody)
        services.cordon(node=node, actor=self.person, reason=values["reason"], now=timezone.now())
        return self.shown(name)


class Uncordon(OneNode):
    """Let a node take work again."""

    http_method_names = ["post"]

    @call("Uncordon a node", body=Empty, answer=NodeAnswer, refusals=(404, 422), tag=TAG)
    @then_heed
    @once
    def post(self, request: Request, name: str) -> Response:
        """Let a node take new work again; a drain ends with it. Operators. Safe to repeat."""
        node = self.operated(name)
        self.take(Empty)
        begin_work(node=node, actor=self.person, now=db_now())
        return self.shown(name)


class Revoke(OneNode):
    """Forget a node's key."""

    http_method_names = ["post"]

    @call("Revoke a node", body=Empty, answer=NodeAnswer, refusals=(404, 422), tag=TAG)
    @once
    def post(self, request: Request, name: str) -> Response:
        """Forget a node's key: its agent is refused until it is enrolled again. Operators."""
        node = self.operated(name)
        self.take(Empty)
        revoke_node(node=node, actor=self.person, now=timezone.now())
        return self.shown(name)


class Devices(Endpoint):
    """The devices."""

    parameters = DeviceFilters.names()

    @call("List devices", answer=DeviceAnswer, is_list=True, parameters=DeviceFilters.parameters(), tag=TAG)
    def get(self, request: Request) -> Response:
        """List the devices; operators also see open health events."""
        pages, is_operator = Pages(), self.rights.is_operator
        found = pages.page(self.narrow(_with_health(Device.objects.all()), DeviceFilters), request)
        return Response(pages.answer([device_row(d, is_operator=is_operator) for d in found]))


class Map(Endpoint):
    """The cluster drawn to scale."""

    @call("Read the cluster map", answer=MapAnswer, tag=TAG)
    def get(self, request: Request) -> Response:
        """Read nodes, devices and slots as the map page draws them; strangers' leases have no name."""
        return Response(as_json(fleet_view(self.rights, now=timezone.now())))


def shown_device(device: Device) -> Row:
    """Return a device afresh, as operators see it."""
    return device_row(_with_health(Device.objects.filter(pk=device.pk)).get(), is_operator=True)


def _with_devices(rows: QuerySet[Node]) -> QuerySet[Node]:
    devices = Device.objects.select_related("model").order_by("index")
    own = HealthEvent.objects.filter(cleared_at=None, device=None).order_by("-at")
    return rows.prefetch_related(Prefetch("devices", devices), Prefetch("health_events", own))


def _with_health(rows: QuerySet[Device]) -> QuerySet[Device]:
    still_open = HealthEvent.objects.filter(cleared_at=None).order_by("-at")
    return rows.select_related("node", "model").prefetch_related(Prefetch("health_events", still_open))


def node_row(node: Node, *, is_operator: bool, now: datetime) -> Row:
    """Return a node; its devices and its own open health events must be at hand."""
    devices: Sequence[Device] = node.devices.all()  # type: ignore[assignment]
    row: Row = {
        "name": node.name,
        "state": node_state(node, now=now),
        "is_cordoned": node.is_cordoned,
        "is_accepted": node.ahead_at is None and all(device.is_accepted for device in devices),
        "drain": drain_state(node, now=now),
        "drain_by": instant(node.drain_by),
        "device_count": len(devices),
        "device_models": sorted({d.model.slug for d in devices}),
        "site": node.site,
        "rack": node.rack,
        "cpu_milli": node.cpu_milli,
        "memory_mib": node.memory_mib,
        "last_seen_at": instant(node.last_seen_at),
    }
    if is_operator:
        row |= {
            "cordon_reason": node.cordon_reason,
            "epoch": node.epoch,
            "desired_revision": node.desired_revision,
            "observed_revision": node.observed_revision,
            "boot_id": node.boot_id,
            "agent_version": node.agent_version,
            "driver": node.driver,
            "driver_version": node.driver_version,
            "enrolled_at": instant(node.enrolled_at),
            "health_events": [health_row(event) for event in node.health_events.all()],
        }
    return row


def device_row(device: Device, *, is_operator: bool) -> Row:
    """Return a device; its node, model and open health events must be at hand."""
    row: Row = {
        "uuid": device.uuid,
        "node": device.node.name,
        "index": device.index,
        "model": device.model.slug,
        "memory_mib": device.model.memory_mib,
        "modes": list(device.modes),
        "profiles": [row["name"] for row in device.profiles],
        "health": str(device.health),
        "is_accepted": device.is_accepted,
    }
    if is_operator:
        row |= {
            "pci_bus_id": device.pci_bus_id,
            "health_reason": device.health_reason,
            "health_events": [health_row(event) for event in device.health_events.all()],
            "refusals": device.refusals,
        }
    return row


def health_row(event: HealthEvent) -> Row:
    """Return an open health event."""
    return {
        "code": event.code,
        "severity": event.severity,
        "detail": event.detail,
        "action": event.action,
        "means": code_text(event.code),
        "todo": action_text(event.action),
        "starts": event.starts,
        "at": instant(event.at),
        "unreported_at": instant(event.unreported_at),
        "until": instant(event.until),
    }
