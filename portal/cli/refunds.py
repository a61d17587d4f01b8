"""``berth refund``: what a lost node, a fault or maintenance gives back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded
from portal.cli.offers import instant_of

app = typer.Typer(
    help="See and set refund rules: what is not charged because of how a lease ended.", no_args_is_help=True,
    rich_markup_mode=None,
)  # fmt: skip
Cause = Annotated[
    Literal["node_lost", "device_fault", "failed_start", "maintenance", "preempted", "early_release"],
    typer.Argument(metavar="CAUSE", help="Such as node_lost; see “berth refund set --help”."),
]


@app.command("list")
@guarded
def list_rules(as_json: Json = False) -> None:
    """List refund rules: past, present and planned."""
    with api() as portal:
        rows = portal.get("refund-rules/")["results"]
    cells = [
        (
            row["id"], row["cause"], f"{row['credit_percent']} %",
            formatting.span(row["most_s"]) if row["most_s"] else "all",
            formatting.span(row["within_s"]) if row["within_s"] else "",
            formatting.when(row["valid_from"]), formatting.when(row["valid_until"]) if row["valid_until"] else "",
        )
        for row in rows
    ]  # fmt: skip
    columns = ("ID", "CAUSE", "GIVEN BACK", "OF THE LAST", "FAILED WITHIN", "FROM", "UNTIL")
    output.listing(rows, columns, cells, empty="There are no refund rules.", as_json=as_json)


@app.command("set")
@guarded
def set_rule(
    cause: Cause,
    percent: Annotated[int, typer.Argument(metavar="PERCENT", min=0, max=100, help="100: no charge at all.")],
    last: Annotated[
        int, typer.Option("--last", min=0, help="Only of so many last seconds; 0: all of the lease.")
    ] = 0,
    within: Annotated[
        int, typer.Option("--within", min=0, help="For failed_start: seconds after its start.")
    ] = 0,
    begin: Annotated[
        str, typer.Option("--from", help="From when, like 2026-02-01T00:00Z. Default: now.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Say what a cause gives back from an instant on; it ends the rule before it. Finance."""
    body: dict[str, Any] = {"cause": cause, "credit_percent": percent}
    body |= {"most_s": last} if last else {}
    body |= {"within_s": within} if within else {}
    body |= {"starts_at": instant_of(begin, "--from")} if begin else {}
    with api() as portal:
        made = portal.post("refund-rules/", body)
    if as_json:
        output.out_json(made)
        return
    output.say(f"{made['cause']}: {made['credit_percent']} % from {formatting.when(made['valid_from'])}.")


@app.command("withdraw")
@guarded
def withdraw(
    rule: Annotated[int, typer.Argument(metavar="ID", min=1, help="As “berth refund list” shows it.")],
) -> None:
    """Take back a rule that has not begun; the one before it goes on. Finance."""
    with api() as portal:
        portal.delete(f"refund-rules/{rule}/")
    output.say("Withdrawn.")
