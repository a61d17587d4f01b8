from __future__ import annotations

from datetime import datetime

from portal.fleet.models import Node


def heard(node_id: int, *, now: datetime) -> None:
    """Note that the node's agent spoke. Safe to repeat."""
    Node.objects.filter(pk=node_id).update(last_seen_at=now)
