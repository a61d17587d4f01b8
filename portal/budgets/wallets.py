"""Prepaid balances as finance keeps them: opened, topped up, paid out, closed; and how their balance moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.budgets.models import AtZero, MovementKind, Wallet, WalletMovement
from portal.catalog.models import RateCard
from portal.catalog.pricing import MINOR_MICRO
from portal.common import outbox
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.common.sql import fetch
from portal.common.trigger_errors import constraint_of
from portal.teams.models import Team
from portal.teams.selectors import SEES_TEAM, Rights, visible_teams

MOST_MICRO = 10**17
MOST_REFERENCE = 120


def wallets_in_sight(rights: Rights) -> QuerySet[Wallet]:
    """Return the wallets of the teams that a person sees, with the teams at hand."""
    return Wallet.objects.filter(team__in=visible_teams(rights)).select_related("team")


def visible_wallet(team: Team) -> Wallet:
    """Return the wallet of a team that somebody sees; raises NotFound where it has none."""
    found = Wallet.objects.select_related("team").filter(team=team).first()
    if found is None:
        raise NotFound(_("This team has no wallet."))
    return found


def paying_wallets(teams: Iterable[Team]) -> dict[int, Wallet]:
    """Return by team id the wallet that pays for what the team starts: its own, else the nearest above; one query."""
    wanted = list(teams)
    rows = Wallet.objects.filter(team__in={pk for team in wanted for pk in team.lineage}, is_open=True)
    by_team = {row.team_id: row for row in rows.select_related("team")}
    found = {}
    for team in wanted:
        nearest = next((by_team[pk] for pk in reversed(team.lineage) if pk in by_team), None)
        if nearest is not None:
            found[team.pk] = nearest
    return found


def lock_wallets(team_ids: Iterable[int]) -> bool:
    """Lock the wallets of these teams in the order of their ids; False where there is none. In a transaction."""
    return bool(
        fetch(
            "SELECT id FROM budgets_wallet WHERE team_id = ANY(%s) ORDER BY id FOR UPDATE", [list(team_ids)]
        )
    )


@transaction.atomic
def open_wallet(*, team: Team, actor: User, rights: Rights, at_zero: str, now: datetime) -> Wallet:
    """Let a team run on a prepaid balance from now on, or change what may start that the balance does not cover.

    What runs already goes on being invoiced. One that was closed is opened with the balance it has. For finance of
    the organisation; raises NotFound, Forbidden, Invalid, and Conflict while there is no price: then the currency
    may still change.
    """
    _require(rights, team)
    if at_zero not in AtZero.values:
        raise Invalid(fields={"at_zero": _("Choose “block” or “preemptible”.")})
    card = RateCard.objects.filter(is_default=True, rates__valid__startswith__lte=now).first()
    if card is None:
        raise Conflict(_("Set a price first: a wallet is kept in the currency of the prices."))
    wallet, is_new = Wallet.objects.select_for_update().get_or_create(
        team=team,
        defaults={"currency": card.currency, "at_zero": at_zero, "made_by": actor, "created_at": now},
    )
    was = None if is_new else {"at_zero": wallet.at_zero, "is_open": wallet.is_open}
    if was != {"at_zero": at_zero, "is_open": True}:
        if not is_new:
            wallet.at_zero, wallet.is_open, wallet.version = at_zero, True, wallet.version + 1
            wallet.save(update_fields=["at_zero", "is_open", "version"])
        did = "wallet.opened" if is_new else "wallet.changed"
        record(actor, did, team.slug, at=now, team_id=team.pk, was=was, at_zero=at_zero)
        _decide_anew(wallet, now)
    return wallet


@transaction.atomic
def close_wallet(*, team: Team, actor: User, rights: Rights, now: datetime) -> Wallet:
    """Let a wallet pay for nothing new: the team is invoiced again. What it holds is settled, the rest can be paid out.

    Safe to repeat; raises NotFound, Forbidden.
    """
    _require(rights, team)
    wallet = _locked(team)
    if wallet.is_open:
        wallet.is_open, wallet.version = False, wallet.version + 1
        wallet.save(update_fields=["is_open", "version"])
        record(actor, "wallet.closed", team.slug, at=now, team_id=team.pk, balance_micro=wallet.balance_micro)
        _decide_anew(wallet, now)
    return wallet


@transaction.atomic
def move_by_hand(
    *, team: Team, actor: User, rights: Rights, kind: str, amount_micro: int, reference: str, now: datetime
) -> WalletMovement:
    """Put money into a wallet (``top_up``) or pay it out again (``pay_out``), with where it came from or went to.

    Raises NotFound, Forbidden, Invalid naming the field, and Conflict for a reference that was used already, for a
    top-up of a closed wallet, and where less is there than is paid out.
    """
    _require(rights, team)
    reference, fields = reference.strip(), dict[str, Any]()
    if kind not in (MovementKind.TOP_UP, MovementKind.PAY_OUT):
        fields["kind"] = _("Choose “top_up” or “pay_out”.")
    if not 0 < amount_micro <= MOST_MICRO or amount_micro % MINOR_MICRO:
        fields["amount"] = _("Give an amount above zero in whole cents.")
    if not 1 <= len(reference) <= MOST_REFERENCE or not reference.isprintable():
        fields["reference"] = _("Say where the money comes from or goes to, in 1 to %(n)d characters.") % {
            "n": MOST_REFERENCE
        }
    if fields:
        raise Invalid(fields=fields)
    wallet = _locked(team)
    if kind == MovementKind.TOP_UP and wallet.balance_micro + wallet.held_micro + amount_micro > MOST_MICRO:
        raise Invalid(fields={"amount": _("A wallet cannot hold so much.")})
    signed = amount_micro if kind == MovementKind.TOP_UP else -amount_micro
    try:
        with transaction.atomic():
            made = post(wallet, kind, signed, at=now, reference=reference, made_by=actor)
    except IntegrityError as error:
        said = _REFUSALS.get(constraint_of(error))
        if said is None:
            raise
        raise Conflict(str(said())) from error
    record(
        actor, f"wallet.{'topped_up' if signed > 0 else 'paid_out'}", team.slug, at=now, team_id=team.pk,
        amount_micro=amount_micro, reference=reference, number=made.number,
    )  # fmt: skip
    _decide_anew(wallet, now)
    return made


_REFUSALS = {
    "movement_reference_once": lambda: _("This reference was used in this wallet already."),
    "wallet_closed": lambda: _("This wallet is closed. Open it again first."),
    "wallet_covers_it": lambda: _("There is not so much to pay out: what leases hold stays until they are settled."),
}  # fmt: skip


def post_together(
    amounts: Mapping[int, int], *, reference: str, actor: User, now: datetime
) -> list[WalletMovement]:
    """Write a movement into the wallet of each team, by team id, all with one reference; zero moves nothing.

    Call in a transaction, the wallets locked. Raises Conflict naming the wallet that is closed or has not so much.
    """
    wallets = Wallet.objects.select_related("team").filter(team__in=amounts).order_by("pk")
    rows = [
        WalletMovement(
            wallet=wallet, kind=MovementKind.TOP_UP if amount > 0 else MovementKind.PAY_OUT, amount_micro=amount,
            reference=reference, made_by=actor, at=now,
        )
        for wallet in wallets
        if (amount := amounts[wallet.team_id])
    ]  # fmt: skip
    for row in rows:
        # The database says so as well; here the wallet can be named.
        if row.amount_micro > 0 and not row.wallet.is_open:
            raise Conflict(
                _("The wallet of %(team)s is closed. Open it again first.") % {"team": row.wallet.team}
            )
        if row.amount_micro < 0 and row.wallet.balance_micro + row.amount_micro < 0:
            raise Conflict(
                _("The wallet of %(team)s has not so much left: leases hold it, or it was paid out.")
                % {"team": row.wallet.team}
            )
    made = WalletMovement.objects.bulk_create(rows)
    if made:
        outbox.add(outbox.RUN_CYCLE, key=reference.replace(" ", "-"), at=now)
        outbox.nudge_on_commit(outbox.RUN_CYCLE)
    return made


def post(wallet: Wallet, kind: str, amount_micro: int, *, at: datetime, **facts: Any) -> WalletMovement:
    """Write a movement; the database numbers it and moves the balance. Call in a transaction, the wallet locked."""
    made = WalletMovement.objects.create(wallet=wallet, kind=kind, amount_micro=amount_micro, at=at, **facts)
    made.refresh_from_db(fields=["number", "balance_micro"])
    return made


def _locked(team: Team) -> Wallet:
    found = Wallet.objects.select_for_update().filter(team=team).first()
    if found is None:
        raise NotFound(_("This team has no wallet."))
    return found


def _require(rights: Rights, team: Team) -> None:
    rights.require(team, *SEES_TEAM)
    if not rights.is_finance:
        raise Forbidden(_("Only finance of the organisation keeps wallets."))


def _decide_anew(wallet: Wallet, now: datetime) -> None:
    """Take a scheduling turn: what the balance kept from starting may start now."""
    outbox.add(outbox.RUN_CYCLE, key=f"wallet-{wallet.pk}-{wallet.movements}-{wallet.version}", at=now)
    outbox.nudge_on_commit(outbox.RUN_CYCLE)
