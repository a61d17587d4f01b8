"""``berth calendar``, ``berth reserve``, ``berth reservation`` and ``berth maintenance``: time to come."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output, zones
from portal.cli.command import Json, Team, api, guarded
from portal.cli.requests import Count, Flavor, Hours, Minutes, Seconds, length

reservation = typer.Typer(
    help="Look at and cancel reservations.", no_args_is_help=True, rich_markup_mode=None
)
maintenance = typer.Typer(help="Look at and plan maintenance.", no_args_is_help=True, rich_markup_mode=None)
Series = Annotated[str, typer.Argument(metavar="ID", help="A reservation (rsv-…).")]
Window = Annotated[str, typer.Argument(metavar="ID", help="A maintenance window (mnt-…).")]
When = "e.g. 2026-03-01T14:00 (your time zone unless it names one)"


def _part(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quote(name, safe="") or "-"


@guarded
def calendar(
    start: Annotated[str, typer.Option("--from", help=f"Begin, {When}; now when left out.")] = "",
    end: Annotated[str, typer.Option("--to", help=f"End, {When}; a week later when left out.")] = "",
    node: Annotated[str, typer.Option(help="Only this node.")] = "",
    mine: Annotated[bool, typer.Option("--mine", help="Only your own.")] = False,
    ical: Annotated[bool, typer.Option("--ical", help="Print your bookings as a calendar file.")] = False,
    as_json: Json = False,
) -> None:
    """Show what is held, booked and planned on every device."""
    with api() as portal:
        if ical:
            output.out_text(portal.text("calendar/mine.ics/"))
            return
        since = zones.instant(start, "--from") if start else ""
        until = zones.instant(end, "--to") if end else ""
        rows = portal.get("calendar/", **{"from": since, "to": until, "node": node})["results"]
    rows = [row for row in rows if row["is_own"] or not mine]
    cells = [
        (
            row["node"], "all" if row["device_index"] is None else row["device_index"], row["kind"],
            formatting.when(row["starts_at"]), formatting.when(row["ends_at"]),
            row["note"] or row["name"] or "busy", row["team"], row["holder"], row["lease"] or row["window"],
        )
        for row in rows
    ]  # fmt: skip
    columns = ("NODE", "DEVICE", "KIND", "BEGINS", "ENDS", "WHAT", "TEAM", "WHO", "ID")
    output.listing(rows, columns, cells, empty="Nothing is held or planned then.", as_json=as_json)


@guarded
def reserve(
    flavor: Flavor,
    start: Annotated[
        str,
        typer.Option(help="First time, e.g. 2026-03-01T14:00; its hour stays the same in your time zone."),
    ],
    hours: Hours = 0,
    minutes: Minutes = 0,
    seconds: Seconds = 0,
    count: Count = 1,
    repeat: Annotated[str, typer.Option(help="daily, weekdays or weekly.")] = "weekly",
    until: Annotated[str, typer.Option(help="No time after this.")] = "",
    zone: Annotated[
        str, typer.Option(help="Time zone in which the hour stays the same; yours when left out.")
    ] = "",
    team: Team = "",
    name: Annotated[str, typer.Option(help="A name to find it again.")] = "",
    as_json: Json = False,
) -> None:
    """Book the same again and again. A single start is booked with “berth request --start”."""
    if zone:
        zones.choose(zone)
    body: dict[str, Any] = {
        "flavor": flavor, "duration_s": length(hours, minutes, seconds), "count": count, "repeat": repeat,
        "starts_at": zones.instant(start, "--start"), "zone": zones.name() or "UTC", "name": name,
        **({"until": zones.instant(until, "--until")} if until else {}), **({"team": team} if team else {}),
    }  # fmt: skip
    with api() as portal:
        found = portal.post("reservations/", body)
    if as_json:
        output.out_json(found)
        return
    output.out(found["id"])
    if found["approval"] == "awaiting_approval":
        output.say("It waits for approval; nothing is booked until then.")
        return
    output.say(f"{len(found['times'])} times in the next four weeks; see “berth reservation show”.")


@reservation.callback()
def reservations() -> None:
    """Look at and cancel reservations."""


@reservation.command("list")
@guarded
def list_series(as_json: Json = False) -> None:
    """List the reservations of your teams."""
    with api() as portal:
        rows = list(portal.every("reservations/"))
    cells = [
        (
            r["id"], _again(r), f"{r['count']} × {r['flavor']}",
            formatting.when(r["starts_at"]), formatting.span(r["duration_s"]),
            r["zone"], r["team"], r["author"], r["name"],
        )
        for r in rows
    ]  # fmt: skip
    columns = ("ID", "AGAIN", "WHAT", "FIRST", "FOR", "ZONE", "TEAM", "WHO", "NAME")
    output.listing(
        rows,
        columns,
        cells,
        empty="There are none. Make one with “berth reserve FLAVOR --start …”.",
        as_json=as_json,
    )


def _again(row: dict[str, Any]) -> str:
    """Return how a reservation comes again, or why it does not."""
    if row["approval"] in ("awaiting_approval", "rejected") and (
        row["approval"] == "rejected" or not row["cancelled_at"]
    ):
        return str(row["approval"])
    return "cancelled" if row["cancelled_at"] else str(row["repeat"])


@reservation.command("show")
@guarded
def show_series(name: Series, as_json: Json = False) -> None:
    """Show a reservation and what became of its times."""
    with api() as portal:
        found = portal.get(f"reservations/{_part(name)}/")
    cells = [
        (formatting.when(t["starts_at"]), t["state"], t["request"], " ".join(t["leases"]))
        for t in found["times"]
    ]
    output.listing(
        found, ("BEGINS", "STATE", "REQUEST", "LEASES"), cells, empty="No times ahead.", as_json=as_json
    )


@reservation.command("cancel")
@guarded
def cancel_series(name: Series, as_json: Json = False) -> None:
    """End a reservation and give up its bookings; what runs goes on."""
    with api() as portal:
        found = portal.post(f"reservations/{_part(name)}/cancel/")
    if as_json:
        output.out_json(found)
        return
    output.say(f"{found['id']} is cancelled. Nothing is billed for what had not begun.")


@maintenance.callback()
def windows() -> None:
    """Look at and plan maintenance."""


@maintenance.command("list")
@guarded
def list_windows(as_json: Json = False) -> None:
    """List the windows that are on or to come."""
    with api() as portal:
        rows = portal.get("maintenance/")["results"]
    cells = [
        (
            w["id"],
            ", ".join(w["nodes"]),
            formatting.when(w["starts_at"]),
            formatting.when(w["ends_at"]),
            w["reason"],
        )
        for w in rows
    ]
    output.listing(
        rows,
        ("ID", "NODES", "BEGINS", "ENDS", "REASON"),
        cells,
        empty="No maintenance is planned.",
        as_json=as_json,
    )


@maintenance.command("add")
@guarded
def add_window(
    nodes: Annotated[list[str], typer.Argument(metavar="NODE...", help="Names of nodes.")],
    start: Annotated[str, typer.Option("--from", help=f"Begin, {When}.")],
    end: Annotated[str, typer.Option("--to", help=f"End, {When}.")],
    reason: Annotated[str, typer.Option(help="Why; those whom it reaches read it.")],
    dry: Annotated[bool, typer.Option("--preview", help="Only say whom it reaches.")] = False,
    as_json: Json = False,
) -> None:
    """Plan maintenance: leases end before it and their holders are told. Operators."""
    body = {
        "nodes": nodes, "reason": reason,
        "starts_at": zones.instant(start, "--from"), "ends_at": zones.instant(end, "--to"),
    }  # fmt: skip
    with api() as portal:
        found = portal.post("maintenance/preview/" if dry else "maintenance/", body)
    if dry:
        show_affected(found["results"], as_json)
        return
    if as_json:
        output.out_json(found)
        return
    output.out(found["id"])
    output.say("Planned. Everybody affected is being told.")


def show_affected(rows: list[Any], as_json: bool) -> None:
    """Print the leases and bookings that maintenance, or a drain, would reach."""
    cells = [
        (
            r["lease"], "booked" if r["is_booking"] else r["state"], r["node"], r["team"], r["user"],
            formatting.when(r["ends_at"]), formatting.span(r["loses_s"]),
        )
        for r in rows
    ]  # fmt: skip
    columns = ("LEASE", "STATE", "NODE", "TEAM", "WHO", "WOULD END", "LOSES")
    output.listing(rows, columns, cells, empty="It reaches nobody.", as_json=as_json)


@maintenance.command("change")
@guarded
def change_window(
    name: Window,
    start: Annotated[str, typer.Option("--from", help=f"Begin, {When}.")],
    end: Annotated[str, typer.Option("--to", help=f"End, {When}.")],
    as_json: Json = False,
) -> None:
    """Give a window another time; ends of leases follow. Operators."""
    body = {"starts_at": zones.instant(start, "--from"), "ends_at": zones.instant(end, "--to")}
    with api() as portal:
        found = portal.post(f"maintenance/{_part(name)}/change/", body)
    if as_json:
        output.out_json(found)
        return
    output.say(
        f"{found['id']} is from {formatting.when(found['starts_at'])} to {formatting.when(found['ends_at'])}."
    )


@maintenance.command("cancel")
@guarded
def cancel_window(name: Window, as_json: Json = False) -> None:
    """Take a window back: nodes take work again, leases get their ends back. Operators."""
    with api() as portal:
        found = portal.post(f"maintenance/{_part(name)}/cancel/")
    if as_json:
        output.out_json(found)
        return
    output.say(f"{found['id']} is cancelled.")
