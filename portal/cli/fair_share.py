"""``berth team``: make and change teams, and a team's standing by fair share."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded
from portal.cli.show import only_team

app = typer.Typer(help="Make, change and look at teams.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def team() -> None:
    """Make, change and look at teams."""


@app.command("create")
@guarded
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
    parent: Annotated[str, typer.Option(help="Slug of the team above.")],
    slug: Annotated[str, typer.Option(help="Its short name; left out: made from the name.")] = "",
    cost_centre: Annotated[str, typer.Option("--centre", help="Its cost centre.")] = "",
    as_json: Json = False,
) -> None:
    """Make a team below another one. For its admins and operators."""
    with api() as portal:
        body = {"parent": parent, "name": name, "slug": slug, "cost_centre": cost_centre}
        made = portal.post("teams/", body)
    if as_json:
        output.out_json(made)
        return
    output.out(made["slug"])
    output.say(f"{made['name']} is made.")


@app.command("spend")
@guarded
def spend(
    slug: Annotated[
        str, typer.Argument(metavar="TEAM", help="Slug of the team (default: your only one).")
    ] = "",
    as_json: Json = False,
) -> None:
    """Show what a team and those below it spent on each day of this month, and how it will probably end."""
    with api() as portal:
        found = portal.get(f"teams/{quote(slug or only_team(portal), safe='') or '-'}/spend/days/")
    if as_json:
        output.out_json(found)
        return
    cells = [(row["day"], formatting.money(row["spend"])) for row in found["days"]]
    output.table(("DAY", "SPENT"), cells, empty="The month has no day yet.")
    end = found["forecast"]
    output.facts(
        (
            ("budget", formatting.money(found["budget"]) if found["budget"] else "none"),
            (
                "forecast",
                f"{formatting.money(end['low'])} to {formatting.money(end['high'])}"
                if end
                else formatting.UNKNOWN,
            ),
        )
    )


@app.command("set")
@guarded
def change(
    slug: Annotated[str, typer.Argument(metavar="TEAM", help="Slug of the team.")],
    name: Annotated[str | None, typer.Option(help="Its name.")] = None,
    cost_centre: Annotated[str | None, typer.Option("--centre", help="Its cost centre.")] = None,
    approval: Annotated[
        float | None, typer.Option(min=0, help="GPU-hours above which a request needs an approval.")
    ] = None,
    no_approval: Annotated[bool, typer.Option("--unapproved", help="Nothing needs an approval.")] = False,
    second: Annotated[
        float | None,
        typer.Option(
            "--second-approval",
            min=-1,
            help="GPU-hours above which two people approve, one of a team above; -1: one is enough.",
        ),
    ] = None,
    time_out: Annotated[
        float | None,
        typer.Option(min=-1, help="Hours a request waits for a decision; -1: until somebody decides."),
    ] = None,
    then: Annotated[
        str | None, typer.Option(help="What becomes of it when nobody decides: remind, reject or approve.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Change a team's name, cost centre or rules of approvals; what is left out stays as it is."""
    body: dict[str, Any] = {}
    if name is not None:
        body["name"] = name
    if cost_centre is not None:
        body["cost_centre"] = cost_centre
    if approval is not None:
        body["approval_above_gpu_seconds"] = round(approval * 3600)
    if no_approval:
        body["approval_above_gpu_seconds"] = None
    if second is not None:
        body["second_approval_above_gpu_seconds"] = None if second < 0 else round(second * 3600)
    if time_out is not None:
        body["approval_time_out_s"] = None if time_out < 0 else round(time_out * 3600)
    if then is not None:
        body["approval_time_out_then"] = then
    with api() as portal:
        done = portal.put(f"teams/{quote(slug, safe='') or '-'}/", body)
    if as_json:
        output.out_json(done)
        return
    above = done["approval_above_gpu_seconds"]
    said = "nothing needs an approval" if above is None else f"approval above {above / 3600:g} GPU-hours"
    if done["second_approval_above_gpu_seconds"] is not None:
        said += f", a second one above {done['second_approval_above_gpu_seconds'] / 3600:g}"
    if done["approval_time_out_s"] is not None:
        said += f"; after {done['approval_time_out_s'] / 3600:g} hours: {done['approval_time_out_then']}"
    output.say(f"{done['name']}: {said}.")


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
                f"{_hours(found['used_milli_s'])} reference GPU-hours, "
                f"halved every {formatting.span(found['half_life_s'])}",
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


@app.command("images")
@guarded
def images(
    slug: Annotated[
        str, typer.Argument(metavar="TEAM", help="Slug of the team (default: your only one).")
    ] = "",
    allow: Annotated[list[str], typer.Option("--allow", help="Add an image; repeat for several.")] = [],  # noqa: B006
    remove: Annotated[list[str], typer.Option("--remove", help="Take an image off the list.")] = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Show which images a team's jobs may run in, or change the team's own list."""
    with api() as portal:
        where = f"teams/{quote(slug or only_team(portal), safe='') or '-'}/images/"
        found = portal.get(where)
        if unknown := [name for name in remove if name not in found["images"]]:
            raise typer.BadParameter(f"{unknown[0]} is not on the team's own list", param_hint="--remove")
        if allow or remove:
            names = [name for name in found["images"] if name not in remove]
            found = portal.put(where, {"images": [*names, *(name for name in allow if name not in names)]})
    if as_json:
        output.out_json(found)
        return
    cells = [(name, found["team"]) for name in found["images"]]
    cells += [(one["image"], one["team"]) for one in found["from_above"]]
    output.table(("IMAGE", "OF"), cells, empty="No images but the site's own (oci:…).")


def _percent(milli: Any) -> str:
    return formatting.UNKNOWN if milli is None else f"{milli / 10:g} %"


def _ratio(milli: Any) -> str:
    return formatting.UNKNOWN if milli is None else f"{milli / 1000:.2f}"


def _hours(milli_s: int) -> str:
    return f"{milli_s / 3_600_000:.1f}"
