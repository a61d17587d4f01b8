"""``berth lab``: policy versions tried on one's own history, or on a trace."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded

app = typer.Typer(
    help="Try policy versions on your own history, or on a trace.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Run = Annotated[str, typer.Argument(metavar="RUN", help="As “berth lab list” shows it (lab-…).")]


@app.command("list")
@guarded
def list_runs(as_json: Json = False) -> None:
    """List the newest runs and how far they are."""
    with api() as portal:
        rows = portal.get("lab/")["results"]
    cells = [
        (
            row["id"], row["name"], row["state"], f"{row['progress_milli'] // 10} %",
            ", ".join(str(version) for version in row["versions"]), row["made_by"], formatting.when(row["created_at"]),
        )
        for row in rows
    ]  # fmt: skip
    columns = ("RUN", "NAME", "STATE", "PROGRESS", "VERSIONS", "BY", "ASKED")
    output.listing(rows, columns, cells, empty="Nothing was tried yet.", as_json=as_json)


@app.command("run")
@guarded
def start(
    versions: Annotated[
        list[int],
        typer.Argument(metavar="VERSION...", help="Two to six, see “berth policy list”; 0: built in."),
    ],
    name: Annotated[str, typer.Option("--name", help="What the run is called.")] = "",
    days: Annotated[int, typer.Option("--days", min=1, max=92, help="So many days back from now.")] = 30,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="CSV: seq,submit_s,duration_s,gpus[,vc].")
    ] = None,
    nodes: Annotated[
        int, typer.Option("--nodes", min=0, max=2000, help="For a trace: nodes it runs on.")
    ] = 0,
    gpus: Annotated[int, typer.Option("--gpus", min=1, max=16, help="For a trace: GPUs of a node.")] = 8,
    demand: Annotated[
        float, typer.Option("--demand", min=0.1, max=5, help="So many times the demand.")
    ] = 1.0,
    more: Annotated[
        list[str],
        typer.Option(
            "--more", help="NODE=N: so many nodes like this one more, or with a minus fewer; once for each."
        ),
    ] = [],  # noqa: B006 (typer reads it, nobody changes it)
    team: Annotated[
        list[str],
        typer.Option("--team", help="NAME=N: so many teams like this one more; once for each."),
    ] = [],  # noqa: B006 (typer reads it, nobody changes it)
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed draws the same demand.")] = 1,
    as_json: Json = False,
) -> None:
    """Start a run: each version plays the same history. It runs beside the product, at the lowest priority."""
    body: dict[str, Any] = {
        "name": name or f"Versions {', '.join(str(version) for version in versions)}", "versions": versions,
        "what_if": {"demand": demand, "nodes": _counts(more, "--more"), "teams": _counts(team, "--team")}, "seed": seed,
    }  # fmt: skip
    if trace is not None:
        try:
            text = trace.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"cannot read {trace}: {error}", param_hint="--trace") from error
        body |= {"trace": text, "nodes": nodes, "gpus_per_node": gpus}
    else:
        until = datetime.now(UTC).replace(microsecond=0)
        body |= {"since": (until - timedelta(days=days)).isoformat(), "until": until.isoformat()}
    with api() as portal:
        row = portal.post("lab/", body)
    if as_json:
        output.out_json(row)
        return
    output.out(row["id"])
    output.say(f"See “berth lab show {row['id']}”.")


@app.command("show")
@guarded
def show(run: Run, as_json: Json = False) -> None:
    """Show how far a run is, and the versions side by side."""
    with api() as portal:
        row = portal.get(f"lab/{_safe(run)}/")
    if as_json:
        output.out_json(row)
        return
    fault = f", {row['fault']}" if row["fault"] else ""
    output.say(f"{row['name']}: {row['state']}{fault}, {row['progress_milli'] // 10} %")
    answers = row["answers"]
    if not answers:
        return
    waits = [
        (
            f"{one['version']} {one['name']}", one["requests"], *_waits(one["waits"]),
            formatting.UNKNOWN if one["fairness"] is None else f"{one['fairness']:.2f}", one["preemptions"],
            formatting.UNKNOWN if one["utilisation"] is None else f"{one['utilisation']:.0%}",
            one["starved"] + one["never"], _kept(one["promises"]), _energy(one["energy"]),
        )
        for one in answers
    ]  # fmt: skip
    columns = (
        "VERSION",
        "REQUESTS",
        "MEAN",
        "P50",
        "P95",
        "P99.9",
        "FAIR",
        "PREEMPTED",
        "ALLOCATED",
        "STARVED",
        "BY P90",
        "ENERGY",
    )
    output.table(columns, waits, empty="")
    teams = sorted({team["team"] for one in answers for team in one["by_team"]})
    found = [{team["team"]: team["mean_s"] for team in one["by_team"]} for one in answers]
    cells = [(team, *(_span(one.get(team)) for one in found)) for team in teams]
    output.table(("MEAN WAIT OF", *(f"VERSION {one['version']}" for one in answers)), cells, empty="")


@app.command("stop")
@guarded
def stop(run: Run) -> None:
    """Stop a run."""
    with api() as portal:
        portal.post(f"lab/{_safe(run)}/stop/")
    output.say("It stops.")


@app.command("trace")
@guarded
def trace_of(run: Run) -> None:
    """Print what a run plays as a trace without names and dates, as CSV."""
    with api() as portal:
        output.out_text(portal.text(f"lab/{_safe(run)}/trace.csv"))


@app.command("why")
@guarded
def why(
    run: Run,
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="A request (req-…), or #N of a trace.")],
    as_json: Json = False,
) -> None:
    """Say what each version did to one request, and who came later and started first."""
    with api() as portal:
        rows = portal.get(f"lab/{_safe(run)}/requests/{_safe(request)}/")["results"]
    cells = [
        (
            f"{row['version']} {row['name']}", _span(row["wait_s"]), row["evictions"],
            ", ".join(f"{one['requests']} of {one['team']}" for one in row["overtaken_by"]),
        )
        for row in rows
    ]  # fmt: skip
    columns = ("VERSION", "WAITED", "PREEMPTED", "STARTED FIRST, CAME LATER")
    output.listing(rows, columns, cells, empty="", as_json=as_json)


def _counts(given: list[str], option: str) -> dict[str, int]:
    found = {}
    for text in given:
        name, _, count = text.rpartition("=")
        try:
            found[name] = int(count)
        except ValueError as error:
            raise typer.BadParameter(f"{text}: write it like gpu-01=2", param_hint=option) from error
    return found


def _waits(waits: Any) -> tuple[str, ...]:
    return tuple(_span(waits[key]) for key in ("mean_s", "p50_s", "p95_s", "p999_s"))


def _kept(found: dict[str, int] | None) -> str:
    if not found or not found["forecasts"]:
        return formatting.UNKNOWN
    return f"{found['kept'] / found['forecasts']:.0%} of {found['forecasts']}"


def _energy(found: dict[str, int] | None) -> str:
    if not found:
        return formatting.UNKNOWN
    missing = f" + {found['unknown']} unknown" if found["unknown"] else ""
    return f"~{found['wh'] / 1000:,.1f} kWh{missing}"


def _span(seconds: float | None) -> str:
    return formatting.UNKNOWN if seconds is None else formatting.span(round(seconds))


def _safe(text: str) -> str:
    return quote(text, safe="")
