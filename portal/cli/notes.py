"""``berth note``: credit and debit notes, which correct an invoice that was issued."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded

app = typer.Typer(
    help="Correct issued invoices by credit and debit notes.", no_args_is_help=True, rich_markup_mode=None
)
Note = Annotated[str, typer.Argument(metavar="NOTE", help="Its id, as “berth note list” shows it.")]
Invoice = Annotated[str, typer.Argument(metavar="INVOICE", help="The number of the issued invoice.")]
Line = Annotated[int, typer.Argument(metavar="LINE", min=1, help="The position of the line.")]
Amount = Annotated[str, typer.Argument(metavar="AMOUNT", help="Above zero, in whole cents, such as 12.50.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it stands on the invoice that bills the note.")]
Lease = Annotated[str, typer.Option("--lease", help="If it is about one lease of the line.")]
Said = Annotated[str, typer.Option("--note", help="What whoever proposed it will read.")]


@app.command("list")
@guarded
def list_notes(
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Only those that wait for a second person.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List credit and debit notes, newest first: finance sees all, others the approved ones of their teams."""
    with api() as portal:
        rows = list(portal.every("notes/", state="proposed") if waiting else portal.every("notes/"))
    cells = [
        (
            row["number"] or row["id"], row["kind"], row["state"], row["team"], formatting.money(row["amount"]),
            f"{row['corrects']['invoice']}/{row['corrects']['line']}", row["month"] or "", row["reason"],
        )
        for row in rows
    ]  # fmt: skip
    columns = ("NOTE", "KIND", "STATE", "TEAM", "AMOUNT", "CORRECTS", "MONTH", "WHY")
    output.listing(rows, columns, cells, empty="There are no notes.", as_json=as_json)


@app.command("show")
@guarded
def show(note: Note, as_json: Json = False) -> None:
    """Show one note: what it corrects, who proposed and decided it, and where it is billed."""
    with api() as portal:
        row = portal.get(f"notes/{_safe(note)}/")
    if as_json:
        output.out_json(row)
        return
    corrected = row["corrects"]
    output.facts(
        (
            ("note", row["number"] or row["id"]),
            ("kind", row["kind"]),
            ("state", row["state"]),
            ("team", row["team"]),
            ("amount", formatting.money(row["amount"])),
            ("corrects", f"{corrected['invoice']}, line {corrected['line']} ({corrected['person']})"),
            ("lease", corrected["lease"] or "–"),
            ("why", row["reason"]),
            ("proposed", f"{row['proposed_by']}, {formatting.when(row['proposed_at'])}"),
            (
                "decided",
                f"{row['decided_by']}, {formatting.when(row['decided_at'])}" if row["decided_by"] else "–",
            ),
            ("billed", row["billed_on"] or row["month"] or "–"),
        )
    )


@app.command("credit")
@guarded
def credit(
    invoice: Invoice, line: Line, amount: Amount, reason: Reason, lease: Lease = "", as_json: Json = False
) -> None:
    """Propose that less is owed for a line of an issued invoice. Finance; a second person decides."""
    _propose("credit", invoice, line, amount, reason, lease, as_json)


@app.command("debit")
@guarded
def debit(
    invoice: Invoice, line: Line, amount: Amount, reason: Reason, lease: Lease = "", as_json: Json = False
) -> None:
    """Propose that more is owed for a line of an issued invoice. Finance; a second person decides."""
    _propose("debit", invoice, line, amount, reason, lease, as_json)


@app.command("approve")
@guarded
def approve(note: Note, said: Said = "", as_json: Json = False) -> None:
    """Approve somebody else's note: it is billed in the earliest open month. Finance."""
    _act(note, "approve", {"note": said}, as_json)


@app.command("reject")
@guarded
def reject(note: Note, said: Said, as_json: Json = False) -> None:
    """Reject somebody else's note, for good. Finance."""
    _act(note, "reject", {"note": said}, as_json)


@app.command("withdraw")
@guarded
def withdraw(note: Note, as_json: Json = False) -> None:
    """Take back a note of your own that nobody has decided. Finance."""
    _act(note, "withdraw", {}, as_json)


def _propose(kind: str, invoice: str, line: int, amount: str, reason: str, lease: str, as_json: bool) -> None:
    body = {
        "invoice": invoice,
        "line": line,
        "kind": kind,
        "amount": amount,
        "reason": reason,
        "lease": lease,
    }
    with api() as portal:
        made = portal.post("notes/", body)
    if as_json:
        output.out_json(made)
        return
    output.say(f"{made['id']} waits for a second person: {formatting.money(made['amount'])}.")


def _act(note: str, verb: str, body: dict[str, Any], as_json: bool) -> None:
    with api() as portal:
        done = portal.post(f"notes/{_safe(note)}/{verb}/", body)
    if as_json:
        output.out_json(done)
        return
    lands = f": {formatting.money(done['amount'])} in {done['month']}" if done["month"] else ""
    output.say(f"{done['id']} is {done['state']}{lands}.")


def _safe(name: str) -> str:
    """Return a name that stays one part of an address."""
    return quote(name, safe="") or "-"
