"""``berth node …`` for health: what ails a node, what runs on its GPUs, what leaves work and comes back."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded

Name = Annotated[str, typer.Argument(metavar="NAME", help="As “berth nodes” shows it.")]
DEVICE = "Its number on the node, or its uuid."


def add_to(app: typer.Typer) -> None:
    """Add these commands to a group."""
    app.command("health")(health)
    app.command("processes")(processes)
    app.command("quarantine")(quarantine)
    app.command("clear")(clear)


@guarded
def health(name: Name, as_json: Json = False) -> None:
    """Show what a node and its devices complain about, and what they cannot offer."""
    with api() as portal:
        node = portal.get(f"nodes/{_part(name)}/")
        devices = _devices(portal, name)
    events = [{"device": None, **event} for event in node.get("health_events", [])]
    for device in devices:
        events += [{"device": device["index"], **event} for event in device.get("health_events", [])]
    if as_json:
        output.out_json({"node": node["name"], "events": events, "devices": devices})
        return
    cells = [_event_cells(event) for event in events]
    columns = ("DEVICE", "CODE", "SEVERITY", "SINCE", "SAID", "TO DO")
    output.table(columns, cells, empty="Nothing is reported.")
    for device in devices:
        if device["health"] != "ok":
            output.say(
                f"device {device['index']}: {device['health']} {device.get('health_reason', '')}".strip()
            )
        for mode, why in device.get("refusals", {}).items():
            output.say(f"device {device['index']} cannot offer {mode}: {why}")


def _event_cells(event: Any) -> tuple[Any, ...]:
    quiet = " (reported no more)" if event["unreported_at"] else ""
    if event.get("until"):
        quiet = f" until {formatting.when(event['until'])}"
    where = "node" if event["device"] is None else event["device"]
    if event.get("starts"):  # portals of an earlier version do not tell
        where = f"{where} @{','.join(map(str, event['starts']))}"
    return (
        where, event["code"], event["severity"] + quiet, formatting.when(event["at"]), event["detail"], event["todo"],
    )  # fmt: skip


@guarded
def processes(name: Name, as_json: Json = False) -> None:
    """List what runs on a node's GPUs; orphans belong to no lease that may be there."""
    with api() as portal:
        found = portal.get(f"nodes/{_part(name)}/processes/")
        index = {device["uuid"]: device["index"] for device in _devices(portal, name)}
    if as_json:
        output.out_json(found)
        return
    if found["processes"] is None:
        output.say("Not known: the agent has not listed processes in the last minute.")
        return
    rows = sorted(found["processes"], key=lambda row: (row["state"] != "orphan", row["pid"]))
    cells = [
        (
            row["pid"], row["name"] or formatting.UNKNOWN, index.get(row["device"], row["device"]), row["state"],
            row["lease"] or "-",
            formatting.UNKNOWN if row["memory_mib"] is None else formatting.memory(row["memory_mib"]),
        )
        for row in rows
    ]  # fmt: skip
    output.table(
        ("PID", "NAME", "DEVICE", "STATE", "LEASE", "MEMORY"), cells, empty="No process is on its GPUs."
    )


@guarded
def quarantine(
    name: Name,
    device: Annotated[str, typer.Argument(metavar="DEVICE", help=DEVICE)],
    reason: Annotated[str, typer.Option(help="Why; the holders of its leases are told.")],
    as_json: Json = False,
) -> None:
    """Take one device out of work until it is cleared; running leases go on."""
    with api() as portal:
        uuid = _uuid(portal, name, device)
        _told(portal.post(f"devices/{_part(uuid)}/quarantine/", {"reason": reason}), as_json)


@guarded
def clear(
    name: Name,
    device: Annotated[str, typer.Argument(metavar="DEVICE", help=DEVICE)] = "",
    as_json: Json = False,
) -> None:
    """Close open health events: of a device, which takes work again, or of the node itself."""
    with api() as portal:
        if device:
            uuid = _uuid(portal, name, device)
            _told(portal.post(f"devices/{_part(uuid)}/clear-health/"), as_json)
            return
        found = portal.post(f"nodes/{_part(name)}/clear-health/")
    if as_json:
        output.out_json(found)
    else:
        output.say(f"The events of {found['name']} itself are cleared.")


def _told(found: Any, as_json: bool) -> None:
    if as_json:
        output.out_json(found)
        return
    output.facts(
        (
            ("device", f"{found['index']} of {found['node']}"),
            ("health", found["health"]),
            *((("because", found["health_reason"]),) if found["health_reason"] else ()),
        )
    )


def _devices(portal: Any, node: str) -> list[Any]:
    """Return a node's devices in its own order."""
    return sorted(portal.every("devices/", node=node), key=lambda row: row["index"])


def _uuid(portal: Any, node: str, device: str) -> str:
    """Return the uuid of a node's device that was named by number or uuid."""
    known = _devices(portal, node)
    for row in known:
        if device in (str(row["index"]), row["uuid"]):
            return str(row["uuid"])
    there = ", ".join(str(row["index"]) for row in known)
    raise typer.BadParameter(f"{node} has no device {device}" + (f"; it has {there}" if there else ""))


def _part(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quote(name, safe="") or "-"
