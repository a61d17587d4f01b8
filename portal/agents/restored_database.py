"""Nodes whose agents have seen a later state than this database: it was restored, or one of the two is wrong.

An agent obeys nothing older than what it saw, so the portal raises its own numbers above that. A step further than
any restore explains is not taken over: a new epoch lets the agent count revisions afresh. Either is told to
operators. Leases that the agent carries and this database does not know would end with the next desired state:
unless the policy accepts by itself, none is sent before an operator has seen their list and accepted it.
"""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import transaction

from nodeagent.protocol.limits import MOST_EPOCH_JUMP, MOST_REVISION_JUMP
from nodeagent.protocol.messages import Hello, Report
from portal.agents.errors import AgentRefused
from portal.audit.services import record
from portal.common.live import NODES, publish_on_commit
from portal.fleet.models import Node
from portal.leases.models import Lease
from portal.leases.states import LIVE_LEASES
from portal.notifications.services import notify
from portal.teams.selectors import operators

FAR_EPOCH = "far_epoch"
MOST_UNKNOWN = 256
CARRIED = ("preparing", "ready", "failed")  # what is being taken away or gone already ends anyway


def overtake(node: Node, hello: Hello, *, now: datetime) -> bool:
    """Raise a node's numbers above what its agent has seen; says whether the agent had seen a later state.

    Call with the node locked and before an enrolment raises its epoch; the caller saves. Raises AgentRefused for an
    epoch that no restore explains, which a new enrolment puts right.
    """
    if not hello.last_epoch:
        return False
    seen, here = (hello.last_epoch, hello.last_revision), (node.epoch, node.desired_revision)
    is_ahead, gap = seen > here, abs(hello.last_revision - node.desired_revision)
    if hello.last_epoch > node.epoch + MOST_EPOCH_JUMP:
        if not hello.enrol_token:
            raise AgentRefused(
                FAR_EPOCH, "The agent's epoch is far above this database's. Enrol the node again."
            )
    elif hello.last_epoch > node.epoch:
        node.epoch = hello.last_epoch + (0 if hello.enrol_token else 1)
    elif hello.last_epoch == node.epoch and not hello.enrol_token:
        if hello.last_revision and gap > MOST_REVISION_JUMP:
            node.epoch += 1
        elif is_ahead:
            node.desired_revision = hello.last_revision + 1
    if is_ahead:
        node.ahead_at = node.ahead_at or now
        tell_ahead(node, hello, here, now=now)
    return is_ahead


def tell_ahead(node: Node, hello: Hello, here: tuple[int, int], *, now: datetime) -> None:
    """Tell operators that a node has seen a later state than this database, whose epoch and revision is ``here``."""
    seen = {"epoch": hello.last_epoch, "revision": hello.last_revision}
    record(None, "node.ahead", node.name, at=now, seen=seen, known={"epoch": here[0], "revision": here[1]})
    notify(operators(), "node.ahead", target=f"node-{node.pk}", at=now, is_news=True, node=node.name)


@transaction.atomic
def see_unknown(node_id: int, report: Report, *, now: datetime) -> bool:
    """Look for leases that the agent carries and this database does not know; says whether the node waits on.

    Where there are none, or the policy accepts by itself, the node is told its desired state again. Locks the node.
    """
    node = Node.objects.select_for_update().get(pk=node_id)
    if node.ahead_at is None:
        return False
    carried = {entry.lease[:64] for entry in report.leases if entry.phase in CARRIED}
    known = Lease.objects.filter(node=node, uid__in=carried, state__in=LIVE_LEASES)
    unknown = sorted(carried.difference(known.values_list("uid", flat=True)))[:MOST_UNKNOWN]
    waits = bool(unknown) and settings.ACCEPT_NODES != "auto"
    if unknown and unknown != node.unknown_leases:
        record(None, "node.unknown_leases", node.name, at=now, leases=unknown, ends=not waits)
        facts = {"node": node.name, "count": len(unknown), "waits": waits}
        notify(operators(), "node.unknown_leases", target=f"node-{node.pk}", at=now, is_news=True, **facts)
    node.unknown_leases = unknown if waits else []
    node.ahead_at = node.ahead_at if waits else None
    node.save(update_fields=["unknown_leases", "ahead_at"])
    publish_on_commit(NODES, [node.name])
    return waits
