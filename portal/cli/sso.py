"""``berth sso``: the identity providers by which people sign in."""

from __future__ import annotations

from typing import Annotated

import typer

from portal.cli import output
from portal.cli.command import Json, api, guarded
from portal.cli.policies import read_json

app = typer.Typer(
    help="Set up single sign-on: identity providers, and which groups give which roles. For operators.",
    no_args_is_help=True, rich_markup_mode=None,
)  # fmt: skip
Slug = Annotated[str, typer.Argument(metavar="SLUG", help="The provider's short name.")]
File = Annotated[str, typer.Argument(metavar="FILE", help="A provider as JSON; “-” reads it from stdin.")]


@app.command("list")
@guarded
def list_providers(as_json: Json = False) -> None:
    """List the providers by which people sign in."""
    with api() as portal:
        rows = portal.get("identity-providers/")["results"]
    cells = [
        (
            row["slug"], row["name"], row["protocol"], row["issuer"], row["admission"], len(row["rules"]),
            "yes" if row["is_active"] else "no",
        )
        for row in rows
    ]  # fmt: skip
    columns = ("SLUG", "NAME", "PROTOCOL", "ISSUER", "LETS IN", "RULES", "OFFERED")
    output.listing(rows, columns, cells, empty="There are no identity providers.", as_json=as_json)


@app.command("show")
@guarded
def show(slug: Slug) -> None:
    """Print a provider with its rules as JSON, for “berth sso set”. Its secret is never told."""
    with api() as portal:
        output.out_json(portal.get(f"identity-providers/{slug}/"))


@app.command("set")
@guarded
def set_provider(slug: Slug, file: File) -> None:
    """Set up a provider, or change the one of that name; “client_secret” left out keeps the one there is."""
    body = read_json(file)
    if isinstance(body, dict):
        body = {name: value for name, value in body.items() if name not in ("slug", "has_secret")}
    with api() as portal:
        known = {row["slug"] for row in portal.get("identity-providers/")["results"]}
        if slug in known:
            found = portal.put(f"identity-providers/{slug}/", body)
        else:
            found = portal.post(
                "identity-providers/", {**body, "slug": slug} if isinstance(body, dict) else body
            )
    output.say(f"{found['name']} is set up: {found['issuer']}, {len(found['rules'])} rules.")


@app.command("remove")
@guarded
def remove(slug: Slug) -> None:
    """Forget a provider; the roles that its groups gave end now, people keep their accounts."""
    with api() as portal:
        portal.delete(f"identity-providers/{slug}/")
    output.say(f"{slug} is removed.")
