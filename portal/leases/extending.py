"""More time for a lease that runs, as far as nothing comes behind it and as much as may be had without approval.

What a lease takes is judged as a whole: the time it has, and what is added. Above the team's threshold an extension
waits for an approver, as a request of that size would, and takes effect when it is approved, if it still can.

Lock order everywhere: budgets, wallets, quota rows, leases by id, nodes by id last; an extension comes after its
leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.catalog import pricing
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.common.sql import execute, in_sql
from portal.fleet.services import raise_revision
from portal.leases import gangs
from portal.leases.approvers import absent, approvers, audited, said_by
from portal.leases.budget_gate import Expense, Reached, admit, hold_budgets, is_limited
from portal.leases.hold_periods import hold_until
from portal.leases.models import Lease, LeaseExtension
from portal.leases.next_blocks import NextBlock, block_sentence, next_blocks
from portal.leases.requests import needs_approval, too_long_sentence
from portal.leases.selectors import may_manage_lease
from portal.leases.states import RUNNING_LEASES, ExtensionState, LeaseState
from portal.leases.transitions import announce, lock_leases
from portal.leases.wallet_holds import hold_more, wallet_of
from portal.notifications.services import notify
from portal.quotas.selectors import shortest_run_limit
from portal.teams.models import Role
from portal.teams.selectors import Rights


@transaction.atomic
def extend_lease(*, lease: Lease, actor: User, extra_s: int, now: datetime) -> LeaseExtension | None:
    """Give an active lease more time, or raise Invalid, Conflict or BudgetExceeded saying why not.

    Returns None when it runs longer now, and the extension when somebody must approve it first.
    The whole time may not pass the flavor's longest, and nothing may come behind it on its slots: no booking,
    no maintenance. The refusal says until when it could run (``latest_end``). All parts of a gang are extended
    together; what was grown is not, it ends with the lease it belongs to.
    """
    together = lock_together(lease)
    locked = next(one for one in together if one.pk == lease.pk)
    if extra_s < 1:
        raise Invalid(fields={"extra_s": _("Ask for at least one second more.")})
    if waiting_extension(locked) is not None:
        raise Conflict(
            _("An extension of this lease waits for approval already. Withdraw it to ask for another one.")
        )
    _check(together, locked, extra_s, now)
    price = _price(together, locked, extra_s)
    asks = _check_budgets(together, locked, price, extra_s, now)
    if not _needs_approval(locked, extra_s) and asks is None:
        _extend(together, locked, price, extra_s, now)
        record(actor, "lease.extended", locked.uid, at=now, team_id=locked.team_id, extra_s=extra_s)
        return None
    asked = LeaseExtension.objects.create(lease=locked, extra_s=extra_s, asked_by=actor, asked_at=now)
    record(actor, "lease.extension_asked", locked.uid, at=now, team_id=locked.team_id, extra_s=extra_s)
    others = approvers(locked.team, besides=[actor.pk, locked.user_id])
    target = f"{locked.uid}#{asked.pk}"
    notify(others, "extension.awaits_approval", target=target, at=now, by=str(actor), extra_s=extra_s)
    announce([locked], at=now)
    return asked


def lock_together(lease: Lease) -> list[Lease]:
    """Lock what an extension of this lease changes, so that the caller's instant and look are of then and not before.

    To be called within the transaction that goes on to extend or decide.
    """
    hold_budgets([lease.team])
    return lock_leases(gangs.gang_ids(lease))


def whole_s(lease: Lease, extra_s: int = 0) -> int:
    """Return how many seconds a request has taken and will take with this active lease of it, and some more."""
    assert lease.activated_at is not None
    before = lease.request.duration_s - lease.request.remaining_s
    return before + int((lease.not_after - lease.activated_at).total_seconds()) + extra_s


def _needs_approval(lease: Lease, extra_s: int) -> bool:
    request, whole = lease.request, whole_s(lease, extra_s)
    if request.decided_by_id is not None and whole <= request.duration_s:
        return False  # no more than was approved: it had been cut short
    units = max(request.count * max(request.nodes, 1), request.most_count)
    return needs_approval(lease.team, lease.flavor, count=units, duration_s=whole)


def _check(together: Sequence[Lease], locked: Lease, extra_s: int, now: datetime) -> None:
    """Raise Invalid or Conflict where the locked parts of a lease cannot run so much longer."""
    if locked.is_extra:
        raise Conflict(_("This one was grown while devices idled: it ends with the first one at the latest."))
    if locked.must_go_for == "idle":
        raise Conflict(
            _("This lease idles and is to be taken back. Use it, or put that off, then extend it.")
        )
    if any(one.preempt_at is not None for one in together):
        raise Conflict(_("This lease must make room for another request, so it cannot be extended."))
    if any(one.state != LeaseState.ACTIVE or one.not_after <= now for one in together):
        raise Conflict(_("Only a lease that is active can be extended."))
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
    limit = shortest_run_limit(locked.team)
    if limit is not None and total > limit.most_s:
        raise Invalid(fields={"extra_s": too_long_sentence(limit)})
    block = min(
        next_blocks([one.pk for one in together], now=now).values(), key=lambda found: found.at, default=None
    )
    if block is not None and locked.not_after + timedelta(seconds=extra_s) > block.at:
        raise Conflict(_cannot_extend(locked, block), latest_end=max(block.at, locked.not_after).isoformat())


def _price(together: Sequence[Lease], locked: Lease, extra_s: int) -> pricing.Quote | None:
    """Return what more time would cost; None where neither a budget nor a wallet asks."""
    if not is_limited(locked.team):
        return None
    return pricing.quote(
        locked.flavor,
        team_id=locked.team_id,
        is_preemptible=locked.is_preemptible,
        count=sum(one.count for one in together if not one.is_extra),
        duration_s=extra_s,
        starts_at=locked.not_after,
        price_milli=locked.price_milli,
    )


def _check_budgets(
    together: Sequence[Lease], locked: Lease, price: pricing.Quote | None, extra_s: int, now: datetime
) -> Reached | None:
    """Return the threshold from which on more time needs an approval; raises BudgetExceeded where there is none."""
    if price is None:
        return None
    until = locked.not_after + timedelta(seconds=extra_s)
    expense = Expense(
        locked.team, price.amount_micro, locked.not_after, until, locked.is_preemptible,
        hold_micro=price.hold_micro, wallet_id=wallet_of(locked),
        share_milli=sum(one.share_milli for one in together if not one.is_extra),
    )  # fmt: skip
    return admit(expense, now=now)


def _extend(
    together: Sequence[Lease], locked: Lease, price: pricing.Quote | None, extra_s: int, now: datetime
) -> None:
    until = locked.not_after + timedelta(seconds=extra_s)
    if price is not None:
        hold_more([one for one in together if not one.is_extra], price.hold_micro, at=now)
    ids = [one.pk for one in together]
    Lease.objects.filter(pk__in=ids).update(not_after=until, warned_at=None)
    reached = hold_until(ids, until)
    if reached is not None and reached < until:  # booked since we looked; the transaction is undone
        block = NextBlock("booking", reached)
        raise Conflict(_cannot_extend(locked, block), latest_end=reached.isoformat())
    for one in together:
        one.not_after, one.warned_at = until, None
    raise_revision([one.node_id for one in together])
    announce(together, at=now)


def _cannot_extend(lease: Lease, block: NextBlock) -> str:
    if block.at <= lease.not_after:
        return _("%(why)s It cannot be extended at all.") % {"why": block_sentence(block)}
    return _("%(why)s It can be extended until then.") % {"why": block_sentence(block)}


def waiting_extension(lease: Lease) -> LeaseExtension | None:
    """Return the extension of a lease that waits for an approver, None where none does."""
    found = LeaseExtension.objects.filter(lease=lease, state=ExtensionState.AWAITING_APPROVAL)
    return found.select_related("asked_by").first()


@transaction.atomic
def approve_extension(*, lease: Lease, actor: User, rights: Rights, note: str, now: datetime) -> Lease:
    """Let the lease run longer as was asked, if it still can; nobody decides on their own.

    Raises Conflict or BudgetExceeded when it cannot any more: the extension goes on waiting, and may be turned down.
    """
    together = lock_together(lease)
    locked = next(one for one in together if one.pk == lease.pk)
    asked, decided_for = _decidable(locked, rights)
    _check(together, locked, asked.extra_s, now)
    price = _price(together, locked, asked.extra_s)
    _check_budgets(together, locked, price, asked.extra_s, now)
    _decide(asked, ExtensionState.APPROVED, actor, decided_for, note, now)
    _extend(together, locked, price, asked.extra_s, now)
    team_id, extra_s = locked.team_id, asked.extra_s
    record(
        actor, "lease.extension_approved", locked.uid, at=now, team_id=team_id, extra_s=extra_s, **audited(decided_for)
    )  # fmt: skip
    told: dict[str, Any] = {**said_by(actor, decided_for), "not_after": locked.not_after.isoformat()}
    notify([asked.asked_by], "extension.approved", target=f"{locked.uid}#{asked.pk}", at=now, **told)
    return locked


@transaction.atomic
def reject_extension(*, lease: Lease, actor: User, rights: Rights, note: str, now: datetime) -> Lease:
    """Turn an extension down with a reason that whoever asked will read; the lease keeps its end."""
    if not note.strip():
        raise Invalid(fields={"note": _("Say why, so that the person knows what to change.")})
    (locked,) = lock_leases([lease.pk])
    asked, decided_for = _decidable(locked, rights)
    _decide(asked, ExtensionState.REJECTED, actor, decided_for, note, now)
    record(
        actor, "lease.extension_rejected", locked.uid, at=now, team_id=locked.team_id, **audited(decided_for)
    )
    told: dict[str, Any] = {**said_by(actor, decided_for), "note": note[:300]}
    notify([asked.asked_by], "extension.rejected", target=f"{locked.uid}#{asked.pk}", at=now, **told)
    announce([locked], at=now)
    return locked


@transaction.atomic
def withdraw_extension(*, lease: Lease, actor: User, rights: Rights, now: datetime) -> Lease:
    """Take back an extension that waits for approval; the lease keeps its end. Safe to repeat."""
    (locked,) = lock_leases([lease.pk])
    if not may_manage_lease(rights, locked):
        raise Forbidden if rights.has(locked.team, *Role.values) else NotFound
    asked = waiting_extension(locked)
    if asked is not None:
        asked.state, asked.decided_at = ExtensionState.WITHDRAWN, now
        asked.save(update_fields=["state", "decided_at"])
        record(actor, "lease.extension_withdrawn", locked.uid, at=now, team_id=locked.team_id)
        announce([locked], at=now)
    return locked


def _decidable(lease: Lease, rights: Rights) -> tuple[LeaseExtension, User | None]:
    """Return the extension that waits, and for whom this person decides on it as a deputy."""
    asked = waiting_extension(lease)
    seats = rights.require_seats(lease.team, lease.user_id, asked.asked_by_id if asked else None)
    if asked is None:
        raise Conflict(_("No extension of this lease waits for approval any more."))
    if not seats:
        raise Forbidden(_("Nobody decides on an extension of their own."))
    return asked, absent(seats[0])


def _decide(
    asked: LeaseExtension, state: str, actor: User, decided_for: User | None, note: str, now: datetime
) -> None:
    asked.state, asked.decided_by, asked.decided_for, asked.decided_at = state, actor, decided_for, now
    asked.decision_note = note[:300]
    asked.save(update_fields=["state", "decided_by", "decided_for", "decided_at", "decision_note"])


@transaction.atomic
def lapse_extensions(*, now: datetime) -> int:
    """Let extensions lapse that still waited when their lease ended; returns how many. Safe to repeat."""
    return execute(
        f"UPDATE leases_leaseextension e SET state = '{ExtensionState.LAPSED}', decided_at = %s FROM leases_lease l"  # noqa: S608 (our own states)
        f" WHERE l.id = e.lease_id AND e.state = '{ExtensionState.AWAITING_APPROVAL}'"
        f" AND l.state NOT IN {in_sql(RUNNING_LEASES)}",
        [now],
    )
