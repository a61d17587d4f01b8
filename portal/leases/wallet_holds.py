"""What leases hold of wallets: taken when they are granted, and more when they are extended.

It comes back less what the lease came to once it is metered to its end (``portal.billing.settlement``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from portal.budgets.models import MovementKind, Wallet, WalletHold
from portal.budgets.wallets import paying_wallets, post
from portal.catalog import pricing
from portal.catalog.discounts import DiscountWanted, discounts_over
from portal.catalog.models import Rate
from portal.common.errors import Conflict
from portal.common.rows import Rows
from portal.leases.budget_gate import NO_WALLET, Expense
from portal.leases.models import Lease, LeaseRequest

_RATES = Rows(Rate, "card")


def priced_for_wallets(expenses: Sequence[Expense], requests: Sequence[LeaseRequest]) -> list[Expense]:
    """Return what requests would cost with what wallets would hold for it by the prices that are known now.

    Their quotes are as old as they are. Expenses that no wallet pays for stay as they are, as do those without a price
    now: metering waits for it, too. Three queries for all, and one more where discounts apply.
    """
    payers = paying_wallets([expense.team for expense in expenses])
    if not payers:
        return list(expenses)
    wanted = {request.flavor.device_model_id for request in requests if request.team_id in payers}
    rates: dict[int, list[Rate]] = {pk: [] for pk in wanted}
    for rate in _RATES.where(
        '"card".is_default AND it.device_model_id = ANY(%s) ORDER BY it.valid', [sorted(wanted)]
    ):
        rates[rate.device_model_id].append(rate)
    spans = discounts_over(
        [
            DiscountWanted(
                one.team_id, one.is_preemptible, expense.starts_at.replace(microsecond=0), expense.ends_at
            )
            for expense, one in zip(expenses, requests, strict=True)
        ]
    )
    found = []
    for expense, request, own in zip(expenses, requests, spans, strict=True):
        if request.team_id in payers:
            with suppress(Conflict):
                price = pricing.quote_at(
                    rates[request.flavor.device_model_id],
                    request.flavor,
                    count=request.count * max(request.nodes, 1),
                    duration_s=max(1, int((expense.ends_at - expense.starts_at).total_seconds())),
                    starts_at=expense.starts_at,
                    price_milli=request.price_milli,
                    spans=own,
                    leases=pricing.leases_of(request.nodes, request.count),
                )
                expense = replace(expense, hold_micro=price.hold_micro)
        found.append(expense)
    return found


def hold_for(
    leases: Sequence[Lease], amount_micro: int, *, at: datetime, wallet_id: int | None = None
) -> None:
    """Hold an amount for new leases of one request, split by their shares, on the wallet that pays for their team.

    ``wallet_id`` names another one, as an ``Expense`` does. Nothing where none pays. Call in the transaction that makes
    them, with the budgets held (``hold_budgets``); the database refuses what the balance does not cover.
    """
    if wallet_id is None:
        wallet = paying_wallets([leases[0].team]).get(leases[0].team_id)
    else:
        wallet = Wallet.objects.filter(pk=wallet_id).first()
    if wallet is not None:
        _hold(wallet, leases, amount_micro, at)


def hold_more(leases: Sequence[Lease], amount_micro: int, *, at: datetime) -> None:
    """Hold an amount more for live leases of one request, on the wallet that holds for them already, if one does."""
    wallet = Wallet.objects.filter(holds__lease__in=leases).first()
    if wallet is not None:
        _hold(wallet, leases, amount_micro, at)


def wallet_of(lease: Lease) -> int:
    """Return the id of the wallet that holds for a live lease, ``NO_WALLET`` where none does."""
    found = WalletHold.objects.filter(lease=lease).values_list("wallet_id", flat=True).first()
    return NO_WALLET if found is None else found


def wallet_to_grow_on(lease: Lease) -> int | None:
    """Return what pays for more units beside a live lease: the wallet that holds for it, also where a nearer one was
    opened since; ``NO_WALLET`` where none does; None, the one that pays now, where that one is closed."""
    hold = WalletHold.objects.filter(lease=lease).select_related("wallet").first()
    if hold is None:
        return NO_WALLET
    return hold.wallet_id if hold.wallet.is_open else None


def _hold(wallet: Wallet, leases: Sequence[Lease], amount_micro: int, at: datetime) -> None:
    for lease, part in zip(leases, split(amount_micro, [lease.share_milli for lease in leases]), strict=True):
        post(wallet, MovementKind.HOLD, -part, at=at, lease=lease)


def split(amount_micro: int, shares: Iterable[int]) -> list[int]:
    """Return an amount in parts as large as these shares, which add up to it; each at most a micro-unit off."""
    found, left, over = [], amount_micro, list(shares)
    while over:
        found.append(-(-left * over[0] // sum(over)))
        left -= found[-1]
        del over[0]
    return found
