"""Requests and leases as they go out. Plain functions: these run for every row of every list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from portal.api.wire import instant, money
from portal.leases.access import WayIn, commands_of, device_nodes, environment
from portal.leases.failures import public_fault
from portal.leases.forecasting import places as places_of
from portal.leases.models import Lease, LeaseEvent, LeaseRequest, Placement, RequestEvent, StartPromise
from portal.leases.reasons import sentence
from portal.leases.requests import PRIORITIES
from portal.leases.selectors import seconds_left
from portal.leases.states import LeaseState
from portal.leases.visible_reasons import as_seen, names_in_sight
from portal.teams.selectors import Rights

PRIORITY_NAMES = {rank: name for name, rank in PRIORITIES.items()}
Row = dict[str, Any]


def reason_row(reason: Row) -> Row:
    """Return a wait reason as its reader may know it: code, figures and its sentence in their language."""
    figures = {name: value for name, value in reason.items() if name != "code"}
    return {"code": reason.get("code", ""), "figures": figures, "sentence": sentence(reason)}


def request_row(request: LeaseRequest, names: Mapping[int, str]) -> Row:
    """Return a request; team, author and flavor must be at hand, and ``names`` of leases (``names_in_sight``)."""
    return {
        "id": request.uid,
        "state": str(request.state),
        "team": request.team.slug,
        "author": request.author.username,
        "flavor": request.flavor.slug,
        "count": request.count,
        "duration_s": request.duration_s,
        "remaining_s": request.remaining_s,
        "priority": PRIORITY_NAMES.get(request.priority, "normal"),
        "name": request.name,
        "purpose": request.purpose,
        "load_pattern": request.load_pattern,
        "work": str(request.work),
        "is_preemptible": request.is_preemptible,
        "price_milli": request.price_milli,
        "least_duration_s": request.least_duration_s,
        "starts_at": instant(request.starts_at),
        "nodes": request.nodes,
        "most_count": request.most_count,
        "opens": str(request.opens),
        "is_job": request.is_job,
        "quote": money(request.quote_micro, request.currency),
        "reasons": [reason_row(as_seen(reason, names)) for reason in request.reasons],
        "submitted_at": instant(request.submitted_at),
        "queued_at": instant(request.queued_at),
        "decided_by": request.decided_by.username if request.decided_by else None,
        "decided_for": request.decided_for.username if request.decided_for else None,
        "decided_at": instant(request.decided_at),
        "decision_note": request.decision_note,
    }


def event_row(event: RequestEvent | LeaseEvent) -> Row:
    """Return one step; of a failure its code alone, as what the node said may name what belongs to others."""
    is_failure = isinstance(event, LeaseEvent) and event.now == LeaseState.FAILED
    reason = public_fault(event.reason) if is_failure else event.reason
    return {"was": event.was, "now": event.now, "at": instant(event.at), "reason": reason}


def lease_row(lease: Lease, *, cost_micro: int | None, currency: str, now: datetime) -> Row:
    """Return a lease; its relations must be at hand. A cost of None is unknown."""
    return {
        "id": lease.uid,
        "request": lease.request.uid,
        "state": str(lease.state),
        "team": lease.team.slug,
        "user": lease.user.username,
        "flavor": lease.flavor.slug,
        "count": lease.count,
        "node": lease.node.name,
        "share_milli": lease.share_milli,
        "starts_at": instant(lease.starts_at),
        "not_after": instant(lease.not_after),
        "activated_at": instant(lease.activated_at),
        "ended_at": instant(lease.ended_at),
        "clean_at": instant(lease.clean_at),
        "end_reason": str(lease.end_reason),
        "warned_at": instant(lease.warned_at),
        "seconds_left": seconds_left(lease, now=now),
        "part": lease.part,
        "is_extra": lease.is_extra,
        "cut_by": lease.cut_by,
        "is_preemptible": lease.is_preemptible,
        "preempt_at": instant(lease.preempt_at),
        "preempt_why": lease.must_go_for,
        "opens": str(lease.request.opens),
        "cost_so_far": money(cost_micro, currency),
    }


def slot_row(slot: Sequence[Any]) -> Row:
    """Return a slice held by a lease, from its row: device uuid and index, then the placement's own columns."""
    device, index, mode, profile, start, size, share_milli, memory_mib = slot
    return {
        "device": device,
        "device_index": index,
        "mode": mode,
        "profile": profile,
        "start": start,
        "size": size,
        "share_milli": share_milli,
        "memory_mib": memory_mib,
    }


def part_row(lease: Lease) -> Row:
    """Return a lease as one of those that live together; its node must be at hand."""
    return {
        "id": lease.uid,
        "part": lease.part,
        "node": lease.node.name,
        "count": lease.count,
        "state": str(lease.state),
        "is_extra": lease.is_extra,
    }


def access_row(placement: Placement) -> Row:
    """Return how one slice is reached."""
    return {
        "device": placement.device.uuid,
        "partition": placement.partition_uuid,
        "environment": environment(placement),
        "device_nodes": device_nodes(placement),
    }


def entrance_row(lease: Lease, way: WayIn) -> Row:
    """Return how a lease is entered on its node."""
    return {
        "runtime": way.runtime,
        "unit": way.unit,
        "cdi": way.cdi,
        "env_file": way.env_file,
        "is_isolated": way.is_isolated,
        "scratch": way.scratch,
        "scratch_gib": way.scratch_gib,
        "data_sets": way.data_sets,
        "job": way.job,
        "host": way.host,
        "reason": way.reason,
        "commands": commands_of(lease, way),
    }


def request_rows(rights: Rights, requests: Sequence[LeaseRequest]) -> list[Row]:
    """Return requests of a list with their places in the queue, as this person may see them."""
    places = places_of(requests)
    names = names_in_sight(rights, (reason for r in requests for reason in r.reasons))
    return [{**request_row(r, names), "position": places.get(r.pk)} for r in requests]


def lease_rows(
    leases: Iterable[Lease], costs: dict[int, int | None], *, currency: str, now: datetime
) -> list[Row]:
    """Return leases of a list with what they cost so far."""
    return [lease_row(ls, cost_micro=costs.get(ls.pk), currency=currency, now=now) for ls in leases]


def promise_row(promise: StartPromise | None) -> Row | None:
    """Return the start that was promised to a wait, None for none."""
    if promise is None:
        return None
    return {
        "by": instant(promise.promised_at),
        "outcome": str(promise.outcome),
        "started_at": instant(promise.started_at),
        "why": promise.why or None,
    }
