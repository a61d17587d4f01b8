"""How many units a pool has, and how many of them others hold: from what hosts, slices, claims and pods say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nodeagent.backends.base import PoolFacts
from nodeagent.backends.kubernetes.quantities import dig, listed, quantity, whole
from nodeagent.backends.kubernetes.selectors import (
    MissingAttributeError,
    SelectedDevice,
    UnreadableSelectorError,
    matches,
)
from nodeagent.backends.kubernetes.settings import HAMI, KubernetesSettings

MIB: Final = 1024 * 1024
# Taints that leases tolerate, because every host with GPUs may have them.
TOLERATED: Final = ("nvidia.com/gpu",)
REPLICAS: Final = "nvidia.com/gpu.replicas"
PRODUCT: Final = "nvidia.com/gpu.product"
HOST: Final = "kubernetes.io/hostname"
COUNT: Final = "nvidia.com/gpu.count"

Labels = Mapping[str, str]
Key = tuple[str, str, str]  # driver, pool and device
Counter = tuple[str, str, str, str]  # driver, pool, set and name
Draws = dict[Key, list[tuple[str, str, int]]]


@dataclass(slots=True)
class CountedPool:
    """What a pool was found to be. ``misfits`` are hosts (by that label) whose units are others than the pool's."""

    facts: PoolFacts
    misfits: tuple[str, ...] = ()


@dataclass(slots=True)
class _Device:
    """One device of a slice that the pool's selectors take."""

    key: Key
    host: str
    away: str = ""
    draws: list[tuple[str, str, int]] = field(default_factory=list)
    memory: int = 0
    is_shared: bool = False


def out_of_work(node: Mapping[str, Any]) -> str:
    """Return why a host takes no new leases, "" where it does."""
    ready = next((one for one in listed(node, "status", "conditions") if one.get("type") == "Ready"), {})
    if ready.get("status") != "True":
        return "is not ready" if ready.get("status") == "False" else "is silent"
    if dig(node, "spec", "unschedulable"):
        return "is cordoned"
    for taint in listed(node, "spec", "taints"):
        if taint.get("effect") in ("NoSchedule", "NoExecute") and taint.get("key") not in TOLERATED:
            return f"has the taint {taint.get('key')}"
    return ""


def has_labels(node: Mapping[str, Any], wanted: Iterable[tuple[str, str]]) -> bool:
    """Say whether a host has all these labels."""
    labels = dig(node, "metadata", "labels", otherwise={})
    return all(labels.get(name) == value for name, value in wanted)


def by_slices(
    pool: KubernetesSettings, classes: Mapping[str, list[str]], slices: Iterable[Mapping[str, Any]],
    claims: Iterable[Mapping[str, Any]], nodes: Mapping[str, Mapping[str, Any]],
) -> CountedPool:  # fmt: skip
    """Count a pool of dynamic resource allocation. ``classes`` are the selectors of its device classes by name.

    ``claims`` are those of others: what is ours is counted by who made it.
    """
    notes: dict[str, str] = {}
    devices, counters, draws = _selected(pool, classes, list(slices), nodes, notes)
    taken, consumed = _held(claims)
    everything = sum(_room(devices, counters, pool, set(), {}).values())
    working = [one for one in devices if not one.away]
    room = _room(working, counters, pool, set(), {})
    left = dict(counters)
    for key in taken:  # what others hold draws on the same cards, whether this pool lends such or not
        _draw(left, key, draws.get(key, ()))
    free = sum(_room(working, left, pool, taken, consumed).values())
    units = pool.units or everything
    away = max(0, min(units, everything) - sum(room.values()))
    said = sorted({f"{one.host or one.key[1]} {one.away}" for one in devices if one.away})
    if said:
        notes["hosts_away"] = f"{away} of {units} units are out of service: {'; '.join(said)}"[:1000]
    if not units and "selector_unreadable" not in notes:
        notes.setdefault("no_units", f"no device of {' or '.join(pool.classes)} is what this pool lends")
    used = max(0, sum(room.values()) - free)
    most = max(room.values(), default=0)
    return CountedPool(PoolFacts(units, away, min(used, max(0, units - away)), most, tuple(notes.items())))


