"""``berth alert``: what fires, the rules about it, and silences. Operators; team admins see and acknowledge."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded

app = typer.Typer(
    help="See what fires and why, acknowledge and silence it, and set the rules. Operators; team admins list and "
    "acknowledge what is about their teams.", no_args_is_help=True, rich_markup_mode=None,
)  # fmt: skip
RuleId = Annotated[int, typer.Argument(metavar="ID", min=1, help="As “berth alert rules” shows it.")]


@app.command("list")
@guarded
def list_alerts(
    past: Annotated[bool, typer.Option("--past", help="Those that are resolved.")] = False,
    team: Annotated[
        str, typer.Option("--team", "-t", help="Only those about this team and the teams below it.")
    ] = "",
    as_json: Json = False,
) -> None:
    """List alerts that are open, firing ones and the worst first."""
    with api() as portal:
        given = {"state": "past" if past else "open"} | ({"team": team} if team else {})
        rows = portal.get("alerts/", **given)["results"]
    cells = [
        (
            row["id"], row["severity"], "silenced" if row["silence"] else row["state"], row["about"], row["evidence"],
            formatting.when(row["firing_at"] or row["pending_at"]), row["acknowledged_by"] or "",
            formatting.when(row["paused_until"]) if row["paused_until"] else "",
        )
        for row in rows
    ]  # fmt: skip
    columns = ("ALERT", "SEVERITY", "STATE", "ABOUT", "EVIDENCE", "SINCE", "ACKNOWLEDGED", "PAUSED UNTIL")
    output.listing(rows, columns, cells, empty="Nothing fires.", as_json=as_json)


@app.command("ack")
@guarded
def acknowledge(
    alert: Annotated[str, typer.Argument(metavar="ALERT", help="An alert (alt-…).")], as_json: Json = False
) -> None:
    """Acknowledge an alert: it is not escalated any more."""
    with api() as portal:
        row = portal.post(f"alerts/{_safe(alert)}/acknowledge/")
    if as_json:
        output.out_json(row)
        return
    output.say(f"{row['about']}: acknowledged by {row['acknowledged_by']}.")


@app.command("resume")
@guarded
def resume(
    alert: Annotated[str, typer.Argument(metavar="ALERT", help="An alert (alt-…) that is paused.")],
    as_json: Json = False,
) -> None:
    """Let new leases start again where an alert keeps them from it; it does not pause there again."""
    with api() as portal:
        row = portal.post(f"alerts/{_safe(alert)}/resume/")
    if as_json:
        output.out_json(row)
        return
    output.say(f"{row['about']}: new leases may start again.")


@app.command("metrics")
@guarded
def list_metrics(as_json: Json = False) -> None:
    """List what a rule can watch."""
    with api() as portal:
        rows = portal.get("alerts/metrics/")["results"]
    cells = [(row["metric"], row["says"], row["unit"], row["of"], f"{row['usual']:g}") for row in rows]
    output.listing(rows, ("METRIC", "SAYS", "UNIT", "OF", "USUAL"), cells, empty="Nothing.", as_json=as_json)


@app.command("rules")
@guarded
def list_rules(as_json: Json = False) -> None:
    """List what is watched and what comes of it."""
    with api() as portal:
        rows = portal.get("alerts/rules/")["results"]
    cells = [
        (
            row["id"], row["name"] or row["condition"], row["severity"], "on" if row["is_on"] else "off",
            ", ".join(filter(None, (row["node"], row["device_model"], row["team"]))) or "everything",
            row["audience"], row["action"], row["matched"],
        )
        for row in rows
    ]  # fmt: skip
    columns = ("ID", "RULE", "SEVERITY", "IS", "FOR", "TELLS", "DOES", "MATCHES")
    output.listing(rows, columns, cells, empty="Nothing is watched.", as_json=as_json)


@app.command("set")
@guarded
def set_rule(
    metric: Annotated[
        str, typer.Argument(metavar="METRIC", help="What is watched; “berth alert metrics” lists it.")
    ],
    threshold: Annotated[float, typer.Argument(metavar="THRESHOLD", help="In the metric's unit.")],
    below: Annotated[bool, typer.Option("--below", help="Alert below the threshold, not above.")] = False,
    for_s: Annotated[int, typer.Option("--for", min=0, max=86_400, help="Seconds that it has to hold.")] = 0,
    severity: Annotated[
        Literal["info", "warning", "critical"],
        typer.Option("--severity", help="info, warning or critical; info is told to nobody."),
    ] = "warning",
    name: Annotated[
        str, typer.Option("--name", help="What the rule is called; default: its condition.")
    ] = "",
    team: Annotated[str, typer.Option("--team", "-t", help="Only for this team and those below it.")] = "",
    node: Annotated[str, typer.Option("--node", help="Only on this node.")] = "",
    model: Annotated[str, typer.Option("--model", help="Only for devices of this model.")] = "",
    tell: Annotated[
        Literal["operators", "both", "team"],
        typer.Option("--tell", help="Who is told: operators, team (the admins of the team), or both."),
    ] = "operators",
    group: Annotated[
        Literal["rule", "node", "team"], typer.Option("--group", help="What is told together.")
    ] = "rule",
    escalate: Annotated[
        int,
        typer.Option("--escalate", min=0, max=10_080, help="Minutes until somebody else is told; 0: never."),
    ] = 0,
    escalate_to: Annotated[
        str, typer.Option("--escalate-to", help="Who that is; default: all operators.")
    ] = "",
    action: Annotated[
        Literal["nothing", "cordon", "quarantine", "pause"],
        typer.Option(
            "--action", help="What Berth does by itself: nothing, cordon, quarantine or pause (intake)."
        ),
    ] = "nothing",
    rule: Annotated[int, typer.Option("--rule", min=0, help="Change this rule; 0: make a new one.")] = 0,
    off: Annotated[bool, typer.Option("--off", help="Keep it, but watch nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Make a rule, or let one say something else."""
    body: dict[str, Any] = {
        "metric": metric, "threshold": threshold, "comparison": "below" if below else "above", "for_s": for_s,
        "severity": severity, "name": name, "audience": tell, "grouping": group, "action": action, "is_on": not off,
    }  # fmt: skip
    named = {"team": team, "node": node, "device_model": model, "escalate_to": escalate_to}
    body |= {key: value for key, value in named.items() if value}
    body |= {"escalate_min": escalate} if escalate else {}
    with api() as portal:
        made = portal.put(f"alerts/rules/{rule}/", body) if rule else portal.post("alerts/rules/", body)
    if as_json:
        output.out_json(made)
        return
    output.say(f"Rule {made['id']}: {made['condition']}.")


