"""``berth energy``: what leases and months used and emitted, and the factors that make carbon of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded
from portal.cli.offers import instant_of

app = typer.Typer(
    help="Energy and carbon of leases and months, and the factors of sites.", no_args_is_help=True,
    rich_markup_mode=None,
)  # fmt: skip
COLUMNS = ("KWH", "BASIS", "MEASURED", "ESTIMATED", "UNKNOWN TIME", "G CO2E", "KWH WITHOUT FACTOR")


@app.command("lease")
@guarded
def lease(
    name: Annotated[str, typer.Argument(metavar="LEASE", help="As “berth list --all” shows it (lse-…).")],
    as_json: Json = False,
) -> None:
    """Show what a lease used and emitted; what nobody measured is unknown."""
    with api() as portal:
        found = portal.get(f"leases/{quote(name, safe='') or '-'}/energy/")
    if as_json:
        output.out_json(found)
        return
    charged = found["electricity"]
    paid = (
        (("electricity", f"{formatting.price(charged['amount'])} for {charged['kwh']:,.3f} kWh"),)
        if charged
        else ()
    )
    output.facts((*energy_facts(found), *paid))


@app.command("month")
@guarded
def month(
    at: Annotated[str, typer.Argument(metavar="[MONTH]", help="Written as YYYY-MM (default: now).")] = "",
    by: Annotated[str, typer.Option(help="Rows: team, person, device_model or day.")] = "team",
    team: Annotated[str, typer.Option("--team", help="This team and all teams below it.")] = "",
    person: Annotated[str, typer.Option("--person", help="User name: what this person used.")] = "",
    as_json: Json = False,
) -> None:
    """Show what a month's leases used and emitted; each team is itself alone."""
    with api() as portal:
        found = portal.get(
            f"reports/{quote(at or 'this', safe='') or '-'}/energy/", by=by, team=team, person=person
        )
    if as_json:
        output.out_json(found)
        return
    rows = [(row["name"], row) for row in found["rows"]] + [("TOTAL", found["total"])]
    output.table(
        (by.replace("_", " ").upper(), *COLUMNS), [(name, *_cells(row)) for name, row in rows], empty=""
    )
    if found["electricity"]:
        cells = [
            (row["team"], f"{row['kwh']:,.3f}", formatting.money(row["amount"]))
            for row in found["electricity"]
        ]
        output.table(("TEAM", "KWH CHARGED", "ELECTRICITY"), cells, empty="")
        if counted := found.get("electricity_counted_at"):
            output.out(f"Electricity was counted at {formatting.when(counted)}; it is not on the books yet.")


@app.command("factors")
@guarded
def list_factors(as_json: Json = False) -> None:
    """List the factors of the grid and PUEs: past, present and planned."""
    with api() as portal:
        rows = portal.get("energy-factors/")["results"]
    cells = [
        (
            row["id"], row["kind"], row["site"] or "everywhere else", row["value"],
            formatting.when(row["valid_from"]), formatting.when(row["valid_until"]) if row["valid_until"] else "",
            row["source"],
        )
        for row in rows
    ]  # fmt: skip
    columns = ("ID", "KIND", "SITE", "VALUE", "FROM", "UNTIL", "SOURCE")
    output.listing(rows, columns, cells, empty="There are no factors: carbon is unknown.", as_json=as_json)


@app.command("set")
@guarded
def set_factor(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help="carbon (g CO2e per kWh of the grid), pue, or price (of a MWh)."),
    ],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Such as 380.5, or 1.3 for a PUE.")],
    source: Annotated[str, typer.Option("--source", help="Where the figure is from.")],
    site: Annotated[
        str, typer.Option("--site", help="Of this site; default: of all without their own.")
    ] = "",
    begin: Annotated[
        str, typer.Option("--from", help="From when, like 2026-02-01T00:00Z, also past. Default: now.")
    ] = "",
    until: Annotated[str, typer.Option("--until", help="Until when; default: until another follows.")] = "",
    as_json: Json = False,
) -> None:
    """Set a factor of a site from an instant on. Finance and operators."""
    body: dict[str, Any] = {"kind": kind, "value": value, "source": source}
    body |= {"site": site} if site else {}
    body |= {"starts_at": instant_of(begin, "--from")} if begin else {}
    body |= {"ends_at": instant_of(until, "--until")} if until else {}
    with api() as portal:
        made = portal.post("energy-factors/", body)
    if as_json:
        output.out_json(made)
        return
    output.say(f"{made['kind']} {made['value']} from {formatting.when(made['valid_from'])}.")


@app.command("end")
@guarded
def end(
    factor: Annotated[int, typer.Argument(metavar="ID", min=1, help="As “berth energy factors” shows it.")],
) -> None:
    """End a factor now, or take back one that has not begun. Finance and operators."""
    with api() as portal:
        portal.delete(f"energy-factors/{factor}/")
    output.say("Ended.")


@app.command("import")
@guarded
def import_file(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV with the columns kind,site,from,until,value,source.")
    ],
    trial: Annotated[bool, typer.Option("--trial", help="Only check it.")] = False,
) -> None:
    """Add all factors of a CSV file, or none if a line is wrong. Finance and operators."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{file} cannot be read as text: {error}", param_hint="FILE") from error
    with api() as portal:
        found = portal.post("energy-factors/import/", {"csv": text, "is_trial": trial})
    output.say(f"{found['rows']} factors " + ("would be added." if trial else "added."))


@app.command("refused")
@guarded
def refused(as_json: Json = False) -> None:
    """List devices whose energy counter or power could not be true in 14 days. Operators."""
    with api() as portal:
        rows = portal.get("fleet/refused-counters/")["results"]
    cells = [(row["node"], row["device"], row["seconds"], formatting.when(row["last_at"])) for row in rows]
    columns = ("NODE", "DEVICE", "SECONDS", "LAST")
    output.listing(rows, columns, cells, empty="All counters could be true.", as_json=as_json)


def energy_facts(found: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return energy as names and texts."""
    kwh, basis, measured, estimated, unknown, carbon, without = _cells(found)
    return (
        ("energy", f"{kwh} kWh, {basis}" if found["kwh"] is not None else "unknown"),
        ("measured", f"{measured} kWh"),
        ("estimated", f"{estimated} kWh"),
        ("unknown time", unknown),
        ("carbon", f"{carbon} g CO2e" if found["carbon_g"] is not None else "unknown"),
        ("without factor", f"{without} kWh"),
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        "unknown" if row["kwh"] is None else f"{row['kwh']:,.3f}",
        row["basis"],
        f"{row['measured_kwh']:,.3f}",
        f"{row['estimated_kwh']:,.3f}",
        formatting.span(row["unknown_s"]),
        "unknown" if row["carbon_g"] is None else f"{row['carbon_g']:,.1f}",
        f"{row['no_factor_kwh']:,.3f}",
    )
