"""``berth period``: the billing periods, what keeps one open, and closing it."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded

app = typer.Typer(help="See and close billing periods.", no_args_is_help=True, rich_markup_mode=None)
Month = Annotated[str, typer.Argument(metavar="MONTH", help="Written as YYYY-MM.")]


@app.command("list")
@guarded
def list_periods(as_json: Json = False) -> None:
    """List billing periods, the present one first."""
    with api() as portal:
        found = portal.get("periods/")["results"]
    cells = [(row["month"], row["state"], formatting.when(row["closed_at"])) for row in found]
    output.listing(
        found, ("MONTH", "STATE", "CLOSED"), cells, empty="There are no billing periods yet.", as_json=as_json
    )


@app.command("show")
@guarded
def show(month: Month, as_json: Json = False) -> None:
    """Show a billing period and what has to hold before it is closed. Finance."""
    with api() as portal:
        found = portal.get(f"periods/{_safe(month)}/")
    if as_json:
        output.out_json(found)
        return
    output.facts((("month", found["month"]), ("state", found["state"])))
    cells = [(_word(check["is_met"], check["must"]), check["sentence"]) for check in found["checks"]]
    if cells:
        output.table(("", "BEFORE CLOSING"), cells, empty="")


@app.command("rehearse")
@guarded
def rehearse(month: Month, as_json: Json = False) -> None:
    """Show what closing a billing period would produce, beside the month before; changes nothing. Finance."""
    with api() as portal:
        found = portal.get(f"periods/{_safe(month)}/rehearsal/")
    if as_json:
        output.out_json(found)
        return
    output.facts(
        (
            ("month", found["month"]),
            ("total", formatting.money(found["total"])),
            ("by usage and notes", formatting.money(found["ledger"])),
            ("usage records", f"{found['records']} and {found['unmetered']} not metered yet"),
            ("can be closed", "yes" if found["can_close"] else "no"),
            ("seen", found["seen"]),
        )
    )
    checks = [(_word(check["is_met"], check["must"]), check["sentence"]) for check in found["checks"]]
    output.table(("", "BEFORE CLOSING"), checks, empty="")
    cells = [
        (
            row["team"], row["lines"], formatting.money(row["before"]) if found["compared_with"] else "–",
            formatting.money(row["amount"]), "; ".join(part["sentence"] for part in row["differences"]),
        )
        for row in found["invoices"]
    ]  # fmt: skip
    output.table(
        ("TEAM", "LINES", found["compared_with"] or "BEFORE", found["month"], "BECAUSE OF"), cells,
        empty="Nothing was used in this month.",
    )  # fmt: skip


@app.command("zone")
@guarded
def zone(
    name: Annotated[
        str, typer.Argument(metavar="ZONE", help="Such as Europe/Berlin; left out: show it.")
    ] = "",
    since: Annotated[
        str, typer.Option("--from", help="The first month in it, as YYYY-MM (default: the first unused one).")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show the time zone in which months begin and end, or set it. Finance."""
    with api() as portal:
        found = (
            portal.put("month-zone/", {"zone": name, "since": since or None})
            if name
            else portal.get("month-zone/")
        )
    if as_json:
        output.out_json(found)
        return
    output.out(found["zone"])
    if found["planned"]:
        output.say(f"{found['planned']['zone']} from {found['planned']['since']} on.")


@app.command("close")
@guarded
def close(
    month: Month,
    seen: Annotated[
        str, typer.Option("--seen", help="As “berth period rehearse” said it: refuse if it is anything else.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Close a billing period for good: one invoice per team, then nothing in it changes. Finance."""
    if not yes:
        typer.confirm(f"Close {month} for good?", abort=True, err=True)
    with api() as portal:
        found = portal.post(f"periods/{_safe(month)}/close/", {"seen": seen})
    if as_json:
        output.out_json(found)
        return
    output.say(f"{found['month']} is closed.")


def _word(is_met: bool, must: bool) -> str:
    return "ok" if is_met else "open" if must else "note"


def _safe(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quote(name, safe="") or "-"
