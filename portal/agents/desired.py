"""The whole desired state of a node, read from rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings

from nodeagent.protocol.messages import (
    ARTIFACTS,
    CONTAINERS,
    JOBS,
    JOBS_FOLLOW,
    Desired,
    DesiredLease,
    DesiredSlot,
    Notice,
)
from portal.common.sql import Row, fetch, in_sql
from portal.fleet.models import SAYS_ITS_POWER, Power
from portal.jobs.orders import orders_of
from portal.leases.states import WANTED_ON_NODE, LeaseState, why_told

# Read on every change of a node: plain rows, as far as they are needed. Who joined another team's shares under MPS
# because the policy lets teams meet goes without a team: the agent keeps out those of whom it knows that they differ.
LEASES = (
    "SELECT l.id, l.uid, l.generation, l.state, l.not_after, l.load_pattern,"  # noqa: S608 (our own states)
    " r.remaining_s, CASE WHEN EXISTS (SELECT 1 FROM leases_placement p WHERE p.lease_id = l.id AND p.is_live"
    " AND p.met_teams) THEN '' ELSE t.slug END, u.username, l.preempt_at, l.is_extra,"
    # What idles goes for nobody; to agents it is taken back, a word that all of them know.
    " l.is_preemptible AND l.preempted_for_id IS NOT NULL,"
    " l.wanted_until IS NOT NULL, r.is_job,"
    " nullif(f.cpu_milli::bigint * l.count, 0), nullif(f.host_memory_mib::bigint * l.count, 0)"
    " FROM leases_lease l JOIN leases_leaserequest r ON r.id = l.request_id"
    " JOIN teams_team t ON t.id = l.team_id JOIN accounts_user u ON u.id = l.user_id"
    " JOIN catalog_flavor f ON f.id = l.flavor_id"
    f" WHERE l.node_id = %s AND l.state IN {in_sql(WANTED_ON_NODE)}"
    " ORDER BY l.id"
)
# On the wire a slot's memory is the limit that the driver sets.
SLOTS = (
    "SELECT p.lease_id, d.uuid, p.mode, p.start, p.size, p.share_milli,"
    " greatest(p.memory_mib, p.max_memory_mib), p.profile"
    " FROM leases_placement p JOIN fleet_device d ON d.id = p.device_id"
    " WHERE p.lease_id = ANY(%s) AND p.is_live ORDER BY p.id"
)
HOST_LIMITS, MAINTENANCE = "host_limits", "maintenance"
SAFETY_S = 5  # the portal ends a lease first; the agent does it alone when the portal is silent


@dataclass(frozen=True, slots=True)
class AgentAbilities:
    """Which optional fields of a lease the agent understands: an older one refuses a frame that has them."""

    notice: bool
    host_limits: bool
    maintenance: bool
    jobs: bool
    containers: bool
    artifacts: bool
    follow: bool


@dataclass(frozen=True, slots=True)
class NodeOrders:
    """What an agent has to be told now: its desired state, and whether a new key is wanted of it.

    ``is_held``: it must not be told its desired state yet (``restored_database``).
    """

    desired: Desired
    wants_key: bool
    is_held: bool


def desired_state(node_id: int, *, now: datetime, features: Collection[str] = ()) -> Desired:
    """Return what must exist on the node at its present revision, for an agent with these features."""
    return orders(node_id, now=now, features=features).desired


def orders(node_id: int, *, now: datetime, features: Collection[str] = ()) -> NodeOrders:
    """Return what must exist on the node at its present revision, and what else is wanted of its agent.

    The revision is read before the leases, so that it can only be older than what is sent.
    """
    ((name, epoch, revision, may_sleep, takes_notice, wants_key, is_held),) = fetch(
        "SELECT name, epoch, desired_revision,"  # noqa: S608 (our own states)
        f" power_desired = '{Power.ASLEEP}' AND power_state IN {in_sql(SAYS_ITS_POWER)},"
        " power_state <> '', rotate_asked_at IS NOT NULL, ahead_at IS NOT NULL"
        " FROM fleet_node WHERE id = %s",
        [node_id],
    )
    rows = fetch(LEASES, [node_id])
    slots = _slots([row[0] for row in rows])
    knows = AgentAbilities(
        takes_notice,
        HOST_LIMITS in features,
        MAINTENANCE in features,
        JOBS in features,
        CONTAINERS in features,
        ARTIFACTS in features,
        JOBS_FOLLOW in features,
    )
    jobs: dict[int, str] = {}
    if knows.jobs and any(row[13] for row in rows):
        jobs = orders_of(
            [row[0] for row in rows],
            containers=knows.containers,
            artifacts=knows.artifacts,
            follow=knows.follow,
        )
    desired = Desired(
        node=name,
        epoch=epoch,
        revision=revision,
        leases=tuple(
            _lease(row, tuple(slots[row[0]]), now, knows, jobs.get(row[0], ""))
            for row in rows
            if slots[row[0]]
        ),
        power="asleep" if may_sleep and not rows else "awake",
    )
    return NodeOrders(desired, wants_key, is_held)


def _slots(lease_ids: list[int]) -> dict[int, list[DesiredSlot]]:
    """Return the live slots by lease."""
    slots: dict[int, list[DesiredSlot]] = defaultdict(list)
    for lease_id, *fields in fetch(SLOTS, [lease_ids]):
        slots[lease_id].append(DesiredSlot(*fields))
    return slots


def _lease(
    row: Row, slots: tuple[DesiredSlot, ...], now: datetime, knows: AgentAbilities, job: str
) -> DesiredLease:
    (
        _pk,
        uid,
        generation,
        state,
        not_after,
        load_pattern,
        remaining_s,
        team,
        user,
        *told,
        _is_job,
        cpu,
        memory,
    ) = row
    preempt_at, is_extra, is_preemptible, is_cut = told
    left_s = max(0, int((not_after - now).total_seconds()))
    # Before it is active it is held for its time and a margin; what was cut short or grown for less than its time.
    remaining_s = min(remaining_s, left_s) if state == LeaseState.PREPARING else left_s
    notice = None
    if preempt_at is not None:
        in_s = max(0, int((preempt_at - now).total_seconds()))
        remaining_s = min(remaining_s, in_s)
        if knows.notice:
            notice = Notice(why_told(is_extra=is_extra, is_preemptible=is_preemptible), in_s)
    elif is_cut and knows.maintenance:
        notice = Notice("maintenance", left_s)
    return DesiredLease(
        lease=uid,
        generation=generation,
        team=team,
        user=user,
        remaining_s=remaining_s + SAFETY_S,
        grace_s=settings.LEASE_GRACE_S,
        slots=slots,
        load_pattern=load_pattern,
        notice=notice,
        cpu_milli=cpu if knows.host_limits else None,
        host_memory_mib=memory if knows.host_limits else None,
        job=job,
    )
