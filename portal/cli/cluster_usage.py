"""``berth cluster-usage``: the bill of a month beside what clusters counted."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded

COLUMNS = ("LEASE", "NODE", "JOBS", "BILLED", "CLUSTER", "DIFFERENCE", "START", "END", "CAUSES")


@guarded
def cluster_usage(
    month: Annotated[
        str, typer.Argument(metavar="MONTH", help="Written as YYYY-MM (default: this one).")
    ] = "",
    every: Annotated[
        bool, typer.Option("--all", help="Show every lease, not only those that differ by more than 5 s.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare the bill of leases of pools with what the cluster counted. For finance and operators."""
    with api() as portal:
        found = portal.get(f"periods/{quote(month, safe='') or 'this'}/cluster-usage/")
    if as_json:
        output.out_json(found)
        return
    for one in found["clusters"]:
        if one["state"] != "on":
            output.say(f"The accounting of {one['node']} is {one['state']}: {one['why']}")
    cells = [
        (
            row["lease"],
            row["node"],
            ", ".join(row["jobs"]) or "-",
            f"{row['billed_s']} s",
            *(_seconds(row[name]) for name in ("cluster_s", "difference_s", "before_s", "after_s")),
            ", ".join(f"{part['cause']} {part['seconds']:+d} s" for part in row["parts"]) or "-",
        )
        for row in found["leases"]
        if every or row["is_notable"]
    ]
    output.table(COLUMNS, cells, empty="No lease differs by more than 5 s.")


def _seconds(value: int | None) -> str:
    return formatting.UNKNOWN if value is None else f"{value} s"
