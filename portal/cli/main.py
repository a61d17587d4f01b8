"""``berth``: GPU time from the command line.

Exit codes: 0 done, 1 refused, 2 wrong usage, 3 the portal cannot be reached, 4 still waiting.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from portal.cli import (
    advice,
    alerts,
    announcements,
    apps,
    artifacts,
    availability,
    budgets,
    calendar,
    capacity,
    cluster_usage,
    config,
    contacts,
    deputies,
    discounts,
    energy,
    fair_share,
    forecasts,
    formatting,
    health,
    idle,
    imports,
    invitations,
    jobs,
    lab,
    labels,
    mailings,
    nodes,
    notes,
    offers,
    output,
    people,
    periods,
    policies,
    quotas,
    refunds,
    reports,
    requests,
    second_factor,
    sessions,
    setup,
    show,
    ssh,
    sso,
    templates,
    terminal,
    utilisation,
    wallets,
    watch,
    workshops,
    zones,
)
from portal.cli.command import Json, api, guarded

app = typer.Typer(
    help="GPU time from the command line. Exit codes: 0 done, 1 refused, 2 wrong usage, "
    "3 the portal cannot be reached, 4 still waiting.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def berth(
    zone: Annotated[
        str,
        typer.Option(
            help="Time zone to read and show times in, e.g. Europe/Berlin; default: this machine's."
        ),
    ] = "",
) -> None:
    """Choose what holds for every command."""
    zones.choose(zone)


@app.command()
@guarded
def login(
    url: Annotated[str, typer.Option(help="Address of the portal.")] = "",
    token: Annotated[str, typer.Option(help="A token made under API tokens; “-” reads it from stdin.")] = "",
    user: Annotated[
        str,
        typer.Option(help="Sign in under this name instead of in the browser; the password is asked for."),
    ] = "",
    days: Annotated[int, typer.Option(min=1, max=90, help="Days the new token lives.")] = 30,
) -> None:
    """Sign in: shows a link and a code to approve in a browser, and keeps the token for the next commands."""
    at = (url or config.load(os.environ).url).rstrip("/")
    if not at.startswith(("http://", "https://")):
        raise typer.BadParameter("give the address with http:// or https://", param_hint="--url")
    secret = sys.stdin.readline().strip() if token == "-" else token  # noqa: S105 (a dash)
    if not secret:
        secret = _from_person(at, user, days)
    with api(config.Config(at, secret)) as portal:
        me = portal.get("me/")
    place = config.save(config.Config(at, secret), os.environ)
    output.say(f"Signed in at {at} as {me['username']}. The token is in {place}, readable by you alone.")


def _from_person(at: str, user: str, days: int) -> str:
    """Return a token approved in the browser, or one made with name and password."""
    if not user:
        with api(config.Config(at, "")) as portal:
            return portal.sign_in_by_code(days=days, tell=output.say)
    password = typer.prompt("Password", hide_input=True, err=True)
    with api(config.Config(at, "")) as portal:
        return portal.sign_in(user, password, token_name="berth command line", days=days)  # noqa: S106 (a label)


@app.command()
def logout() -> None:
    """Forget the stored address and token."""
    output.say("Forgotten." if config.forget(os.environ) else "There was nothing to forget.")


@app.command()
@guarded
def me(as_json: Json = False) -> None:
    """Show who you are to the portal."""
    with api() as portal:
        found = portal.get("me/")
    if as_json:
        output.out_json(found)
        return
    roles = ", ".join(f"{held['role']} in {held['team']}" for held in found["roles"])
    output.facts((("name", found["username"]), ("roles", roles), ("asks for", ", ".join(found["teams"]))))


@app.command()
@guarded
def profile(
    zone: Annotated[str, typer.Option(help="Time zone of your pages, e.g. Europe/Berlin.")] = "",
    language: Annotated[str, typer.Option(help="Language of your pages: en or zh-hans.")] = "",
    as_json: Json = False,
) -> None:
    """Show or change the time zone and the language of your pages."""
    chosen = {name: value for name, value in (("time_zone", zone), ("language", language)) if value}
    with api() as portal:
        found = portal.put("me/", chosen) if chosen else portal.get("me/")
    if as_json:
        output.out_json(found)
        return
    zone_text, language_text = found["time_zone"] or "the portal's", found["language"] or "the browser's"
    output.facts((("time zone", zone_text), ("language", language_text)))


app.command("password")(sessions.password)


@app.command()
@guarded
def invariants(as_json: Json = False) -> None:
    """Show what the newest hourly check of the invariants found. Exit code 1 where one is broken. For operators."""
    with api() as portal:
        found = portal.get("fleet/invariants/")
    if as_json:
        output.out_json(found)
    else:
        if found["failure"]:
            output.say(
                f"The check of {formatting.when(found['tried_at'])} could not be finished: {found['failure']}"
            )
        if found["checked_at"] is None:
            output.say("No check was finished yet. One runs every hour.")
        else:
            output.say(f"Checked {formatting.when(found['checked_at'])}.")
            cells = [
                (one["name"], formatting.when(one["since"]), one["promise"], ", ".join(one["offenders"]))
                for one in found["broken"]
            ]
            output.table(("INVARIANT", "SINCE", "PROMISE", "ROWS"), cells, empty="All invariants hold.")
    if found["broken"]:
        raise typer.Exit(1)


app.command("request")(requests.request)
app.command("upload")(requests.upload)
app.command("list")(show.list_work)
app.command("show")(show.show)
app.command("receipt")(show.receipt)
app.command("find")(show.find)
app.command("release")(requests.release)
app.command("terminal")(terminal.terminal)
app.command("share")(watch.share)
app.command("watch")(watch.watch)
app.add_typer(apps.app, name="app")
app.command("ssh", context_settings={"ignore_unknown_options": True})(ssh.ssh)
app.command("ssh-config")(ssh.config)
app.command("ssh-proxy")(ssh.proxy)
app.command("extend")(requests.extend)
app.command("grow")(requests.grow)
app.command("approve")(requests.approve)
app.command("reject")(requests.reject)
app.command("withdraw")(requests.withdraw)
app.command("quote")(requests.quote)
app.command("submit")(jobs.submit)
app.command("run")(jobs.run)
app.command("sbatch")(jobs.sbatch)
app.command("jobs")(jobs.jobs)
app.command("images")(jobs.images)
app.command("logs")(jobs.logs)
jobs.job.command("artifacts")(artifacts.artifacts)
jobs.job.command("download")(artifacts.download)
app.add_typer(jobs.job, name="job")
app.add_typer(jobs.secret, name="secret")
app.command("flavors")(show.flavors)
app.command("availability")(availability.availability)
app.command("invoice")(show.invoice)
app.command("teams")(show.teams)
app.command("nodes")(show.nodes)
app.command("capacity")(capacity.capacity)
app.command("cluster-usage")(cluster_usage.cluster_usage)
app.command("utilisation")(utilisation.utilisation)
app.command("calendar")(calendar.calendar)
app.command("reserve")(calendar.reserve)
app.add_typer(setup.app, name="setup")
app.add_typer(people.app, name="person")
app.add_typer(invitations.app, name="invitation")
app.add_typer(deputies.app, name="deputy")
app.add_typer(offers.flavor, name="flavor")
app.add_typer(offers.price, name="price")
app.add_typer(calendar.reservation, name="reservation")
app.add_typer(workshops.app, name="workshop")
app.add_typer(calendar.maintenance, name="maintenance")
app.add_typer(announcements.app, name="announce")
app.add_typer(forecasts.app, name="forecast")
app.add_typer(sessions.app, name="session")
app.add_typer(second_factor.app, name="second-factor")
app.add_typer(ssh.app, name="ssh-key")
app.add_typer(sso.app, name="sso")
app.add_typer(templates.app, name="template")
app.add_typer(contacts.app, name="contact")
app.add_typer(periods.app, name="period")
app.add_typer(notes.app, name="note")
app.add_typer(discounts.app, name="discount")
app.add_typer(energy.app, name="energy")
app.add_typer(refunds.app, name="refund")
app.add_typer(labels.project, name="project")
app.add_typer(labels.label, name="label")
app.add_typer(reports.app, name="report")
app.add_typer(mailings.app, name="mailing")
health.add_to(nodes.app)
app.add_typer(nodes.app, name="node")
app.add_typer(fair_share.app, name="team")
app.add_typer(policies.app, name="policy")
app.add_typer(lab.app, name="lab")
app.add_typer(idle.app, name="idle")
app.add_typer(advice.app, name="advice")
app.add_typer(alerts.app, name="alert")
app.add_typer(budgets.app, name="budget")
app.add_typer(wallets.app, name="wallet")
app.add_typer(imports.app, name="import")
app.add_typer(quotas.quota, name="quota")
app.add_typer(quotas.cohort, name="cohort")
app.add_typer(quotas.priority, name="priority")

if __name__ == "__main__":
    app()
