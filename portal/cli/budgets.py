"""``berth budget``: what a team may spend, how that runs down, and what follows from it."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded
from portal.cli.show import only_team

app = typer.Typer(help="See and set what a team may spend.", no_args_is_help=True, rich_markup_mode=None)
Slug = Annotated[str, typer.Argument(metavar="TEAM", help="Slug of the team.")]
Key = Annotated[int, typer.Argument(metavar="ID", min=1, help="As the list shows it.")]
At = Annotated[
    list[str] | None,
    typer.Option(
        "--at", metavar="PERCENT:ACTION[:forecast]",
        help="A threshold, like 80:notify or 100:block:forecast; actions: notify, approval, preemptible, block.",
    ),
]  # fmt: skip
Until = Annotated[str, typer.Option(help="The last month, like 2027-03 (default: it goes on).")]


@app.command("list")
@guarded
def list_budgets(slug: Slug, as_json: Json = False) -> None:
    """List the budgets of a team, the latest first."""
    with api() as portal:
        rows = portal.get(f"teams/{_safe(slug)}/budgets/")["results"]
    cells = [
        (
            row["id"], formatting.money(row["amount"]), "each month" if row["is_monthly"] else "all months together",
            row["first_month"], row["last_month"] or "goes on", f"{row['now']['percent']} %" if row["now"] else "-",
            _thresholds(row),
        )
        for row in rows
    ]  # fmt: skip
    columns = ("ID", "AMOUNT", "FOR", "FROM", "UNTIL", "SPENT", "THRESHOLDS")
    output.listing(rows, columns, cells, empty="The team has no budget.", as_json=as_json)


@app.command("show")
@guarded
def show(
    slug: Annotated[
        str, typer.Argument(metavar="TEAM", help="Slug of the team (default: your only one).")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show how the budget in force runs down: spent, held, forecast, thresholds."""
    with api() as portal:
        rows = portal.get(f"teams/{_safe(slug or only_team(portal))}/budgets/")["results"]
    found = next((row for row in rows if row["now"]), None)
    if as_json:
        output.out_json(found)
        return
    if found is None:
        output.say("No budget is in force.")
        return
    now, end = found["now"], found["now"]["forecast"]
    output.facts(
        (
            ("budget", f"{formatting.money(found['amount'])}, {now['first_month']} to {now['last_month']}"),
            ("spent", f"{formatting.money(now['spent'])} ({now['percent']} %)"),
            ("held by leases", formatting.money(now["held"])),
            ("waiting", formatting.money(now["waiting"])),
            (
                "forecast",
                f"{formatting.money(end['low'])} to {formatting.money(end['high'])}" if end else formatting.UNKNOWN,
            ),
            ("used up", now["runs_out_on"] or ("not in this time" if end else formatting.UNKNOWN)),
            *(("threshold", _threshold(one)) for one in found["thresholds"]),
        )
    )  # fmt: skip


@app.command("make")
@guarded
def make(
    slug: Slug,
    amount: Annotated[str, typer.Argument(metavar="AMOUNT", help="Like 6000 or 1250.50.")],
    begin: Annotated[
        str, typer.Option("--from", help="The first month, like 2026-11 (default: this one).")
    ] = "",
    until: Until = "",
    whole: Annotated[bool, typer.Option("--together", help="For all months together, not for each.")] = False,
    at: At = None,
    as_json: Json = False,
) -> None:
    """Give a team a budget. For finance and admins of a team above."""
    body = {
        "amount": amount,
        "first_month": begin or "this",
        "last_month": until or None,
        "is_monthly": not whole,
        "thresholds": [_read(text) for text in at or ()],
    }
    with api() as portal:
        found = portal.post(f"teams/{_safe(slug)}/budgets/", body)
    _told(found, as_json)


@app.command("change")
@guarded
def change(
    slug: Slug,
    key: Key,
    amount: Annotated[str, typer.Option(help="The new amount.")] = "",
    until: Until = "",
    open_end: Annotated[bool, typer.Option("--open", help="It goes on without an end.")] = False,
    at: At = None,
    no_thresholds: Annotated[bool, typer.Option("--bare", help="No thresholds any more.")] = False,
    as_json: Json = False,
) -> None:
    """Change a budget; what is left out stays as it is. With --at the thresholds named replace all others."""
    path = f"teams/{_safe(slug)}/budgets/{key}/"
    with api() as portal:
        was = portal.get(path)
        body: dict[str, Any] = {
            "amount": amount or was["amount"]["amount"],
            "is_monthly": was["is_monthly"],
            "first_month": was["first_month"],
            "last_month": None if open_end else until or was["last_month"],
            "thresholds": [
                {name: one[name] for name in ("percent", "action", "basis")} for one in was["thresholds"]
            ],
        }
        if at or no_thresholds:
            body["thresholds"] = [_read(text) for text in at or ()]
        found = portal.put(path, body, match=f'"{was["version"]}"')
    _told(found, as_json)


@app.command("end")
@guarded
def end(slug: Slug, key: Key) -> None:
    """End a budget with this month; one that has not begun is taken back."""
    with api() as portal:
        portal.delete(f"teams/{_safe(slug)}/budgets/{key}/")
    output.say(f"Budget {key} ends with this month, or was taken back if it had not begun.")


def _safe(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quote(name, safe="") or "-"


def _read(text: str) -> dict[str, Any]:
    percent, _colon, rest = text.partition(":")
    action, _colon, basis = rest.partition(":")
    if not percent.isdecimal() or not action:
        raise typer.BadParameter(
            f"“{text[:40]}” is no threshold. Write it like 80:notify or 100:block:forecast."
        )
    return {"percent": int(percent), "action": action, "basis": basis or "actual"}


def _threshold(one: Any) -> str:
    said = f"{one['percent']} %{' by forecast' if one['basis'] == 'forecast' else ''}: {one['action']}"
    return f"{said}, reached {formatting.when(one['reached_at'])}" if one["reached_at"] else said


def _thresholds(row: Any) -> str:
    return ", ".join(
        f"{one['percent']}:{one['action']}{':forecast' if one['basis'] == 'forecast' else ''}"
        for one in row["thresholds"]
    )


def _told(row: Any, as_json: bool) -> None:
    if as_json:
        output.out_json(row)
        return
    output.out(row["id"])
    each = "each month" if row["is_monthly"] else "all months together"
    until = f" to {row['last_month']}" if row["last_month"] else " on"
    output.say(
        f"{row['team']} may spend {formatting.money(row['amount'])} {each}, {row['first_month']}{until}."
    )
