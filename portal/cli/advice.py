"""``berth advice``: whether another size would have done for less."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded

app = typer.Typer(
    help="See whether another size would have done for less, and dismiss such advice.", no_args_is_help=True,
    rich_markup_mode=None,
)  # fmt: skip
Flavor = Annotated[str, typer.Argument(metavar="FLAVOR", help="Short name of a flavor.")]


@app.command("show")
@guarded
def show_advice(
    lease: Annotated[str, typer.Argument(metavar="LEASE", help="A lease (lse-…).")], as_json: Json = False
) -> None:
    """Show what was measured of a lease and which flavor would have done for less."""
    with api() as portal:
        row = portal.get(f"leases/{_safe(lease)}/advice/")
    if as_json:
        output.out_json(row)
        return
    output.facts(advice_facts(row))
    if row["is_dismissed"] and row["suggested"]:
        output.say(
            f"You get no advice about {row['flavor']}; “berth advice restore {row['flavor']}” brings it back."
        )


@app.command("dismiss")
@guarded
def dismiss(flavor: Flavor, as_json: Json = False) -> None:
    """Get no more advice about leases of a flavor, on pages and in quotes."""
    _change(flavor, "dismiss", "You get no more advice about {flavor}.", as_json)


@app.command("restore")
@guarded
def restore(flavor: Flavor, as_json: Json = False) -> None:
    """Get advice about leases of a flavor again."""
    _change(flavor, "restore", "You get advice about {flavor} again.", as_json)


def advice_facts(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Return advice as facts: the sentence, and the saving where there is one."""
    found = [("size", row["sentence"])]
    if row["suggested"]:
        saved = f"{formatting.money(row['saved'])} in {formatting.span(row['seconds'])}"
        found.append(("would do", f"{row['suggested']}, {saved} less"))
    return found


def _change(flavor: str, what: str, said: str, as_json: bool) -> None:
    with api() as portal:
        row = portal.post(f"flavors/{_safe(flavor)}/advice/{what}/", {})
    if as_json:
        output.out_json(row)
        return
    output.say(said.format(flavor=row["flavor"]))


def _safe(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quote(name, safe="") or "-"
