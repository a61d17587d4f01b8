"""``berth``: GPU time from the command line.

Exit codes: 0 done, 1 refused, 2 wrong usage, 3 the portal cannot be reached, 4 still waiting.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from portal.cli import (
    books,
    config,
    doors,
    forecasts,
    health,
    look,
    nodes,
    plans,
    policies,
    quotas,
    screen,
    standing,
    words,
    work,
)
from portal.cli.run import Json, api, guarded

app = typer.Typer(
    help="GPU time from the command line. Exit codes: 0 done, 1 refused, 2 wrong usage, "
    "3 the portal cannot be reached, 4 still waiting.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
@guarded
def login(
    url: Annotated[str, typer.Option(help="Address of the portal.")] = "",
    token: Annotated[str, typer.Option(help="A token made under API tokens; “-” reads it from stdin.")] = "",
    user: Annotated[
        str, typer.Option(help="Sign in under this name instead; the password is asked for.")
    ] = "",
    days: Annotated[int, typer.Option(min=1, max=90, help="With --user: days the new token lives.")] = 30,
) -> None:
    """Keep an address and a token for the next commands, after trying them."""
    at = (url or config.load(os.environ).url).rstrip("/")
    if not at.startswith(("http://", "https://")):
        raise typer.BadParameter("give the address with http:// or https://", param_hint="--url")
    secret = sys.stdin.readline().strip() if token == "-" else token  # noqa: S105 (a dash)
    if not secret and not user:
        user = typer.prompt(f"Name at {at} (empty: paste a token)", default="", show_default=False, err=True)
    if not secret:
        secret = _from_person(at, user, days)
    with api(config.Config(at, secret)) as portal:
        me = portal.get("me/")
    place = config.save(config.Config(at, secret), os.environ)
    screen.say(f"Signed in at {at} as {me['username']}. The token is in {place}, readable by you alone.")


def _from_person(at: str, user: str, days: int) -> str:
    """Return a token that the person pastes, or one made with name and password."""
    if not user:
        return str(typer.prompt("Token", hide_input=True, err=True)).strip()
    password = typer.prompt("Password", hide_input=True, err=True)
    with api(config.Config(at, "")) as portal:
        return portal.sign_in(user, password, token_name="berth command line", days=days)  # noqa: S106 (a label)


@app.command()
def logout() -> None:
    """Forget the stored address and token."""
    screen.say("Forgotten." if config.forget(os.environ) else "There was nothing to forget.")


@app.command()
@guarded
def me(as_json: Json = False) -> None:
    """Show who you are to the portal."""
    with api() as portal:
        found = portal.get("me/")
    if as_json:
        screen.out_json(found)
        return
    roles = ", ".join(f"{held['role']} in {held['team']}" for held in found["roles"])
    screen.facts((("name", found["username"]), ("roles", roles), ("asks for", ", ".join(found["teams"]))))


app.command("password")(doors.password)


@app.command()
@guarded
def invariants(as_json: Json = False) -> None:
    """Show what the newest hourly check of the invariants found. Exit code 1 where one is broken. For operators."""
    with api() as portal:
        found = portal.get("fleet/invariants/")
    if as_json:
        screen.out_json(found)
    else:
        if found["failure"]:
            screen.say(
                f"The check of {words.when(found['tried_at'])} could not be finished: {found['failure']}"
            )
        if found["checked_at"] is None:
            screen.say("No check was finished yet. One runs every hour.")
        else:
            screen.say(f"Checked {words.when(found['checked_at'])}.")
            cells = [
                (one["name"], words.when(one["since"]), one["promise"], ", ".join(one["offenders"]))
                for one in found["broken"]
            ]
            screen.table(("INVARIANT", "SINCE", "PROMISE", "ROWS"), cells, empty="All invariants hold.")
    if found["broken"]:
        raise typer.Exit(1)


app.command("request")(work.request)
app.command("list")(look.list_work)
app.command("show")(look.show)
app.command("release")(work.release)
app.command("extend")(work.extend)
app.command("grow")(work.grow)
app.command("approve")(work.approve)
app.command("reject")(work.reject)
app.command("withdraw")(work.withdraw)
app.command("quote")(work.quote)
app.command("flavors")(look.flavors)
app.command("invoice")(look.invoice)
app.command("teams")(look.teams)
app.command("nodes")(look.nodes)
app.command("calendar")(plans.calendar)
app.command("reserve")(plans.reserve)
app.add_typer(plans.reservation, name="reservation")
app.add_typer(plans.maintenance, name="maintenance")
app.add_typer(forecasts.app, name="forecast")
app.add_typer(doors.app, name="session")
app.add_typer(books.app, name="month")
health.add_to(nodes.app)
app.add_typer(nodes.app, name="node")
app.add_typer(standing.app, name="team")
app.add_typer(policies.app, name="policy")
app.add_typer(quotas.quota, name="quota")
app.add_typer(quotas.cohort, name="cohort")
app.add_typer(quotas.priority, name="priority")

if __name__ == "__main__":
    app()
