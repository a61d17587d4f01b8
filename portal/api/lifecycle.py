"""A node's life over HTTP: drain it by a deadline, change its key, see what its agent is. Operators only."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from portal.agents.acceptance import accept_node, waiting_of
from portal.agents.keys import ask_rotation, can_rotate, key_since
from portal.api.describe import call
from portal.api.fields import Body, Empty, Instant, Text
from portal.api.fleet import OneNode
from portal.api.idempotency import once
from portal.api.maintenance import affected_row
from portal.api.representations import Row
from portal.api.rescheduling import then_heed
from portal.api.responses_calendar import AffectedAnswer
from portal.api.responses_lifecycle import AcceptanceAnswer, DrainAnswer, LifeAnswer
from portal.api.wire import instant
from portal.common.clock import db_now
from portal.fleet.draining import drain_state
from portal.fleet.models import Node
from portal.leases.draining import begin_drain, begin_work, reached_by_drain
from portal.leases.selectors import standing_on

TAG = "fleet"


class ByBody(Body):
    """By when the node has to be empty; now when left out."""

    by = Instant(required=False)


class DrainBody(ByBody):
    """By when the node has to be empty, and why: holders and waiting people read it."""

    reason = Text(most=200)


class Drain(OneNode):
    """Drain a node by a deadline."""

    http_method_names = ["get", "post"]

    @call("Read a node's drain", answer=DrainAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, name: str) -> Response:
        """Read how far a node is from being empty. Operators."""
        return Response(drain_row(self.operated(name), now=timezone.now()))

    @call("Drain a node", body=DrainBody, answer=DrainAnswer, refusals=(404, 422), tag=TAG)
    @then_heed
    @once
    def post(self, request: Request, name: str) -> Response:
        """Place nothing new on a node and have its leases end by a time; holders are told now. Operators.

        What is left of their time goes back into the queue. Safe to repeat; another time takes the place of the
        earlier one.
        """
        node, values, now = self.operated(name), self.take(DrainBody), db_now()
        by = values.get("by") or now
        drained = begin_drain(node=node, by=by, reason=values["reason"], actor=self.person, now=now)
        return Response(drain_row(drained, now=now))


class DrainPreview(OneNode):
    """Whom a drain would reach."""

    http_method_names = ["post"]

    @call("Preview a drain", body=ByBody, answer=AffectedAnswer, is_list=True, refusals=(404, 422), tag=TAG)
    @once
    def post(self, request: Request, name: str) -> Response:
        """Say which leases and bookings a drain would reach. Changes nothing. Operators.

        Bookings are those that are planned anew at once: they begin before its time or in the two hours after it.
        """
        node, values, now = self.operated(name), self.take(ByBody), timezone.now()
        found = reached_by_drain(node, values.get("by") or now, now=now)
        return Response({"next": None, "results": [affected_row(row) for row in found]})


class Undrain(OneNode):
    """Take a drain back."""

    http_method_names = ["post"]

    @call("Undrain a node", body=Empty, answer=DrainAnswer, refusals=(404, 422), tag=TAG)
    @then_heed
    @once
    def post(self, request: Request, name: str) -> Response:
        """Let a node take work again; leases that still run get their ends back. Operators. Safe to repeat."""
        node, now = self.operated(name), db_now()
        self.take(Empty)
        return Response(drain_row(begin_work(node=node, actor=self.person, now=now), now=now))


class NodeLifecycleEndpoint(OneNode):
    """A node's key and agent."""

    http_method_names = ["get"]

    @call("Read a node's key and agent", answer=LifeAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, name: str) -> Response:
        """Read how old a node's key is, and what its agent is and understands. Operators."""
        return Response(life_row(self.operated(name), now=timezone.now()))


class RotateKey(OneNode):
    """Change a node's key."""

    http_method_names = ["post"]

    @call("Change a node's key", body=Empty, answer=LifeAnswer, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, name: str) -> Response:
        """Have a node's agent make a new key, now or when it connects next; leases go on. Operators. Safe to repeat."""
        node, now = self.operated(name), timezone.now()
        self.take(Empty)
        ask_rotation(node=node, actor=self.person, now=now)
        return Response(life_row(Node.objects.get(pk=node.pk), now=now))


class Acceptance(OneNode):
    """What of a node waits for an operator."""

    http_method_names = ["get"]

    @call("Read what waits on a node", answer=AcceptanceAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, name: str) -> Response:
        """Read which devices of a node are new or changed, and which leases it carries that are not known here.

        Operators.
        """
        return Response(acceptance_row(self.operated(name)))


class AcceptBody(Body):
    """The list that was looked at; whatever waits when left out."""

    seen = Text(most=16, required=False)


class Accept(OneNode):
    """Accept what waits on a node."""

    http_method_names = ["post"]

    @call("Accept a node", body=AcceptBody, answer=AcceptanceAnswer, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, name: str) -> Response:
        """Let new and changed devices of a node serve people, and leases that are not known here end.

        Operators. Safe to repeat. With `seen` nothing else is accepted than the list of that name.
        """
        node, values = self.operated(name), self.take(AcceptBody)
        seen = values.get("seen") or ""
        return Response(acceptance_row(accept_node(node=node, actor=self.person, now=db_now(), seen=seen)))


def acceptance_row(node: Node) -> Row:
    """Return what of a node waits for an operator."""
    waiting = waiting_of(node)
    return {
        "node": node.name,
        "is_accepted": not waiting,
        "is_ahead": waiting.is_ahead,
        "devices": [
            {
                "uuid": one.uuid,
                "index": one.index,
                "model": one.model,
                "memory_mib": one.memory_mib,
                "was_model": one.was_model,
                "was_memory_mib": one.was_memory_mib,
            }
            for one in waiting.devices
        ],
        "unknown_leases": list(waiting.unknown_leases),
        "seen": waiting.seen,
    }


def drain_row(node: Node, *, now: datetime) -> Row:
    """Return how far a node is from being empty."""
    return {
        "node": node.name,
        "drain": drain_state(node, now=now),
        "by": instant(node.drain_by),
        "reason": node.cordon_reason if node.drain_by else "",
        "asked_at": instant(node.drain_asked_at),
        "drained_at": instant(node.drained_at),
        "leases": [lease.uid for lease in standing_on(node)],
    }


def life_row(node: Node, *, now: datetime) -> Row:
    """Return a node's key and agent."""
    since = key_since(node)
    return {
        "node": node.name,
        "enrolled_at": instant(node.enrolled_at),
        "key_changed_at": instant(since),
        "key_age_s": None if since is None else max(0, int((now - since).total_seconds())),
        "key_change_asked_at": instant(node.rotate_asked_at),
        "can_change_key": can_rotate(node),
        "agent_version": node.agent_version,
        "runtime": node.runtime or None,
        "features": list(node.features),
        "images_mib": node.images_mib,
        "image_limit_mib": node.image_limit_mib,
        "leases": len(standing_on(node)),
    }
