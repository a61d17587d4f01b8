"""``berth contact``: where else one is told, by mail, in a chat or by a webhook."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded

app = typer.Typer(
    help="Choose where else you are told what happens.", no_args_is_help=True, rich_markup_mode=None
)
Key = Annotated[int, typer.Argument(metavar="ID", help="As “berth contact list” shows it.")]


@app.command("list")
@guarded
def list_contacts(as_json: Json = False) -> None:
    """List your contact points."""
    with api() as portal:
        rows = list(portal.every("contact-points/"))
    cells = [(r["id"], r["name"], r["kind"], r["address"], _state(r)) for r in rows]
    output.listing(
        rows, ("ID", "NAME", "KIND", "ADDRESS", "STATE"), cells, empty="You have no contact points.", as_json=as_json
    )  # fmt: skip


@app.command("add")
@guarded
def add(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="email, webhook, slack, feishu, dingtalk or wecom.")
    ],
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="A mailbox, or a whole address; “-” asks for it.")
    ],
    name: Annotated[str, typer.Option(help="What you call it (the kind).")] = "",
    signed: Annotated[
        bool, typer.Option("--signed", help="Ask for the secret of a Feishu or DingTalk robot.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Add a contact point. The secret of a webhook is printed once."""
    if address == "-":
        address = typer.prompt("Address", hide_input=True)
    secret = typer.prompt("Secret", hide_input=True) if signed else ""
    with api() as portal:
        made = portal.post(
            "contact-points/", {"kind": kind, "address": address.strip(), "name": name, "secret": secret}
        )
    if as_json:
        output.out_json(made)
        return
    output.say(f"Added {made['name']} ({made['id']}).")
    if made["secret"]:
        output.say("Messages are signed with this secret, which is shown this once:")
        output.out_text(made["secret"] + "\n")
    if made["confirmed_at"] is None:
        output.say("Open the link that was sent there, within a day and signed in.")


@app.command("change")
@guarded
def change(
    key: Key,
    mute: Annotated[
        str | None,
        typer.Option(
            help="Topics not told there: requests, leases, jobs, bookings, fleet, budgets, alerts, team_alerts, "
            "escalated, other; “” for none."
        ),
    ] = None,
    digest: Annotated[
        str | None, typer.Option(help="Once a day at this time (07:30); “” for each when it happens.")
    ] = None,
    quiet: Annotated[str | None, typer.Option(help="Quiet hours, 22:00-07:00; “” for none.")] = None,
    name: Annotated[str | None, typer.Option(help="What you call it.")] = None,
    on: Annotated[bool | None, typer.Option("--on/--off", help="Switch it on or off.")] = None,
    as_json: Json = False,
) -> None:
    """Choose what is told there and when; what you leave out stays."""
    body: dict[str, Any] = {}
    if mute is not None:
        body["muted"] = [topic.strip() for topic in mute.split(",") if topic.strip()]
    if digest is not None:
        body["digest_at"] = digest or None
    if quiet is not None:
        begin, _, end = quiet.partition("-")
        body |= {"quiet_from": begin.strip() or None, "quiet_until": end.strip() or None}
    body |= {field: value for field, value in (("name", name), ("is_on", on)) if value is not None}
    with api() as portal:
        row = portal.put(f"contact-points/{key}/", body)
    if as_json:
        output.out_json(row)
        return
    output.say(f"Saved: {row['name']} is {_state(row)}.")


@app.command("test")
@guarded
def test(key: Key) -> None:
    """Send a test message there, or the link of a mailbox once more."""
    with api() as portal:
        portal.post(f"contact-points/{key}/test/", {})
    output.say(f"It is on its way; “berth contact deliveries {key}” shows how it went.")


@app.command("deliveries")
@guarded
def deliveries(key: Key, as_json: Json = False) -> None:
    """List what was sent there, newest first."""
    with api() as portal:
        rows = portal.get(f"contact-points/{key}/deliveries/")["results"]
    cells = [
        (formatting.when(r["told_at"]), r["kind"] or r["purpose"], r["state"], r["attempts"], r["error"])
        for r in rows
    ]
    output.listing(
        rows, ("WHEN", "WHAT", "STATE", "TRIES FAILED", "WHY"), cells, empty="Nothing sent yet.", as_json=as_json
    )  # fmt: skip


@app.command("remove")
@guarded
def remove(key: Key) -> None:
    """Forget a contact point, with what waits to be sent there."""
    with api() as portal:
        portal.delete(f"contact-points/{key}/")
    output.say("Removed.")


def _state(row: Any) -> str:
    if row["confirmed_at"] is None:
        return "to be confirmed"
    return "on" if row["is_on"] else "off"
