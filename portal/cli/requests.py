"""Commands that ask, wait, extend, release and withdraw."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote as quoted

import typer

from portal.cli import formatting, output
from portal.cli.advice import advice_facts
from portal.cli.command import STILL_WAITING, Json, Team, api, guarded
from portal.cli.labels import Tags, tags_of
from portal.cli.request_options import (
    OPENED_BY,
    Grow,
    Least,
    Nodes,
    Open,
    Preemptible,
    Start,
    Work,
    wishes,
)
from portal.cli.show import lease_facts, request_facts
from portal.cli.templates import template_named

POLL_S = 0.5
REPEATED = (
    "team", "flavor", "count", "duration_s", "priority", "name", "purpose", "load_pattern", "work",
    "is_preemptible", "least_duration_s", "nodes", "most_count", "opens",
)  # fmt: skip
Hours = Annotated[float, typer.Option(min=0, max=8784, help="Hours.")]
Minutes = Annotated[int, typer.Option(min=0, max=527_040, help="Minutes.")]
Seconds = Annotated[int, typer.Option(min=0, max=31_622_400, help="Seconds.")]
Flavor = Annotated[str, typer.Argument(metavar="FLAVOR", help="What to ask for; see “berth flavors”.")]
Count = Annotated[
    int,
    typer.Option(
        "--count", "-n", min=1, max=1000, help="How many, all on one node unless --nodes says else."
    ),
]
Priority = Annotated[str, typer.Option(help="low, normal or high.")]
Name = Annotated[str, typer.Argument(metavar="ID", help="As “berth list” shows it.")]


def length(hours: float, minutes: int, seconds: int) -> int:
    """Return the time asked for in whole seconds, or stop with what to give."""
    total = round(hours * 3600) + minutes * 60 + seconds
    if total < 1:
        raise typer.BadParameter("say for how long with --hours, --minutes or --seconds")
    return total


@guarded
def request(
    flavor: Annotated[
        str, typer.Argument(metavar="[FLAVOR]", help="What to ask for; see “berth flavors”.")
    ] = "",
    hours: Hours = 0,
    minutes: Minutes = 0,
    seconds: Seconds = 0,
    count: Count = 1,
    team: Team = "",
    name: Annotated[str, typer.Option(help="A name to find it again.")] = "",
    purpose: Annotated[str, typer.Option(help="What it is for.")] = "",
    priority: Priority = "normal",
    work: Work = "interactive",
    preemptible: Preemptible = False,
    least: Least = 0,
    start: Start = "",
    nodes: Nodes = 1,
    grow: Grow = 0,
    opens: Open = "",
    project: Annotated[str, typer.Option(help="Code of a project; see “berth project list”.")] = "",
    tags: Tags = [],  # noqa: B006 (typer reads it, nobody changes it)
    template: Annotated[
        str, typer.Option(help="What a template of your team asks for; see “berth template list”.")
    ] = "",
    again: Annotated[bool, typer.Option("--again", help="What you asked for last.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is active.")] = False,
    timeout: Annotated[int, typer.Option(min=1, max=86_400, help="With --wait: seconds to wait.")] = 600,
    as_json: Json = False,
) -> None:
    """Ask for GPU time. With --wait: exit code 0 when active, 4 when still waiting at the end."""
    if sum((bool(flavor), bool(template), again)) != 1:
        raise typer.BadParameter("give a FLAVOR, --template or --again")
    said = {"name": name, "purpose": purpose, "team": team, "opens": opens, "project": project}
    body: dict[str, Any] = {
        **{field: value for field, value in said.items() if value},
        **({"priority": priority} if priority != "normal" else {}),
        **({"count": count} if count != 1 else {}),
        **({"tags": tags_of(tags)} if tags else {}),
        **wishes(work=work, preemptible=preemptible, least=least, start=start, nodes=nodes, grow=grow),
    }
    if flavor or hours or minutes or seconds:
        body["duration_s"] = length(hours, minutes, seconds)
    with api() as portal:
        if flavor:
            body["flavor"] = flavor
        else:
            # What is said here beside it counts in place of what is kept there.
            body = (last_asked(portal) if again else kept_wish(portal, template, team)) | body
        made = portal.post("requests/", body)
        if not wait:
            _told(made, as_json)
            return
        output.say(f"{made['id']} is {made['state']}. Waiting up to {formatting.span(timeout)}.")
        found = _await_active(portal, made["id"], timeout)
    _end_of_wait(found, as_json)


@guarded
def upload(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A CSV file; “-” reads it from stdin.")],
    preview: Annotated[bool, typer.Option("--preview", help="Only say what each line would be.")] = False,
    as_json: Json = False,
) -> None:
    """Ask for all that a CSV file names, or for nothing where one line cannot be had."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}", param_hint="FILE") from error
    with api() as portal:
        found = portal.post(f"requests/bulk/{'preview/' if preview else ''}", {"csv": text})
    if as_json:
        output.out_json(found)
        return
    if not preview:
        for made in found["results"]:
            output.out(made["id"])
        output.say(f"{len(found['results'])} asked for.")
        return
    cells = [
        (
            row["line"], row["flavor"], row["team"], formatting.money(row["quote"]) if row["quote"] else "",
            "; ".join(row["faults"]) or row["state"],
        )
        for row in found["lines"]
    ]  # fmt: skip
    output.table(("LINE", "FLAVOR", "TEAM", "PRICE", "STATE"), cells, empty="")
    if not found["is_ready"]:
        raise typer.Exit(1)


