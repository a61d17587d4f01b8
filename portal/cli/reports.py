"""``berth report``: a month rolled up, and its lines as one file."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded

app = typer.Typer(help="The chargeback report of a month.", no_args_is_help=True, rich_markup_mode=None)
Month = Annotated[str, typer.Argument(metavar="[MONTH]", help="Written as YYYY-MM (default: now).")]
OfTeam = Annotated[str, typer.Option("--team", help="This team and all teams below it.")]
OfPerson = Annotated[str, typer.Option("--person", help="User name: what this person used.")]
KINDS = {"csv": "lines.csv", "xlsx": "lines.xlsx", "focus": "focus.csv", "pdf": "report.pdf"}


@app.command("show")
@guarded
def show(
    month: Month = "",
    by: Annotated[
        str,
        typer.Option(help="Rows: team, cost_centre, project, person, flavor, device_model or tag:NAME."),
    ] = "team",
    team: OfTeam = "",
    person: OfPerson = "",
    as_json: Json = False,
) -> None:
    """Show what a month came to, running or closed, beside the month before."""
    with api() as portal:
        found = portal.get(f"reports/{_month(month)}/", by=by, team=team, person=person)
    if as_json:
        output.out_json(found)
        return
    depths: dict[str, int] = {}
    for row in found["rows"]:
        depths[row["key"]] = depths.get(row["parent"] or "", -1) + 1
    cells = [
        ("  " * depths[row["key"]] + (row["name"] or "-"), row["leases"], *_amounts(row))
        for row in found["rows"]
    ]
    cells.append(("TOTAL", found["total"]["leases"], *_amounts(found["total"])))
    before = found["compared_with"] or "MONTH BEFORE"
    columns = (
        by.removeprefix("tag:").replace("_", " ").upper(),
        "LEASES",
        "GPU-HOURS",
        "AMOUNT",
        "ACCRUING",
        before,
    )
    output.table(columns, cells, empty="")


@app.command("waste")
@guarded
def waste(
    month: Month = "",
    by: Annotated[str, typer.Option(help="Rows: team or person.")] = "team",
    team: OfTeam = "",
    as_json: Json = False,
) -> None:
    """Show what of a month's money bought nothing: held and not used, failed, unused memory, unused bookings."""
    with api() as portal:
        found = portal.get(f"reports/{_month(month)}/waste/", by=by, team=team)
    if as_json:
        output.out_json(found)
        return
    names = ("charged", "idle", "unmeasured", "failed", "memory", "unseen", "reserved")
    rows = [(row["name"], row) for row in found["rows"]] + [("TOTAL", found["total"])]
    cells = [(name, *(formatting.money(row[one]) for one in names)) for name, row in rows]
    columns = (
        by.upper(),
        "CHARGED",
        "IDLE",
        "NOT MEASURED",
        "FAILED",
        "MEMORY",
        "MEMORY UNKNOWN",
        "UNUSED BOOKINGS",
    )
    output.table(columns, cells, empty="")


@app.command("export")
@guarded
def export(
    month: Month = "",
    kind: Annotated[
        str, typer.Option("--format", help="csv, xlsx, focus (FOCUS 1.2 as CSV) or pdf.")
    ] = "csv",
    to: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write (default: its name).")
    ] = None,
    team: OfTeam = "",
    person: OfPerson = "",
) -> None:
    """Write all lines of a month into one file."""
    if kind not in KINDS:
        raise typer.BadParameter(f"choose one of: {', '.join(KINDS)}", param_hint="--format")
    at = _month(month)
    given = urlencode({k: v for k, v in (("team", team), ("person", person)) if v})
    path = to or Path(f"berth-{at}-{KINDS[kind]}")
    with api() as portal:
        output.save(portal, f"reports/{at}/files/{KINDS[kind]}/" + (f"?{given}" if given else ""), path)


def _amounts(row: dict[str, Any]) -> tuple[str, str, str, str]:
    hours = Decimal(row["share_milli_seconds"]) / 3_600_000
    before = formatting.money(row["before"]) if row["before"] else "-"
    return f"{hours:,.2f}", formatting.money(row["amount"]), formatting.money(row["accruing"]), before


def _month(month: str) -> str:
    return quote(month or "this", safe="") or "-"
