"""What a desired state asks for, and when it must not be obeyed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final

from nodeagent.protocol.limits import MOST_FIRST_REVISION, MOST_REVISION_JUMP
from nodeagent.protocol.messages import Desired, DesiredLease, DesiredSlot, DeviceFact
from nodeagent.reconcile.lease_records import HELD, Key, LeaseRecord
from nodeagent.reconcile.steps import StepRefusal

# Codes of frames that contradict themselves, or what was taken before: none of such a frame can be trusted.
CONTRADICTIONS: Final = frozenset({"overlapping_slots", "lease_twice", "lease_moved"})


class FenceError(Exception):
    """A desired state that must not be obeyed, as a whole.

    ``code`` is wrong_node, other_epoch, old_epoch, old_revision, far_revision, or one of ``CONTRADICTIONS``.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


def require_current(desired: Desired, *, node: str, epoch: int, revision: int) -> None:
    """Raise FenceError unless a desired state is for this node and at least as new as the last one."""
    if desired.node != node:
        raise FenceError("wrong_node", f"for {desired.node!r}, this is {node!r}")
    if desired.epoch < epoch:
        raise FenceError("old_epoch", f"epoch {desired.epoch} is older than {epoch}")
    if desired.epoch == epoch and desired.revision < revision:
        raise FenceError("old_revision", f"revision {desired.revision} is older than {revision}")
    most = revision + MOST_REVISION_JUMP if revision else MOST_FIRST_REVISION
    if desired.revision > most:
        raise FenceError("far_revision", f"revision {desired.revision} is too far above {revision}")


def newest(leases: tuple[DesiredLease, ...]) -> dict[Key, DesiredLease]:
    """Return the highest generation of each lease; raises FenceError where that is there twice and not the same."""
    newest: dict[str, DesiredLease] = {}
    for lease in leases:
        other = newest.get(lease.lease)
        if other is None or lease.generation > other.generation:
            newest[lease.lease] = lease
        elif lease.generation == other.generation and lease != other:
            twice = f"{lease.lease} is there twice, with different contents for generation {lease.generation}"
            raise FenceError("lease_twice", twice)
    return {(lease.lease, lease.generation): lease for lease in newest.values()}


def require_apart(wanted: dict[Key, DesiredLease], devices: Mapping[str, DeviceFact]) -> None:
    """Raise FenceError when two slots of a desired state cannot both exist: then none of it can be trusted.

    What a slot says of its size is not believed where its device knows better.
    """
    by_device: dict[str, list[tuple[str, DesiredSlot]]] = {}
    for lease in wanted.values():
        for slot in lease.slots:
            size = max(slot.size, size_of(slot, devices.get(slot.device)) or 1)
            by_device.setdefault(slot.device, []).append((lease.lease, replace(slot, size=size)))
    for device, slots in by_device.items():
        slots.sort(key=lambda entry: entry[1].start)
        for (one, first), (other, second) in pairwise(slots):
            if _collide(first, second):
                raise FenceError("overlapping_slots", f"{one} and {other} overlap on {device}")


def require_unmoved(wanted: dict[Key, DesiredLease], lease_records: Mapping[Key, LeaseRecord]) -> None:
    """Raise FenceError when a lease that is here has other places now: those of a generation never change."""
    for key, lease in wanted.items():
        record = lease_records.get(key)
        if record is None or record.phase not in HELD:
            continue
        if sorted(map(_place_of, lease.slots)) != sorted(_place_of(place.slot) for place in record.places):
            moved = f"generation {lease.generation} of {lease.lease} has other places here than it is sent with now"
            raise FenceError("lease_moved", moved)


def size_of(slot: DesiredSlot, device: DeviceFact | None) -> int | None:
    """Return how many memory slices a slot's profile takes on its device, None where that is not known."""
    if device is None or slot.mode != "mig":
        return None
    return next((profile.slices for profile in device.profiles if profile.name == slot.profile), None)


def unknown(record: LeaseRecord, devices: Mapping[str, DeviceFact]) -> StepRefusal | None:
    """Return why a lease has no place on this node, None where it has one."""
    if not record.places:
        return StepRefusal("empty_lease", "the lease names no place")
    missing = next((p.slot.device for p in record.places if p.slot.device not in devices), None)
    if missing is None:
        return None
    return StepRefusal(
        "unknown_device", f"{missing} is not on this node; enrol the node again if devices were swapped"
    )


def unfit(record: LeaseRecord, devices: Mapping[str, DeviceFact]) -> StepRefusal | None:
    """Return why a new lease cannot be made as it is told: its slots say another size than their profiles have."""
    for slot in (place.slot for place in record.places):
        size = size_of(slot, devices.get(slot.device))
        if size is not None and size != slot.size:
            said = f"{slot.profile} takes {size} memory slice(s) on {slot.device}, not {slot.size}"
            return StepRefusal("not_offered", f"{said}; update whatever asks for it")
    return None


def _place_of(slot: DesiredSlot) -> tuple[str, str, int, str]:
    return slot.device, slot.mode, slot.start, slot.profile


def aged(desired: Desired, by_s: int) -> Desired:
    """Return a desired state as it is so many seconds after it was made: its times are counted from then."""
    leases = tuple(
        replace(
            lease,
            remaining_s=max(0, lease.remaining_s - by_s),
            notice=lease.notice and replace(lease.notice, in_s=max(0, lease.notice.in_s - by_s)),
        )
        for lease in desired.leases
    )
    return replace(desired, leases=leases)


def _collide(first: DesiredSlot, second: DesiredSlot) -> bool:
    """Say whether two slots of one device, the second not starting before the first, exclude each other."""
    if first.mode != second.mode or first.mode == "exclusive":
        return True
    return first.mode == "mig" and second.start < first.start + first.size


def why_ended(record: LeaseRecord, wanted: dict[Key, DesiredLease]) -> str:
    """Return why a lease is not wanted any more: a newer generation replaces it, or the portal withdrew it."""
    return "superseded" if any(lease == record.lease for lease, _ in wanted) else "withdrawn"
