"""``berth utilisation``: how much of the fleet was allocated and used, by hour."""

from __future__ import annotations

from typing import Annotated

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded


@guarded
def utilisation(
    hours: Annotated[int, typer.Option(help="How many hours up to now.")] = 24, as_json: Json = False
) -> None:
    """Show by hour how much of the fleet was allocated, used, held without use and unavailable. Operators."""
    with api() as portal:
        rows = portal.get("utilisation/", hours=str(hours))["results"]
    cells = [
        (
            formatting.when(row["at"]), _devices(row["allocated_milli"]), _devices(row["used_milli"]),
            _devices(row["measured_milli"]), _devices(row["unavailable_milli"]), _devices(row["capacity_milli"]),
        )
        if row["is_known"]
        else (formatting.when(row["at"]), *[formatting.UNKNOWN] * 4, _devices(row["capacity_milli"]))
        for row in rows
    ]  # fmt: skip
    columns = ("HOUR", "ALLOCATED", "USED", "MEASURED", "UNAVAILABLE", "DEVICES")
    output.listing(rows, columns, cells, empty="There is no hour to show.", as_json=as_json)


def _devices(milli: int | None) -> str:
    return formatting.UNKNOWN if milli is None else f"{milli / 1000:.1f}"
