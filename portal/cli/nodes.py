"""``berth node``: what operators do about a node's power, its drain and its key."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import calendar, formatting, output, zones
from portal.cli.command import Json, api, guarded

app = typer.Typer(
    help="Drain nodes, change their keys, let them sleep.", no_args_is_help=True, rich_markup_mode=None
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="As “berth nodes” shows it.")]

SPAN = re.compile(r"(\d{1,5})\s*([mhd])")
UNITS = {"m": 60, "h": 3600, "d": 86_400}
STATES = {
    "draining": "on its way",
    "overdue": "overdue: its time has passed and something is still there",
    "drained": "done",
}


@app.callback()
def node() -> None:
    """Drain nodes, change their keys, let them sleep."""


@app.command("power")
@guarded
def power(name: Name, as_json: Json = False) -> None:
    """Show whether a node sleeps, and what that saved in 30 days."""
    with api() as portal:
        _show(portal.get(f"nodes/{_part(name)}/power/"), as_json)


@app.command("wake")
@guarded
def wake(
    name: Name,
    until: Annotated[
        str, typer.Option(help="Keep it awake until then, e.g. 2026-03-01T14:00; default: an hour.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Wake a node and keep it awake for a while."""
    with api() as portal:
        _show(
            portal.post(
                f"nodes/{_part(name)}/wake/", {"until": zones.instant(until, "--until")} if until else {}
            ),
            as_json,
        )


@app.command("sleep")
@guarded
def sleep(name: Name, as_json: Json = False) -> None:
    """Let a node sleep as soon as it holds nothing, until it is needed."""
    with api() as portal:
        _show(portal.post(f"nodes/{_part(name)}/sleep/"), as_json)


@app.command("drain")
@guarded
def drain(
    name: Name,
    reason: Annotated[str, typer.Option(help="Why; holders and waiting people read it.")] = "",
    by: Annotated[
        str, typer.Option(help=f"When it has to be empty: now, 30m, 4h, 2d, or {calendar.When}.")
    ] = "now",
    preview: Annotated[bool, typer.Option("--preview", help="Only show whom it reaches.")] = False,
    as_json: Json = False,
) -> None:
    """Place nothing new on a node and have its leases end by a time; their holders are told now."""
    if not reason.strip() and not preview:
        raise typer.BadParameter("say why, so that the people it reaches can be told", param_hint="--reason")
    at = {"by": deadline(by, datetime.now(tz=UTC))} if by != "now" else {}
    with api() as portal:
        if preview:
            calendar.show_affected(portal.post(f"nodes/{_part(name)}/drain/preview/", at)["results"], as_json)
            return
        _show_drain(portal.post(f"nodes/{_part(name)}/drain/", {**at, "reason": reason}), as_json)


@app.command("undrain")
@guarded
def undrain(name: Name, as_json: Json = False) -> None:
    """Let a node take work again; leases that still run get their ends back."""
    with api() as portal:
        _show_drain(portal.post(f"nodes/{_part(name)}/undrain/"), as_json)


@app.command("accept")
@guarded
def accept(
    name: Name,
    preview: Annotated[bool, typer.Option("--preview", help="Only show what waits.")] = False,
    as_json: Json = False,
) -> None:
    """Let new and changed devices of a node serve people; says what is new, and which unknown leases end."""
    with api() as portal:
        found = portal.get(f"nodes/{_part(name)}/acceptance/")
        if not (preview or found["is_accepted"]):
            portal.post(f"nodes/{_part(name)}/accept/", {"seen": found["seen"]})
    if as_json:
        output.out_json(found)
        return
    output.facts(_accepted(found, preview))


@app.command("show")
@guarded
def show(name: Name, as_json: Json = False) -> None:
    """Show how far a node's drain is, how old its key is and what its agent is."""
    with api() as portal:
        found = portal.get(f"nodes/{_part(name)}/life/")
        drained = portal.get(f"nodes/{_part(name)}/drain/")
    if as_json:
        output.out_json({**found, "drain": drained})
        return
    output.facts((*_life(found), *_drained(drained)[1:]))


