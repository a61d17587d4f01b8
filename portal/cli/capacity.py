"""``berth capacity``: where each device's time of a month went."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded

KINDS = (
    "billed", "free", "reserved", "preparing", "cleaning", "stranded", "idle", "maintenance", "fault", "unknown",
)  # fmt: skip
MILLI_HOUR = 1000 * 3600


@guarded
def capacity(
    month: Annotated[
        str, typer.Argument(metavar="MONTH", help="Written as YYYY-MM (default: this one).")
    ] = "",
    device: Annotated[str, typer.Option(help="Show the leases behind this device, by its UUID.")] = "",
    as_json: Json = False,
) -> None:
    """Show where each device's hours of a month went. For finance and operators."""
    path = f"periods/{quote(month, safe='') or 'this'}/capacity/"
    with api() as portal:
        found = portal.get(f"{path}{quote(device, safe='')}/" if device else path)
    if as_json:
        output.out_json(found)
        return
    if device:
        cells = [
            (row["lease"], row["team"], *(_hours(row["kinds"].get(kind, 0)) for kind in KINDS))
            for row in found["results"]
        ]
        output.table(("LEASE", "TEAM", *(kind.upper() for kind in KINDS)), cells, empty="No lease was on it.")
        return
    if found["counted_at"] is None:
        output.say("This month is still to be counted. Ask again in some minutes.")
        return
    rows = [(f"{one['node']}/{one['index']}", one) for one in found["devices"]] + [("all", found["total"])]
    cells = [(name, *_figures(row)) for name, row in rows]
    columns = (
        "DEVICE",
        *(kind.upper() for kind in KINDS),
        "ABOVE",
        "CAPACITY",
        "DIFFERENCE",
        "STRANDED COST",
    )
    output.table(columns, cells, empty="")


def _figures(row: Any) -> tuple[str, ...]:
    return (
        *(_hours(row[kind]) for kind in KINDS),
        _hours(row["above"]),
        _hours(row["capacity"]),
        str(row["difference"]),
        formatting.money(row["stranded_cost"]),
    )


def _hours(amount: int) -> str:
    """Return thousandths of a device times seconds as hours of a whole device."""
    return f"{amount / MILLI_HOUR:.2f}" if amount else "-"