def _selected(
    pool: KubernetesSettings, classes: Mapping[str, list[str]], slices: list[Mapping[str, Any]],
    nodes: Mapping[str, Mapping[str, Any]], notes: dict[str, str],
) -> tuple[list[_Device], dict[Counter, int], Draws]:  # fmt: skip
    """Return the devices that the pool takes, what counter sets have, and what every device draws on them.

    Of each pool of a driver only the newest generation counts.
    """
    newest: dict[tuple[str, str], int] = defaultdict(int)
    for one in slices:
        name = str(dig(one, "spec", "driver")), str(dig(one, "spec", "pool", "name"))
        newest[name] = max(newest[name], whole(dig(one, "spec", "pool", "generation")))
    missing = [name for name in pool.classes if name not in classes]
    if missing:
        notes["no_class"] = f"the cluster has no device class {', '.join(missing)}"
    wanted = [
        [*classes[name], *([pool.expression] if pool.expression else [])]
        for name in pool.classes
        if name in classes
    ]
    found: list[_Device] = []
    counters: dict[Counter, int] = {}
    draws: Draws = {}
    for one in slices:
        driver, group = str(dig(one, "spec", "driver")), str(dig(one, "spec", "pool", "name"))
        if whole(dig(one, "spec", "pool", "generation")) < newest[driver, group]:
            continue
        for shared in listed(one, "spec", "sharedCounters"):
            for name, value in dig(shared, "counters", otherwise={}).items():
                counters[driver, group, str(shared.get("name")), name] = whole(dig(value, "value"))
        for device in listed(one, "spec", "devices"):
            draws[driver, group, str(device.get("name"))] = [
                (str(drawn.get("counterSet")), name, whole(dig(value, "value")))
                for drawn in listed(device, "consumesCounters")
                for name, value in dig(drawn, "counters", otherwise={}).items()
            ]
            host = str(dig(device, "nodeName") or dig(one, "spec", "nodeName") or "")
            if host and (host not in nodes or not has_labels(nodes[host], pool.nodes)):
                continue
            if _is_taken_by(wanted, SelectedDevice.of(driver, device), str(device.get("name")), notes):
                found.append(_device((driver, group, str(device.get("name"))), host, device, nodes, draws))
    return found, counters, draws


def _is_taken_by(wanted: list[list[str]], seen: SelectedDevice, name: str, notes: dict[str, str]) -> bool:
    for expressions in wanted:
        try:
            if matches(" && ".join(f"({one})" for one in expressions), seen):
                return True
        except MissingAttributeError as no:
            notes["selector_unguarded"] = (
                f"the device {name} has no {no}, which the selector reads: the scheduler stops at it, and no lease of"
                " this pool starts; ask for 'NAME' in device.attributes['DOMAIN'] before it"
            )
        except UnreadableSelectorError as no:
            notes["selector_unreadable"] = (
                f"what the selector takes cannot be counted here ({no}): say how many units it is with --kube-units"
            )
    return False


def _device(
    key: Key, host: str, device: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]], draws: Draws
) -> _Device:
    away = out_of_work(nodes[host]) if host else ""
    for taint in listed(device, "taints"):
        if taint.get("effect") in ("NoSchedule", "NoExecute"):
            away = away or f"has {key[2]} with the taint {taint.get('key')}={taint.get('value', '')}"
    memory = whole(dig(device, "capacity", "memory", "value"))
    return _Device(key, host, away, draws[key], memory, bool(device.get("allowMultipleAllocations")))


def _held(claims: Iterable[Mapping[str, Any]]) -> tuple[set[Key], dict[Key, int]]:
    """Return the devices that claims hold, and of those that are shared how many bytes."""
    taken: set[Key] = set()
    consumed: dict[Key, int] = defaultdict(int)
    for claim in claims:
        for one in results_of(claim):
            key = str(one.get("driver")), str(one.get("pool")), str(one.get("device"))
            memory = quantity(dig(one, "consumedCapacity", "memory"))
            if memory is None:
                taken.add(key)
            else:
                consumed[key] += int(memory)
    return taken, consumed


