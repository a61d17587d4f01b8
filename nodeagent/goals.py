"""What a desired state asks for, and when it must not be obeyed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from nodeagent.protocol.messages import Desired, DesiredLease, DesiredSlot
from nodeagent.works import Key, Work


class FenceError(Exception):
    """A desired state that must not be obeyed, as a whole.

    ``code`` is wrong_node, old_epoch, old_revision or overlapping_slots.
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


def newest(leases: tuple[DesiredLease, ...]) -> dict[Key, DesiredLease]:
    """Return the highest generation of each lease."""
    newest: dict[str, DesiredLease] = {}
    for lease in leases:
        if lease.lease not in newest or lease.generation > newest[lease.lease].generation:
            newest[lease.lease] = lease
    return {(lease.lease, lease.generation): lease for lease in newest.values()}


def require_apart(wanted: dict[Key, DesiredLease]) -> None:
    """Raise FenceError when two slots of a desired state cannot both exist: then none of it can be trusted."""
    by_device: dict[str, list[tuple[str, DesiredSlot]]] = {}
    for lease in wanted.values():
        for slot in lease.slots:
            by_device.setdefault(slot.device, []).append((lease.lease, slot))
    for device, slots in by_device.items():
        slots.sort(key=lambda entry: entry[1].start)
        for (one, first), (other, second) in pairwise(slots):
            if _collide(first, second):
                raise FenceError("overlapping_slots", f"{one} and {other} overlap on {device}")


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


def why_ended(work: Work, wanted: dict[Key, DesiredLease]) -> str:
    """Return why a work is not wanted any more: a newer generation replaces it, or the portal withdrew it."""
    return "superseded" if any(lease == work.lease for lease, _ in wanted) else "withdrawn"
