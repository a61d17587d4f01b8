"""``berth setup``: the first start of an empty installation, and what is left to do."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from portal.cli import config, output
from portal.cli.command import Json, api, guarded

app = typer.Typer(help="Set up an empty installation.", no_args_is_help=True, rich_markup_mode=None)
STEPS = (
    ("has_organisation", "organisation", "berth setup start"),
    ("has_teams", "teams (optional)", "berth team create"),
    ("has_people", "people (optional)", "berth person add"),
    ("has_threshold", "approval threshold (optional)", "berth team set --approval"),
    ("has_nodes", "nodes", "the page Nodes, then berth-agent on the host"),
    ("has_flavors", "flavors", "berth flavor offer"),
    ("has_prices", "prices", "berth price set"),
)


@app.command("start")
@guarded
def start(
    organisation: Annotated[str, typer.Argument(metavar="ORGANISATION", help="Its name.")],
    user: Annotated[str, typer.Option(help="Your sign-in name; the password is asked for.")],
    code: Annotated[
        str, typer.Option(help="The setup code, as “make up” or “manage.py setup_code” prints it.")
    ],
    url: Annotated[str, typer.Option(help="Address of the portal.")] = "",
    name: Annotated[str, typer.Option(help="Your name as others see it.")] = "",
    currency: Annotated[str, typer.Option(help="Currency of prices.")] = "EUR",
) -> None:
    """Make the organisation and its first administrator, and keep a token for the next commands."""
    at = (url or config.load(os.environ).url).rstrip("/")
    if not at.startswith(("http://", "https://")):
        raise typer.BadParameter("give the address with http:// or https://", param_hint="--url")
    password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    body = {
        "code": code, "organisation": organisation, "currency": currency,
        "username": user, "display_name": name, "password": password,
    }  # fmt: skip
    with api(config.Config(at, "")) as portal:
        made = portal.put("setup/", body)
    with api(config.Config(at, "")) as portal:
        label = "berth command line"
        secret = portal.sign_in(made["username"], password, token_name=label, days=30)
    place = config.save(config.Config(at, secret), os.environ)
    output.out(made["team"])
    output.say(f"{organisation} is ready. Your token is in {place}. “berth setup status” shows what is left.")


@app.command("status")
@guarded
def status(as_json: Json = False) -> None:
    """Show what is left to set up, and the command for it."""
    with api() as portal:
        found = portal.get("setup/steps/")
    if as_json:
        output.out_json(found)
        return
    cells = [("done" if found[key] else "to do", what, "" if found[key] else how) for key, what, how in STEPS]
    output.table(("", "STEP", "HOW"), cells, empty="")
    output.say("People can ask for GPU time." if found["is_ready"] else "Nobody can ask for GPU time yet.")
