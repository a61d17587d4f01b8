"""Commands that look and change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nodeagent.protocol.variables import allowed, export_lines, merged
from portal.cli import formatting, output
from portal.cli.advice import advice_facts
from portal.cli.command import Json, Team, api, guarded
from portal.cli.energy import energy_facts

OPEN_REQUESTS = ("awaiting_approval", "queued")
OPEN_LEASES = ("booked", "preparing", "active", "interrupted", "ending", "cleaning", "failed")


@guarded
def list_work(
    everything: Annotated[bool, typer.Option("--all", help="Also what has ended.")] = False,
    mine: Annotated[bool, typer.Option("--mine", help="Only your own.")] = False,
    team: Team = "",
    most: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most this many of each.")] = 50,
    as_json: Json = False,
) -> None:
    """List waiting requests and running leases of your teams."""
    with api() as portal:
        who = portal.get("me/")["username"] if mine else ""
        requests = _rows(portal, "requests/", OPEN_REQUESTS, everything, most, team=team, author=who)
        leases = _rows(portal, "leases/", OPEN_LEASES, everything, most, team=team, user=who)
    if as_json:
        output.out_json({"requests": requests, "leases": leases})
        return
    columns = ("ID", "STATE", "FLAVOR", "COUNT", "TEAM", "WHO", "NODE", "LEFT", "COST", "WHY")
    shown = [_request_cells(row) for row in requests] + [_lease_cells(row) for row in leases]
    output.table(
        columns, shown, empty="Nothing is waiting or running. Ask with “berth request FLAVOR --hours 1”."
    )


def _rows(
    portal: Any, path: str, states: tuple[str, ...], everything: bool, most: int, **more: str
) -> list[Any]:
    if path == "requests/" and everything:
        states = (*states, "rejected", "withdrawn", "expired", "impossible")
    given = more if everything and path == "leases/" else {**more, "state": list(states)}
    return list(portal.every(path, most=most, page_size=min(most, 200), **given))


def _request_cells(row: Any) -> tuple[Any, ...]:
    why = row["reasons"][0]["sentence"] if row["reasons"] else row["decision_note"]
    place = f"number {row['position']}" if row["position"] else ""
    return (
        row["id"], row["state"], row["flavor"], row["count"], row["team"], row["author"], place,
        formatting.span(row["remaining_s"]), formatting.money(row["quote"]), why,
    )  # fmt: skip


def _lease_cells(row: Any) -> tuple[Any, ...]:
    left = "" if row["seconds_left"] is None else formatting.span(row["seconds_left"])
    return (
        row["id"], row["state"], row["flavor"], row["count"], row["team"], row["user"], row["node"],
        left, formatting.money(row["cost_so_far"]), row["end_reason"],
    )  # fmt: skip


@guarded
def receipt(
    name: Annotated[str, typer.Argument(metavar="LEASE", help="As “berth list --all” shows it (lse-…).")],
    as_json: Json = False,
) -> None:
    """Show what a lease cost, and the part of each job where several followed each other in it."""
    with api() as portal:
        found = portal.get(f"leases/{_safe(name)}/receipt/")
    if as_json:
        output.out_json(found)
        return
    own = found["agent_seconds"]
    output.facts(
        (
            ("lease", found["id"]),
            ("total", formatting.money(found["total"]) if found["is_counted"] else "not counted yet"),
            ("billed seconds", str(found["seconds"])),
            ("the node's own clock", "unknown" if own is None else f"{own:.3f} s"),
            *((("refunded by rule", formatting.money(found["refunded"])),) if found["refunded"] else ()),
            *((("minimum charge", formatting.price(found["minimum"])),) if found["minimum"] else ()),
            *((("promised start", _promise(found["promise"])),) if found["promise"] else ()),
            *energy_facts(found["energy"])[::4],
            *((("scratch folder", f"{found['scratch']}, removed"),) if found.get("scratch") else ()),
            *(advice_facts(found["advice"]) if found.get("advice") else ()),
        )
    )
    cells = [
        (one["id"], one["attempt"], one["seconds"], formatting.money(one["amount"]), one["outcome"])
        for one in found["jobs"]
    ]
    if cells:
        output.table(("JOB", "ATTEMPT", "SECONDS", "PART", "HOW IT ENDED"), cells, empty="")


@guarded
def find(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Letters of a name, or the begin of an id.")],
    as_json: Json = False,
) -> None:
    """Find leases, requests, jobs, teams and nodes by a few letters."""
    with api() as portal:
        rows = portal.get("search/", q=text)["results"]
    cells = [(r["kind"], r["id"], r["name"], r["state"]) for r in rows]
    output.listing(
        rows, ("KIND", "ID", "NAME", "STATE"), cells, empty="Nothing that you may see is called so.", as_json=as_json
    )  # fmt: skip


@guarded
def show(
    name: Annotated[str, typer.Argument(metavar="ID", help="A request (req-…) or a lease (lse-…).")],
    as_json: Json = False,
) -> None:
    """Show one request or lease, and how to connect to a running lease."""
    with api() as portal:
        if name.startswith("lse-"):
            found = portal.get(f"leases/{_safe(name)}/")
            if found["can_see_access"] and found["state"] == "active":
                found["access"] = portal.get(f"leases/{_safe(name)}/access/")
        else:
            found = portal.get(f"requests/{_safe(name)}/")
    if as_json:
        output.out_json(found)
    elif name.startswith("lse-"):
        lease_facts(found)
    else:
        request_facts(found)


def _safe(name: str) -> str:
    """Return a name that stays one part of an address."""
    from urllib.parse import quote

    return quote(name, safe="") or "-"


def lease_facts(row: Any) -> None:
    """Print a lease and, where allowed, how to connect."""
    output.facts(
        (
            ("lease", row["id"]),
            ("state", row["state"] + (f" ({row['end_reason']})" if row["end_reason"] else "")),
            ("flavor", f"{row['count']} × {row['flavor']}"),
            ("team, holder", f"{row['team']}, {row['user']}"),
            ("node", row["node"] + _part_text(row)),
            ("active since", formatting.when(row["activated_at"])),
            ("ends", formatting.when(row["ended_at"] or row["not_after"])),
            *(
                (("must make room", f"{formatting.when(row['preempt_at'])} ({row['preempt_why']})"),)
                if row["preempt_at"]
                else ()
            ),
            ("time left", formatting.span(row["seconds_left"]) if row["seconds_left"] is not None else "-"),
            ("cost so far", formatting.money(row["cost_so_far"])),
            ("price per hour", formatting.price(row["price_per_hour"])),
            *((("opens", row["opens"]),) if row.get("opens", "device") != "device" else ()),
            *((("cut short by", row["cut_by"]),) if row["cut_by"] else ()),
            *(
                ("beside it", f"{part['id']} on {part['node']}, {part['state']}")
                for part in row["parts"]
                if part["id"] != row["id"] and part["state"] != "ended"
            ),
            *((("fault", _fault(row)),) if row["fault"] else ()),
        )
    )
    _entrance(row.get("access", {}).get("entrance"))
    for line in export_lines(_environment(row.get("access", {}))):
        print(line)


def _environment(access: Any) -> dict[str, str]:
    """Return a lease's variables; older portals name those of its devices per slot only."""
    slots = (allowed(slot.get("environment")) for slot in access.get("slots", []))
    return merged(slots) | allowed(access.get("environment"))


