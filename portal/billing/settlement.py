"""What leases came to, taken from the wallets that held for them; what was held beyond that comes back.

A lease is settled once, when it is metered to its end: refunds by rule are in its usage then. Where its usage is
written anew later, the settlement is amended by the difference. Approved notes move the balance, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction

from portal.billing.models import ExternalUsage, InvoiceNote
from portal.budgets.models import MovementKind, Wallet, WalletHold, WalletMovement
from portal.budgets.wallets import paying_wallets, post
from portal.catalog.pricing import SHARE_HOUR
from portal.common import outbox
from portal.common.retry import with_retries
from portal.common.sql import fetch

BATCH = 500
_DUE = """
SELECT h.lease_id FROM budgets_wallethold h JOIN leases_lease l ON l.id = h.lease_id
 WHERE l.is_metered AND h.lease_id > %s ORDER BY h.lease_id LIMIT %s
"""
_COSTS = """
SELECT l.id, coalesce(floor(sum(u.share_milli_seconds::numeric * u.micro_per_hour) / %s), 0)
  FROM leases_lease l LEFT JOIN billing_usagerecord u ON u.lease_id = l.id
 WHERE l.id = ANY(%s) AND l.is_metered GROUP BY l.id
"""
_SETTLED = (MovementKind.SETTLE, MovementKind.AMEND)


def settle_wallets(*, now: datetime) -> int:
    """Settle the leases that wallets hold for and that are metered to their end; returns how many. Safe to repeat."""
    settled, after = 0, 0
    while due := [pk for (pk,) in fetch(_DUE, [after, BATCH])]:
        settled += with_retries(lambda due=due: _settle(due, now))  # type: ignore[misc]
        after = due[-1]
    return settled


@transaction.atomic
def _settle(lease_ids: Sequence[int], now: datetime) -> int:
    """Settle these leases. Locks wallets, before any lease; one that somebody settled meanwhile is left out."""
    wallets = {
        row.pk: row for row in _locked(WalletHold.objects.filter(lease__in=lease_ids).values("wallet"))
    }
    costs = _costs(lease_ids)
    holds = list(WalletHold.objects.filter(lease__in=costs, wallet__in=wallets).order_by("lease_id"))
    for hold in holds:
        cost = costs[hold.lease_id]
        post(
            wallets[hold.wallet_id], MovementKind.SETTLE, hold.amount_micro - cost, at=now,
            lease_id=hold.lease_id, cost_micro=cost,
        )  # fmt: skip
    if holds:
        outbox.add(outbox.RUN_CYCLE, key=f"settled-{holds[-1].lease_id}", at=now)
        outbox.nudge_on_commit(outbox.RUN_CYCLE)
    return len(holds)


@transaction.atomic
def amend_settlements(lease_ids: Iterable[int], *, now: datetime) -> int:
    """Bring settlements in line with usage that was written anew; returns how many differed. Safe to repeat."""
    settled = WalletMovement.objects.filter(lease__in=list(lease_ids), kind__in=_SETTLED)
    wallets = {row.pk: row for row in _locked(settled.values("wallet"))}
    last = {row.lease_id: row for row in settled.order_by("number")}
    amended = 0
    for lease_id, cost in _costs(pk for pk in last if pk is not None).items():
        row = last[lease_id]
        assert row.cost_micro is not None
        if cost != row.cost_micro:
            post(
                wallets[row.wallet_id], MovementKind.AMEND, row.cost_micro - cost, at=now,
                lease_id=lease_id, cost_micro=cost,
            )  # fmt: skip
            amended += 1
    return amended


def post_note(note: InvoiceNote, *, now: datetime) -> None:
    """Let an approved note move the balance of its team: that of the wallet its lease was paid from, else the present.

    Nothing where no wallet pays, nor for electricity, which no wallet paid. Call in the transaction that approves it.
    """
    if ExternalUsage.objects.filter(billed_on=note.line_id).exists():
        return
    paid = WalletMovement.objects.filter(lease__isnull=False, lease=note.lease_id, kind__in=_SETTLED).first()
    payer = paying_wallets([note.team]).get(note.team_id)
    if paid is not None or payer is not None:
        wallet = Wallet.objects.select_for_update().get(pk=paid.wallet_id if paid else payer.pk)  # type: ignore[union-attr]
        if wallet.currency == note.currency:
            post(wallet, MovementKind.NOTE, -note.amount_micro, at=now, note=note)


def _locked(wallet_ids: Any) -> list[Wallet]:
    return list(Wallet.objects.select_for_update().filter(pk__in=wallet_ids).order_by("pk"))


def _costs(lease_ids: Iterable[int]) -> dict[int, int]:
    """Return what metered leases came to by all of their usage, in micro-units rounded down; one query."""
    return {pk: int(cost) for pk, cost in fetch(_COSTS, [SHARE_HOUR, list(lease_ids)])}
