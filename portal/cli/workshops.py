"""``berth workshop``: slices for a class at one time, each started by its person."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output, zones
from portal.cli.command import Json, Team, api, guarded
from portal.cli.requests import Flavor, Hours, Minutes, Seconds, length

app = typer.Typer(
    help="Book slices for a class or workshop, see who came, start your own.", no_args_is_help=True,
    rich_markup_mode=None,
)  # fmt: skip
Name = Annotated[str, typer.Argument(metavar="ID", help="A workshop (wks-…).")]
People = Annotated[
    list[str],
    typer.Option("--person", "-p", help="Sign-in name, e-mail address or full name; may be repeated."),
]
PeopleFile = Annotated[
    str, typer.Option("--people", help="File with one person per line; “-” reads them from stdin.")
]
LetIn = Annotated[
    bool,
    typer.Option(
        "--let-in",
        help="Who is not in the team is a researcher in it until the workshop ends; for its admins.",
    ),
]


@app.callback()
def group() -> None:
    """Book slices for a class or workshop, see who came, start your own."""


@app.command("list")
@guarded
def list_workshops(as_json: Json = False) -> None:
    """List the workshops of your teams and those you come to."""
    with api() as portal:
        rows = list(portal.every("workshops/"))
    cells = [
        (
            r["id"], r["name"], _state(r), r["flavor"], formatting.when(r["starts_at"]),
            formatting.span(r["duration_s"]), r["team"], r["organiser"],
        )
        for r in rows
    ]  # fmt: skip
    columns = ("ID", "NAME", "STATE", "WHAT", "BEGINS", "FOR", "TEAM", "WHO")
    empty = "There are none. Make one with “berth workshop book FLAVOR --start …”."
    output.listing(rows, columns, cells, empty=empty, as_json=as_json)


@app.command("show")
@guarded
def show_workshop(name: Name, as_json: Json = False) -> None:
    """Show who is in a workshop and who came; your own seat, if you do not run it."""
    with api() as portal:
        found = portal.get(f"workshops/{_part(name)}/")
    _show(found, as_json)


@app.command("book")
@guarded
def book(
    flavor: Flavor,
    name: Annotated[str, typer.Option(help="What those who come know it by.")],
    start: Annotated[
        str, typer.Option(help="When it begins, e.g. 2026-03-01T14:00 (your time zone unless it names one).")
    ],
    hours: Hours = 0,
    minutes: Minutes = 0,
    seconds: Seconds = 0,
    person: People = [],  # noqa: B006 (typer reads it once)
    people: PeopleFile = "",
    return_after: Annotated[
        int, typer.Option(min=1, help="Minutes after which slices that nobody started are given back.")
    ] = 15,
    team: Team = "",
    let_in: LetIn = False,
    dry: Annotated[bool, typer.Option("--preview", help="Only say who was found and what it costs.")] = False,
    as_json: Json = False,
) -> None:
    """Book a slice for each person at one time, all or nothing."""
    body: dict[str, Any] = {
        "name": name, "flavor": flavor, "starts_at": zones.instant(start, "--start"),
        "duration_s": length(hours, minutes, seconds), "return_after_s": return_after * 60,
        "people": _named(person, people), "gives_roles": let_in, **({"team": team} if team else {}),
    }  # fmt: skip
    with api() as portal:
        found = portal.post("workshops/preview/" if dry else "workshops/", body)
    if dry:
        _show_preview(found, as_json)
        return
    if as_json:
        output.out_json(found)
        return
    output.out(found["id"])
    if found["approval"] == "awaiting_approval":
        output.say("It waits for approval; nothing is booked until then.")
    else:
        output.say(f"{len(found['seats'])} slices are being booked; everybody was told.")


@app.command("add")
@guarded
def add_people(
    name: Name,
    person: People = [],  # noqa: B006 (typer reads it once)
    people: PeopleFile = "",
    let_in: LetIn = False,
    as_json: Json = False,
) -> None:
    """Give more people a seat before it begins."""
    body = {"people": _named(person, people), "gives_roles": let_in}
    with api() as portal:
        found = portal.post(f"workshops/{_part(name)}/people/", body)
    _show(found, as_json)


@app.command("remove")
@guarded
def remove_person(
    name: Name, person: Annotated[str, typer.Argument(metavar="PERSON", help="Sign-in name.")]
) -> None:
    """Take the seat of somebody away who has not come."""
    with api() as portal:
        portal.delete(f"workshops/{_part(name)}/people/{_part(person)}/")
    output.say(f"{person} has no seat any more.")


@app.command("again")
@guarded
def ask_again(name: Name, as_json: Json = False) -> None:
    """Ask once more for the seats that got no slice."""
    with api() as portal:
        found = portal.post(f"workshops/{_part(name)}/again/")
    _show(found, as_json)


@app.command("cancel")
@guarded
def cancel(name: Name, as_json: Json = False) -> None:
    """Give up every slice that has not begun, free of charge."""
    with api() as portal:
        found = portal.post(f"workshops/{_part(name)}/cancel/")
    if as_json:
        output.out_json(found)
        return
    output.say(f"{found['id']} is cancelled. Nothing is billed for what had not begun.")


@app.command("start")
@guarded
def start_own(name: Name, as_json: Json = False) -> None:
    """Start your own slice; it begins with the workshop if you are early."""
    with api() as portal:
        found = portal.post(f"workshops/{_part(name)}/start/")
    if as_json:
        output.out_json(found)
        return
    lease = found["own"]["lease"]
    output.say(f"Your slice is {lease}." if lease else "You are here; your slice starts by itself.")


def _named(person: list[str], people: str) -> list[str]:
    """Return whoever is named by options and in a file."""
    if people:
        try:
            text = sys.stdin.read() if people == "-" else Path(people).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(str(error), param_hint="--people") from error
        person = [*person, *(line.strip() for line in text.splitlines() if line.strip())]
    if not person:
        raise typer.BadParameter("name people with --person or --people", param_hint="--people")
    return person


def _state(found: dict[str, Any]) -> str:
    """Return how far a workshop is, in one word."""
    if found["approval"] in ("awaiting_approval", "rejected"):
        return str(found["approval"])
    return "cancelled" if found["cancelled_at"] else "settled" if found["settled_at"] else "booked"


def _show(found: dict[str, Any], as_json: bool) -> None:
    seats = found["seats"] if found["seats"] is not None else [found["own"]] if found["own"] else []
    cells = [
        (s["person"], s["state"], formatting.when(s["came_at"]) if s["came_at"] else "", s["lease"] or "")
        for s in seats
    ]
    if not as_json:
        output.say(
            f"{found['name']}: {found['flavor']}, {formatting.when(found['starts_at'])}, {_state(found)}"
        )
    output.listing(
        found, ("PERSON", "STATE", "CAME", "LEASE"), cells, empty="You have no seat in it.", as_json=as_json
    )


def _show_preview(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.out_json(found)
        return
    price = f"{found['price']['amount']} {found['price']['currency']}" if found["price"] else "unknown"
    room = "unknown" if found["free"] is None else f"{found['free']} free then"
    output.say(f"{found['seats']} slices, at most {price}, {room}.")
    for word, said in (
        ("unknown", "Nobody goes by"), ("outside", "Not in the team"), ("repeated", "Named more than once"),
    ):  # fmt: skip
        if found[word]:
            output.say(f"{said}: {', '.join(found[word])}")
    if found["others"]:
        output.say("Room for all at " + ", ".join(formatting.when(at) for at in found["others"]))
    if found["needs_approval"]:
        output.say("It needs one approval of all of it.")


def _part(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quote(name, safe="") or "-"
