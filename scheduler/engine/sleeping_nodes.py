"""Nodes that sleep take nothing now, but would once they are woken."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final

from scheduler.engine.model import NodeInfo, Outage, Snapshot

ASLEEP: Final = "asleep"  # ``NodeInfo.blocked`` of a node that sleeps or is being woken
USUAL_WAKE_S: Final = 120  # assumed of a node that was never woken before


def awakened(snapshot: Snapshot) -> Snapshot:
    """The same picture with all sleeping nodes awake: what could start once they are."""
    if all(node.blocked != ASLEEP for node in snapshot.nodes):
        return snapshot
    nodes = tuple(replace(n, blocked="") if n.blocked == ASLEEP else n for n in snapshot.nodes)
    return replace(snapshot, nodes=nodes)


# The nodes last looked at, where none slept: most turns see the same ones.
_awake: list[tuple[NodeInfo, ...]] = []


def waking(snapshot: Snapshot) -> Snapshot:
    """The same picture with each sleeping node away only for as long as waking it takes.

    So it takes nothing now, but bookings, promises and forecasts count on it from then on. Safe to repeat.
    """
    if _awake and _awake[0] is snapshot.nodes:
        return snapshot
    known = {outage.node_id for outage in snapshot.outages if outage.starts_at <= snapshot.taken_at}
    sleeping = [node for node in snapshot.nodes if node.blocked == ASLEEP]
    if not sleeping:
        _awake[:] = [snapshot.nodes]
    asleep = [node for node in sleeping if node.id not in known]
    if not asleep:
        return snapshot
    now = snapshot.taken_at
    away = (
        Outage(
            n.id, now, now + timedelta(seconds=USUAL_WAKE_S if n.wake_s is None else max(1, n.wake_s)), ASLEEP
        )
        for n in asleep
    )
    return replace(snapshot, outages=(*snapshot.outages, *away))
