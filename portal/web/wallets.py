"""Wallets: the prepaid balance of a team, its movements, and what finance does with it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from django import forms
from django.core.paginator import Paginator
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.budgets.models import AtZero, MovementKind, Wallet, WalletMovement
from portal.budgets.wallets import (
    MOST_REFERENCE,
    close_wallet,
    move_by_hand,
    open_wallet,
    paying_wallets,
    wallets_in_sight,
)
from portal.common.clock import db_now
from portal.common.errors import BerthError, Forbidden, Invalid, NotFound
from portal.teams.models import Team
from portal.teams.selectors import visible_team, visible_teams
from portal.web.access import done, person, refused, rights_of
from portal.web.fields import text_field
from portal.web.figures import MICRO, money
from portal.web.invoices.csv_file import MARK, safe

PER_PAGE = 50
HEADER = (
    "number", "at", "kind", "lease", "note", "reference", "person", "cost", "amount", "balance", "currency"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WalletRow:
    """A wallet with what is there, what leases hold, and both together."""

    name: str
    slug: str
    balance: Decimal | None
    held: Decimal | None
    whole: Decimal | None
    currency: str
    at_zero: str
    is_open: bool
    is_empty: bool


@dataclass(frozen=True, slots=True)
class MovementRow:
    """One movement; ``about`` is the lease, note or reference that it is about."""

    number: int
    at: datetime
    kind: str
    about: str
    url: str
    by: str
    cost: Decimal | None
    has_cost: bool
    amount: Decimal | None
    balance: Decimal | None


class WalletForm(forms.Form):
    """What may start that the balance does not cover."""

    at_zero = forms.ChoiceField(
        label=gettext_lazy("What may start without cover"),
        choices=AtZero.choices,
        widget=forms.Select({"class": "form-select"}),
    )


class NewWalletForm(WalletForm):
    """A wallet for a team that has none."""

    team = forms.ModelChoiceField(
        Team.objects.none(),
        label=gettext_lazy("Team"),
        to_field_name="slug",
        help_text=gettext_lazy("The teams below use it too, unless they have one of their own."),
        widget=forms.Select({"class": "form-select"}),
    )
    field_order = ("team", "at_zero")


class MovementForm(forms.Form):
    """Money that comes in or is paid out again."""

    kind = forms.ChoiceField(
        label=gettext_lazy("Movement"),
        choices=[
            (MovementKind.TOP_UP, gettext_lazy("Top-up")),
            (MovementKind.PAY_OUT, gettext_lazy("Pay out")),
        ],
        widget=forms.Select({"class": "form-select"}),
    )
    amount = forms.DecimalField(
        label=gettext_lazy("Amount"),
        min_value=Decimal("0.01"),
        max_value=Decimal(10) ** 11,
        decimal_places=2,
        widget=forms.NumberInput(
            {"class": "form-control", "step": "0.01", "min": "0.01", "inputmode": "decimal"}
        ),
    )
    reference = text_field(
        gettext_lazy("Reference"),
        MOST_REFERENCE,
        gettext_lazy("Such as the number of the transfer; each is used once."),
    )


def wallet_row(wallet: Wallet) -> WalletRow:
    """Return a wallet as it is shown; its team must be at hand."""
    return WalletRow(
        name=wallet.team.name,
        slug=wallet.team.slug,
        balance=money(wallet.balance_micro),
        held=money(wallet.held_micro),
        whole=money(wallet.balance_micro + wallet.held_micro),
        currency=wallet.currency,
        at_zero=str(wallet.get_at_zero_display()),
        is_open=wallet.is_open,
        is_empty=wallet.balance_micro <= 0,
    )


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """List the wallets in sight; finance opens one for a team."""
    rights = rights_of(request)
    rows = list(wallets_in_sight(rights).order_by("team__name"))
    form = NewWalletForm(request.POST or None)
    without = visible_teams(rights).exclude(pk__in=[row.team_id for row in rows]).order_by("name")
    form.fields["team"].queryset = without  # type: ignore[attr-defined]
    if request.method == "POST":
        if not rights.is_finance:
            raise Forbidden(_("Only finance of the organisation keeps wallets."))
        if form.is_valid():
            team = form.cleaned_data["team"]
            try:
                open_wallet(
                    team=team, actor=person(request), rights=rights, at_zero=form.cleaned_data["at_zero"], now=db_now()
                )  # fmt: skip
            except BerthError as error:
                form.add_error(None, str(error.detail))
            else:
                said = _("%(team)s has a wallet. Top it up so that something can start.") % {
                    "team": team.name
                }
                return done(request, said, "web:team_wallet", team.slug)
    sums = wallets_in_sight(rights).aggregate(balance=Sum("balance_micro"), held=Sum("held_micro"))
    context = {
        "rows": [wallet_row(row) for row in rows],
        "form": form if rights.is_finance and without.exists() else None,
        "balance": money(sums["balance"]),
        "held": money(sums["held"]),
        "currency": rows[0].currency if rows else "",
    }
    return render(request, "web/wallets.html", context, status=422 if form.errors else 200)


@require_safe
def team_page(request: HttpRequest, slug: str) -> HttpResponse:
    """Show a team's wallet with its movements, the newest first."""
    return _team_page(request, visible_team(rights_of(request), slug), MovementForm())


