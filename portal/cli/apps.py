"""``berth app``: programs with a page of their own in a lease, opened in the browser at hand."""

from __future__ import annotations

import webbrowser
from typing import Annotated
from urllib.parse import quote

import typer

from portal.cli import output
from portal.cli.command import Json, api, guarded

app = typer.Typer(no_args_is_help=True, help="Apps in a lease of yours, such as JupyterLab.")
Lease = Annotated[str, typer.Argument(metavar="LEASE", help="A lease of yours (lse-…).")]


@app.command("list")
@guarded
def list_apps(lease: Lease, as_json: Json = False) -> None:
    """List the apps that open in a lease."""
    with api() as portal:
        found = portal.get(f"leases/{quote(lease, safe='') or '-'}/apps/")
    if as_json:
        output.out_json(found)
        return
    rows = [(one["name"], one["title"], ", ".join(one["needs"])) for one in found["apps"]]
    output.table(("app", "what", "needs"), rows, empty="No apps.")
    if found["refusal"]:
        output.say(found["refusal"])


@app.command("open")
@guarded
def open_app(
    lease: Lease,
    name: Annotated[
        str, typer.Argument(metavar="APP", help="jupyterlab, or port-7860 for a program of yours.")
    ],
    *,
    show: Annotated[bool, typer.Option("--print", help="Only print the address; it is good once.")] = False,
    as_json: Json = False,
) -> None:
    """Open an app of an active lease of yours in your browser."""
    with api() as portal:
        found = portal.post(f"leases/{quote(lease, safe='') or '-'}/apps/{quote(name, safe='') or '-'}/")
    if as_json:
        output.out_json(found)
        return
    if not show and webbrowser.open(found["address"]):
        output.say("Opened in your browser.")
        return
    output.out(found["address"])
