"""Health events that were cleared long ago are forgotten, so that their table does not grow for ever.

Nothing refers to an event: invoices and leases keep what they need in their own rows. Should something do so one day,
its foreign key makes the database refuse the deletion instead of following it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from django.conf import settings

from portal.common.retry import with_retries
from portal.common.sql import execute
from portal.fleet.health import REMEMBERED

BATCH: Final = 1000
MOST_BATCHES: Final = 50  # a run ends well within a task's time; the next one goes on
# An operator's word against what an agent remembers counts until the node boots: as long it has to be known.
_FORGET = """
DELETE FROM fleet_healthevent WHERE id IN (
 SELECT e.id FROM fleet_healthevent e JOIN fleet_node n ON n.id = e.node_id
  WHERE e.cleared_at < %s
    AND NOT (e.is_cleared_by_hand AND e.code = ANY(%s) AND n.boot_id <> '' AND e.cleared_boot = n.boot_id)
  ORDER BY e.cleared_at, e.id LIMIT %s FOR UPDATE OF e SKIP LOCKED)
"""


def forget_health(*, now: datetime) -> int:
    """Delete the events that were cleared more than ``HEALTH_KEEP_DAYS`` ago; returns how many.

    Open ones stay, however old. One transaction per batch, so call outside one. Safe to repeat and in parallel.
    """
    before, total = now - timedelta(days=settings.HEALTH_KEEP_DAYS), 0
    for _batch in range(MOST_BATCHES):
        gone = with_retries(lambda: execute(_FORGET, [before, sorted(REMEMBERED), BATCH]))
        total += gone
        if gone < BATCH:
            break
    return total
