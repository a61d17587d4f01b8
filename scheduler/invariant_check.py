"""The hourly check of every invariant: operators hear once when one breaks, and once when it holds again."""

from __future__ import annotations

from datetime import datetime

from django.db import DatabaseError, transaction

from portal.common.invariants import Breach, broken
from portal.common.models import InvariantCheck
from portal.common.retry import is_unreachable
from portal.notifications.services import notify
from portal.teams.selectors import operators

BROKEN, HEALED = "invariant.broken", "invariant.healed"


def check(*, now: datetime) -> InvariantCheck:
    """Check all invariants, keep the result and tell operators what is new. Safe to repeat and in parallel.

    A check that cannot be finished is noted as such and changes nothing that was known. Call outside a transaction:
    the snapshot is of its own.
    """
    try:
        found = broken()
    except DatabaseError as error:
        if is_unreachable(error):
            raise
        return _note(None, now, str(error).partition("\n")[0][:200])
    return _note(found, now, "")


@transaction.atomic
def _note(found: list[Breach] | None, now: datetime, failure: str) -> InvariantCheck:
    InvariantCheck.objects.get_or_create(id=1)
    row = InvariantCheck.objects.select_for_update().get(id=1)
    if row.tried_at is not None and row.tried_at > now:
        return row  # somebody who began later has been here
    row.tried_at, row.failure = now, failure
    if found is not None:
        _tell(row, found, now)
        row.checked_at = now
    row.save()
    return row


def _tell(row: InvariantCheck, found: list[Breach], now: datetime) -> None:
    """Bring the row in line with what was found, and tell what has become broken or has healed since."""
    before = {one["name"]: one for one in row.breaches}
    names = {breach.invariant.name for breach in found}
    people = operators()
    for breach in found:
        if breach.invariant.name not in before:
            facts = {"name": breach.invariant.name, "count": len(breach.offenders)}
            notify(people, BROKEN, target=f"invariant-{breach.invariant.name}", at=now, is_news=True, **facts)
    for name in sorted(before.keys() - names):
        notify(people, HEALED, target=f"invariant-{name}", at=now, is_news=True, name=name)
    row.breaches = [
        {
            "name": breach.invariant.name,
            "promise": breach.invariant.promise,
            "since": before.get(breach.invariant.name, {}).get("since", now.isoformat()),
            "offenders": list(breach.offenders),
        }
        for breach in found
    ]
