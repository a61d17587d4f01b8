"""``berth availability``: when which flavor is free."""

from __future__ import annotations

from typing import Annotated

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded


@guarded
def availability(
    flavor: Annotated[str, typer.Argument(metavar="FLAVOR", help="Only this flavor (default: all).")] = "",
    steps: Annotated[int, typer.Option(help="How many steps.")] = 12,
    step: Annotated[int, typer.Option(help="Hours of a step.")] = 1,
    as_json: Json = False,
) -> None:
    """Show how many units of each flavor could be booked in the hours to come."""
    with api() as portal:
        found = portal.get("availability/", steps=str(steps), step_hours=str(step))
    rows = [row for row in found["flavors"] if row["flavor"] == flavor or not flavor]
    if as_json:
        output.out_json(found | {"flavors": rows})
        return
    heads = [formatting.when(at).rsplit(" ", 1)[-1] for at in found["starts"]]
    cells = [
        (row["flavor"], *(formatting.UNKNOWN if free is None else free for free in row["free"]))
        for row in rows
    ]
    output.table(("FLAVOR", *heads), cells, empty="No such flavor is offered.")