def _team_page(request: HttpRequest, team: Team, form: MovementForm) -> HttpResponse:
    rights = rights_of(request)
    wallet = Wallet.objects.select_related("team").filter(team=team).first()
    payer = paying_wallets([team]).get(team.pk)
    above = payer is not None and payer.team_id != team.pk
    shown = Paginator(statement(wallet), PER_PAGE).get_page(request.GET.get("page")) if wallet else None
    seen = above and visible_teams(rights).filter(pk=payer.team_id).exists() if payer else False
    context: dict[str, Any] = {
        "team": team,
        "wallet": wallet and wallet_row(wallet),
        "page": shown,
        "rows": [_movement_row(row) for row in shown] if shown else [],
        "above": payer.team.name if payer and above else "",
        "above_url": reverse("web:team_wallet", args=[payer.team.slug]) if payer and seen else "",
        "form": form,
        "settings_form": WalletForm(initial={"at_zero": wallet.at_zero if wallet else AtZero.BLOCK}),
        "is_finance": rights.is_finance,
    }
    return render(request, "web/team_wallet.html", context, status=422 if form.errors else 200)


@require_POST
def move(request: HttpRequest, slug: str) -> HttpResponse:
    """Top a wallet up, or pay out of it."""
    team, form = visible_team(rights_of(request), slug), MovementForm(request.POST)
    if form.is_valid():
        given = form.cleaned_data
        try:
            made = move_by_hand(
                team=team, actor=person(request), rights=rights_of(request), kind=given["kind"],
                amount_micro=int(given["amount"] * MICRO), reference=given["reference"], now=db_now(),
            )  # fmt: skip
        except Invalid as error:
            for name, text in error.fields.items():
                form.add_error(name, text)
        except BerthError as error:
            if error.status in (403, 404):
                raise
            form.add_error(None, str(error.detail))
        else:
            said = _("Movement %(n)d is written.") % {"n": made.number}
            return done(request, said, "web:team_wallet", slug)
    if not rights_of(request).is_finance:
        raise Forbidden(_("Only finance of the organisation keeps wallets."))
    return _team_page(request, team, form)


@require_POST
def set_up(request: HttpRequest, slug: str) -> HttpResponse:
    """Open a team's wallet, or change what may start without cover."""
    team, form = visible_team(rights_of(request), slug), WalletForm(request.POST)
    at_zero = form.cleaned_data["at_zero"] if form.is_valid() else ""
    try:
        open_wallet(
            team=team, actor=person(request), rights=rights_of(request), at_zero=at_zero, now=db_now()
        )
    except BerthError as error:
        if error.status in (403, 404):
            raise
        return refused(request, error, "web:team_wallet", slug)
    return done(request, _("The wallet of %(team)s is set.") % {"team": team.name}, "web:team_wallet", slug)


@require_POST
def close(request: HttpRequest, slug: str) -> HttpResponse:
    """Let a wallet pay for nothing new."""
    team = visible_team(rights_of(request), slug)
    close_wallet(team=team, actor=person(request), rights=rights_of(request), now=db_now())
    said = _("The wallet is closed: what starts from now on is invoiced.")
    return done(request, said, "web:team_wallet", slug)


@require_safe
def download(request: HttpRequest, slug: str) -> HttpResponse:
    """Download a wallet's statement as CSV."""
    team = visible_team(rights_of(request), slug)
    wallet = Wallet.objects.filter(team=team).first()
    if wallet is None:
        raise NotFound
    return statement_file(wallet, team)


def statement(wallet: Wallet) -> Any:
    """Return a wallet's movements, the newest first, with what is shown of them at hand."""
    rows = WalletMovement.objects.filter(wallet=wallet).select_related("lease", "note", "made_by")
    return rows.order_by("-number")


def statement_file(wallet: Wallet, team: Team) -> HttpResponse:
    """Return a wallet's statement as a CSV download, the oldest movement first."""
    text = MARK + _csv_text(statement(wallet).reverse(), wallet.currency)
    answer = HttpResponse(text, content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="berth-wallet-{team.slug}.csv"'
    return answer


def _csv_text(rows: Iterable[WalletMovement], currency: str) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(HEADER)
    for row in rows:
        writer.writerow(
            (
                row.number, row.at.isoformat(), row.kind, row.lease.uid if row.lease else "",
                row.note.uid if row.note else "", safe(row.reference), safe(str(row.made_by or "")),
                "" if row.cost_micro is None else _exact(row.cost_micro), _exact(row.amount_micro),
                _exact(row.balance_micro), currency,
            )
        )  # fmt: skip
    return out.getvalue()


def _exact(micro: int) -> str:
    """Return an amount with all six places, so that a column adds up."""
    return f"{Decimal(micro) / MICRO:.6f}"


def _movement_row(row: WalletMovement) -> MovementRow:
    about, url = row.reference, ""
    if row.lease is not None:
        about, url = row.lease.uid, reverse("web:lease", args=[row.lease.uid])
    elif row.note is not None:
        about, url = row.note.number or row.note.uid, reverse("web:note", args=[row.note.uid])
    return MovementRow(
        number=row.number,
        at=row.at,
        kind=str(row.get_kind_display()),
        about=about,
        url=url,
        by=str(row.made_by or ""),
        cost=money(row.cost_micro),
        has_cost=row.cost_micro is not None,
        amount=money(row.amount_micro),
        balance=money(row.balance_micro),
    )
