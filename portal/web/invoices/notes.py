"""Credit and debit notes: propose one from a line, decide those of others, read what became of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from django import forms
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from portal.billing.models import InvoiceLine, InvoiceNote, NoteState
from portal.billing.notes import (
    MOST_REASON,
    approve_note,
    line_to_correct,
    notes_in_sight,
    open_credit,
    open_debit,
    propose_note,
    reject_note,
    visible_note,
    waiting_notes,
    withdraw_note,
)
from portal.billing.selectors import invoice_view
from portal.common.clock import db_now
from portal.common.errors import BerthError, Invalid, NotFound
from portal.leases.models import Lease
from portal.teams.selectors import visible_team
from portal.web.access import done, person, refused, rights_of
from portal.web.fields import NoteForm, text_field
from portal.web.figures import MICRO, money
from portal.web.invoices.months import named
from portal.web.invoices.periods import require_finance

PER_PAGE = 50
TONES = {
    NoteState.PROPOSED: ("warn", "clock-pause"),
    NoteState.APPROVED: ("good", "circle-check"),
    NoteState.REJECTED: ("bad", "circle-x"),
    NoteState.WITHDRAWN: ("quiet", "arrow-back-up"),
}


@dataclass(frozen=True, slots=True)
class NoteRow:
    """A note as lists and its own page show it; ``amount`` is below zero for a credit."""

    uid: str
    name: str
    kind: str
    state: str
    tone: str
    icon: str
    team: str
    slug: str
    invoice: str
    month: datetime
    position: int
    person: str
    flavor: str
    lease: str
    amount: Decimal | None
    currency: str
    reason: str
    proposed_by: str
    proposed_at: datetime
    decided_by: str
    decided_at: datetime | None
    decision_note: str
    lands_in: date | None
    issued_on: str


class CorrectionForm(forms.Form):
    """How much of a line is credited or debited, and why."""

    kind = forms.ChoiceField(
        label=gettext_lazy("What it is"),
        choices=[
            ("credit", gettext_lazy("Credit note: less is owed")),
            ("debit", gettext_lazy("Debit note: more is owed")),
        ],
        widget=forms.Select({"class": "form-select"}),
    )
    amount = forms.DecimalField(
        label=gettext_lazy("Amount"),
        min_value=Decimal("0.01"),
        max_digits=15,
        decimal_places=2,
        widget=forms.NumberInput({"class": "form-control", "step": "0.01", "inputmode": "decimal"}),
    )
    reason = text_field(
        gettext_lazy("Why"), MOST_REASON, gettext_lazy("It stands on the invoice that the note is billed on.")
    )
    lease = text_field(
        gettext_lazy("Lease"), 24, gettext_lazy("If it is about one lease of the line."), required=False
    )


def note_rows(notes: Iterable[InvoiceNote]) -> list[NoteRow]:
    """Return notes as they are shown; what they correct must be at hand."""
    return [_row(note) for note in notes]


def kind_of(note: InvoiceNote) -> str:
    """Return what a note is, in the reader's language."""
    return _("Credit note") if note.is_credit else _("Debit note")


