"""Put idle nodes to sleep and wake them as the policy says; one step of the tick."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from django.db import connection, transaction
from django.db.models import Q

from portal.audit.services import record
from portal.common.sql import execute, fetch, in_sql
from portal.fleet.models import SAYS_ITS_POWER, Node, Power
from portal.fleet.power import tell
from portal.leases.states import LIVE_ON_NODE, LeaseState
from portal.policies.selectors import active_policy
from scheduler import snapshot
from scheduler.cycle import CYCLE_LOCK
from scheduler.engine.model import PolicyRules
from scheduler.engine.sleep import NodePower, PowerOrders, orders

NODES = (
    f"SELECT id, power_desired = '{Power.ASLEEP}', idle_since,"  # noqa: S608 (our own states)
    " CASE WHEN power_rule_until IS NULL OR power_rule_until > %s THEN power_rule ELSE '' END"
    f" FROM fleet_node WHERE power_state IN {in_sql(SAYS_ITS_POWER)} ORDER BY id"
)
# A node without ``idle_since`` holds something; what is booked for later holds nothing yet.
IDLE = (
    "WITH busy AS (SELECT DISTINCT d.node_id FROM leases_placement p JOIN fleet_device d ON d.id = p.device_id"  # noqa: S608 (our own states)
    "  LEFT JOIN leases_lease l ON l.id = p.lease_id"
    "  WHERE p.is_live AND (lower(p.period) <= %s"
    f"   OR coalesce(l.state, '{LeaseState.BOOKED}') <> '{LeaseState.BOOKED}')),"
    " changed AS (SELECT n.id, b.node_id IS NOT NULL AS is_busy FROM fleet_node n"
    f"  LEFT JOIN busy b ON b.node_id = n.id WHERE n.power_state IN {in_sql(SAYS_ITS_POWER)}"
    "  AND (n.idle_since IS NULL) <> (b.node_id IS NOT NULL) ORDER BY n.id FOR UPDATE OF n)"
    " UPDATE fleet_node n SET idle_since = CASE WHEN c.is_busy THEN NULL ELSE %s END"
    " FROM changed c WHERE n.id = c.id"
)
# The plan was made from what was seen; a lease that came to the node since then keeps it awake.
STILL_FREE = (
    "SELECT n.id FROM fleet_node n WHERE n.id = ANY(%s) AND NOT EXISTS (SELECT 1 FROM leases_lease l"  # noqa: S608 (our own states)
    f" WHERE l.node_id = n.id AND l.state IN {in_sql(LIVE_ON_NODE)}) ORDER BY n.id"
)
NEEDED = frozenset({"claim", "booking", "held"})


def settle(*, now: datetime, policy: PolicyRules | None = None) -> PowerOrders:
    """Note which nodes idle, let some sleep and wake others; returns what was ordered. Safe to repeat.

    Two transactions of its own. Costs a few statements where no node sleeps and none may.
    """
    # On its own: a turn under way may want the same rows of nodes, and the rest waits for that turn.
    with transaction.atomic():
        execute(IDLE, [now, now])
    policy = policy or active_policy()
    return _decide(now, policy) if _is_anything_to_do(policy) else PowerOrders()


@transaction.atomic
def _decide(now: datetime, policy: PolicyRules) -> PowerOrders:
    """Give the orders of now. Waits for a turn under way, so that no turn places anything on a node that falls
    asleep. Locks nodes only.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [CYCLE_LOCK])
    power = [NodePower(*row) for row in fetch(NODES, [now])]
    found = orders(snapshot.take(now=now), policy, power)
    _order(found.wake, Power.AWAKE, now)
    needed = [pk for pk, why in found.wake if why in NEEDED]
    if needed:
        Node.objects.filter(pk__in=needed, power_rule=Power.ASLEEP).update(power_rule="")
    free = {pk for (pk,) in fetch(STILL_FREE, [[pk for pk, _why in found.sleep]])} if found.sleep else set()
    _order([one for one in found.sleep if one[0] in free], Power.ASLEEP, now)
    return found


def _is_anything_to_do(policy: PolicyRules) -> bool:
    """Say whether any node sleeps, may sleep, or has an operator's word that is not spent."""
    if policy.sleep.times:
        return Node.objects.filter(power_state__in=SAYS_ITS_POWER).exists()
    return Node.objects.filter(Q(power_desired=Power.ASLEEP) | Q(power_rule=Power.ASLEEP)).exists()


def _order(found: Iterable[tuple[int, str]], power: Power, now: datetime) -> None:
    why_of: dict[str, list[int]] = {}
    for pk, why in found:
        why_of.setdefault(why, []).append(pk)
    for why, ids in sorted(why_of.items()):
        _tell(ids, power, why, now)


def _tell(ids: Sequence[int], power: Power, why: str, now: datetime) -> None:
    action = "node.put_to_sleep" if power == Power.ASLEEP else "node.woken"
    for name in tell(ids, power, now=now):
        record(None, action, name, at=now, why=why)
