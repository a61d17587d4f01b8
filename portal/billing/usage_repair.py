"""Usage that an earlier release cut too early or left out, brought in line with the events it is made from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import transaction

from portal.billing.metering import meter_all
from portal.billing.models import PeriodState, UsageRecord
from portal.billing.settlement import amend_settlements
from portal.common.invariants import ACTIVE_TIME, CLOSED_UNTIL, USAGE_TIME
from portal.common.retry import with_retries
from portal.common.sql import fetch
from portal.leases.models import Lease

# Leases whose usage is not their active time, up to where it was metered; and whether a closed month has too much.
_UNLIKE_EVENTS = f"""
  SELECT l.id, l.uid, NOT coalesce(u.span, '{{}}') * tstzmultirange(tstzrange(NULL, closed.at))
    <@ coalesce(a.span, '{{}}') AND closed.at IS NOT NULL AS is_beyond
  FROM leases_lease l CROSS JOIN ({CLOSED_UNTIL}) closed
  LEFT JOIN ({ACTIVE_TIME}) a ON a.lease_id = l.id LEFT JOIN ({USAGE_TIME}) u ON u.lease_id = l.id
  WHERE (l.is_metered AND coalesce(a.span, '{{}}') <> coalesce(u.span, '{{}}'))
  OR (NOT l.is_metered AND u.span <> coalesce(a.span, '{{}}') * tstzmultirange(tstzrange(NULL, u.until)))
  OR NOT coalesce(a.span, '{{}}') * tstzmultirange(tstzrange(NULL, closed.at)) <@ coalesce(u.span, '{{}}')
    AND closed.at IS NOT NULL
  ORDER BY l.id
"""  # noqa: S608 (our own words)


@dataclass(frozen=True, slots=True)
class RepairedUsage:
    """Leases whose usage was written anew, and those of which a closed month billed too much."""

    leases: list[str]
    beyond: list[str]


def mend_usage(*, now: datetime, is_dry: bool = False) -> RepairedUsage:
    """Write usage anew that is not what the events of its lease say. Safe to repeat.

    Usage of open months is taken back and metered again, what a closed month lacks is adjusted in the running one.
    What a closed month has too much of cannot be taken back: it is only named.
    """
    rows = fetch(_UNLIKE_EVENTS)
    wrong = [(pk, uid) for pk, uid, is_beyond in rows if not is_beyond]
    if not is_dry and wrong:
        with_retries(lambda: _take_back([pk for pk, _uid in wrong]))
        meter_all(now=now)
        with_retries(lambda: amend_settlements([pk for pk, _uid in wrong], now=now))
    return RepairedUsage([uid for _pk, uid in wrong], [uid for _pk, uid, is_beyond in rows if is_beyond])


@transaction.atomic
def _take_back(lease_ids: list[int]) -> None:
    """Delete what open months have of these leases and let metering come by again."""
    list(Lease.objects.select_for_update(of=("self",)).filter(pk__in=lease_ids).order_by("pk"))
    UsageRecord.objects.filter(lease__in=lease_ids, period__state=PeriodState.OPEN).delete()
    Lease.objects.filter(pk__in=lease_ids).update(is_metered=False)