@app.command("remove")
@guarded
def remove_rule(rule: RuleId) -> None:
    """Remove a rule: its open alerts end, its history stays."""
    with api() as portal:
        portal.delete(f"alerts/rules/{rule}/")
    output.say("Removed.")


@app.command("silence")
@guarded
def silence(
    reason: Annotated[str, typer.Argument(metavar="REASON", help="Why nobody is told.")],
    hours: Annotated[float, typer.Option("--hours", min=0.02, max=720, help="For how many hours.")] = 2.0,
    rule: Annotated[int, typer.Option("--rule", min=0, help="Alerts of this rule; 0: of every rule.")] = 0,
    node: Annotated[str, typer.Option("--node", help="Alerts of this node.")] = "",
    team: Annotated[str, typer.Option("--team", "-t", help="Alerts of this team and those below it.")] = "",
    as_json: Json = False,
) -> None:
    """Tell nobody of the alerts of all that is named, for a time; they are shown."""
    ends_at = datetime.now(UTC) + timedelta(hours=hours)
    body: dict[str, Any] = {"reason": reason, "ends_at": ends_at.isoformat()}
    body |= {key: value for key, value in {"rule": rule, "node": node, "team": team}.items() if value}
    with api() as portal:
        made = portal.post("alerts/silences/", body)
    if as_json:
        output.out_json(made)
        return
    output.say(f"{made['id']}: silent until {formatting.when(made['ends_at'])}.")


@app.command("silences")
@guarded
def list_silences(as_json: Json = False) -> None:
    """List silences that are in force."""
    with api() as portal:
        rows = portal.get("alerts/silences/")["results"]
    cells = [
        (
            row["id"], row["rule"] or "", row["node"] or "", row["team"] or "", formatting.when(row["ends_at"]),
            row["made_by"], row["reason"],
        )
        for row in rows
    ]  # fmt: skip
    columns = ("SILENCE", "RULE", "NODE", "TEAM", "UNTIL", "BY", "REASON")
    output.listing(rows, columns, cells, empty="Nothing is silenced.", as_json=as_json)


@app.command("unsilence")
@guarded
def end_silence(
    silence: Annotated[str, typer.Argument(metavar="SILENCE", help="A silence (sil-…).")],
) -> None:
    """End a silence before its time."""
    with api() as portal:
        portal.post(f"alerts/silences/{_safe(silence)}/end/")
    output.say("Ended.")


def _safe(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quote(name, safe="") or "-"
