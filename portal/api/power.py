"""Power of nodes over HTTP: what operators know of it and do about it."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Empty, Instant
from portal.api.fleet import OneNode
from portal.api.idempotency import once
from portal.api.representations import Row
from portal.api.responses_power import EnergyAnswer, PowerAnswer
from portal.api.wire import instant
from portal.fleet import power
from portal.fleet.models import Node
from portal.telemetry.energy import Saving, saving

TAG = "fleet"
OVER = timedelta(days=30)


class WakeBody(Body):
    """Until when the node stays awake; an hour from now when left out."""

    until = Instant(required=False)


class NodePowerEndpoint(OneNode):
    """One node's power."""

    http_method_names = ["get"]

    @call("Read a node's power", answer=PowerAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, name: str) -> Response:
        """Read whether a node sleeps, since when it holds nothing and what sleeping saved. Operators."""
        return Response(power_row(self.operated(name), now=timezone.now()))

    def answer(self, node: Node) -> Response:
        """Return the node's power as it is now."""
        return Response(power_row(Node.objects.get(pk=node.pk), now=timezone.now()))


class Wake(NodePowerEndpoint):
    """Wake a node and keep it awake."""

    http_method_names = ["post"]

    @call("Wake a node", body=WakeBody, answer=PowerAnswer, refusals=(404, 422), tag=TAG)
    @once
    def post(self, request: Request, name: str) -> Response:
        """Wake a node and keep it awake until a time, at most 90 days ahead. Operators. Safe to repeat."""
        node, values = self.operated(name), self.take(WakeBody)
        power.wake(node=node, actor=self.person, now=timezone.now(), until=values.get("until"))
        return self.answer(node)


class LetSleep(NodePowerEndpoint):
    """Let a node sleep."""

    http_method_names = ["post"]

    @call("Let a node sleep", body=Empty, answer=PowerAnswer, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, name: str) -> Response:
        """Let a node sleep as soon as it holds nothing, until it is needed. Operators. Safe to repeat."""
        node = self.operated(name)
        self.take(Empty)
        power.let_sleep(node=node, actor=self.person, now=timezone.now())
        return self.answer(node)


class Energy(Endpoint):
    """What sleeping saved on all nodes."""

    @call("Read what sleeping saved", answer=EnergyAnswer, tag=TAG)
    def get(self, request: Request) -> Response:
        """Read how long nodes slept in the last 30 days and what that saved. Operators."""
        self.require_operator()
        now = timezone.now()
        return Response(energy_row(saving(now=now, since=now - OVER), now))


def power_row(node: Node, *, now: datetime) -> Row:
    """Return a node's power; reads its sleeps of the last 30 days."""
    rule = power.rule_of(node, now=now)
    return {
        "node": node.name,
        "power": power.shown_power(node) or None,
        "desired": node.power_desired,
        "note": node.power_note,
        "may_sleep_any_time": rule == "asleep",
        "kept_awake_until": instant(node.power_rule_until) if rule == "awake" else None,
        "idle_since": instant(node.idle_since),
        "wake_s": node.wake_s,
        **energy_row(saving(now=now, since=now - OVER, node_id=node.pk), now),
    }


def energy_row(found: Saving, now: datetime) -> Row:
    """Return what was saved; null where no counter measured it."""
    wh = found.saved_wh
    return {
        "since": instant(now - OVER),
        "sleeps": found.sleeps,
        "asleep_s": found.asleep_s,
        "saved_wh": None if wh is None else round(wh, 3),
    }
