"""Higher priority first, then who has waited longest."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.engine.model import Claim


def priority_fifo(claims: Iterable[Claim]) -> list[Claim]:
    """The claims in the order they may choose: priority, then time queued, then id.

    A hypothetical claim (negative id) goes behind real ones of the same priority and instant.
    """
    return sorted(claims, key=lambda c: (-c.priority, c.queued_at, c.id < 0, abs(c.id)))
