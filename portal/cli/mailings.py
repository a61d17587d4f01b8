"""``berth mailing``: reports of a month that are sent to people by themselves."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded

app = typer.Typer(
    help="Have the report of each month sent to people.", no_args_is_help=True, rich_markup_mode=None
)
Key = Annotated[int, typer.Argument(metavar="ID", min=1, help="As “berth mailing list” shows it.")]
To = Annotated[list[str], typer.Option("--to", help="User name of who gets it, once for each.")]
Formats = Annotated[list[str], typer.Option("--format", help="pdf, xlsx, csv or focus, once for each.")]
Day = Annotated[
    int | None,
    typer.Option("--day", min=0, max=28, help="Day of the month, for the month before; 0: after each close."),
]
Language = Annotated[str, typer.Option("--language", help="Of the files: en or zh-hans.")]


@app.command("list")
@guarded
def list_mailings(as_json: Json = False) -> None:
    """List the mailings of teams whose admin or finance you are."""
    with api() as portal:
        rows = portal.get("report-mailings/")["results"]
    cells = [
        (r["id"], r["team"], _when(r), ", ".join(r["formats"]), r["language"], ", ".join(r["recipients"]),
         "on" if r["is_on"] else "off")
        for r in rows
    ]  # fmt: skip
    columns = ("ID", "TEAM", "WHEN", "FORMATS", "LANGUAGE", "TO", "STATE")
    output.listing(rows, columns, cells, empty="No reports are sent.", as_json=as_json)


@app.command("add")
@guarded
def add(
    team: Annotated[str, typer.Argument(metavar="TEAM", help="Slug: it and all teams below it.")],
    to: To,
    formats: Formats = ["pdf"],  # noqa: B006 (typer reads it, nobody changes it)
    day: Day = 0,
    language: Language = "en",
    as_json: Json = False,
) -> None:
    """Have the report of a team sent each month. For its admins and finance."""
    body = {
        "team": team, "day": day or None, "formats": formats, "language": language, "recipients": to,
    }  # fmt: skip
    with api() as portal:
        made = portal.post("report-mailings/", body)
    _told(made, as_json)


@app.command("change")
@guarded
def change(
    key: Key,
    to: To = [],  # noqa: B006 (typer reads it, nobody changes it)
    formats: Formats = [],  # noqa: B006 (typer reads it, nobody changes it)
    day: Day = None,
    language: Language = "",
    on: Annotated[bool | None, typer.Option("--on/--off", help="Whether it sends.")] = None,
    as_json: Json = False,
) -> None:
    """Change a mailing; what is left out stays as it is."""
    with api() as portal:
        rows = portal.get("report-mailings/")["results"]
        found = next((row for row in rows if row["id"] == key), None)
        if found is None:
            raise typer.BadParameter("there is no such mailing; see “berth mailing list”")
        body = {name: found[name] for name in ("day", "formats", "language", "recipients", "is_on")}
        body |= {"recipients": to} if to else {}
        body |= {"formats": formats} if formats else {}
        body |= {"day": day or None} if day is not None else {}
        body |= {"language": language} if language else {}
        body |= {"is_on": on} if on is not None else {}
        made = portal.put(f"report-mailings/{key}/", body)
    _told(made, as_json)


@app.command("remove")
@guarded
def remove(key: Key) -> None:
    """Send nothing more by it."""
    with api() as portal:
        portal.delete(f"report-mailings/{key}/")
    output.say("Removed.")


@app.command("send")
@guarded
def send(
    key: Key,
    month: Annotated[str, typer.Argument(metavar="MONTH", help="Written as YYYY-MM, or this.")],
) -> None:
    """Send a month now, again where it was sent before."""
    with api() as portal:
        made = portal.post(f"report-mailings/{key}/send/", {"month": month})
    output.say(f"{month} goes to {', '.join(made['recipients'])}.")


@app.command("deliveries")
@guarded
def deliveries(key: Key, as_json: Json = False) -> None:
    """List what went to contact points in the last 30 days, with tries and what went wrong."""
    with api() as portal:
        rows = portal.get(f"report-mailings/{key}/deliveries/")["results"]
    cells = [
        (
            r["month"],
            r["recipient"],
            r["by"],
            r["state"],
            formatting.when(r["told_at"]),
            r["attempts"],
            r["error"],
        )
        for r in rows
    ]
    columns = ("MONTH", "TO", "BY", "STATE", "AT", "FAILED TRIES", "ERROR")
    output.listing(rows, columns, cells, empty="Nothing was sent.", as_json=as_json)


def _when(row: dict[str, Any]) -> str:
    return f"day {row['day']}" if row["day"] else "after the close"


def _told(made: Any, as_json: bool) -> None:
    if as_json:
        output.out_json(made)
        return
    output.say(f"Mailing {made['id']}: {made['team']}, {_when(made)}, to {', '.join(made['recipients'])}.")
