"""More time for a lease that runs, as far as nothing comes behind it.

Lock order everywhere: quota rows, leases by id, nodes by id last.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.common.errors import Conflict, Invalid
from portal.fleet.services import raise_revision
from portal.leases import parts
from portal.leases.ahead import Block, block_sentence, next_blocks
from portal.leases.holds import hold_until
from portal.leases.models import Lease
from portal.leases.moves import announce, lock_leases
from portal.leases.states import LeaseState


@transaction.atomic
def extend_lease(*, lease: Lease, actor: User, extra_s: int, now: datetime) -> Lease:
    """Give an active lease more time, or raise Invalid or Conflict saying why not.

    The whole time may not pass the flavor's longest, and nothing may come behind it on its slots: no booking,
    no maintenance. The refusal says until when it could run (``latest_end``). All parts of a gang are extended
    together; what was grown is not, it ends with the lease it belongs to.
    """
    together = lock_leases(parts.gang_ids(lease))
    locked = next(one for one in together if one.pk == lease.pk)
    if locked.is_extra:
        raise Conflict(_("This one was grown while devices idled: it ends with the first one at the latest."))
    if any(one.preempt_at is not None for one in together):
        raise Conflict(_("This lease must make room for another request, so it cannot be extended."))
    if any(one.state != LeaseState.ACTIVE or one.not_after <= now for one in together):
        raise Conflict(_("Only a lease that is active can be extended."))
    if extra_s < 1:
        raise Invalid(fields={"extra_s": _("Ask for at least one second more.")})
    assert locked.activated_at is not None
    total = int((locked.not_after - locked.activated_at).total_seconds()) + extra_s
    longest = locked.flavor.max_duration_s
    if total > longest:
        raise Invalid(
            fields={
                "extra_s": _("This flavor runs for at most %(hours)s hours in all.")
                % {"hours": longest // 3600}
            }
        )
    until = locked.not_after + timedelta(seconds=extra_s)
    ids = [one.pk for one in together]
    block = min(next_blocks(ids, now=now).values(), key=lambda found: found.at, default=None)
    if block is not None and until > block.at:
        raise Conflict(_cannot_extend(locked, block), latest_end=max(block.at, locked.not_after).isoformat())
    Lease.objects.filter(pk__in=ids).update(not_after=until, warned_at=None)
    reached = hold_until(ids, until)
    if reached is not None and reached < until:  # booked since we looked; the transaction is undone
        block = Block("booking", reached)
        raise Conflict(_cannot_extend(locked, block), latest_end=reached.isoformat())
    for one in together:
        one.not_after, one.warned_at = until, None
    raise_revision([one.node_id for one in together])
    announce(together, at=now)
    record(actor, "lease.extended", locked.uid, at=now, team_id=locked.team_id, extra_s=extra_s)
    return locked


def _cannot_extend(lease: Lease, block: Block) -> str:
    if block.at <= lease.not_after:
        return _("%(why)s It cannot be extended at all.") % {"why": block_sentence(block)}
    return _("%(why)s It can be extended until then.") % {"why": block_sentence(block)}