def last_asked(portal: Any) -> dict[str, Any]:
    """Return what the person asked for last, as a body to ask again; a booked start is not repeated."""
    me = portal.get("me/")["username"]
    for found in portal.every("requests/", author=me):
        if not found["is_job"]:
            return {name: found[name] for name in REPEATED}
    raise typer.BadParameter("you have asked for nothing yet: name a flavor")


def kept_wish(portal: Any, name: str, team: str) -> dict[str, Any]:
    """Return what a template asks for, as a body to ask for it."""
    found = template_named(portal, name, team)
    return {
        field: found[field] for field in ("team", "flavor", "count", "duration_s", "opens", "is_preemptible")
    }


def _told(made: Any, as_json: bool) -> None:
    if as_json:
        output.out_json(made)
        return
    output.out(made["id"])
    output.say(
        f"{made['state']}; {formatting.money(made['quote'])} for {formatting.span(made['duration_s'])}."
    )


def _await_active(portal: Any, uid: str, timeout: int) -> Any:
    """Return the lease once active, else the request as it stands when time is up or it will not start."""
    until = time.monotonic() + timeout
    while True:
        asked = portal.get(f"requests/{uid}/")
        for lease_uid in asked["leases"][:1]:
            lease = portal.get(f"leases/{lease_uid}/")
            if all(part["state"] == "active" for part in lease["parts"] if not part["is_extra"]):
                return _first_part(portal, lease)
        if asked["state"] not in ("awaiting_approval", "queued", "granted") or time.monotonic() >= until:
            return asked
        time.sleep(min(POLL_S, max(0.0, until - time.monotonic())))


def _first_part(portal: Any, lease: Any) -> Any:
    """Return the lease that a gang is entered by, with how to connect."""
    uid = lease["parts"][0]["id"]
    found = lease if uid == lease["id"] else portal.get(f"leases/{uid}/")
    found["access"] = portal.get(f"leases/{uid}/access/")
    return found


def _end_of_wait(found: Any, as_json: bool) -> None:
    is_lease = found["id"].startswith("lse-")
    if as_json:
        output.out_json(found)
    elif is_lease:
        lease_facts(found)
    else:
        request_facts(found)
    if is_lease:
        if found["opens"] in OPENED_BY:
            output.say(f"Open it with: {OPENED_BY[found['opens']].format(lease=found['id'])}")
        return
    if found["state"] in ("awaiting_approval", "queued", "granted"):
        output.say("It still waits; it keeps its place. “berth show” tells when it starts.")
        raise typer.Exit(STILL_WAITING)
    output.say(f"It will not start: {found['state']}.")
    raise typer.Exit(1)


@guarded
def quote(
    flavor: Flavor,
    hours: Hours = 0,
    minutes: Minutes = 0,
    seconds: Seconds = 0,
    count: Count = 1,
    team: Team = "",
    priority: Priority = "normal",
    work: Work = "interactive",
    preemptible: Preemptible = False,
    least: Least = 0,
    start: Start = "",
    nodes: Nodes = 1,
    grow: Grow = 0,
    as_json: Json = False,
) -> None:
    """Say what a request would cost and when it would start. Changes nothing."""
    body: dict[str, Any] = {
        "flavor": flavor, "duration_s": length(hours, minutes, seconds), "count": count,
        **wishes(work=work, preemptible=preemptible, least=least, start=start, nodes=nodes, grow=grow),
    }  # fmt: skip
    with api() as portal:
        found = portal.post("quote/", {**body, "priority": priority, **({"team": team} if team else {})})
    if as_json:
        output.out_json(found)
        return
    starts = "now" if found["is_now"] else formatting.start(found["starts_at"], found["starts_by"])
    output.facts(
        (
            ("team", found["team"]),
            (
                "price",
                f"{formatting.money(found['price'])} ({formatting.price(found['price_per_hour'])} an hour)",
            ),
            *(
                (
                    "discount",
                    f"{one['name']}, {one['percent']:g} % less ({formatting.money(found['usual_price'])} before)",
                )
                for one in found["discounts"]
            ),
            *((("minimum charge", formatting.price(found["minimum"])),) if found["minimum"] else ()),
            *((("electricity", _electricity(found["electricity"])),) if found["electricity"] else ()),
            ("start", "never" if found["is_impossible"] else starts),
            *((("budget", found["budget"]["sentence"]),) if found["budget"] else ()),
            *((("wallet", _wallet(found["wallet"])),) if found["wallet"] else ()),
            *(advice_facts(found["advice"]) if (found.get("advice") or {}).get("suggested") else ()),
            *(("because", reason["sentence"]) for reason in found["reasons"]),
            *(
                (
                    "or",
                    f"{offer['count']} × {offer['flavor']} for {formatting.span(offer['duration_s'])}"
                    f"{', preemptible' if offer['is_preemptible'] else ''}{', booked' if offer['booked_at'] else ''}:"
                    f" {'now' if offer['is_now'] else formatting.start(offer['starts_at'], offer['starts_by'])},"
                    f" {formatting.money(offer['price'])}",
                )
                for offer in found["offers"]
            ),
        )
    )


