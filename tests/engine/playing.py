"""Turn after turn over the real clock of a small cluster: what was granted begins, ends and makes room."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from scheduler.engine import plan
from scheduler.engine.earliest_start import OVERDUE_S
from scheduler.engine.events import held_by
from scheduler.engine.model import SHARED_MODES, Booking, Grant, Held, Plan, PolicyRules, Snapshot
from tests.engine.oracle import chain, is_legal_on


@dataclass
class Played:
    """What happened: when each claim started, and what each turn decided."""

    starts: dict[int, datetime] = field(default_factory=dict)
    turns: list[tuple[Snapshot, Plan]] = field(default_factory=list)


def play(snapshot: Snapshot, policy: PolicyRules, most: int = 60) -> Played:
    """Take turns at every instant at which something ends or begins, until nothing waits or ends any more."""
    played = Played()
    costs: dict[int, tuple[int, int]] = {}
    for _ in range(most):
        found = plan(snapshot, policy)
        played.turns.append((snapshot, found))
        for grant in found.grants:
            costs[-grant.claim_id] = grant.team_id, grant.cost_milli
            played.starts[grant.claim_id] = grant.starts_at or snapshot.taken_at
        snapshot = committed(snapshot, found)
        following = next_instant(snapshot)
        if following is None:
            break
        snapshot = moved(snapshot, following, costs)
    return played


def committed(snapshot: Snapshot, found: Plan) -> Snapshot:
    """The picture after a plan is stored: leases that run, leases that are booked, and who still waits."""
    held, bookings = list(snapshot.held), list(snapshot.bookings)
    quotas = snapshot.quotas
    for grant in found.grants:
        at = grant.starts_at or snapshot.taken_at
        placements = with_hosts(grant, at, held if grant.starts_at is None else [], snapshot)
        if grant.starts_at is None:
            held += placements
            quotas = _counted(quotas, grant.team_id, grant.cost_milli)
        else:
            bookings += [Booking(at, one) for one in placements]
    gone = {grant.claim_id for grant in found.grants} | {w.claim_id for w in found.waits if w.is_impossible}
    queue = tuple(claim for claim in snapshot.queue if claim.id not in gone)
    return replace(snapshot, held=tuple(held), bookings=tuple(bookings), queue=queue, quotas=quotas)


def with_hosts(grant: Grant, at: datetime, held: list[Held], snapshot: Snapshot) -> list[Held]:
    """The placements of a grant, and a host placement where its board has none."""
    devices = {device.id: device for device in snapshot.devices}
    found: list[Held] = []
    for one in held_by(grant, at):
        hosts = [h for h in (*held, *found) if h.is_host and h.device_id == one.device_id]
        if one.mode in SHARED_MODES and not hosts:
            device = devices[one.device_id]
            found.append(
                replace(one, size=device.grid, share_milli=1000, memory_mib=device.memory_mib, is_host=True,
                        lease_id=None, cpu_milli=0, host_memory_mib=0)
            )  # fmt: skip
        found.append(one)
    return found


def next_instant(snapshot: Snapshot) -> datetime | None:
    """When the next thing ends or begins."""
    now = snapshot.taken_at
    ends = [max(one.until, now + timedelta(seconds=OVERDUE_S)) for one in snapshot.held if one.until <= now]
    ends += [one.until for one in snapshot.held if one.until > now]
    ends += [one.starts_at for one in snapshot.bookings]
    ends += [at for one in snapshot.outages for at in (one.starts_at, one.until) if at > now]
    return min(ends, default=None)


def moved(snapshot: Snapshot, at: datetime, costs: dict[int, tuple[int, int]]) -> Snapshot:
    """The picture at a later instant: what is over is gone, what was booked for it runs."""
    left = [one for one in snapshot.held if one.until > at]
    shares = {one.device_id for one in left if not one.is_host and one.mode in SHARED_MODES}
    had = {one.device_id for one in snapshot.held if not one.is_host and one.mode in SHARED_MODES}
    left = [one for one in left if not one.is_host or one.device_id in shares or one.device_id not in had]
    begun = [one.held for one in snapshot.bookings if one.starts_at <= at]
    quotas = snapshot.quotas
    for lease in {one.lease_id for one in snapshot.held if one.until <= at and one.lease_id in costs}:
        team_id, cost = costs[lease or 0]
        quotas = _counted(quotas, team_id, -cost)
    for lease in {one.lease_id for one in begun if one.lease_id in costs}:
        quotas = _counted(quotas, *costs[lease or 0])
    later = tuple(one for one in snapshot.bookings if one.starts_at > at)
    return replace(snapshot, taken_at=at, held=(*left, *begun), bookings=later, quotas=quotas)


def _counted(quotas: tuple, team_id: int, cost: int) -> tuple:  # type: ignore[type-arg]
    payers = {quota.team_id for quota in chain(team_id, quotas)}
    return tuple(replace(q, used_milli=q.used_milli + cost) if q.team_id in payers else q for q in quotas)


def assert_kept(snapshot: Snapshot, policy: PolicyRules) -> None:
    """Fail unless at every instant, now and later, every board legally holds all that is known for it."""
    instants = {snapshot.taken_at, *(one.starts_at for one in snapshot.bookings)}
    for at in instants:
        for device in snapshot.devices:
            held = [
                h
                for h in snapshot.held
                if h.device_id == device.id and (h.until > at or at == snapshot.taken_at)
            ]
            held += [
                b.held
                for b in snapshot.bookings
                if b.held.device_id == device.id and b.starts_at <= at < b.held.until
            ]
            assert is_legal_on(device, held, policy), (device.id, at, held)
    node_of = {device.id: device.node_id for device in snapshot.devices}
    for node in snapshot.nodes:
        for at in instants:
            running = [h for h in snapshot.held if h.until > at] + [
                b.held for b in snapshot.bookings if b.starts_at <= at < b.held.until
            ]
            here = [h for h in running if node_of[h.device_id] == node.id]
            assert node.cpu_milli is None or sum(h.cpu_milli for h in here) <= node.cpu_milli
