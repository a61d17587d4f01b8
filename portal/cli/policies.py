"""``berth policy``: the rules of a cycle, kept in a file or looked at. Operators."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded

app = typer.Typer(help="See and change the rules of a cycle.", no_args_is_help=True, rich_markup_mode=None)
Version = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="As “berth policy list” shows it.")]
File = Annotated[str, typer.Argument(metavar="FILE", help="Rules as JSON; “-” reads them from stdin.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Note = Annotated[str, typer.Option(help="Why; it stands in the list of versions.")]
MOST_BYTES = 1_000_000


@app.callback()
def group() -> None:
    """See and change the rules of a cycle."""


@app.command("list")
@guarded
def list_versions(as_json: Json = False) -> None:
    """List the versions, newest first."""
    with api() as portal:
        rows = list(portal.every("policies/"))
    cells = [
        (
            row["version"], row["name"], _state(row), row["made_by"] or "Berth",
            formatting.when(row["created_at"]), row["note"],
        )
        for row in rows
    ]  # fmt: skip
    columns = ("VERSION", "NAME", "STATE", "BY", "MADE", "NOTE")
    output.listing(
        rows, columns, cells, empty="There is no version yet: the built-in rules decide.", as_json=as_json
    )


@app.command()
@guarded
def cycles(
    most: Annotated[int, typer.Option(min=1, max=200, help="How many, newest first.")] = 20,
    every: Annotated[bool, typer.Option("--every", help="Also those that decided nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Show what the last scheduling cycles decided and where their time went."""
    with api() as portal:
        found = portal.get("cycles/")
    if as_json:
        output.out_json(found)
        return
    rows = found["results" if every else "decided"]
    if rows is None:
        output.say("The record of cycles cannot be read: Redis does not answer. Cycles go on without it.")
        return
    cells = [
        (
            formatting.when(row["at"]), f"{row['policy']} v{row['policy_version']}", row["seen"], row["granted"],
            row["waiting"], row["preempted"], f"{row['total_ms']:.1f}",
            " ".join(f"{step['step']} {step['took_ms']:.1f}" for step in row["steps"]),
        )
        for row in rows[:most]
    ]  # fmt: skip
    columns = ("WHEN", "POLICY", "SEEN", "GRANTED", "WAITING", "PREEMPTED", "MS", "STEPS")
    output.table(columns, cells, empty="No cycle yet: one runs when a request waits.")


@app.command()
@guarded
def show(version: Version, as_json: Json = False) -> None:
    """Print the rules of a version as JSON, ready to be edited and saved."""
    with api() as portal:
        found = portal.get(f"policies/{version}/")
    if as_json:
        output.out_json(found)
        return
    output.say(f"Version {version} “{found['name']}”, {_state(found)}. {found['note']}")
    for fault in found["faults"]:
        output.say(f"  {fault['field']}: {fault['detail']}")
    output.out_json(found["body"])


@app.command()
@guarded
def diff(version: Version, other: Version, as_json: Json = False) -> None:
    """Show the rules in which two versions differ."""
    with api() as portal:
        rows = portal.get(f"policies/{version}/diff/{other}/")["results"]
    if as_json:
        output.out_json(rows)
        return
    _changes(rows)


