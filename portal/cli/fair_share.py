"""``berth team``: a team's standing by fair share."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded
from portal.cli.show import only_team

app = typer.Typer(help="Look at a team.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def team() -> None:
    """Look at a team."""


@app.command("standing")
@guarded
def standing(
    slug: Annotated[
        str, typer.Argument(metavar="TEAM", help="Slug of the team (default: your only one).")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show what a team is entitled to and has used, and who goes first by fair share."""
    with api() as portal:
        found = portal.get(f"teams/{quote(slug or only_team(portal), safe='') or '-'}/standing/")
    if as_json:
        output.out_json(found)
        return
    output.facts(
        (
            ("team", found["team"]),
            ("order", found["order"] + ("" if found["counts"] else " (does not weigh use)")),
            ("place", f"{found['rank']} of {found['siblings']}"),
            ("entitled to", _percent(found["share_milli"])),
            ("has used", _percent(found["part_milli"])),
            ("used ÷ share", _ratio(found["ratio_milli"])),
            (
                "use",
                f"{_hours(found['used_milli_s'])} GPU-hours, halved every {formatting.span(found['half_life_s'])}",
            ),
            ("settled", formatting.when(found["as_of"])),
        )
    )
    cells = [
        (
            row["username"], f"{row['rank']} of {row['siblings']}", _hours(row["used_milli_s"]),
            _percent(row["part_milli"]), _ratio(row["ratio_milli"]),
        )
        for row in found["people"]
    ]  # fmt: skip
    columns = ("PERSON", "PLACE", "GPU-HOURS", "OF THE TEAM'S", "USED ÷ SHARE")
    output.table(columns, cells, empty="Nobody of this team has used anything yet, as far as you may see.")


def _percent(milli: Any) -> str:
    return formatting.UNKNOWN if milli is None else f"{milli / 10:g} %"


def _ratio(milli: Any) -> str:
    return formatting.UNKNOWN if milli is None else f"{milli / 1000:.2f}"


def _hours(milli_s: int) -> str:
    return f"{milli_s / 3_600_000:.1f}"
