"""``berth deputy``: who decides on requests in one's place while one is away."""

from __future__ import annotations

from typing import Annotated

import typer

from portal.cli import formatting, output, zones
from portal.cli.command import Json, api, guarded

app = typer.Typer(
    help="Name a deputy who decides on requests in your place.", no_args_is_help=True, rich_markup_mode=None
)
When = "e.g. 2026-09-30T18:00 (your time zone unless it names one)"


@app.command("name")
@guarded
def name(
    deputy: Annotated[str, typer.Argument(metavar="USER", help="User name of your deputy.")],
    end: Annotated[str, typer.Option("--until", help=f"When it ends, {When}; at most 90 days later.")],
    reason: Annotated[str, typer.Option(help="Why; your deputy reads it.")],
    begin: Annotated[str, typer.Option("--from", help="When it begins, written alike; default: now.")] = "",
    as_json: Json = False,
) -> None:
    """Let somebody decide in your place for a time. Approvers and team admins."""
    body = {
        "deputy": deputy, "ends_at": zones.instant(end, "--until"), "reason": reason,
        **({"starts_at": zones.instant(begin, "--from")} if begin else {}),
    }  # fmt: skip
    with api() as portal:
        made = portal.post("delegations/", body)
    if as_json:
        output.out_json(made)
        return
    output.say(f"{made['deputy']} decides in your place until {formatting.when(made['ends_at'])}.")


@app.command("list")
@guarded
def list_deputies(as_json: Json = False) -> None:
    """List who decides in your place and for whom you decide, past ones too."""
    with api() as portal:
        rows = portal.get("delegations/")["results"]
    cells = [
        (
            row["id"], row["deputy"], row["delegator"], formatting.when(row["starts_at"]),
            formatting.when(row["ended_at"] or row["ends_at"]), row["ended_by"] or "", row["reason"],
        )
        for row in rows
    ]  # fmt: skip
    columns = ("ID", "DEPUTY", "FOR", "FROM", "UNTIL", "ENDED BY", "REASON")
    output.listing(rows, columns, cells, empty="No deputies.", as_json=as_json)


@app.command("end")
@guarded
def end_deputy(
    key: Annotated[int, typer.Argument(metavar="ID", min=1, help="As “berth deputy list” shows it.")],
) -> None:
    """End a delegation before its time, as either side of it."""
    with api() as portal:
        portal.delete(f"delegations/{key}/")
    output.say(f"Delegation {key} is ended.")
