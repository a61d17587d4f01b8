"""``berth person``: accounts, roles in teams, and links to choose a password."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output, zones
from portal.cli.command import Json, api, guarded

MOST_ACCOUNTS = 100_000
app = typer.Typer(help="Add people and give them roles.", no_args_is_help=True, rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Sign-in name.")]
Of = Annotated[str, typer.Option("--team", "-t", help="Slug of the team.")]
Role = Annotated[str, typer.Option(help="researcher, admin, approver, finance or operator.")]


@app.command("list")
@guarded
def list_people(team: Of, as_json: Json = False) -> None:
    """List the roles held on a team itself."""
    with api() as portal:
        rows = portal.get(f"teams/{_safe(team)}/members/")["results"]
    cells = [
        (
            r["username"], r["display_name"], r["role"], formatting.when(r["since"]),
            formatting.when(r["ends_at"]) if r["ends_at"] else "",
        )
        for r in rows
    ]  # fmt: skip
    columns = ("NAME", "SHOWN AS", "ROLE", "SINCE", "UNTIL")
    output.listing(rows, columns, cells, empty="Nobody holds a role here.", as_json=as_json)


@app.command("add")
@guarded
def add(
    name: Name,
    team: Of,
    role: Role = "researcher",
    shown: Annotated[str, typer.Option("--name", help="Name as others see it.")] = "",
    as_json: Json = False,
) -> None:
    """Make an account with a role in a team; prints the link with which they choose a password."""
    with api() as portal:
        body = {"username": name, "display_name": shown, "role": role}
        made = portal.post(f"teams/{_safe(team)}/people/", body)
    _told(made, as_json)


@app.command("accounts")
@guarded
def accounts(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Letters of a name or a mail address.")] = "",
    closed: Annotated[bool, typer.Option("--closed", help="Only closed accounts.")] = False,
    as_json: Json = False,
) -> None:
    """List the accounts of the installation. For operators."""
    only = {"is_closed": "true"} if closed else {}
    with api() as portal:
        rows = list(portal.every("people/", most=MOST_ACCOUNTS, q=text, page_size=200, **only))
    cells = [
        (
            r["username"], r["name"], r["email"], "closed" if r["is_closed"] else "open",
            formatting.when(r["last_signed_in_at"]) if r["last_signed_in_at"] else "",
        )
        for r in rows
    ]  # fmt: skip
    columns = ("NAME", "SHOWN AS", "MAIL", "STATE", "LAST SIGNED IN")
    output.listing(rows, columns, cells, empty="Nobody matches.", as_json=as_json)


@app.command("close")
@guarded
def close(
    name: Name,
    end_leases: Annotated[bool, typer.Option("--end-leases", help="End what runs now.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Close the account of somebody who leaves: what waits for them is taken back. For operators."""
    with api() as portal:
        found = portal.get(f"people/{_safe(name)}/")
        running = f"{found['running']} that run{' end now' if end_leases else ' go on to their end'}"
        output.say(f"{name}: {found['waiting']} that wait are taken back, {running}.")
        if not yes:
            typer.confirm("Close this account?", abort=True, err=True)
        portal.put(f"people/{_safe(name)}/", {"is_closed": True, "ends_leases": end_leases})
    output.say(f"{name} is closed. “berth person reopen {name}” lets them in again.")


@app.command("reopen")
@guarded
def reopen(name: Name) -> None:
    """Let somebody in again, with the roles they still have. For operators."""
    with api() as portal:
        portal.put(f"people/{_safe(name)}/", {"is_closed": False})
    output.say(f"{name} may sign in again. Tokens stay revoked.")


@app.command("link")
@guarded
def link(name: Name, as_json: Json = False) -> None:
    """Make a new link for somebody who lost theirs, or the password. For operators."""
    with api() as portal:
        made = portal.post(f"people/{_safe(name)}/invitation/", {})
    _told(made, as_json)


@app.command("give")
@guarded
def give(
    name: Name,
    team: Of,
    role: Role = "researcher",
    end: Annotated[
        str, typer.Option("--until", help="When it ends by itself, e.g. 2026-09-30T18:00; default: no end.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Give somebody who has an account a role in a team; a role that they have gets the end named."""
    body = {"username": name, "role": role, **({"ends_at": zones.instant(end, "--until")} if end else {})}
    with api() as portal:
        made = portal.post(f"teams/{_safe(team)}/members/", body)
    if as_json:
        output.out_json(made)
        return
    until = f" until {formatting.when(made['ends_at'])}" if made["ends_at"] else ""
    output.say(f"{made['username']} is {made['role']} in {team}{until}.")


@app.command("take")
@guarded
def take(name: Name, team: Of, role: Role = "researcher") -> None:
    """Take a role in a team away; the last admin stays."""
    with api() as portal:
        portal.delete(f"teams/{_safe(team)}/members/{_safe(name)}/{_safe(role)}/")
    output.say(f"{name} is no longer {role} in {team}.")


def _told(made: Any, as_json: bool) -> None:
    if as_json:
        output.out_json(made)
        return
    output.out(made["link"] or "")
    output.say(
        f"Give this link to {made['username']}: it works once, until {formatting.when(made['expires_at'])}."
    )


def _safe(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quote(name, safe="") or "-"
