"""Wallets over HTTP: prepaid balances of teams and their movements."""

from __future__ import annotations

from django.http import HttpResponse
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import PAGING, call
from portal.api.endpoint import Endpoint
from portal.api.fields import AmountField, Body, Text
from portal.api.idempotency import once
from portal.api.pagination import MAX_FEED_SIZE, PARAMETERS, Pages
from portal.api.representations import Row
from portal.api.responses import Money, ResponseShape
from portal.api.wire import instant, money
from portal.budgets.models import AtZero, MovementKind, Wallet, WalletMovement
from portal.budgets.wallets import (
    MOST_REFERENCE,
    close_wallet,
    move_by_hand,
    open_wallet,
    visible_wallet,
    wallets_in_sight,
)
from portal.common.clock import db_now
from portal.teams.selectors import visible_team
from portal.web.wallets import statement, statement_file

TAG = "money"


class WalletBody(Body):
    """What may start that the balance does not cover."""

    at_zero = Text(most=12, required=False, default=str(AtZero.BLOCK))


class MovementBody(Body):
    """Money that comes in or is paid out again."""

    kind = s.ChoiceField((MovementKind.TOP_UP, MovementKind.PAY_OUT))
    amount = AmountField(help_text="Above zero, in whole cents.")
    reference = Text(most=MOST_REFERENCE, help_text="Where it comes from or goes to; each is used once.")


class WalletAnswer(ResponseShape):
    """A prepaid balance that a team and those below it run on."""

    team = s.SlugField()
    is_open = s.BooleanField(help_text="False: it pays for nothing new.")
    at_zero = s.ChoiceField(AtZero.choices, help_text="What may start that the balance does not cover.")
    balance = Money(help_text="What is there to be held; below zero on credit.")
    held = Money(help_text="What live leases hold beside it, at most what they can cost.")
    movements = s.IntegerField()
    created_at = s.DateTimeField()


class MovementAnswer(ResponseShape):
    """One movement of a wallet; none is ever changed."""

    number = s.IntegerField()
    at = s.DateTimeField()
    kind = s.ChoiceField(MovementKind.choices)
    amount = Money(help_text="What the balance changed by.")
    balance = Money(help_text="What it was then.")
    cost = Money(allow_null=True, help_text="What the lease came to, where it is settled.")
    lease = s.CharField(allow_null=True)
    note = s.CharField(allow_null=True)
    reference = s.CharField(allow_blank=True)
    person = s.CharField(allow_null=True, help_text="Null: Berth itself.")


class Wallets(Endpoint):
    """The wallets of all teams in sight."""

    @call("List wallets", answer=WalletAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List the wallets of the teams that you see, by the teams' names."""
        rows = wallets_in_sight(self.rights).order_by("team__name")[:MAX_FEED_SIZE]
        return Response({"next": None, "results": [wallet_row(row) for row in rows]})


class OneWallet(Endpoint):
    """The wallet of a team."""

    @call("Read a wallet", answer=WalletAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, slug: str) -> Response:
        """Read the wallet of a team; 404 where it has none of its own."""
        return Response(wallet_row(visible_wallet(visible_team(self.rights, slug))))

    @call(
        "Open or change a wallet", body=WalletBody, answer=WalletAnswer, refusals=(400, 404, 409, 415, 422), tag=TAG
    )  # fmt: skip
    def put(self, request: Request, slug: str) -> Response:
        """Let a team run on a prepaid balance from now on, or say anew what may start without cover. Finance."""
        self.require_finance()
        team, values = visible_team(self.rights, slug), self.take(WalletBody)
        made = open_wallet(
            team=team, actor=self.person, rights=self.rights, at_zero=values["at_zero"], now=db_now()
        )
        made.team = team
        return Response(wallet_row(made))

    @call("Close a wallet", status=204, refusals=(404,), tag=TAG)
    def delete(self, request: Request, slug: str) -> Response:
        """Let it pay for nothing new; what leases hold is settled and the rest can be paid out. Finance."""
        self.require_finance()
        close_wallet(
            team=visible_team(self.rights, slug), actor=self.person, rights=self.rights, now=db_now()
        )
        return Response(status=204)


class WalletMovements(Endpoint):
    """The statement of a wallet."""

    parameters = PARAMETERS

    @call(
        "List a wallet's movements", answer=MovementAnswer, is_list=True, parameters=PAGING, refusals=(404,), tag=TAG
    )  # fmt: skip
    def get(self, request: Request, slug: str) -> Response:
        """List the movements of a team's wallet, newest first."""
        wallet, pages = visible_wallet(visible_team(self.rights, slug)), Pages()
        rows = pages.page(statement(wallet), request)
        return Response(pages.answer([movement_row(row, wallet) for row in rows]))

    @call(
        "Top up or pay out", body=MovementBody, answer=MovementAnswer, status=201, refusals=(404, 409, 422), tag=TAG
    )  # fmt: skip
    @once
    def post(self, request: Request, slug: str) -> Response:
        """Put money into a wallet, or pay it out again, with its reference. Finance."""
        self.require_finance()
        team, values = visible_team(self.rights, slug), self.take(MovementBody)
        made = move_by_hand(
            team=team, actor=self.person, rights=self.rights, kind=values["kind"], amount_micro=values["amount"],
            reference=values["reference"], now=db_now(),
        )  # fmt: skip
        at = f"/api/v1/teams/{team.slug}/wallet/movements/"
        return Response(movement_row(made, made.wallet), status=201, headers={"Location": at})


class WalletCsv(Endpoint):
    """A wallet's statement as a file."""

    @call("Download a wallet's statement", media_type="text/csv", refusals=(404,), tag=TAG)
    def get(self, request: Request, slug: str) -> HttpResponse:
        """Download all movements, the oldest first, with amounts to the micro-unit."""
        team = visible_team(self.rights, slug)
        return statement_file(visible_wallet(team), team)


def wallet_row(wallet: Wallet) -> Row:
    """Return a wallet as it goes out; its team must be at hand."""
    return {
        "team": wallet.team.slug,
        "is_open": wallet.is_open,
        "at_zero": wallet.at_zero,
        "balance": money(wallet.balance_micro, wallet.currency),
        "held": money(wallet.held_micro, wallet.currency),
        "movements": wallet.movements,
        "created_at": instant(wallet.created_at),
    }


def movement_row(row: WalletMovement, wallet: Wallet) -> Row:
    """Return a movement as it goes out."""
    return {
        "number": row.number,
        "at": instant(row.at),
        "kind": row.kind,
        "amount": money(row.amount_micro, wallet.currency),
        "balance": money(row.balance_micro, wallet.currency),
        "cost": None if row.cost_micro is None else money(row.cost_micro, wallet.currency),
        "lease": row.lease.uid if row.lease else None,
        "note": row.note.uid if row.note else None,
        "reference": row.reference,
        "person": str(row.made_by) if row.made_by else None,
    }
