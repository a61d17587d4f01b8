"""A device on which a lease could not be set up rests: nothing is placed on it for a while.

A device that fails whatever it gets is free all the time, so it would be given everything that comes and let every
request fail five times, while others stand idle. It rests ten minutes, each further time within a day twice as long.
The rest is an open health event with an end, known to operators, who may clear it like any other.

A request whose third try fails is more likely to blame than a third device: that one does not rest.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction

from portal.common.outbox import RUN_CYCLE, add, nudge_on_commit
from portal.common.sql import execute, fetch
from portal.fleet.health import CRITICAL, RESTING, lock_devices, settle
from portal.fleet.models import Device, Health, HealthEvent
from portal.leases.health_notices import tell_of_health
from portal.leases.models import Lease
from portal.leases.states import EndReason, LeaseState

# Words of a node for what only its device can be blamed for. Other words speak of the host, the holder or the place.
CODES: Final = frozenset({"in_use", "mig_mode_refused", "refused_by_driver", "driver_error"})
FIRST: Final = timedelta(minutes=10)
MOST: Final = timedelta(hours=4)
REMEMBERED_FOR: Final = timedelta(days=1)
BY_PORTAL: Final = "portal"
SUSPECT_AFTER: Final = 2

_ON = "SELECT p.device_id, d.uuid FROM leases_placement p JOIN fleet_device d ON d.id = p.device_id"
# Other tries of a request that failed before they were active: all parts of a gang are one, each growth is its own.
_EARLIER = f"""
SELECT count(DISTINCT (generation, CASE WHEN is_extra THEN id END)) FROM leases_lease
 WHERE request_id = %s AND id <> %s AND (is_extra OR generation <> %s)
   AND end_reason = '{EndReason.FAULT}' AND activated_at IS NULL
"""  # noqa: S608 (our own states)


def is_setup(lease: Lease, code: str) -> bool:
    """Say whether a lease that fails with this word of its node could not be set up on its device."""
    return lease.state == LeaseState.PREPARING and lease.activated_at is None and code in CODES


def devices_of(lease_ids: Collection[int]) -> list[int]:
    """Return the devices that leases lie on: lock them before the leases where these may begin to rest."""
    if not lease_ids:
        return []
    return [pk for pk, _uuid in fetch(f"{_ON} WHERE p.lease_id = ANY(%s) AND p.is_live", [list(lease_ids)])]


def rest_device(lease: Lease, said: str, *, now: datetime) -> HealthEvent | None:
    """Let the device rest on which a lease could not be set up; returns what operators are told, None for nothing new.

    ``said`` are the node's words: of a lease on several devices they name the one. Call in the transaction in which
    the lease fails, with its devices locked before it.
    """
    found = fetch(f"{_ON} WHERE p.lease_id = %s ORDER BY p.id", [lease.pk])
    devices = {pk for pk, uuid in found if len(found) == 1 or uuid in said}
    if len(devices) != 1:
        return None
    (pk,) = devices
    ((earlier,),) = fetch(_EARLIER, [lease.request_id, lease.pk, lease.generation])
    device = Device.objects.get(pk=pk)
    if earlier >= SUSPECT_AFTER or device.health == Health.MISSING:
        return None
    event, is_new = HealthEvent.objects.get_or_create(
        node_id=device.node_id,
        device=device,
        code=RESTING,
        cleared_at=None,
        defaults={"severity": CRITICAL, "detail": said[:300], "at": now, "until": now + _how_long(pk, now)},
    )
    if not is_new:
        return None
    settle([pk])
    tell_of_health([event], now=now)
    return event


def _how_long(device_id: int, now: datetime) -> timedelta:
    """Return the length of a rest: twice that of the last one for each within a day that no operator has ended."""
    before = HealthEvent.objects.filter(
        device_id=device_id, code=RESTING, cleared_at__gte=now - REMEMBERED_FOR
    )
    count = 0
    for is_by_hand in before.order_by("-cleared_at", "-id").values_list("is_cleared_by_hand", flat=True)[:10]:
        if is_by_hand:
            break
        count += 1
    longer: timedelta = FIRST * (1 << count)
    return min(MOST, longer)


@transaction.atomic
def end_rests(*, now: datetime) -> int:
    """Let devices take work again whose rest is over, and wake the queue; returns how many. Safe to repeat.

    One that has another critical event stays in quarantine for that. Locks devices, then their events.
    """
    due = [pk for (pk,) in fetch(_DUE, [now])]
    if not due:
        return 0
    lock_devices(due)
    execute(_END, [now, BY_PORTAL, due, now])
    execute(_LIFT, [due])
    settle(due)
    add(RUN_CYCLE, key="rest", at=now)
    nudge_on_commit(RUN_CYCLE)
    return len(due)


_DUE = "SELECT DISTINCT device_id FROM fleet_healthevent WHERE cleared_at IS NULL AND until <= %s ORDER BY 1"
_END = (
    "UPDATE fleet_healthevent SET cleared_at = %s, cleared_by = %s"
    " WHERE device_id = ANY(%s) AND cleared_at IS NULL AND until <= %s"
)
# A quarantine without a reason is given that of what is still open, if anything is.
_LIFT = f"""
UPDATE fleet_device d SET health_reason = '', health = CASE WHEN EXISTS (
   SELECT 1 FROM fleet_healthevent e WHERE e.device_id = d.id AND e.cleared_at IS NULL AND e.severity = '{CRITICAL}')
  THEN d.health ELSE '{Health.OK}' END
 WHERE d.id = ANY(%s) AND d.health = '{Health.QUARANTINED}'
"""  # noqa: S608 (our own states)