def results_of(claim: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a claim was given, without what is only looked at (admin access)."""
    return [
        one
        for one in listed(claim, "status", "allocation", "devices", "results")
        if not one.get("adminAccess")
    ]


def _room(
    devices: Iterable[_Device], counters: Mapping[Counter, int], pool: KubernetesSettings,
    taken: Collection[Key], consumed: Mapping[Key, int],
) -> dict[str, int]:  # fmt: skip
    """Return how many units fit at the same time, by host: slices of one card draw on the same counters."""
    left = dict(counters)
    room: dict[str, int] = defaultdict(int)
    for one in devices:
        if one.key in taken:
            continue
        if pool.share_mib:
            free = one.memory - consumed.get(one.key, 0)
            room[one.host or one.key[1]] += max(0, free) // (pool.share_mib * MIB) if one.is_shared else 0
        elif one.key not in consumed and all(
            left.get((*one.key[:2], group, name), 0) >= value for group, name, value in one.draws
        ):
            _draw(left, one.key, one.draws)
            room[one.host or one.key[1]] += 1
    return dict(room)


def _draw(left: dict[Counter, int], key: Key, draws: Iterable[tuple[str, str, int]]) -> None:
    for group, name, value in draws:
        counter = key[0], key[1], group, name
        left[counter] = left.get(counter, 0) - value


def by_names(
    pool: KubernetesSettings, nodes: Mapping[str, Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]
) -> CountedPool:
    """Count a pool by the name of a resource, of the device plugin or of HAMi. ``pods`` are those of others."""
    units = away = most = 0
    silent: list[str] = []
    misfits: dict[str, str] = {}
    hosts: set[str] = set()
    for name, node in nodes.items():
        has = _units_on(pool, node)
        if not has:
            continue
        why_not = _why_not(pool, node)
        if why_not:
            misfits[str(dig(node, "metadata", "labels", HOST, otherwise=name))] = why_not
            continue
        hosts.add(name)
        units, most = units + has, max(most, has)
        sick = has - _units_on(pool, node, of="allocatable")
        why = out_of_work(node) or (f"has {sick} that do not work" if sick > 0 else "")
        if why:
            away += has if out_of_work(node) else sick
            silent.append(f"{name} {why}")
    used = sum(_asked(pool, pod) for pod in pods if dig(pod, "spec", "nodeName") in hosts)
    units = pool.units or units
    notes: list[tuple[str, str]] = []
    if not units:
        notes.append(
            (
                "no_units",
                f"no host of the pool has {pool.resource}; kubectl describe nodes lists what they have",
            )
        )
    if silent:
        notes.append(
            ("hosts_away", f"{away} of {units} units are out of service: {'; '.join(sorted(silent))}"[:1000])
        )
    if misfits:
        said = "; ".join(f"{name} {why}" for name, why in sorted(misfits.items()))
        notes.append(("hosts_misfit", f"these hosts are left out: {said}"[:1000]))
    away = min(away, units)
    return CountedPool(
        PoolFacts(units, away, min(used, units - away), most, tuple(notes)), tuple(sorted(misfits))
    )


def _units_on(pool: KubernetesSettings, node: Mapping[str, Any], of: str = "capacity") -> int:
    if not has_labels(node, pool.nodes):
        return 0
    if pool.kind == HAMI:
        return whole(dig(node, "metadata", "labels", COUNT, otherwise="0")) * pool.replicas
    return whole(dig(node, "status", of, pool.resource, otherwise="0"))


def _why_not(pool: KubernetesSettings, node: Mapping[str, Any]) -> str:
    """Return why a host's units are not what this pool lends, by the labels of the GPU Operator; "" where they are."""
    if pool.kind == HAMI:
        return ""
    labels = dig(node, "metadata", "labels", otherwise={})
    replicas = whole(labels.get(REPLICAS, "1")) or 1
    if "/mig-" not in pool.resource and replicas != pool.replicas:
        return (
            f"gives each GPU to {replicas} at a time, and this pool lends"
            f" {'whole GPUs' if pool.replicas == 1 else f'shares of {pool.replicas}'} (--kube-replicas)"
        )
    _, is_mig, size = str(labels.get(PRODUCT, "")).partition("-MIG-")
    if is_mig and size != pool.profile and "/mig-" not in pool.resource:
        return f"gives slices of MIG ({size}) under the name of a GPU; --kube-profile {size} lends those"
    return ""


def _asked(pool: KubernetesSettings, pod: Mapping[str, Any]) -> int:
    """Return how many units a pod holds."""
    if dig(pod, "status", "phase") in ("Succeeded", "Failed"):
        return 0
    return max(
        sum(_of_container(pool, one) for one in listed(pod, "spec", "containers")),
        max((_of_container(pool, one) for one in listed(pod, "spec", "initContainers")), default=0),
    )


def _of_container(pool: KubernetesSettings, container: Mapping[str, Any]) -> int:
    limits = dig(container, "resources", "limits", otherwise={})
    count = whole(limits.get(pool.resource, "0"))
    if pool.kind != HAMI or not count:
        return count
    memory = whole(limits.get(f"{pool.resource}mem", "0"))
    # Who names no memory has the whole card.
    return count * (
        min(pool.replicas, -(-memory // pool.share_mib)) if memory and pool.share_mib else pool.replicas
    )
