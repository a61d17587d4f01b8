"""``berth import``: files of finance, previewed and then applied as they were previewed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded

app = typer.Typer(help="Import figures from elsewhere.", no_args_is_help=True, rich_markup_mode=None)
File = Annotated[str, typer.Argument(metavar="FILE", help="A CSV file; “-” reads it from stdin.")]
Apply = Annotated[
    str, typer.Option("--apply", metavar="DIGEST", help="Apply the file whose preview gave this digest.")
]
Id = Annotated[str, typer.Argument(metavar="ID", help="As “berth import list” shows it.")]


@app.command("balances")
@guarded
def balances(file: File, digest: Apply = "", as_json: Json = False) -> None:
    """Preview a file of opening balances, or apply the one that was previewed. Finance."""
    found = _sent("balances", file, digest)
    if digest or as_json:
        _told(found, as_json)
        return
    cells = [
        (row["line"], row["team"] or "?", *(_amount(row[name]) for name in ("was", "balance", "new", "used")),
         "; ".join(row["faults"]) or "ready")
        for row in found["lines"]
    ]  # fmt: skip
    output.table(("LINE", "TEAM", "BEFORE", "BALANCE", "AFTER", "USED", "STATE"), cells, empty="")
    output.say(f"Together {_amount(found['balance'])} for wallets, {_amount(found['used'])} used.")
    _next(found, "balances", file)


@app.command("usage")
@guarded
def usage(file: File, digest: Apply = "", as_json: Json = False) -> None:
    """Preview a file of usage of devices outside Berth, or bill the one that was previewed. Finance."""
    found = _sent("usage", file, digest)
    if digest or as_json:
        _told(found, as_json)
        return
    cells = [
        (row["line"], row["source_name"], row["external_id"], row["team"] or "?", row["description"],
         _amount(row["amount"]), "; ".join(row["faults"]) or "ready")
        for row in found["lines"]
    ]  # fmt: skip
    output.table(("LINE", "SOURCE", "ID", "TEAM", "USAGE", "AMOUNT", "STATE"), cells, empty="")
    output.say(f"Together {_amount(found['amount'])}.")
    _next(found, "usage", file)


@app.command("list")
@guarded
def list_imports(as_json: Json = False) -> None:
    """List what was imported, newest first. Finance."""
    with api() as portal:
        rows = list(portal.every("imports/"))
    cells = [
        (row["id"], formatting.when(row["made_at"]), row["kind"], row["month"], row["rows"], row["person"], _state(row))
        for row in rows
    ]  # fmt: skip
    columns = ("ID", "WHEN", "KIND", "MONTH", "ROWS", "BY", "STATE")
    output.listing(rows, columns, cells, empty="Nothing was imported yet.", as_json=as_json)


@app.command("undo")
@guarded
def undo(uid: Id, as_json: Json = False) -> None:
    """Reverse all rows of an import, as long as its month is open. Finance."""
    with api() as portal:
        made = portal.post(f"imports/{quote(uid, safe='') or '-'}/undo/")
    if as_json:
        output.out_json(made)
        return
    output.say(f"{made['reverses']} is undone by {made['id']}.")


def _sent(kind: str, file: str, digest: str) -> Any:
    """Send a file to be previewed, or to be applied where there is a digest."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}", param_hint="FILE") from error
    with api() as portal:
        if digest:
            return portal.post(f"imports/{kind}/", {"csv": text, "digest": digest})
        return portal.post(f"imports/{kind}/preview/", {"csv": text})


def _told(found: Any, as_json: bool) -> None:
    """Say what was imported."""
    if as_json:
        output.out_json(found)
        if found.get("is_ready") is False:
            raise typer.Exit(1)
        return
    output.out(found["id"])
    output.say(f"{found['rows']} rows are imported into {found['month']}.")


def _next(found: Any, kind: str, file: str) -> None:
    """Say how to apply what was previewed; leave with 1 where it cannot be."""
    if not found["is_ready"]:
        output.say("Nothing was written: correct the rows that say why.")
        raise typer.Exit(1)
    output.say(f"Nothing is written yet: berth import {kind} {file} --apply {found['digest']}")


def _amount(value: Any) -> str:
    return formatting.money(value) if value else ""


def _state(row: Any) -> str:
    if row["reverses"]:
        return f"undoes {row['reverses']}"
    return f"undone by {row['reversed_by']}" if row["reversed_by"] else "imported"