def _fault(row: Any) -> str:
    detail = f" ({row['fault_code']}: {row['fault_detail']})" if row.get("fault_detail") else ""
    return f"{row['fault']}{detail}"


def _entrance(way: Any) -> None:
    """Print how to get in, on the node; one that does not keep leases apart is told of first."""
    if way is None:
        return
    if way["is_isolated"] is False:
        output.say("This node does not keep leases apart: use only what your lease names.")
    if way.get("job"):
        where = f"on {way['host']}" if way["host"] else f"waits: {way['reason'] or 'unknown'}"
        output.say(f"Job {way['job']} of the cluster, {where}")
    for command in way["commands"]:
        output.out(command)
    if way.get("scratch"):
        most = f"at most {way['scratch_gib']} GiB, " if way["scratch_gib"] else ""
        output.say(f"Scratch folder: {way['scratch']} ({most}removed with the lease)")
    if way.get("data_sets"):
        output.say(f"Data sets of the team: {way['data_sets']}")


def _part_text(row: Any) -> str:
    base = [part for part in row["parts"] if not part["is_extra"]]
    if row["is_extra"]:
        return " (grown)"
    return f" (part {row['part'] + 1} of {len(base)})" if len(base) > 1 else ""


def _decider(row: dict[str, Any]) -> str:
    return f"{row['decided_by']} for {row['decided_for']}" if row["decided_for"] else str(row["decided_by"])


def _wishes(row: Any) -> list[tuple[str, str]]:
    """Return what was asked for beside flavor and time, where it is not the usual."""
    found = [("work", row["work"])] if row["work"] != "interactive" else []
    if row.get("opens", "device") != "device":
        found.append(("opens", row["opens"]))
    if row["nodes"] != 1:
        found.append(
            ("nodes", f"{row['nodes']} with {row['count']} each" if row["nodes"] else "as few as possible")
        )
    if row["is_preemptible"]:
        found.append(("preemptible", "yes"))
    if row["least_duration_s"]:
        found.append(("may be cut to", formatting.span(row["least_duration_s"])))
    if row["starts_at"]:
        found.append(("booked for", formatting.when(row["starts_at"])))
    if row["most_count"] > row["count"]:
        found.append(("may grow to", str(row["most_count"])))
    return found


def _promise(promise: Any) -> str:
    """Return the start that was promised, and what came of it once that is known."""
    said = f"by {formatting.when(promise['by'])}"
    return said if promise["outcome"] == "open" else f"{said}: {promise['outcome']}"


