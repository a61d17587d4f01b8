"""Turn what a plan takes back into rows: who is told to go, and who may stay after all."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction

from portal.leases.models import Lease
from portal.leases.preempting import ToldLease, spare, tell
from scheduler.engine.model import Plan
from scheduler.engine.policy import PolicyRules


@transaction.atomic
def preemptions(decided: Plan, policy: PolicyRules, *, now: datetime) -> list[Lease]:
    """Spare and tell leases; returns those that were told.

    Call once the turn's grants are stored, so that who started elsewhere sends nobody away. Opens its own
    transaction; locks leases, then nodes. ``now`` is a database instant.
    """
    spare(decided.spared, now=now)
    if not decided.preemptions:
        return []
    found = [ToldLease(one.lease_id, one.claim_id, one.why) for one in decided.preemptions]
    return tell(found, grace_s=policy.preempting.grace_s, now=now)
