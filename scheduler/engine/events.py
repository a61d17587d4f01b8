"""What changes an engine state: something was granted, something ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.engine.model import Grant, Held


@dataclass(frozen=True, slots=True)
class Granted:
    """A grant takes its slots and its quota from ``at`` for its duration.

    Without a lease yet its placements carry minus the claim's id instead (see ``held_by``).
    """

    grant: Grant
    at: datetime
    lease_id: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """Live placements are gone and clean; their quota is given back."""

    held: tuple[Held, ...]


Event = Granted | Ended


def held_by(grant: Grant, at: datetime, lease_id: int | None = None) -> tuple[Held, ...]:
    """The placements a grant holds from ``at`` on, one per slot.

    ``lease_id`` None in a placement means a foreign partition that no quota pays, so a grant that has
    no lease yet holds its placements under minus its claim's id.
    """
    lease_id = -grant.claim_id if lease_id is None else lease_id
    until = at + timedelta(seconds=grant.duration_s)
    return tuple(
        Held(
            slot.device_id, slot.start, slot.size, slot.mode, grant.team_id, lease_id, until,
            slot.share_milli, slot.memory_mib, False, slot.profile, slot.cpu_milli, slot.host_memory_mib,
        )
        for slot in grant.slots
    )  # fmt: skip


def in_order(held: Iterable[Held]) -> list[Held]:
    """Host placements before the shares that live in them."""
    return sorted(held, key=lambda h: not h.is_host)
