"""``berth project`` and ``berth label``: what money is filed under beyond the team."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import output
from portal.cli.command import Json, api, guarded

project = typer.Typer(
    help="See and set projects, which requests are filed under.", no_args_is_help=True, rich_markup_mode=None
)
label = typer.Typer(
    help="File requests and teams under projects, cost centres and tags.", no_args_is_help=True,
    rich_markup_mode=None,
)  # fmt: skip
Code = Annotated[str, typer.Argument(metavar="CODE", help="Such as EU-4711; see “berth project list”.")]
Tags = Annotated[
    list[str], typer.Option("--tag", help="name=value, once for each; an empty value takes it away.")
]
Centre = Annotated[
    str | None, typer.Option("--cost-centre", help="An empty one leaves it to project or team.")
]


@project.command("list")
@guarded
def list_projects(as_json: Json = False) -> None:
    """List the projects of one's teams and of those above and below them."""
    with api() as portal:
        rows = portal.get("projects/")["results"]
    cells = [
        (
            r["code"],
            r["name"],
            r["team"],
            r["cost_centre"] or "-",
            shown(r["tags"]),
            "ended" if r["is_ended"] else "",
        )
        for r in rows
    ]
    columns = ("CODE", "NAME", "TEAM", "COST CENTRE", "TAGS", "STATE")
    output.listing(rows, columns, cells, empty="There are no projects.", as_json=as_json)


@project.command("add")
@guarded
def add(
    code: Code,
    name: Annotated[str, typer.Argument(metavar="NAME", help="As people read it.")],
    team: Annotated[
        str, typer.Option("--team", "-t", help="Its requests and those of teams below can name it.")
    ],
    cost_centre: Centre = None,
    tags: Tags = [],  # noqa: B006 (typer reads it, nobody changes it)
    as_json: Json = False,
) -> None:
    """Make a project. For admins and finance of the team."""
    body = {"code": code, "name": name, "team": team, "cost_centre": cost_centre or "", "tags": tags_of(tags)}
    with api() as portal:
        made = portal.post("projects/", body)
    _told(made, as_json, f"{made['code']} is made.")


@project.command("change")
@guarded
def change(
    code: Code,
    name: Annotated[str, typer.Option("--name", help="A new name.")] = "",
    cost_centre: Centre = None,
    tags: Tags = [],  # noqa: B006 (typer reads it, nobody changes it)
    ended: Annotated[
        bool | None, typer.Option("--ended/--open", help="Whether new requests cannot name it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Change a project; usage of its requests in open months is filed anew."""
    at = f"projects/{_safe(code)}/"
    with api() as portal:
        body: dict[str, Any] = {"tags": merged(portal.get(at)["tags"], tags)} if tags else {}
        body |= {"name": name} if name else {}
        body |= {"cost_centre": cost_centre} if cost_centre is not None else {}
        body |= {"is_ended": ended} if ended is not None else {}
        made = portal.put(at, body)
    _told(made, as_json, f"{made['code']} is stored.")


@label.command("request")
@guarded
def label_request(
    name: Annotated[str, typer.Argument(metavar="ID", help="A request (req-…).")],
    of_project: Annotated[
        str | None, typer.Option("--project", help="Code of a project; empty: none.")
    ] = None,
    cost_centre: Centre = None,
    tags: Tags = [],  # noqa: B006 (typer reads it, nobody changes it)
    as_json: Json = False,
) -> None:
    """Show what a request is filed under, or file it anew: closed months stay as they are."""
    at = f"requests/{_safe(name)}/labels/"
    with api() as portal:
        found = portal.get(at)
        body: dict[str, Any] = {"tags": merged(found["tags"], tags)} if tags else {}
        body |= {"project": of_project} if of_project is not None else {}
        body |= {"cost_centre": cost_centre} if cost_centre is not None else {}
        if body:
            found = portal.put(at, body)
    if as_json:
        output.out_json(found)
        return
    _facts(found["filed_under"])


@label.command("team")
@guarded
def label_team(
    slug: Annotated[str, typer.Argument(metavar="TEAM", help="Slug of the team.")],
    cost_centre: Centre = None,
    tags: Tags = [],  # noqa: B006 (typer reads it, nobody changes it)
    as_json: Json = False,
) -> None:
    """Show cost centre and tags of a team, or set them for what is metered from now on."""
    at = f"teams/{_safe(slug)}/labels/"
    with api() as portal:
        found = portal.get(at)
        body: dict[str, Any] = {"tags": merged(found["tags"], tags)} if tags else {}
        body |= {"cost_centre": cost_centre} if cost_centre is not None else {}
        if body:
            found = portal.put(at, body)
    if as_json:
        output.out_json(found)
        return
    _facts(found)


def tags_of(given: list[str]) -> dict[str, str]:
    """Return tags as they were given on the command line, or stop with what to write."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter("write tags as name=value", param_hint="--tag")
        found[name.strip()] = value.strip()
    return found


def merged(known: dict[str, str], given: list[str]) -> dict[str, str]:
    """Return known tags with those given; one without a value is taken away."""
    return {name: value for name, value in (known | tags_of(given)).items() if value}


def shown(tags: dict[str, str]) -> str:
    """Return tags as one text."""
    return ", ".join(f"{name}={value}" for name, value in tags.items())


def _facts(found: dict[str, Any]) -> None:
    rows = [("cost centre", found["cost_centre"] or "-"), *sorted(found["tags"].items())]
    output.facts([("project", found["project"] or "-"), *rows] if "project" in found else rows)


def _told(made: Any, as_json: bool, sentence: str) -> None:
    if as_json:
        output.out_json(made)
    else:
        output.say(sentence)


def _safe(name: str) -> str:
    return quote(name, safe="") or "-"
