"""What an agent observed becomes lease states: the only way a lease gets active or clean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import transaction

from nodeagent.protocol.messages import LeaseReport, Report
from portal.agents.errors import AgentRefused
from portal.common.clock import db_now
from portal.common.failpoints import failpoint
from portal.common.rows import Rows
from portal.common.sql import execute, fetch, in_sql
from portal.fleet.health import hold_devices, see_health
from portal.fleet.models import Node
from portal.fleet.pools import changing_units, see_units
from portal.fleet.power import see_power
from portal.fleet.services import see_partitions
from portal.jobs.following import hold_money
from portal.jobs.outcomes import is_overfull, take_reports
from portal.leases import device_cooldown, lifecycle, transitions
from portal.leases.access import access_of, waiting_of
from portal.leases.failures import ENDED_BY_NODE, FORGOTTEN
from portal.leases.health_notices import tell_of_health
from portal.leases.models import Lease
from portal.leases.states import LEAVING_LEASES, LIVE_LEASES, RUNNING_LEASES, EndReason, LeaseState
from portal.quotas import services as quotas

NEAR_END = timedelta(seconds=10)
_NODES = Rows(Node)
_LIVE = in_sql(LIVE_LEASES)


@transaction.atomic
def accept_report(node_id: int, report: Report) -> bool:
    """Bring the node's leases in line with what its agent observed; returns False for an old frame.

    Raises AgentRefused for a frame of another epoch. Safe to repeat: a frame seen before changes
    nothing. Locks budgets and wallets, quota rows, devices, leases, the node, in this order.
    """
    (node,) = _NODES.where("it.id = %s", [node_id])
    if report.epoch != node.epoch:
        raise AgentRefused("stale_epoch", "This frame belongs to an earlier enrolment. Connect again.")
    if report.boot_id == node.boot_id and report.seq <= node.last_seq:
        return False
    said = {entry.lease: entry for entry in report.leases}
    held = hold_money(node_id, said, node.features or ())
    leases = _lock(node, report, said)
    now = db_now()  # what it waited for above may have taken its steps meanwhile
    _ready([ls for ls in leases if _phase(said, ls) == "ready"], said, now)
    take_reports(leases, said, node.features or (), now, held=held)
    _failed([ls for ls in leases if _phase(said, ls) == "failed"], said, now)
    _gone([ls for ls in leases if _phase(said, ls) in ("gone", "")], said, now)
    _say_waits([ls for ls in leases if _phase(said, ls) == "preparing"], said, now)
    see_partitions(node, report.partitions, now=now)
    see_units(node, report.partitions, now=now)
    tell_of_health(see_health(node, report.health, now=now), now=now)
    see_power(node, report.power, report.power_note, now=now)
    execute(
        "UPDATE fleet_node SET observed_revision = least(%s, desired_revision), last_seq = %s, boot_id = %s,"
        " last_seen_at = greatest(last_seen_at, %s) WHERE id = %s",
        [report.revision, report.seq, report.boot_id, now, node_id],
    )
    failpoint("report.before_commit")
    return True


@transaction.atomic
def lose_forgotten(node_id: int, *, seen_at: datetime | None, now: datetime) -> int:
    """Fail the leases that run on a node whose agent came without its journal; returns how many. Safe to repeat.

    What a lease held cannot be told from what is foreign any more, and nobody knows what became of the work in it.
    Their clock stops at the node's last word before; their requests go back to the queue. Locks leases, then nodes.
    """
    there = (
        Lease.objects.filter(node_id=node_id, state__in=RUNNING_LEASES)
        .order_by("pk")
        .values_list("pk", flat=True)
    )
    leases = [ls for ls in transitions.lock_leases(list(there)) if ls.state in RUNNING_LEASES]
    for lease in leases:
        heard = min(seen_at or now, now)
        lifecycle.fail_leases([lease], at=heard, fault=FORGOTTEN)
    return len(leases)


def _phase(said: dict[str, LeaseReport], lease: Lease) -> str:
    """Return the reported phase of a lease, "" for one that a current report does not mention."""
    entry = said.get(lease.uid)
    if entry is None:
        return ""
    return entry.phase if entry.generation == lease.generation else "stale"


def _lock(node: Node, report: Report, said: dict[str, LeaseReport]) -> list[Lease]:
    """Lock the leases the report speaks of; with a current one also those it should and does not.

    Devices whose health changes are locked before them, so that nobody who holds one waits for the node meanwhile.
    """
    is_current = report.revision >= node.desired_revision
    # With all live states named the partial index serves, however many leases have ended on the node.
    rows = fetch(
        "SELECT id, uid, team_id, state FROM leases_lease WHERE node_id = %s"  # noqa: S608 (our own states)
        f" AND state IN {_LIVE} AND (uid = ANY(%s) OR (%s AND state = ANY(%s)))",
        [node.pk, list(said), is_current, [str(state) for state in LEAVING_LEASES]],
    )
    leaving = {
        team for _pk, uid, team, _st in rows if uid not in said or said[uid].phase in ("gone", "failed")
    }
    if leaving:
        quotas.lock_lineages(leaving)
    failed = {uid for uid, entry in said.items() if entry.phase == "failed"}
    unmade = [pk for pk, uid, _team, state in rows if state == "preparing" and uid in failed]
    lost, back = changing_units(node, report.partitions)
    hold_devices(node, report.health, also=[*device_cooldown.devices_of(unmade), *lost, *back])
    return transitions.lock_leases([pk for pk, _uid, _team, _state in rows])


def _ready(leases: Sequence[Lease], said: dict[str, LeaseReport], now: datetime) -> None:
    at = now
    fresh = [ls for ls in leases if ls.state == LeaseState.PREPARING]
    # A node that was away may have made its slices and units anew.
    _store_access([*fresh, *(ls for ls in leases if ls.state == LeaseState.INTERRUPTED)], said)
    lifecycle.activate_leases(fresh, at=at)
    lifecycle.resume_leases(leases, at=at)


def _store_access(leases: Sequence[Lease], said: dict[str, LeaseReport]) -> None:
    """Keep how each placement is reached: partition uuid, environment and entrance, as the agent made them."""
    if not leases:
        return
    by_lease: dict[int | None, list[tuple[int, str, int]]] = {}
    rows = fetch(
        "SELECT p.id, p.lease_id, d.uuid, p.start FROM leases_placement p"
        " JOIN fleet_device d ON d.id = p.device_id WHERE p.lease_id = ANY(%s) AND p.is_live ORDER BY p.id",
        [[lease.pk for lease in leases]],
    )
    for pk, lease_id, device, start in rows:
        by_lease.setdefault(lease_id, []).append((pk, device, start))
    ids, uuids, access = [], [], []
    for lease in leases:
        waiting = by_lease.get(lease.pk, [])
        for entry in said[lease.uid].access:
            match = next((p for p in waiting if p[1:] == (entry.device, entry.start)), None)
            if match is None:
                continue
            waiting.remove(match)
            ids.append(match[0])
            uuids.append(entry.partition[:80])
            access.append(json.dumps(access_of(entry, said[lease.uid])))
    execute(
        "UPDATE leases_placement p SET partition_uuid = s.uuid, access = s.access::jsonb"
        " FROM unnest(%s::bigint[], %s::text[], %s::text[]) AS s(id, uuid, access) WHERE p.id = s.id",
        [ids, uuids, access],
    )


def _say_waits(leases: Sequence[Lease], said: dict[str, LeaseReport], now: datetime) -> None:
    """Keep what a node says of a lease that is not ready yet: its job in a cluster, and why that waits."""
    told = {ls.pk: json.dumps(waiting_of(said[ls.uid])) for ls in leases if said[ls.uid].entrance}
    if not told:
        return
    changed = fetch(
        "UPDATE leases_placement p SET access = s.access::jsonb"
        " FROM unnest(%s::bigint[], %s::text[]) AS s(lease_id, access)"
        " WHERE p.lease_id = s.lease_id AND p.is_live AND p.access IS DISTINCT FROM s.access::jsonb"
        " RETURNING p.lease_id",
        [list(told), list(told.values())],
    )
    ids = {pk for (pk,) in changed}
    transitions.announce([ls for ls in leases if ls.pk in ids], at=now)


def _failed(leases: Sequence[Lease], said: dict[str, LeaseReport], now: datetime) -> None:
    for lease in leases:
        entry = said[lease.uid]
        is_setup = device_cooldown.is_setup(lease, entry.code)
        lifecycle.fail_leases([lease], at=now, fault=_fault(entry))
        if is_setup:
            device_cooldown.rest_device(lease, _fault(entry), now=now)


def _gone(leases: Sequence[Lease], said: dict[str, LeaseReport], now: datetime) -> None:
    """Finish leases whose slice the agent confirmed removed; one that should still live was lost."""
    done = []
    _store_clocks(leases, said)
    for lease in leases:
        entry = said.get(lease.uid)
        if lease.state in (LeaseState.PREPARING, LeaseState.ACTIVE, LeaseState.INTERRUPTED):
            if entry is None:
                continue
            _ended_by_node(lease, entry, now)
        done.append(lease)
    lifecycle.clean_leases(done, at=now)


def _store_clocks(leases: Sequence[Lease], said: dict[str, LeaseReport]) -> None:
    """Keep how long each lease was active by the node's own clock, where the node could tell."""
    entries = [(lease.pk, said[lease.uid].active_ms) for lease in leases if lease.uid in said]
    known = [(pk, active_ms) for pk, active_ms in entries if active_ms is not None]
    if not known:
        return
    execute(
        "UPDATE leases_lease l SET agent_active_ms = s.active_ms"
        " FROM unnest(%s::bigint[], %s::bigint[]) AS s(id, active_ms) WHERE l.id = s.id",
        [[pk for pk, _ms in known], [active_ms for _pk, active_ms in known]],
    )


def _ended_by_node(lease: Lease, entry: LeaseReport, now: datetime) -> None:
    told = lease.preempt_at
    if lease.state == LeaseState.ACTIVE and told is not None and told - now <= NEAR_END:
        why = EndReason.IDLE if lease.must_go_for == "idle" else EndReason.PREEMPTED
        lifecycle.end_leases([lease], reason=why, at=min(now, told))
    elif lease.state == LeaseState.ACTIVE and (
        entry.reason == "expired" or lease.not_after - now <= NEAR_END
    ):
        lifecycle.end_leases([lease], reason=lifecycle.why_over(lease), at=min(now, lease.not_after))
    elif is_overfull(entry):
        lifecycle.resume_leases([lease], at=now)
        lifecycle.end_leases([lease], reason=EndReason.SCRATCH_FULL, at=now)
    else:
        is_said = entry.code or entry.detail
        fault = _fault(entry) if is_said else entry.reason or ENDED_BY_NODE
        lifecycle.fail_leases([lease], at=now, fault=fault)


def _fault(entry: LeaseReport) -> str:
    """Return why a lease failed as it is kept: see portal.leases.failures."""
    return f"{entry.code}: {entry.detail}"
