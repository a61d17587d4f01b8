"""``berth node``: what operators do about a node's power."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import screen, words
from portal.cli.run import Json, api, guarded

app = typer.Typer(help="Let nodes sleep and wake them.", no_args_is_help=True, rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="NAME", help="As “berth nodes” shows it.")]


@app.callback()
def node() -> None:
    """Let nodes sleep and wake them."""


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
    until: Annotated[str, typer.Option(help="Keep it awake until then (RFC 3339); default: an hour.")] = "",
    as_json: Json = False,
) -> None:
    """Wake a node and keep it awake for a while."""
    with api() as portal:
        _show(portal.post(f"nodes/{_part(name)}/wake/", {"until": until} if until else {}), as_json)


@app.command("sleep")
@guarded
def sleep(name: Name, as_json: Json = False) -> None:
    """Let a node sleep as soon as it holds nothing, until it is needed."""
    with api() as portal:
        _show(portal.post(f"nodes/{_part(name)}/sleep/"), as_json)


def _show(found: Any, as_json: bool) -> None:
    if as_json:
        screen.out_json(found)
        return
    kept = found["kept_awake_until"]
    saved = "unknown" if found["saved_wh"] is None else f"{found['saved_wh'] / 1000:.2f} kWh"
    screen.facts(
        (
            ("node", found["node"]),
            ("power", found["power"] or "unknown"),
            ("wanted", found["desired"]),
            *((("kept awake until", words.when(kept)),) if kept else ()),
            *((("may sleep", "at any time, until it is needed"),) if found["may_sleep_any_time"] else ()),
            *((("said", found["note"]),) if found["note"] else ()),
            ("holds nothing since", words.when(found["idle_since"]) if found["idle_since"] else "-"),
            ("waking took", "unknown" if found["wake_s"] is None else words.span(found["wake_s"])),
            ("asleep in 30 days", words.span(found["asleep_s"])),
            ("saved by that", saved),
        )
    )


def _part(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quote(name, safe="") or "-"
