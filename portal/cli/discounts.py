"""``berth discount``: who pays less of the price, and when."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded
from portal.cli.offers import instant_of

app = typer.Typer(
    help="See, add and end discounts: who pays less of the price, and when.", no_args_is_help=True,
    rich_markup_mode=None,
)  # fmt: skip
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@app.command("list")
@guarded
def list_discounts(as_json: Json = False) -> None:
    """List discounts: past, present and planned."""
    with api() as portal:
        rows = portal.get("discounts/")["results"]
    cells = [
        (
            row["id"], row["name"], f"{row['percent']:g} %",
            f"{row['team'] or 'everybody'}{', preemptible' if row['only_preemptible'] else ''}", _hours(row),
            formatting.when(row["valid_from"]), formatting.when(row["valid_until"]) if row["valid_until"] else "",
        )
        for row in rows
    ]  # fmt: skip
    columns = ("ID", "NAME", "LESS", "FOR", "HOURS", "FROM", "UNTIL")
    output.listing(rows, columns, cells, empty="There are no discounts.", as_json=as_json)


@app.command("add")
@guarded
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Receipts name it so.")],
    percent: Annotated[
        int, typer.Argument(metavar="PERCENT", min=1, max=100, help="What is paid less of the price.")
    ],
    team: Annotated[
        str, typer.Option("--team", "-t", help="For this team and those below it; default: everybody.")
    ] = "",
    preemptible: Annotated[bool, typer.Option("--preemptible", help="For preemptible leases only.")] = False,
    hours: Annotated[
        str, typer.Option("--hours", help="Daily hours such as 20:00-06:00; default: at all times.")
    ] = "",
    days: Annotated[
        str, typer.Option("--days", help="With --hours: such as mon,tue,sat; default: every day.")
    ] = "",
    zone: Annotated[
        str, typer.Option("--zone", help="Time zone of the hours, e.g. Europe/Berlin; default: UTC.")
    ] = "",
    begin: Annotated[
        str, typer.Option("--from", help="From when, like 2026-02-01T00:00Z. Default: in a minute.")
    ] = "",
    until: Annotated[str, typer.Option("--until", help="Until when; default: until it is ended.")] = "",
    as_json: Json = False,
) -> None:
    """Let leases pay less of the price from an instant on; the largest discount counts. Finance."""
    body: dict[str, Any] = {"name": name, "percent": percent, "only_preemptible": preemptible}
    body |= {"team": team} if team else {}
    if hours or days:
        first, _dash, last = hours.partition("-")
        body |= {"from_time": first.strip(), "to_time": last.strip()}
        body |= {"days": [_day(word) for word in days.split(",")]} if days else {}
        body |= {"zone": zone} if zone else {}
    body |= {"starts_at": instant_of(begin, "--from")} if begin else {}
    body |= {"ends_at": instant_of(until, "--until")} if until else {}
    with api() as portal:
        made = portal.post("discounts/", body)
    if as_json:
        output.out_json(made)
        return
    output.say(f"{made['name']}: {made['percent']:g} % less from {formatting.when(made['valid_from'])}.")


@app.command("end")
@guarded
def end(
    discount: Annotated[int, typer.Argument(metavar="ID", min=1, help="As “berth discount list” shows it.")],
) -> None:
    """End a discount in a minute, or take back one that has not begun. Finance."""
    with api() as portal:
        portal.delete(f"discounts/{discount}/")
    output.say("Ended.")


def _day(word: str) -> int:
    name = word.strip().lower()[:3]
    if name not in DAYS:
        raise typer.BadParameter(f"{word.strip()} is no day: write {', '.join(DAYS)}.", param_hint="--days")
    return DAYS.index(name)


def _hours(row: dict[str, Any]) -> str:
    if not row["days"]:
        return "always"
    days = "daily" if len(row["days"]) == len(DAYS) else ",".join(DAYS[day] for day in row["days"])
    return f"{days} {row['from_time']}-{row['to_time']} {row['zone']}"
