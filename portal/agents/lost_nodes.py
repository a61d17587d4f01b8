from __future__ import annotations

from datetime import datetime

from portal.common.sql import execute


def heard(node_id: int, *, now: datetime) -> None:
    """Note that the node's agent spoke. Safe to repeat.

    Its last word never goes back, whichever of two that were taken side by side is stored last: usage before it is
    final (``portal.billing.settled``).
    """
    execute("UPDATE fleet_node SET last_seen_at = greatest(last_seen_at, %s) WHERE id = %s", [now, node_id])
