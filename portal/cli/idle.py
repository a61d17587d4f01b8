"""``berth idle``: which leases hold a device and compute nothing, and what happens then."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded

app = typer.Typer(
    help="See which leases idle and why, put off what is coming, and set the rules.", no_args_is_help=True,
    rich_markup_mode=None,
)  # fmt: skip
Name = Annotated[str, typer.Argument(metavar="LEASE", help="A lease (lse-…).")]


@app.command("list")
@guarded
def list_idle(as_json: Json = False) -> None:
    """List running leases in sight that idle, the longest idle first."""
    with api() as portal:
        rows = portal.get("idle/")["results"]
    cells = [
        (
            row["lease"], row["user"], row["team"], row["state"].replace("_", " "), formatting.when(row["since"]),
            formatting.when(row["reclaim_at"]) if row["reclaim_at"] else "", row["evidence"],
        )
        for row in rows
    ]  # fmt: skip
    columns = ("LEASE", "HOLDER", "TEAM", "STATE", "SINCE", "TAKEN BACK", "EVIDENCE")
    output.listing(rows, columns, cells, empty="Nobody idles.", as_json=as_json)


@app.command("show")
@guarded
def show_idle(lease: Name, as_json: Json = False) -> None:
    """Show what a lease was last judged to do, by what, and what comes of it."""
    with api() as portal:
        row = portal.get(f"leases/{_safe(lease)}/idle/")
    if as_json:
        output.out_json(row)
        return
    output.say(f"{row['state'].replace('_', ' ')}: {row['evidence'] or 'it was not looked at yet.'}")
    if row["reclaim_at"]:
        output.say(f"Taken back {formatting.when(row['reclaim_at'])}, unless it is used before.")
    if row["snoozed_until"]:
        output.say(f"Put off until {formatting.when(row['snoozed_until'])}.")
    if row["snoozes_left"]:
        output.say(f"May be put off {row['snoozes_left']} times, by {row['snooze_min']} minutes each.")


@app.command("snooze")
@guarded
def snooze(
    lease: Name,
    reason: Annotated[str, typer.Argument(metavar="REASON", help="What it is kept for.")],
    as_json: Json = False,
) -> None:
    """Put off what an idle lease has coming, as often and for as long as its rule allows."""
    with api() as portal:
        row = portal.post(f"leases/{_safe(lease)}/idle/snooze/", {"reason": reason})
    if as_json:
        output.out_json(row)
        return
    output.say(f"Put off until {formatting.when(row['snoozed_until'])}; {row['snoozes_left']} left.")


@app.command("rules")
@guarded
def list_rules(as_json: Json = False) -> None:
    """List what happens to leases that idle. Operators."""
    with api() as portal:
        rows = portal.get("idle/rules/")["results"]
    cells = [
        (
            row["id"], row["team"] or "everybody", row["flavor"] or "every flavor", row["then"],
            f"{row['after_min']} min", f"{row['grace_min']} min", f"{row['snoozes']} × {row['snooze_min']} min",
        )
        for row in rows
    ]  # fmt: skip
    columns = ("ID", "TEAM", "FLAVOR", "THEN", "AFTER", "NOTICE", "SNOOZES")
    output.listing(rows, columns, cells, empty="There are no rules: nothing happens.", as_json=as_json)


@app.command("set")
@guarded
def set_rule(
    then: Annotated[
        Literal["nothing", "warn", "reclaim"],
        typer.Argument(metavar="ACTION", help="nothing, warn or reclaim."),
    ],
    team: Annotated[
        str, typer.Option("--team", "-t", help="For this team and those below it; default: everybody.")
    ] = "",
    flavor: Annotated[str, typer.Option("--flavor", help="For this flavor; default: every flavor.")] = "",
    after: Annotated[
        int, typer.Option("--after", min=15, max=240, help="Minutes without work before anything happens.")
    ] = 60,
    grace: Annotated[
        int, typer.Option("--grace", min=5, max=1440, help="Minutes between the notice and the end.")
    ] = 30,
    snoozes: Annotated[
        int, typer.Option("--snoozes", min=0, max=10, help="How often a holder may put it off.")
    ] = 2,
    snooze_min: Annotated[
        int, typer.Option("--snooze", min=5, max=1440, help="For how many minutes each.")
    ] = 60,
    as_json: Json = False,
) -> None:
    """Say what happens to leases that idle; for the same team and flavor the last word counts. Operators."""
    body: dict[str, Any] = {"then": then, "after_min": after, "grace_min": grace}
    body |= {"snoozes": snoozes, "snooze_min": snooze_min}
    body |= {"team": team} if team else {}
    body |= {"flavor": flavor} if flavor else {}
    with api() as portal:
        made = portal.post("idle/rules/", body)
    if as_json:
        output.out_json(made)
        return
    output.say(f"Rule {made['id']} is set.")


@app.command("remove")
@guarded
def remove_rule(
    rule: Annotated[int, typer.Argument(metavar="ID", min=1, help="As “berth idle rules” shows it.")],
) -> None:
    """Remove a rule: what it would have taken back stays. Operators."""
    with api() as portal:
        portal.delete(f"idle/rules/{rule}/")
    output.say("Removed.")


def _safe(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quote(name, safe="") or "-"