def request_facts(row: Any) -> None:
    """Print a request with every reason why it waits."""
    output.facts(
        (
            ("request", row["id"]),
            ("state", row["state"]),
            ("flavor", f"{row['count']} × {row['flavor']}"),
            ("time", formatting.span(row["duration_s"])),
            ("team, author", f"{row['team']}, {row['author']}"),
            ("priority", row["priority"]),
            *_wishes(row),
            ("price", formatting.money(row["quote"])),
            ("asked", formatting.when(row["submitted_at"])),
            *((("place in queue", row["position"]),) if row.get("position") else ()),
            *(
                (("likely start", formatting.start(row["estimated_start"], row["estimated_start_by"])),)
                if row["state"] == "queued"
                else ()
            ),
            *((("promised start", _promise(row["promise"])),) if row.get("promise") else ()),
            *(("because", reason["sentence"]) for reason in row["reasons"]),
            *((("decision", f"{_decider(row)}: {row['decision_note']}"),) if row["decided_by"] else ()),
            *(("lease", uid) for uid in row.get("leases", [])),
        )
    )


@guarded
def flavors(as_json: Json = False) -> None:
    """List what can be asked for, with price and how many are free now."""
    with api() as portal:
        rows = portal.get("flavors/")["results"]
    cells = [
        (
            f["slug"], f["name"], f["mode"], formatting.memory(f["memory_mib"]), f"{f['share_milli'] / 10:g} %",
            formatting.UNKNOWN if f["speed_milli"] is None else f"{f['speed_milli'] / 1000:g}",
            f"{f['quota_milli'] / 1000:g}",
            formatting.price(f["price_per_hour"]), formatting.UNKNOWN if f["free"] is None else f["free"],
        )
        for f in rows
    ]  # fmt: skip
    columns = ("FLAVOR", "NAME", "MODE", "MEMORY", "OF A DEVICE", "SPEED", "QUOTA", "PRICE/H", "FREE")
    output.listing(rows, columns, cells, empty="There are no flavors yet.", as_json=as_json)


@guarded
def teams(as_json: Json = False) -> None:
    """List your teams."""
    with api() as portal:
        rows = portal.get("teams/")["results"]
    cells = [(t["slug"], t["name"], t["parent"] or "", t["cost_centre"]) for t in rows]
    output.listing(
        rows,
        ("TEAM", "NAME", "BELOW", "COST CENTRE"),
        cells,
        empty="You are in no team yet.",
        as_json=as_json,
    )


@guarded
def nodes(as_json: Json = False) -> None:
    """List the nodes."""
    with api() as portal:
        rows = portal.get("nodes/")["results"]
    cells = [
        (
            n["name"], n["drain"] or ("cordoned" if n["is_cordoned"] else n["state"]), n["device_count"],
            ", ".join(n["device_models"]), formatting.when(n["last_seen_at"]),
        )
        for n in rows
    ]  # fmt: skip
    output.listing(
        rows,
        ("NODE", "STATE", "DEVICES", "MODEL", "LAST HEARD"),
        cells,
        empty="There are no nodes yet.",
        as_json=as_json,
    )


@guarded
def invoice(
    month: Annotated[str, typer.Option(help="Month as YYYY-MM (default: now).")] = "",
    team: Team = "",
    csv: Annotated[bool, typer.Option("--csv", help="Print the lines as CSV.")] = False,
    pdf: Annotated[Path | None, typer.Option("--pdf", help="Write it as PDF into this file.")] = None,
    as_json: Json = False,
) -> None:
    """Show a team's invoice of a month, line by line."""
    with api() as portal:
        slug = team or only_team(portal)
        at = f"invoices/{_safe(slug)}/{_safe(month or 'this')}/"
        if csv:
            output.out_text(portal.text(at + "csv/"))
            return
        if pdf is not None:
            output.save(portal, at + "pdf/", pdf)
            return
        found = portal.get(at)
    if as_json:
        output.out_json(found)
        return
    cells = [
        (
            line["person"], line["flavor"], line["lease_count"], formatting.span(line["seconds"]),
            formatting.price(line["price_per_hour"]), formatting.money(line["amount"]),
        )
        for line in found["lines"]
    ]  # fmt: skip
    columns = ("PERSON", "FLAVOR", "LEASES", "TIME", "PRICE/H OF A DEVICE", "AMOUNT")
    output.table(columns, cells, empty="Nothing was billed in this month yet.")
    state = "draft" if found["is_draft"] else f"invoice {found['number']}"
    output.facts(
        (
            ("total", f"{formatting.money(found['total'])} ({state})"),
            ("running", formatting.money(found["accruing"])),
        )
    )


def only_team(portal: Any) -> str:
    """Return the one team this person asks for, or stop with what to name."""
    names = portal.get("me/")["teams"] or [t["slug"] for t in portal.get("teams/")["results"]]
    if len(names) == 1:
        return str(names[0])
    raise typer.BadParameter(f"name one of your teams with --team: {', '.join(names) or 'none'}")
