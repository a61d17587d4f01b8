"""``berth second-factor``: a code beside the password, one's own and whose roles need it."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded

app = typer.Typer(
    help="A code beside the password when signing in.", no_args_is_help=True, rich_markup_mode=None
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Sign-in name.")]


@app.command("show")
@guarded
def show(as_json: Json = False) -> None:
    """Say whether you have a second factor, and whether one of your roles needs it."""
    with api() as portal:
        found = portal.get("second-factor/")
    if as_json:
        output.out_json(found)
        return
    since = f"on since {formatting.when(found['since'])}" if found["is_on"] else "off"
    output.facts(
        (
            ("second factor", since),
            ("recovery codes left", str(found["recovery_codes_left"])),
            ("needed by a role", "yes" if found["is_required"] else "no"),
        )
    )


@app.command("on")
@guarded
def on() -> None:
    """Set up your authenticator app; your password and a first code are asked for."""
    with api() as portal:
        made = portal.post("second-factor/", {"password": _password()})
        output.say(f"Type this secret into your authenticator app: {made['secret']}")
        output.say(f"Or open this address there: {made['address']}")
        code = typer.prompt("Code that it shows", err=True)
        _print(portal.put("second-factor/", {"code": code}))


@app.command("codes")
@guarded
def codes() -> None:
    """Make other recovery codes; those before are void."""
    with api() as portal:
        _print(portal.post("second-factor/recovery-codes/", {"password": _password()}))


@app.command("off")
@guarded
def off() -> None:
    """Turn your second factor off, unless a role of yours needs it."""
    with api() as portal:
        portal.post("second-factor/off/", {"password": _password()})
    output.say("Your second factor is off.")


@app.command("passkeys")
@guarded
def passkeys(as_json: Json = False) -> None:
    """List your passkeys; a page of the portal makes them."""
    with api() as portal:
        rows = portal.get("second-factor/passkeys/")["results"]
    cells = [
        (
            row["id"], row["name"], formatting.when(row["created_at"]),
            formatting.when(row["last_used_at"]) if row["last_used_at"] else "",
        )
        for row in rows
    ]  # fmt: skip
    output.listing(rows, ("ID", "NAME", "SINCE", "LAST USED"), cells, empty="No passkeys.", as_json=as_json)


@app.command("remove-passkey")
@guarded
def remove_passkey(
    key: Annotated[
        int, typer.Argument(metavar="ID", min=1, help="As “berth second-factor passkeys” shows it.")
    ],
) -> None:
    """Remove one of your passkeys; your password is asked for."""
    with api() as portal:
        portal.post(f"second-factor/passkeys/{key}/remove/", {"password": _password()})
    output.say(f"Passkey {key} is removed.")


@app.command("require")
@guarded
def require(
    roles: Annotated[
        list[str] | None, typer.Argument(metavar="[ROLE]…", help="Roles that need one; none: no role does.")
    ] = None,
) -> None:
    """Say which roles need a second factor; who has none is signed out and sets it up. For operators."""
    with api() as portal:
        found = portal.put("second-factor/roles/", {"roles": roles or []})
    output.say(f"Needed by: {', '.join(found['roles']) or 'no role'}.")


@app.command("reset")
@guarded
def reset(name: Name) -> None:
    """Forget somebody's second factor and sign them out everywhere. For operators."""
    with api() as portal:
        portal.delete(f"people/{quote(name, safe='')}/second-factor/")
    output.say(f"{name} has no second factor any more.")


def _password() -> str:
    return str(typer.prompt("Password", hide_input=True, err=True))


def _print(answer: dict[str, list[str]]) -> None:
    """Print recovery codes alone to stdout, so that they can go into a file."""
    output.say("Keep these recovery codes; each lets you in once, and they are never shown again.")
    for code in answer["recovery_codes"]:
        typer.echo(code)
