"""``berth invitation``: links with which people join a team."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from portal.cli import formatting, output, zones
from portal.cli.command import Json, api, guarded

app = typer.Typer(help="Invite people into a team by a link.", no_args_is_help=True, rich_markup_mode=None)
Of = Annotated[str, typer.Option("--team", "-t", help="Slug of the team.")]


@app.command("create")
@guarded
def create(
    team: Of,
    role: Annotated[
        str, typer.Option(help="researcher, admin, approver, finance or operator.")
    ] = "researcher",
    days: Annotated[int, typer.Option(min=1, max=30, help="For how many days the link works.")] = 7,
    end: Annotated[
        str,
        typer.Option("--until", help="When the role ends by itself, e.g. 2026-09-30T18:00; default: no end."),
    ] = "",
    email: Annotated[str, typer.Option("--mail", help="Send the link to this address.")] = "",
    as_json: Json = False,
) -> None:
    """Make a link with which one person joins a team; prints it, this once."""
    body = {
        "role": role, "days": days, "email": email,
        **({"role_ends_at": zones.instant(end, "--until")} if end else {}),
    }  # fmt: skip
    with api() as portal:
        made = portal.post(f"teams/{_safe(team)}/invitations/", body)
    if as_json:
        output.out_json(made)
        return
    output.out(made["link"] or "")
    output.say(f"It works once, until {formatting.when(made['expires_at'])}.")
    if made["mail_fault"]:
        output.say(f"The mail could not be sent: {made['mail_fault']}. Hand the link over yourself.")


@app.command("list")
@guarded
def list_invitations(team: Of, as_json: Json = False) -> None:
    """List the invitations of a team that can still be used."""
    with api() as portal:
        rows = portal.get(f"teams/{_safe(team)}/invitations/")["results"]
    cells = [
        (
            row["id"], row["email"] or "by link", row["role"], row["invited_by"], formatting.when(row["expires_at"]),
            formatting.when(row["role_ends_at"]) if row["role_ends_at"] else "",
        )
        for row in rows
    ]  # fmt: skip
    columns = ("ID", "INVITED", "ROLE", "BY", "LINK ENDS", "ROLE UNTIL")
    output.listing(rows, columns, cells, empty="No open invitations.", as_json=as_json)


@app.command("revoke")
@guarded
def revoke(
    key: Annotated[int, typer.Argument(metavar="ID", min=1, help="As “berth invitation list” shows it.")],
    team: Of,
) -> None:
    """Close an invitation that nobody has used."""
    with api() as portal:
        portal.delete(f"teams/{_safe(team)}/invitations/{key}/")
    output.say(f"Invitation {key} does not work any more.")


@app.command("accept")
@guarded
def accept(
    link: Annotated[str, typer.Argument(metavar="LINK", help="The link that you were given.")],
    as_json: Json = False,
) -> None:
    """Join a team by a link, as who you are signed in."""
    with api() as portal:
        joined = portal.post("invitations/accept/", {"secret": link.rstrip("/").rpartition("/")[2]})
    if as_json:
        output.out_json(joined)
        return
    until = f" until {formatting.when(joined['role_ends_at'])}" if joined["role_ends_at"] else ""
    output.say(f"You are {joined['role']} in {joined['team']}{until}.")


def _safe(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quote(name, safe="") or "-"