@app.command()
@guarded
def check(
    file: File,
    preview: Annotated[
        bool, typer.Option("--preview", help="Also try the rules on those who wait now.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what is wrong with rules, or what they would change. Saves nothing."""
    body = read_json(file)
    with api() as portal:
        found = portal.post("policies/check/", {"body": body, "preview": preview})
    if as_json:
        output.out_json(found)
        return
    _changes(found["changes"])
    if not preview:
        return
    told_for_whom(found["preview"], as_json=False)


def told_for_whom(tried: Any, as_json: bool) -> None:
    """Print whom other rules, or another quota, would affect; None is a trial without a snapshot."""
    if as_json:
        output.out_json(tried)
        return
    if tried is None:
        output.say("There is no snapshot of the queue to try it on yet.")
        return
    counts = tried["counts"]
    output.facts(
        (
            ("looked at", f"{tried['looked_at']} of {tried['waiting']} waiting"),
            ("would start now", counts["would_start"]),
            ("would no longer start", counts["would_not_start"]),
            ("move up", counts["sooner"]),
            ("move down", counts["later"]),
            ("blocked by quota", counts["blocked"]),
            ("leases told to go", f"{tried['preemptions_was']} → {tried['preemptions_now']}"),
        )
    )
    if tried["teams"]:
        keys = ("team", "would_start", "would_not_start", "sooner", "later", "blocked")
        cells = [tuple(row[key] for key in keys) for row in tried["teams"]]
        output.table(("TEAM", "START", "NO LONGER", "UP", "DOWN", "BLOCKED"), cells, empty="")
    for row in tried["would_preempt"]:
        output.say(f"  {row['lease']} {row['name']} ({row['team']}) would be told to go.")


@app.command()
@guarded
def save(
    file: File,
    name: Annotated[str, typer.Option(help="Name of the rules (default: as in the active version).")] = "",
    note: Note = "",
    draft: Annotated[bool, typer.Option("--draft", help="Keep it, but do not activate it.")] = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Save rules as a new version and activate it; on a terminal it first says for whom it changes what."""
    body = read_json(file)
    with api() as portal:
        active = _active(portal)
        if not draft:
            _confirm(portal, body, yes)
        given = {
            "name": name or active["name"], "body": body, "note": note,
            "based_on": active["version"], "is_active": not draft,
        }  # fmt: skip
        found = portal.post("policies/", given)
    _told(found, as_json)


@app.command()
@guarded
def activate(version: Version, yes: Yes = False, as_json: Json = False) -> None:
    """Activate a stored version, for instance a draft."""
    with api() as portal:
        _confirm(portal, portal.get(f"policies/{version}/")["body"], yes)
        found = portal.post(f"policies/{version}/activate/", {"based_on": _active(portal)["version"]})
    _told(found, as_json)


@app.command()
@guarded
def rollback(version: Version, note: Note = "", yes: Yes = False, as_json: Json = False) -> None:
    """Go back to the rules of an old version; they become a new one."""
    with api() as portal:
        _confirm(portal, portal.get(f"policies/{version}/")["body"], yes)
        given = {"based_on": _active(portal)["version"], "note": note}
        found = portal.post(f"policies/{version}/roll-back/", given)
    _told(found, as_json)


def _confirm(portal: Any, body: Any, yes: bool) -> None:
    """On a terminal, say what the rules change and for whom, and ask; scripts are not asked."""
    if yes or not sys.stdin.isatty():
        return
    from portal.cli.client import RefusedError

    try:
        found = portal.post("policies/check/", {"body": body, "preview": True})
    except RefusedError as no:  # an older version may name what is offered no more, and may decide again
        output.say(str(no))
    else:
        _changes(found["changes"])
        told_for_whom(found["preview"], as_json=False)
    typer.confirm("Activate these rules?", abort=True, err=True)


def _active(portal: Any) -> dict[str, Any]:
    """Return the active version, or what stands for the built-in rules."""
    for row in portal.every("policies/"):
        if row["is_active"]:
            return dict(row)
    return {"version": 0, "name": "default"}


def read_json(file: str) -> Any:
    """Return decoded JSON of a file, or stop with what is wrong with it."""
    try:
        text = sys.stdin.read(MOST_BYTES) if file == "-" else Path(file).read_text(encoding="utf-8")
        return json.loads(text)
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror}", param_hint="FILE") from error
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{file} is not JSON: {error}", param_hint="FILE") from error


def _state(row: Any) -> str:
    if row["is_active"]:
        return "active"
    return "replaced" if row["activated_at"] else "draft"


def _told(row: Any, as_json: bool) -> None:
    if as_json:
        output.out_json(row)
        return
    output.out(row["version"])
    output.say(f"Version {row['version']} “{row['name']}” is {_state(row)}.")


def _changes(rows: Any) -> None:
    cells = [(row["rule"], "; ".join(row["was"]), "; ".join(row["now"])) for row in rows]
    output.table(("RULE", "WAS", "NOW"), cells, empty="Nothing differs.")
