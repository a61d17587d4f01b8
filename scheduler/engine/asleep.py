"""Nodes that sleep take nothing now, but would once they are woken."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from scheduler.engine.model import Snapshot

ASLEEP: Final = "asleep"  # ``Node.blocked`` of a node that sleeps or is being woken


def awakened(snapshot: Snapshot) -> Snapshot:
    """The same picture with all sleeping nodes awake: what could start once they are."""
    if all(node.blocked != ASLEEP for node in snapshot.nodes):
        return snapshot
    nodes = tuple(replace(n, blocked="") if n.blocked == ASLEEP else n for n in snapshot.nodes)
    return replace(snapshot, nodes=nodes)
