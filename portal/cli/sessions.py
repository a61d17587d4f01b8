"""``berth session`` and ``berth password``: where one is signed in, and the password."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded

app = typer.Typer(help="See and end your browser sessions.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def sessions() -> None:
    """See and end your browser sessions."""


@app.command("list")
@guarded
def list_sessions(as_json: Json = False) -> None:
    """List the browsers in which you are signed in."""
    with api() as portal:
        rows = list(portal.every("sessions/"))
    cells = [
        (
            r["id"], r["browser"] or "unknown", r["address"] or "unknown", formatting.when(r["began_at"]),
            formatting.when(r["seen_at"]), formatting.when(r["ends_at"]),
        )
        for r in rows
    ]  # fmt: skip
    columns = ("ID", "BROWSER", "FROM", "SIGNED IN", "LAST USED", "ENDS")
    output.listing(rows, columns, cells, empty="You are signed in with no browser.", as_json=as_json)


@app.command("end")
@guarded
def end(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", help="As “berth session list” shows them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """End browser sessions: their next page asks to sign in. Tokens are not touched."""
    if bool(names) == everything:
        raise typer.BadParameter("name sessions, or give --all")
    with api() as portal:
        for name in names or []:
            portal.delete(f"sessions/{quote(name, safe='') or '-'}/")
        if everything:
            portal.delete("sessions/")
    output.say("All your sessions are ended." if everything else "Ended.")


@guarded
def password(
    revoke_tokens: Annotated[
        bool, typer.Option("--tokens", help="Also revoke your API tokens, the one in use too.")
    ] = False,
) -> None:
    """Change your password; it is asked for. Your browser sessions end."""
    old = typer.prompt("Present password", hide_input=True, err=True)
    new = typer.prompt("New password", hide_input=True, confirmation_prompt=True, err=True)
    with api() as portal:
        done = portal.put("password/", {"old": old, "new": new, "revoke_tokens": revoke_tokens})
    n, tokens = done["sessions_ended"], done["tokens_revoked"]
    output.say(f"Your password is changed. Sessions ended: {n}. Tokens revoked: {tokens}.")
