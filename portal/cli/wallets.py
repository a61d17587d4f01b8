"""``berth wallet``: prepaid balances of teams, and how they moved."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded
from portal.cli.show import only_team

app = typer.Typer(help="See and keep prepaid balances.", no_args_is_help=True, rich_markup_mode=None)
Slug = Annotated[str, typer.Argument(metavar="TEAM", help="Slug of the team.")]
MySlug = Annotated[str, typer.Argument(metavar="TEAM", help="Slug of the team (default: your only one).")]
Amount = Annotated[str, typer.Argument(metavar="AMOUNT", help="Above zero, like 6000 or 1250.50.")]
Reference = Annotated[
    str, typer.Option("--reference", help="Where the money comes from or goes to; each is used once.")
]


@app.command("list")
@guarded
def list_wallets(as_json: Json = False) -> None:
    """List the wallets of the teams that you see."""
    with api() as portal:
        rows = portal.get("wallets/")["results"]
    cells = [
        (
            row["team"], formatting.money(row["balance"]), formatting.money(row["held"]), row["at_zero"],
            "open" if row["is_open"] else "closed",
        )
        for row in rows
    ]  # fmt: skip
    columns = ("TEAM", "BALANCE", "HELD", "WITHOUT COVER", "STATE")
    output.listing(rows, columns, cells, empty="No team has a wallet.", as_json=as_json)


@app.command("show")
@guarded
def show(slug: MySlug = "", as_json: Json = False) -> None:
    """Show a team's balance and what live leases hold of it."""
    with api() as portal:
        row = portal.get(f"teams/{_safe(slug or only_team(portal))}/wallet/")
    _told(row, as_json)


@app.command("open")
@guarded
def open_wallet(
    slug: Slug,
    at_zero: Annotated[
        str, typer.Option("--at-zero", help="What may start without cover: block (nothing) or preemptible.")
    ] = "block",
    as_json: Json = False,
) -> None:
    """Let a team run on a prepaid balance from now on, or change what may start without cover. Finance."""
    with api() as portal:
        row = portal.put(f"teams/{_safe(slug)}/wallet/", {"at_zero": at_zero})
    _told(row, as_json)


@app.command("close")
@guarded
def close(slug: Slug) -> None:
    """Let a wallet pay for nothing new; what leases hold is settled, the rest can be paid out. Finance."""
    with api() as portal:
        portal.delete(f"teams/{_safe(slug)}/wallet/")
    output.say(f"The wallet of {slug} is closed: what starts from now on is invoiced.")


@app.command("top-up")
@guarded
def top_up(slug: Slug, amount: Amount, reference: Reference, as_json: Json = False) -> None:
    """Put money into a wallet. Finance."""
    _move(slug, "top_up", amount, reference, as_json)


@app.command("pay-out")
@guarded
def pay_out(slug: Slug, amount: Amount, reference: Reference, as_json: Json = False) -> None:
    """Pay money out of a wallet again. Finance."""
    _move(slug, "pay_out", amount, reference, as_json)


@app.command("statement")
@guarded
def statement(
    slug: MySlug = "",
    as_csv: Annotated[bool, typer.Option("--csv", help="As CSV, amounts to the micro-unit.")] = False,
    as_json: Json = False,
) -> None:
    """List the movements of a wallet, newest first."""
    with api() as portal:
        path = f"teams/{_safe(slug or only_team(portal))}/wallet/"
        if as_csv:
            output.out_text(portal.text(f"{path}csv/"))
            return
        rows = list(portal.every(f"{path}movements/"))
    cells = [
        (
            row["number"], formatting.when(row["at"]), row["kind"], row["lease"] or row["note"] or row["reference"],
            formatting.money(row["cost"]) if row["cost"] else "", formatting.money(row["amount"]),
            formatting.money(row["balance"]),
        )
        for row in rows
    ]  # fmt: skip
    columns = ("NO", "WHEN", "MOVEMENT", "ABOUT", "COST", "AMOUNT", "BALANCE")
    output.listing(rows, columns, cells, empty="Nothing moved yet.", as_json=as_json)


def _move(slug: str, kind: str, amount: str, reference: str, as_json: bool) -> None:
    body = {"kind": kind, "amount": amount, "reference": reference}
    with api() as portal:
        row = portal.post(f"teams/{_safe(slug)}/wallet/movements/", body)
    if as_json:
        output.out_json(row)
        return
    output.say(f"Movement {row['number']} is written; the balance is {formatting.money(row['balance'])}.")


def _told(row: Any, as_json: bool) -> None:
    if as_json:
        output.out_json(row)
        return
    output.facts(
        (
            ("team", row["team"]),
            ("balance", formatting.money(row["balance"])),
            ("held by leases", formatting.money(row["held"])),
            ("without cover", row["at_zero"]),
            ("state", "open" if row["is_open"] else "closed"),
        )
    )


def _safe(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quote(name, safe="") or "-"
