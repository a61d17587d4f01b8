"""Units of a pool: those that others hold, or that are out of service in their cluster, take no new work.

The agent names as many free units as are lacking, whichever: they are interchangeable (docs/slurm.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from nodeagent.protocol.messages import POOL, PartitionFact
from portal.common import outbox
from portal.common.sql import execute, fetch
from portal.fleet.health import settle
from portal.fleet.models import Health, Node

TAKEN: Final = "held by other jobs of the cluster, or out of service there"
_STATES: Final = "SELECT id, uuid, health, health_reason FROM fleet_device WHERE node_id = %s ORDER BY id"


def is_pool(node: Node) -> bool:
    """Say whether a node stands for a pool of a cluster."""
    return POOL in (node.features or [])


def changing_units(node: Node, facts: Sequence[PartitionFact]) -> tuple[list[int], list[int]]:
    """Return the devices that are to be had no more by what a report says, and those that are again."""
    if not is_pool(node):
        return [], []
    taken = {fact.device for fact in facts if not fact.lease}
    lost, back = [], []
    for pk, uuid, health, reason in fetch(_STATES, [node.pk]):
        if uuid in taken and health in (Health.OK, Health.DEGRADED):
            lost.append(pk)
        elif uuid not in taken and (health, reason) == (Health.MISSING, TAKEN):
            back.append(pk)
    return lost, back


def see_units(node: Node, facts: Sequence[PartitionFact], *, now: datetime) -> None:
    """Take units out of work, or let them take work again. Call in a report's transaction, with them locked."""
    lost, back = changing_units(node, facts)
    if lost:
        _set_health(lost, Health.MISSING, TAKEN)
    if back:
        _set_health(back, Health.OK, "")
        settle(back)
        outbox.add(outbox.RUN_CYCLE, key=node.name, at=now)
        outbox.nudge_on_commit(outbox.RUN_CYCLE)


def _set_health(ids: list[int], health: str, reason: str) -> None:
    execute(
        "UPDATE fleet_device SET health = %s, health_reason = %s WHERE id = ANY(%s)",
        [str(health), reason, ids],
    )