@app.command("rotate-key")
@guarded
def rotate_key(name: Name, as_json: Json = False) -> None:
    """Have a node's agent make a new key, now or when it connects next; leases go on."""
    with api() as portal:
        found = portal.post(f"nodes/{_part(name)}/rotate-key/")
    if as_json:
        output.out_json(found)
        return
    output.facts(_life(found))


def deadline(text: str, now: datetime) -> str:
    """Return a deadline as the API takes it: a time from now such as 30m, 4h or 2d, or an instant."""
    match = SPAN.fullmatch(text.strip().lower())
    if match is None:
        return zones.instant(text, "--by")
    return (now + timedelta(seconds=int(match[1]) * UNITS[match[2]])).isoformat()


def _accepted(found: Any, preview: bool) -> tuple[tuple[str, str], ...]:
    if found["is_accepted"]:
        return (("node", found["node"]), ("waits", "nothing"))
    return (
        ("node", found["node"]),
        *((("state", "later than this database: was it restored?"),) if found["is_ahead"] else ()),
        *((f"device {one['index']}", _device(one)) for one in found["devices"]),
        *(("unknown lease", uid) for uid in found["unknown_leases"]),
        ("accepted", "no, this is a preview" if preview else "yes"),
    )


def _device(one: Any) -> str:
    said = f"{one['model']}, {_memory(one['memory_mib'])}, {one['uuid']}"
    if one["was_model"] is None:
        return f"{said} (new)"
    return f"{said} (was {one['was_model']}, {_memory(one['was_memory_mib'])})"


def _memory(mib: int | None) -> str:
    return "memory unknown" if mib is None else f"{mib} MiB"


def _show_drain(found: Any, as_json: bool) -> None:
    if as_json:
        output.out_json(found)
        return
    output.facts(_drained(found))


def _drained(found: Any) -> tuple[tuple[str, str], ...]:
    if not found["drain"]:
        return (("node", found["node"]), ("drain", "none"))
    left = found["leases"]
    return (
        ("node", found["node"]),
        ("drain", STATES[found["drain"]]),
        ("drain by", formatting.when(found["by"])),
        ("reason", found["reason"]),
        *((("drained since", formatting.when(found["drained_at"])),) if found["drained_at"] else ()),
        ("still there", ", ".join(left) if left else "nothing"),
    )


def _life(found: Any) -> tuple[tuple[str, str], ...]:
    age, asked = found["key_age_s"], found["key_change_asked_at"]
    return (
        ("node", found["node"]),
        ("agent", found["agent_version"] or "unknown"),
        ("holders get in by", found["runtime"] or "unknown"),
        ("key", "none" if age is None else f"{formatting.span(age)} old"),
        *((("new key asked for", formatting.when(asked)),) if asked else ()),
        *((("key can change", "no: the agent is too old"),) if not found["can_change_key"] and age else ()),
        *((("images", _images(found)),) if found["images_mib"] is not None else ()),
        ("leases there", str(found["leases"])),
    )


def _images(found: Any) -> str:
    taken, limit = formatting.memory(found["images_mib"]), found["image_limit_mib"]
    return taken if limit is None else f"{taken} of {formatting.memory(limit)}"


def _show(found: Any, as_json: bool) -> None:
    if as_json:
        output.out_json(found)
        return
    kept = found["kept_awake_until"]
    saved = "unknown" if found["saved_wh"] is None else f"{found['saved_wh'] / 1000:.2f} kWh"
    output.facts(
        (
            ("node", found["node"]),
            ("power", found["power"] or "unknown"),
            ("wanted", found["desired"]),
            *((("kept awake until", formatting.when(kept)),) if kept else ()),
            *((("may sleep", "at any time, until it is needed"),) if found["may_sleep_any_time"] else ()),
            *((("said", found["note"]),) if found["note"] else ()),
            ("holds nothing since", formatting.when(found["idle_since"]) if found["idle_since"] else "-"),
            ("waking took", "unknown" if found["wake_s"] is None else formatting.span(found["wake_s"])),
            ("asleep in 30 days", formatting.span(found["asleep_s"])),
            ("saved by that", saved),
        )
    )


def _part(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quote(name, safe="") or "-"
