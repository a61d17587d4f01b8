"""Credit and debit notes over HTTP."""

from __future__ import annotations

from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import PAGING, call, query
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Empty, PriceField, Text, Whole
from portal.api.idempotency import once
from portal.api.money import month_of
from portal.api.pagination import PARAMETERS, Pages
from portal.api.representations import Row
from portal.api.responses_money import NoteAnswer
from portal.api.wire import instant, money
from portal.billing.models import InvoiceNote, NoteState
from portal.billing.notes import (
    MOST_REASON,
    approve_note,
    line_to_correct,
    notes_in_sight,
    propose_note,
    reject_note,
    visible_note,
    withdraw_note,
)
from portal.common.clock import db_now
from portal.common.errors import Invalid
from portal.leases.models import Lease
from portal.teams.selectors import visible_team

TAG = "money"


class NewNoteBody(Body):
    """What is corrected, by how much, and why."""

    invoice = Text(most=30, help_text="The number of the issued invoice.")
    line = Whole(least=1, most=10**9, help_text="The position of the line.")
    kind = serializers.ChoiceField(("credit", "debit"))
    amount = PriceField(help_text="Above zero, in whole cents.")
    reason = Text(most=MOST_REASON)
    lease = Text(most=24, allow_blank=True, default="", help_text="If it is about one lease of the line.")


class NoteDecisionBody(Body):
    """What whoever proposed the note will read."""

    note = Text(most=MOST_REASON, allow_blank=True, default="")


class Notes(Endpoint):
    """Credit and debit notes."""

    parameters = PARAMETERS | {"state", "team"}

    @call(
        "List notes", answer=NoteAnswer, is_list=True, refusals=(404,), tag=TAG,
        parameters=[
            *PAGING, query("state", "Only those in this state.", enum=tuple(NoteState.values)),
            query("team", "Slug of the team."),
        ],
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """List credit and debit notes, newest first: finance sees all, others the approved ones of their teams."""
        rows, pages = notes_in_sight(self.rights), Pages()
        state, slug = request.query_params.get("state"), request.query_params.get("team")
        if state is not None:
            if state not in NoteState.values:
                raise Invalid(fields={"state": _("There is no such state.")})
            rows = rows.filter(state=state)
        if slug is not None:
            rows = rows.filter(team=visible_team(self.rights, slug))
        return Response(pages.answer([note_row(note) for note in pages.page(rows, request)]))

    @call(
        "Propose a note", body=NewNoteBody, answer=NoteAnswer, status=201, refusals=(404, 409, 422), tag=TAG
    )
    @once
    def post(self, request: Request) -> Response:
        """Propose to correct a line of an issued invoice; it is billed once a second person approves it. Finance."""
        self.require_finance()
        values = self.take(NewNoteBody)
        line = line_to_correct(values["invoice"], values["line"])
        uid = values["lease"]
        lease = Lease.objects.filter(uid=uid, team=line.invoice.team_id).first() if uid else None
        if uid and lease is None:
            raise Invalid(fields={"lease": _("This lease is not on this line.")})
        made = propose_note(
            line=line,
            amount_micro=values["amount"],
            is_credit=values["kind"] == "credit",
            reason=values["reason"],
            lease=lease,
            actor=self.person,
            now=db_now(),
        )
        row = note_row(visible_note(self.rights, made.uid))
        return Response(row, status=201, headers={"Location": f"/api/v1/notes/{made.uid}/"})


class OneNote(Endpoint):
    """One note."""

    @call("Read a note", answer=NoteAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, uid: str) -> Response:
        """Read one credit or debit note."""
        return Response(note_row(visible_note(self.rights, uid)))


class ApproveNote(Endpoint):
    """Approve a note."""

    @call("Approve a note", body=NoteDecisionBody, answer=NoteAnswer, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Approve somebody else's note: it goes onto the team's invoice of the earliest open month. Finance."""
        self.require_finance()
        note = visible_note(self.rights, uid)
        text = self.take(NoteDecisionBody)["note"]
        return Response(note_row(approve_note(note=note, actor=self.person, note_text=text, now=db_now())))


class RejectNote(Endpoint):
    """Reject a note."""

    @call("Reject a note", body=NoteDecisionBody, answer=NoteAnswer, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Reject somebody else's note, for good, and say why. Finance."""
        self.require_finance()
        note = visible_note(self.rights, uid)
        text = self.take(NoteDecisionBody)["note"]
        return Response(note_row(reject_note(note=note, actor=self.person, note_text=text, now=db_now())))


class WithdrawNote(Endpoint):
    """Withdraw a note."""

    @call("Withdraw a note", body=Empty, answer=NoteAnswer, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, uid: str) -> Response:
        """Take back a note of one's own that nobody has decided. Finance."""
        self.require_finance()
        note = visible_note(self.rights, uid)
        self.take(Empty)
        return Response(note_row(withdraw_note(note=note, actor=self.person, now=db_now())))


def note_row(note: InvoiceNote) -> Row:
    """Return a note; what it corrects, team, month, people and the line it is billed on must be at hand."""
    invoice = note.line.invoice
    return {
        "id": note.uid,
        "number": note.number,
        "kind": "credit" if note.is_credit else "debit",
        "state": str(note.state),
        "team": note.team.slug,
        "amount": money(note.amount_micro, note.currency),
        "reason": note.reason,
        "corrects": {
            "invoice": invoice.number,
            "month": month_of(invoice.period),
            "line": note.line.position,
            "person": note.line.person,
            "flavor": note.line.flavor,
            "lease": note.lease.uid if note.lease else None,
        },
        "proposed_by": note.proposed_by.username,
        "proposed_at": instant(note.proposed_at),
        "decided_by": note.decided_by.username if note.decided_by else None,
        "decided_at": instant(note.decided_at),
        "decision_note": note.decision_note,
        "month": month_of(note.period) if note.period else None,
        "billed_on": note.issued_line.invoice.number if note.issued_line else None,
    }
