"""``berth quota``, ``cohort`` and ``priority``: what a team may have, lends and borrows, and its priority boosts."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output, zones
from portal.cli.command import Json, api, guarded
from portal.cli.policies import told_for_whom

MILLI = 1000
quota = typer.Typer(help="See and set a team's quota.", no_args_is_help=True, rich_markup_mode=None)
cohort = typer.Typer(
    help="See and change cohorts: teams that lend each other.", no_args_is_help=True, rich_markup_mode=None
)
priority = typer.Typer(help="Let a team go first for a time.", no_args_is_help=True, rich_markup_mode=None)
Slug = Annotated[str, typer.Argument(metavar="TEAM", help="Slug of the team.")]
Key = Annotated[int, typer.Argument(metavar="ID", min=1, help="As the list shows it.")]
Devices = Annotated[float | None, typer.Option(min=0, max=1_000_000, help="Devices; left out: as it is.")]


@quota.command("show")
@guarded
def show_quota(slug: Slug, as_json: Json = False) -> None:
    """Show a team's guarantee, ceiling, use, lending limit, cohort and limits."""
    with api() as portal:
        found = portal.get(f"teams/{_safe(slug)}/quota/")
    if as_json:
        output.out_json(found)
        return
    _quota_facts(found)


@quota.command("set")
@guarded
def set_quota(
    slug: Slug,
    guaranteed: Devices = None,
    ceiling: Devices = None,
    no_ceiling: Annotated[bool, typer.Option("--unbounded", help="No ceiling of its own.")] = False,
    lending: Devices = None,
    lend_all: Annotated[bool, typer.Option("--all", help="Lend all it does not use.")] = False,
    cohort_id: Annotated[int | None, typer.Option("--cohort", min=1, help="Put it into this cohort.")] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Take it out of its cohort.")] = False,
    run_hours: Annotated[
        float | None, typer.Option(min=0, max=270_000, help="Hours one lease runs at most; 0: no limit.")
    ] = None,
    month_hours: Annotated[
        float | None, typer.Option(min=0, max=100_000_000, help="GPU-hours of a month; 0: no limit.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(min=0, max=900_000, help="GiB of device memory held at once; 0: no limit.")
    ] = None,
    dry: Annotated[bool, typer.Option("--preview", help="Only say whom it would affect.")] = False,
    as_json: Json = False,
) -> None:
    """Set a team's quota in devices; what is left out stays as it is."""
    path = f"teams/{_safe(slug)}/quota/"
    with api() as portal:
        was = portal.get(path)
        body: dict[str, Any] = {
            "guaranteed_milli": was["guaranteed_milli"] if guaranteed is None else round(guaranteed * MILLI),
            "ceiling_milli": was["ceiling_milli"] if ceiling is None else round(ceiling * MILLI),
        }
        if no_ceiling:
            body["ceiling_milli"] = None
        if lend_all or lending is not None:
            body["lending_milli"] = None if lend_all or lending is None else round(lending * MILLI)
        if alone or cohort_id is not None:
            body["cohort_id"] = None if alone else cohort_id
        if run_hours is not None:
            body["most_duration_s"] = round(run_hours * 3600) or None
        if month_hours is not None:
            body["gpu_seconds_a_month"] = round(month_hours * 3600) or None
        if memory is not None:
            body["most_memory_mib"] = round(memory * 1024) or None
        if dry:
            told_for_whom(portal.post(f"{path}preview/", body)["preview"], as_json)
            return
        found = portal.put(path, body, match=f'"{was["version"]}"')
    if as_json:
        output.out_json(found)
        return
    _quota_facts(found)


@cohort.command("list")
@guarded
def list_cohorts(as_json: Json = False) -> None:
    """List cohorts with their teams, what is borrowed and what could be lent."""
    with api() as portal:
        rows = portal.get("cohorts/")["results"]
    cells = [
        (
            row["id"], row["name"], member["team"], _devices(member["guaranteed_milli"]),
            _devices(member["used_milli"]), _devices(member["borrowed_milli"]), _devices(member["lendable_milli"]),
        )
        for row in rows
        for member in row["members"] or [dict.fromkeys(NO_MEMBER, 0) | {"team": "no team yet"}]
    ]  # fmt: skip
    columns = ("ID", "COHORT", "TEAM", "GUARANTEED", "IN USE", "BORROWS", "COULD LEND")
    output.listing(rows, columns, cells, empty="There are no cohorts yet.", as_json=as_json)


@cohort.command("create")
@guarded
def create_cohort(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")], as_json: Json = False
) -> None:
    """Make a cohort; put teams into it with “berth quota set --cohort”."""
    with api() as portal:
        found = portal.post("cohorts/", {"name": name})
    _told_cohort(found, as_json)


@cohort.command("rename")
@guarded
def rename_cohort(
    key: Key,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its new name.")],
    as_json: Json = False,
) -> None:
    """Give a cohort another name."""
    with api() as portal:
        found = portal.put(f"cohorts/{key}/", {"name": name})
    _told_cohort(found, as_json)


@cohort.command("remove")
@guarded
def remove_cohort(key: Key) -> None:
    """Remove a cohort that no team is in."""
    with api() as portal:
        portal.delete(f"cohorts/{key}/")
    output.say(f"Cohort {key} is gone.")


@priority.command("list")
@guarded
def list_grants(slug: Slug, as_json: Json = False) -> None:
    """List what lets a team go first, its own and from teams above."""
    with api() as portal:
        rows = portal.get(f"teams/{_safe(slug)}/priority/")["results"]
    cells = [
        (
            row["id"], row["team"], f"+{row['steps']}", row["state"].replace("_", " "),
            formatting.when(row["starts_at"]), formatting.when(row["ends_at"]), row["reason"],
        )
        for row in rows
    ]  # fmt: skip
    columns = ("ID", "TEAM", "STEPS", "STATE", "FROM", "UNTIL", "REASON")
    output.listing(rows, columns, cells, empty="It never had a priority boost.", as_json=as_json)


@priority.command("give")
@guarded
def give(
    slug: Slug,
    reason: Annotated[str, typer.Option(help="Why; others wait longer for it.")],
    until: Annotated[str, typer.Option(help="Until when, like 2026-01-31T12:00Z.")],
    begin: Annotated[str, typer.Option("--from", help="From when (default: now).")] = "",
    steps: Annotated[int, typer.Option(min=1, max=100, help="How many steps.")] = 10,
    as_json: Json = False,
) -> None:
    """Let a team and those below it go first for a time."""
    body = {
        "steps": steps,
        "starts_at": _instant(begin, "--from"),
        "ends_at": _instant(until, "--until"),
        "reason": reason,
    }
    with api() as portal:
        found = portal.post(f"teams/{_safe(slug)}/priority/", body)
    _told_grant(found, as_json)


@priority.command("revoke")
@guarded
def revoke(slug: Slug, key: Key, as_json: Json = False) -> None:
    """End a team's priority now."""
    with api() as portal:
        found = portal.post(f"teams/{_safe(slug)}/priority/{key}/revoke/")
    _told_grant(found, as_json)


NO_MEMBER = ("guaranteed_milli", "used_milli", "borrowed_milli", "lendable_milli")


def _safe(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quote(name, safe="") or "-"


def _devices(milli: int | None) -> str:
    return "-" if milli is None else f"{milli / MILLI:g}"


def _instant(text: str, option: str) -> str:
    """Return an instant as the API reads it, now for nothing; local time where no offset is named."""
    from datetime import UTC, datetime

    if not text:
        return datetime.now(tz=UTC).isoformat()
    return zones.instant(text, option)


def _quota_facts(row: Any) -> None:
    ceiling, lending = row["ceiling_milli"], row["lending_milli"]
    output.facts(
        (
            ("guaranteed", _devices(row["guaranteed_milli"])),
            ("ceiling", "none" if ceiling is None else _devices(ceiling)),
            ("in use", _devices(row["used_milli"])),
            ("cohort", f"{row['cohort']['id']} {row['cohort']['name']}" if row["cohort"] else "none"),
            ("lends", "all it does not use" if lending is None else f"at most {_devices(lending)}"),
            ("GPU-hours", _used_of(row["used_gpu_seconds"], row["gpu_seconds_a_month"], 3600, "this month")),
            ("memory", _used_of(row["held_memory_mib"], row["most_memory_mib"], 1024, "GiB held")),
            (
                "longest run",
                formatting.span(row["most_duration_s"]) if row["most_duration_s"] else "no limit",
            ),
        )
    )


def _used_of(used: int | None, limit: int | None, unit: int, what: str) -> str:
    if limit is None:
        return "no limit"
    return f"{(used or 0) / unit:,.6g} of {limit / unit:,.6g} {what}"


def _told_cohort(row: Any, as_json: bool) -> None:
    if as_json:
        output.out_json(row)
        return
    output.out(row["id"])
    output.say(f"Cohort {row['id']} is called {row['name']}.")


def _told_grant(row: Any, as_json: bool) -> None:
    if as_json:
        output.out_json(row)
        return
    output.out(row["id"])
    said = f"from {formatting.when(row['starts_at'])} until {formatting.when(row['ends_at'])}"
    output.say(f"+{row['steps']} for {row['team']} {said}: {row['state'].replace('_', ' ')}.")
