"""What is legal, written the slow and obvious way: the engine's answers are held against it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from scheduler.engine.events import held_by
from scheduler.engine.model import (
    SHARED_MODES,
    Claim,
    DeviceInfo,
    Grant,
    GrantedSlot,
    Held,
    MigProfile,
    NodeInfo,
    PolicyRules,
    Snapshot,
    TeamQuota,
)


def profile_of(device: DeviceInfo, name: str) -> MigProfile | None:
    """The profile of that name on a device."""
    return next((p for p in device.profiles if p.name == name), None)


def slots_for(claim: Claim, device: DeviceInfo) -> Iterator[GrantedSlot]:
    """Every place one unit of the claim could have on the device if it were idle."""
    if claim.mode not in device.modes or (claim.models and device.model not in claim.models):
        return
    if device.memory_mib < claim.least_memory_mib:
        return
    if claim.mode == "exclusive":
        yield GrantedSlot(device.id, "exclusive", 0, device.grid, 1000, device.memory_mib)
    elif claim.mode == "mig":
        profile = profile_of(device, claim.profile)
        for start in profile.starts if profile else ():
            if device.layout is None or (claim.profile, start) in device.layout:
                assert profile is not None
                yield GrantedSlot(
                    device.id, "mig", start, profile.slices, profile.share_milli, profile.memory_mib,
                    profile.name,
                )  # fmt: skip
    else:
        yield GrantedSlot(device.id, claim.mode, 0, 0, claim.share_milli, claim.memory_mib)


def is_legal_on(device: DeviceInfo, held: Sequence[Held], policy: PolicyRules) -> bool:
    """Whether everything that is held on one device can be there together."""
    parts = [h for h in held if not h.is_host]
    if not parts:
        return True
    if len({h.mode for h in held}) > 1:
        return False
    if parts[0].mode in SHARED_MODES:
        return (
            sum(h.share_milli for h in parts) <= 1000
            and sum(h.memory_mib for h in parts) <= device.memory_mib
            and len(parts) <= device.max_clients
            and (policy.may_mix(parts[0].mode) or len({h.team_id for h in held}) == 1)
        )
    taken = [slice_ for h in parts for slice_ in range(h.start, h.start + h.size)]
    names = [h.profile for h in parts]
    return len(taken) == len(set(taken)) and all(
        names.count(p.name) <= p.max_instances for p in device.profiles
    )


def cost_of(slots: Sequence[GrantedSlot], devices: dict[int, DeviceInfo]) -> int:
    """What slots cost their quota."""
    return sum(-(-slot.share_milli * devices[slot.device_id].weight_milli // 1000) for slot in slots)


def chain(team_id: int, quotas: Sequence[TeamQuota]) -> list[TeamQuota]:
    """The team and its ancestors."""
    rows = {q.team_id: q for q in quotas}
    found: list[TeamQuota] = []
    here: int | None = team_id
    while here is not None and here in rows and rows[here] not in found:
        found.append(rows[here])
        here = rows[here].parent_id
    return found


def may_pay(team_id: int, cost: int, quotas: Sequence[TeamQuota]) -> bool:
    """Whether every ceiling above the team admits the cost."""
    return all(
        q.ceiling_milli is None or q.used_milli + cost <= q.ceiling_milli for q in chain(team_id, quotas)
    )


def can_place(claim: Claim, snapshot: Snapshot, policy: PolicyRules) -> bool:
    """Whether any legal placement of the claim exists, by trying all of them."""
    if claim.nodes != 1:
        return can_gather(claim, snapshot, policy)
    blocked = {node.id for node in snapshot.nodes if node.blocked}
    for node in snapshot.nodes:
        devices = [
            d for d in snapshot.devices if d.node_id == node.id and d.node_id not in blocked and not d.blocked
        ]
        if not has_host_room(claim, node, snapshot):
            continue
        places = [slot for device in devices for slot in slots_for(claim, device)]
        if any(is_possible(claim, choice, snapshot, policy) for choice in combinations(places, claim.count)):
            return True
    return False


def can_gather(claim: Claim, snapshot: Snapshot, policy: PolicyRules) -> bool:
    """Whether a gang of whole boards over several nodes fits: the lightest boards that there are."""
    held = {h.device_id for h in snapshot.held}
    parts: list[list[int]] = []
    for node in snapshot.nodes:
        costs = sorted(
            cost_of([slot], {d.id: d})
            for d in snapshot.devices
            if d.node_id == node.id and not node.blocked and not d.blocked and d.id not in held
            for slot in slots_for(claim, d)
        )
        if claim.nodes:
            room = has_host_room(claim, node, snapshot) and len(costs) >= claim.count
            parts.append(costs[: claim.count] if room else [])
        else:
            units = [n for n in range(len(costs) + 1) if has_host_room(part_of(claim, n), node, snapshot)]
            parts.append(costs[: max(units, default=0)])
    if claim.nodes:
        whole = sorted(sum(part) for part in parts if part)[: claim.nodes]
        return len(whole) == claim.nodes and may_pay(claim.team_id, sum(whole), snapshot.quotas)
    lightest = sorted(cost for part in parts for cost in part)[: claim.count]
    return len(lightest) == claim.count and may_pay(claim.team_id, sum(lightest), snapshot.quotas)


def part_of(claim: Claim, units: int) -> Claim:
    """What a node with so many of a free gang's boards gives beside them."""
    return replace(
        claim,
        cpu_milli=-(-claim.cpu_milli * units // claim.count),
        host_memory_mib=-(-claim.host_memory_mib * units // claim.count),
    )


def has_host_room(claim: Claim, node: NodeInfo, snapshot: Snapshot) -> bool:
    """Whether the node's CPU and memory are enough for one part of the claim now."""
    cpu, memory = taken_of(node, snapshot)
    return (node.cpu_milli is None or cpu + claim.cpu_milli <= node.cpu_milli) and (
        node.memory_mib is None or memory + claim.host_memory_mib <= node.memory_mib
    )


def taken_of(node: NodeInfo, snapshot: Snapshot) -> tuple[int, int]:
    """CPU and memory that leases take of a node."""
    here = {d.id for d in snapshot.devices if d.node_id == node.id}
    held = [h for h in snapshot.held if h.device_id in here]
    return sum(h.cpu_milli for h in held), sum(h.host_memory_mib for h in held)


def is_possible(claim: Claim, slots: Sequence[GrantedSlot], snapshot: Snapshot, policy: PolicyRules) -> bool:
    """Whether these slots can be given to the claim now."""
    devices = {d.id: d for d in snapshot.devices}
    cost = cost_of(slots, devices)
    if not may_pay(claim.team_id, cost, snapshot.quotas):
        return False
    grant = Grant(claim.id, claim.team_id, 0, tuple(slots), cost, claim.duration_s)
    after = (*snapshot.held, *held_by(grant, snapshot.taken_at))
    return all(
        is_legal_on(devices[i], [h for h in after if h.device_id == i], policy)
        for i in {s.device_id for s in slots}
    )


def after_grant(snapshot: Snapshot, grant: Grant) -> Snapshot:
    """The picture after a grant is stored, host placements included."""
    held = list(snapshot.held)
    memory = {device.id: device.memory_mib for device in snapshot.devices}
    for one in held_by(grant, snapshot.taken_at):
        shared = one.mode in SHARED_MODES
        if shared and not any(h.is_host and h.device_id == one.device_id for h in held):
            host = replace(one, size=8, share_milli=1000, memory_mib=memory[one.device_id], is_host=True)
            held.append(replace(host, lease_id=None, cpu_milli=0, host_memory_mib=0))
        held.append(one)
    payers = {q.team_id for q in chain(grant.team_id, snapshot.quotas)}
    quotas = tuple(
        replace(q, used_milli=q.used_milli + grant.cost_milli) if q.team_id in payers else q
        for q in snapshot.quotas
    )
    return replace(snapshot, held=tuple(held), quotas=quotas)
