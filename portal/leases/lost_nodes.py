"""Work whose node has fallen silent is asked for again elsewhere: nobody waits for a node that may never come back.

The old leases keep their slices until the node confirms them clean, and what it still says of them moves nothing
else: a request takes word of its present generation only.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from portal.common.outbox import RUN_CYCLE, nudge_on_commit
from portal.common.sql import fetch, in_sql
from portal.leases import gangs
from portal.leases.failures import UNHEARD
from portal.leases.lifecycle import fail_leases, settle_requests
from portal.leases.models import Lease
from portal.leases.states import LEAVING_LEASES, WANTED_LEASES, EndReason, LeaseState, RequestState

MOST = 500
_UNMADE = (
    "SELECT l.id FROM fleet_node n JOIN leases_lease l ON l.node_id = n.id"  # noqa: S608 (our own states)
    f" WHERE n.last_seen_at < %s AND l.state = '{LeaseState.PREPARING}' ORDER BY l.id LIMIT %s"
)
# Requests whose present leases are all over, of which some cannot be confirmed clean by a node that is not heard.
_OVER = f"""
SELECT DISTINCT r.id FROM fleet_node n JOIN leases_lease l ON l.node_id = n.id
  JOIN leases_leaserequest r ON r.id = l.request_id AND r.attempts + 1 = l.generation
 WHERE n.last_seen_at < %s AND l.state IN {in_sql(LEAVING_LEASES)} AND NOT l.is_extra
   AND r.state = '{RequestState.GRANTED}'
   AND l.end_reason IN ('{EndReason.FAULT}', '{EndReason.PREEMPTED}', '{EndReason.MAINTENANCE}') AND NOT EXISTS (
   SELECT 1 FROM leases_lease o WHERE o.request_id = r.id AND o.generation = l.generation
    AND o.state IN {in_sql(WANTED_LEASES)})
 ORDER BY r.id LIMIT %s
"""  # noqa: S608 (our own states)


def _silent_since(now: datetime) -> datetime:
    return now - timedelta(seconds=settings.NODE_LOST_AFTER_S)


@transaction.atomic
def fail_unmade(*, now: datetime) -> int:
    """Fail leases that are being made on a node that has been silent too long; returns how many. Safe to repeat.

    Nothing of them is billed: they never became active. Locks leases, then nodes.
    """
    silent = _silent_since(now)
    found = list(
        Lease.objects.select_for_update(of=("self",), skip_locked=True)
        .select_related("team", "request", "user", "node")
        .filter(pk__in=[pk for (pk,) in fetch(_UNMADE, [silent, MOST])], state=LeaseState.PREPARING)
        .filter(node__last_seen_at__lt=silent)
        .order_by("id")
    )
    fail_leases(found, at=now, fault=UNHEARD)
    return len(found)


@transaction.atomic
def requeue_unheard(*, now: datetime) -> int:
    """Let requests wait again whose leases were lost and stand on a silent node; returns how many. Safe to repeat.

    Locks requests alone: of leases that are over, none comes back to life, and whoever cleans one meanwhile locks
    its request after it and finds it gone on.
    """
    silent = _silent_since(now)
    ids = [pk for (pk,) in fetch(_OVER, [silent, MOST])]
    if not ids:
        return 0
    held = fetch(
        "SELECT id FROM leases_leaserequest WHERE id = ANY(%s) ORDER BY id FOR UPDATE SKIP LOCKED", [ids]
    )
    still = {pk for (pk,) in fetch(_OVER, [silent, MOST])}  # under the lock: somebody may have been faster
    found = gangs.outcomes_of([pk for (pk,) in held if pk in still])
    settle_requests([one for one in found if one.end_reason in gangs.AGAIN], now)
    nudge_on_commit(RUN_CYCLE)
    return len(found)
