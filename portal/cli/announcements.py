"""``berth announce``: what operators say on every page."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer

from portal.cli import formatting, output, zones
from portal.cli.command import Json, api, guarded

app = typer.Typer(
    help="Read and make announcements: what people read on every page.", no_args_is_help=True,
    rich_markup_mode=None,
)  # fmt: skip
Name = Annotated[str, typer.Argument(metavar="ID", help="As “berth announce list” shows it (ann-…).")]
When = "e.g. 2026-03-01T14:00 (your time zone unless it names one)"


@app.callback()
def group() -> None:
    """Read and make announcements: what people read on every page."""


@app.command("list")
@guarded
def list_announcements(as_json: Json = False) -> None:
    """List what your pages show; for operators all that is on and to come."""
    with api() as portal:
        rows = portal.get("announcements/")["results"]
    cells = [
        (
            row["id"], row["level"], row["team"] or "everybody", formatting.when(row["starts_at"]),
            formatting.when(row["ends_at"]) if row["ends_at"] else "", row["text_en"],
        )
        for row in rows
    ]  # fmt: skip
    columns = ("ID", "LEVEL", "FOR", "FROM", "UNTIL", "TEXT")
    output.listing(rows, columns, cells, empty="Nothing is announced.", as_json=as_json)


@app.command("add")
@guarded
def add_announcement(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="In English, one line.")],
    chinese: Annotated[str, typer.Option("--zh", help="The text in Chinese; default: the English one.")] = "",
    level: Annotated[Literal["info", "warning", "critical"], typer.Option(help="How loudly.")] = "info",
    team: Annotated[
        str, typer.Option(help="Only for this team and those below it; default: everybody.")
    ] = "",
    begin: Annotated[str, typer.Option("--from", help=f"Begin, {When}; default: now.")] = "",
    end: Annotated[str, typer.Option("--until", help="End, written alike; default: until withdrawn.")] = "",
    as_json: Json = False,
) -> None:
    """Say something on every page; open pages show it at once. Operators."""
    body: dict[str, Any] = {"text_en": text, "text_zh": chinese, "level": level}
    body |= {"team": team} if team else {}
    body |= {"starts_at": zones.instant(begin, "--from")} if begin else {}
    body |= {"ends_at": zones.instant(end, "--until")} if end else {}
    with api() as portal:
        made = portal.post("announcements/", body)
    if as_json:
        output.out_json(made)
        return
    output.out(made["id"])
    output.say("Announced.")


@app.command("withdraw")
@guarded
def withdraw_announcement(name: Name) -> None:
    """Show an announcement to nobody any more. Operators."""
    with api() as portal:
        portal.delete(f"announcements/{_safe(name)}/")
    output.say("Withdrawn.")


@app.command("dismiss")
@guarded
def dismiss_announcement(name: Name) -> None:
    """Show an announcement on your own pages no more."""
    with api() as portal:
        portal.post(f"announcements/{_safe(name)}/dismiss/")
    output.say("Dismissed.")


def _safe(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quote(name, safe="") or "-"