def _row(note: InvoiceNote) -> NoteRow:
    invoice, state = note.line.invoice, NoteState(note.state)
    tone, icon = TONES[state]
    return NoteRow(
        uid=note.uid,
        name=str(note),
        kind=kind_of(note),
        state=pgettext("note", "Issued") if note.number else str(state.label),
        tone=tone,
        icon="receipt" if note.number else icon,
        team=note.team.name,
        slug=note.team.slug,
        invoice=invoice.number or "",
        month=invoice.period.starts_at,
        position=note.line.position,
        person=note.line.person,
        flavor=note.line.flavor,
        lease=note.lease.uid if note.lease else "",
        amount=money(note.amount_micro),
        currency=note.currency,
        reason=note.reason,
        proposed_by=str(note.proposed_by),
        proposed_at=note.proposed_at,
        decided_by=str(note.decided_by) if note.decided_by else "",
        decided_at=note.decided_at,
        decision_note=note.decision_note,
        lands_in=note.period.month if note.period else None,
        issued_on=(note.issued_line.invoice.number or "") if note.issued_line else "",
    )


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show the notes that wait for a second person, then all that were decided."""
    require_finance(request)
    waiting = list(waiting_notes())
    decided = notes_in_sight(rights_of(request)).exclude(state=NoteState.PROPOSED)
    shown = Paginator(decided, PER_PAGE).get_page(request.GET.get("page"))
    context = {
        "waiting": note_rows(waiting),
        "page": shown,
        "rows": note_rows(shown.object_list),
    }
    return render(request, "web/notes.html", context)


@require_safe
def note(request: HttpRequest, uid: str) -> HttpResponse:
    """Show one note; finance decides it there, unless they proposed it."""
    rights = rights_of(request)
    found = visible_note(rights, uid)
    waits = rights.is_finance and found.state == NoteState.PROPOSED
    is_own = found.proposed_by_id == person(request).pk
    context = {
        "row": _row(found),
        "may_decide": waits and not is_own,
        "may_withdraw": waits and is_own,
        "is_finance": rights.is_finance,
    }
    return render(request, "web/note.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest, slug: str, month: str, key: str) -> HttpResponse:
    """Propose to correct a line of an issued invoice."""
    line = _line(request, slug, month, key)
    room = {"credit": open_credit(line), "debit": open_debit(line)}
    form = CorrectionForm(request.POST or None, initial={"lease": request.GET.get("lease", "")[:24]})
    if request.method == "POST" and form.is_valid():
        try:
            made = _proposed(request, line, form.cleaned_data)
        except Invalid as error:
            for field, text in error.fields.items():
                form.add_error(field if field in form.fields else None, text)
        except BerthError as error:
            form.add_error(None, str(error.detail))
        else:
            said = _("Proposed. It is billed once a second person approves it.")
            return done(request, said, "web:note", made.uid)
    context = {
        "line": line,
        "invoice": line.invoice,
        "team": line.invoice.team,
        "month": month,
        "amount": money(line.amount_micro),
        "room": {name: money(max(0, micro)) for name, micro in room.items()},
        "form": form,
        "notes": note_rows(notes_in_sight(rights_of(request)).filter(line=line)),
    }
    return render(request, "web/note_new.html", context, status=422 if form.is_bound else 200)


def _line(request: HttpRequest, slug: str, month: str, key: str) -> InvoiceLine:
    """Return the issued line at an address; raises NotFound for a draft and for what is out of sight."""
    team, period = visible_team(rights_of(request), slug), named(month)
    require_finance(request)
    invoice = invoice_view(team, period, now=db_now()).invoice
    if invoice is None or not key.isdecimal() or len(key) > 9:
        raise NotFound
    return line_to_correct(str(invoice.number), int(key))


def _proposed(request: HttpRequest, line: InvoiceLine, data: dict[str, Any]) -> InvoiceNote:
    uid = data["lease"].strip()
    lease = Lease.objects.filter(uid=uid, team=line.invoice.team_id).first() if uid else None
    if uid and lease is None:
        raise Invalid(fields={"lease": _("This lease is not on this line.")})
    return propose_note(
        line=line,
        amount_micro=int(data["amount"] * MICRO),
        is_credit=data["kind"] == "credit",
        reason=data["reason"],
        lease=lease,
        actor=person(request),
        now=db_now(),
    )


@require_POST
def decide(request: HttpRequest, uid: str) -> HttpResponse:
    """Approve or reject somebody else's note."""
    require_finance(request)
    found = visible_note(rights_of(request), uid)
    form = NoteForm(request.POST)
    if not form.is_valid():
        fields = {name: " ".join(str(error) for error in errors) for name, errors in form.errors.items()}
        return refused(request, Invalid(fields=fields), "web:note", uid)
    is_approved = form.cleaned_data["decision"] == "approve"
    act = approve_note if is_approved else reject_note
    try:
        decided = act(note=found, actor=person(request), note_text=form.cleaned_data["note"], now=db_now())
    except BerthError as error:
        return refused(request, error, "web:note", uid)
    said = (
        _("Approved. It goes onto the invoice of %(month)s.") % {"month": decided.period}
        if is_approved
        else _("Rejected. %(who)s will read your note.") % {"who": decided.proposed_by}
    )
    return done(request, said, "web:notes")


@require_POST
def withdraw(request: HttpRequest, uid: str) -> HttpResponse:
    """Take back a note of one's own."""
    require_finance(request)
    found = visible_note(rights_of(request), uid)
    try:
        withdraw_note(note=found, actor=person(request), now=db_now())
    except BerthError as error:
        return refused(request, error, "web:note", uid)
    return done(request, _("Withdrawn."), "web:notes")