@guarded
def release(
    names: Annotated[list[str], typer.Argument(metavar="ID...", help="Leases to end now.")],
    as_json: Json = False,
) -> None:
    """End leases now; the money clock stops at once."""
    with api() as portal:
        done = [portal.post(f"leases/{_part(name)}/release/") for name in names]
    if as_json:
        output.out_json(done)
        return
    for row in done:
        output.say(f"{row['id']} is {row['state']}; it cost {formatting.money(row['cost_so_far'])}.")


@guarded
def extend(
    name: Name, hours: Hours = 0, minutes: Minutes = 0, seconds: Seconds = 0, as_json: Json = False
) -> None:
    """Give an active lease more time."""
    extra = length(hours, minutes, seconds)
    with api() as portal:
        found = portal.post(f"leases/{_part(name)}/extend/", {"extra_s": extra})
    if as_json:
        output.out_json(found)
        return
    if found.get("extension"):
        until = formatting.when(found["extension"]["until"])
        output.say(f"{found['id']} waits for approval to run until {until}; as yet it ends as before.")
        return
    output.say(f"{found['id']} now ends {formatting.when(found['not_after'])}.")


@guarded
def grow(
    name: Name,
    most: Annotated[
        int, typer.Argument(min=1, max=1000, help="Up to how many in all; its own number stops it.")
    ],
    as_json: Json = False,
) -> None:
    """Say how far an elastic request may grow from now on."""
    with api() as portal:
        found = portal.post(f"requests/{_part(name)}/growth/", {"most_count": most})
    if as_json:
        output.out_json(found)
        return
    is_over = found["most_count"] <= found["count"]
    output.say(f"{found['id']} {'grows no more' if is_over else 'may grow to ' + str(found['most_count'])}.")


Waiting = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="A request (req-…), a lease to extend (lse-…), a reservation (rsv-…), a workshop (wks-…).",
    ),
]
KINDS = {
    "req": "requests/{}/",
    "lse": "leases/{}/extension/",
    "rsv": "reservations/{}/",
    "wks": "workshops/{}/",
}


@guarded
def approve(
    name: Waiting,
    note: Annotated[str, typer.Option(help="What whoever asked will read.")] = "",
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, max=1000, help="Let a request have only so many units.")
    ] = 0,
    hours: Annotated[
        float, typer.Option(min=0, max=8784, help="Let a request run for only so many hours.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Approve what waits for your decision, a request also with less than it asks for."""
    less = {"count": count} if count else {}
    less |= {"duration_s": round(hours * 3600)} if hours else {}
    if less and not name.startswith("req-"):
        raise typer.BadParameter("only a request (req-…) can be approved with less", param_hint="ID")
    _decide(name, "approve", note, as_json, **less)


@guarded
def reject(
    name: Waiting,
    note: Annotated[str, typer.Option(help="Why; whoever asked will read it.")],
    as_json: Json = False,
) -> None:
    """Turn down what waits for your decision, with a reason."""
    _decide(name, "reject", note, as_json)


def _decide(name: str, verdict: str, note: str, as_json: bool, **less: int) -> None:
    kind = KINDS.get(name.partition("-")[0])
    if kind is None:
        raise typer.BadParameter(
            "name a request (req-…), a lease (lse-…), a reservation (rsv-…) or a workshop (wks-…)"
        )
    with api() as portal:
        found = portal.post(f"{kind.format(_part(name))}{verdict}/", {"note": note, **less})
    if as_json:
        output.out_json(found)
        return
    if verdict == "approve" and found.get("state") == "awaiting_approval":
        output.say(f"{found['id']}: approved by you, a second person approves it too.")
        return
    output.say(f"{found['id']}: {'approved' if verdict == 'approve' else 'rejected'}.")


@guarded
def withdraw(name: Name, as_json: Json = False) -> None:
    """Withdraw a request that has not started."""
    with api() as portal:
        found = portal.post(f"requests/{_part(name)}/withdraw/")
    if as_json:
        output.out_json(found)
        return
    output.say(f"{found['id']} is {found['state']}.")


def _part(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quoted(name, safe="") or "-"


def _electricity(found: dict[str, Any]) -> str:
    """Return what electricity would cost beside the price."""
    how = "at most" if found["is_most"] else "probably"
    return f"{how} {formatting.money(found['amount'])} more ({found['kwh']:,.3f} kWh)"


def _wallet(found: dict[str, Any]) -> str:
    hold, balance = formatting.money(found["hold"]), formatting.money(found["balance"])
    return f"{hold} of {balance} would be held ({found['team']})"
