"""``berth template``: what a team asks for often, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, Team, api, guarded
from portal.cli.request_options import Open, Preemptible

if TYPE_CHECKING:
    from portal.cli.client import ApiClient

app = typer.Typer(
    help="Ask by name for what your team asks for often.", no_args_is_help=True, rich_markup_mode=None
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="As “berth template list” shows it.")]


@app.command("list")
@guarded
def list_templates(as_json: Json = False) -> None:
    """List the templates of your teams; “berth request --template NAME” asks for one."""
    with api() as portal:
        rows = list(portal.every("templates/"))
    cells = [
        (
            row["name"], row["team"], row["opens"], f"{row['count']} × {row['flavor']}",
            formatting.span(row["duration_s"]), "" if row["is_offered"] else "not on offer now",
        )
        for row in rows
    ]  # fmt: skip
    columns = ("NAME", "TEAM", "OPENS", "FLAVOR", "FOR", "")
    output.listing(rows, columns, cells, empty="Your teams have no templates.", as_json=as_json)


@app.command("save")
@guarded
def save(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name; a template of that name is replaced.")],
    flavor: Annotated[str, typer.Argument(metavar="FLAVOR", help="What it asks for; see “berth flavors”.")],
    hours: Annotated[float, typer.Option(min=0.001, max=8784, help="Hours.")],
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1000, help="How many.")] = 1,
    opens: Open = "device",
    preemptible: Preemptible = False,
    team: Team = "",
    as_json: Json = False,
) -> None:
    """Keep what your team asks for often under a name. For team admins."""
    body: dict[str, Any] = {
        "name": name, "flavor": flavor, "duration_s": round(hours * 3600), "count": count, "opens": opens,
        "is_preemptible": preemptible,
    }  # fmt: skip
    with api() as portal:
        body["team"] = team or _only_team(portal)
        made = portal.post("templates/", body)
    if as_json:
        output.out_json(made)
        return
    output.say(
        f"Saved: members of {made['team']} ask for it with “berth request --template '{made['name']}'”."
    )


@app.command("remove")
@guarded
def remove(name: Name, team: Team = "") -> None:
    """Forget a template; what was asked by it stays. For team admins."""
    with api() as portal:
        found = template_named(portal, name, team)
        portal.delete(f"templates/{quote(found['id'], safe='')}/")
    output.say("Removed.")


def template_named(portal: ApiClient, name: str, team: str) -> Any:
    """Return the template of a name, or stop with what to give."""
    found = [row for row in portal.every("templates/") if row["name"] == name and team in ("", row["team"])]
    if not found:
        raise typer.BadParameter(f"no template is called “{name}”; see “berth template list”")
    if len(found) > 1:
        teams = ", ".join(row["team"] for row in found)
        raise typer.BadParameter(f"several teams have one of that name ({teams}); say which with --team")
    return found[0]


def _only_team(portal: ApiClient) -> str:
    teams = portal.get("me/")["teams"]
    if len(teams) != 1:
        raise typer.BadParameter("say for which team with --team")
    return str(teams[0])
