"""Credit and debit notes: what corrects an invoice that never changes, proposed by one person, approved by another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from fractions import Fraction
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Prefetch, Q, QuerySet, Sum
from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.audit.services import record
from portal.billing.models import (
    BillingPeriod,
    ExternalUsage,
    Invoice,
    InvoiceLine,
    InvoiceNote,
    NoteState,
    PeriodState,
    UsageRecord,
    UsageTotal,
)
from portal.billing.periods import period_of
from portal.billing.settlement import post_note
from portal.catalog.pricing import MINOR_MICRO, exact_micro
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.common.sql import fetch
from portal.common.trigger_errors import constraint_of
from portal.leases.models import Lease
from portal.notifications.services import notify
from portal.teams.models import Membership, Role, Team
from portal.teams.selectors import Rights, visible_teams

MOST_REASON = 300
AT_HAND = ("line__invoice__period", "team", "proposed_by", "decided_by")
# Fourteen joins in one question take PostgreSQL 60 ms to plan, whatever it finds.
ASKED_FOR_APART = (
    Prefetch("line__total", UsageTotal.objects.select_related("user", "flavor__device_model")),
    Prefetch("line__external", ExternalUsage.objects.select_related("user")),
    Prefetch("issued_line", InvoiceLine.objects.select_related("invoice")),
    "lease",
    "period",
)


def all_notes() -> QuerySet[InvoiceNote]:
    """Return every note with what is shown of it at hand, the newest first."""
    return InvoiceNote.objects.select_related(*AT_HAND).prefetch_related(*ASKED_FOR_APART)


def notes_in_sight(rights: Rights) -> QuerySet[InvoiceNote]:
    """Return the notes that a person may see: finance all of them, others the approved ones of their teams."""
    if rights.is_finance:
        return all_notes()
    return all_notes().filter(state=NoteState.APPROVED, team__in=visible_teams(rights))


def visible_note(rights: Rights, uid: str) -> InvoiceNote:
    """Return a note by its id, or raise NotFound also for one out of sight."""
    note = notes_in_sight(rights).filter(uid=uid).first()
    if note is None:
        raise NotFound
    return note


def waiting_notes() -> QuerySet[InvoiceNote]:
    """Return the notes that wait for a second person, the oldest first."""
    return all_notes().filter(state=NoteState.PROPOSED).order_by("proposed_at", "pk")


def draft_notes(period: BillingPeriod, team_ids: Iterable[int] | None = None) -> list[InvoiceNote]:
    """Return the approved notes of a month that are on no line yet, in the order in which a close numbers them.

    None asks for every team.
    """
    rows = all_notes().filter(period=period, state=NoteState.APPROVED, number=None)
    if team_ids is not None:
        rows = rows.filter(team__in=list(team_ids))
    return list(rows.order_by("decided_at", "pk"))


def note_sums(
    periods: Iterable[BillingPeriod], team_ids: Sequence[int] | QuerySet[Team]
) -> dict[tuple[int, int], int]:
    """Return by month and team what approved notes come to in micro-units, on lines already or not."""
    rows = (
        InvoiceNote.objects.filter(period__in=list(periods), team__in=team_ids, state=NoteState.APPROVED)
        .values_list("period_id", "team_id")
        .annotate(amount=Sum("amount_micro"))
        .order_by()
    )
    return {(period, team): amount for period, team, amount in rows}


def line_to_correct(number: str, position: int) -> InvoiceLine:
    """Return a line of an issued invoice by the invoice's number; raises NotFound."""
    line = (
        InvoiceLine.objects.select_related("invoice__period", "invoice__team")
        .filter(invoice__number=number, invoice__is_issued=True, position=position)
        .first()
    )
    if line is None:
        raise NotFound
    return line


def open_credit(line: InvoiceLine) -> int:
    """Return how much of a line can still be credited, in micro-units: what waits for a second person counts."""
    sums = InvoiceNote.objects.filter(line=line).aggregate(
        credits=Sum("amount_micro", filter=Q(amount_micro__lt=0, state__in=_LIVE)),
        debits=Sum("amount_micro", filter=Q(amount_micro__gt=0, state=NoteState.APPROVED)),
    )
    return int(line.amount_micro + (sums["credits"] or 0) + (sums["debits"] or 0))


def open_debit(line: InvoiceLine) -> int:
    """Return how much can still be debited on a line, in micro-units: together at most what it charged."""
    sums = InvoiceNote.objects.filter(line=line).aggregate(
        debits=Sum("amount_micro", filter=Q(amount_micro__gt=0, state__in=_LIVE)),
        credits=Sum("amount_micro", filter=Q(amount_micro__lt=0, state=NoteState.APPROVED)),
    )
    return int(line.amount_micro - (sums["debits"] or 0) - (sums["credits"] or 0))


_LIVE = (NoteState.PROPOSED, NoteState.APPROVED)


def lease_on_line(line: InvoiceLine, lease: Lease) -> int | None:
    """Return what a lease came to on an issued line in micro-units, up to the whole cent; None if it is not on it."""
    total = UsageTotal.objects.filter(line=line, user=lease.user_id, flavor=lease.flavor_id).first()
    if total is None:
        return None
    rows = UsageRecord.objects.filter(
        lease=lease,
        period=total.period_id,
        team=total.team_id,
        micro_per_hour=total.micro_per_hour,
        currency=total.currency,
        late_for=total.late_for_id,
    ).values_list("share_milli_seconds", "micro_per_hour")
    exact = sum((exact_micro(quantity, price) for quantity, price in rows), Fraction(0))
    return -(-exact // MINOR_MICRO) * MINOR_MICRO if rows else None


@transaction.atomic
def propose_note(
    *,
    line: InvoiceLine,
    amount_micro: int,
    is_credit: bool,
    reason: str,
    lease: Lease | None,
    actor: User,
    now: datetime,
) -> InvoiceNote:
    """Propose to correct a line of an issued invoice by so many micro-units, above zero and in whole cents.

    Raises Invalid naming the field: an amount beyond what the line, or the lease on it, charged; no reason; a lease
    that is not on the line. It bills nothing until a second person approves it.
    """
    # Who proposes for the same line waits here, so that the sums below stay what they are.
    line = (
        InvoiceLine.objects.select_for_update(of=("self",))
        .select_related("invoice__period", "invoice__team")
        .get(pk=line.pk)
    )
    _check(line, amount_micro, is_credit, reason.strip(), lease)
    note = InvoiceNote(
        line=line,
        lease=lease,
        team_id=line.invoice.team_id,
        currency=line.invoice.currency,
        amount_micro=-amount_micro if is_credit else amount_micro,
        reason=reason.strip(),
        proposed_by=actor,
        proposed_at=now,
    )
    _save(note)
    record(actor, "note.proposed", note.uid, at=now, team_id=note.team_id, **_facts(note))
    facts = _facts(note) | {"by": str(actor)}
    notify(
        [user for user in _finance() if user.pk != actor.pk],
        "note.proposed",
        target=note.uid,
        at=now,
        **facts,
    )
    return note


def _check(line: InvoiceLine, amount: int, is_credit: bool, reason: str, lease: Lease | None) -> None:
    fields: dict[str, str] = {}
    if not reason or len(reason) > MOST_REASON or not reason.isprintable():
        fields["reason"] = _("Say why in 1 to %(most)d characters: it stands on the invoice.") % {
            "most": MOST_REASON
        }
    on_line = _chargeable(line, lease, is_credit)
    room = open_credit(line) if is_credit else open_debit(line)
    if InvoiceNote.objects.filter(issued_line=line).exists():
        fields["line"] = _("This line is a note itself. Correct the line that it corrects.")
    elif ExternalUsage.objects.filter(billed_on=line, energy_mj=None).exists():
        fields["line"] = _("This line is external usage: the next bill of its source corrects it.")
    elif on_line is None:
        fields["lease"] = _("This lease is not on this line.")
    elif amount <= 0 or amount % MINOR_MICRO:
        fields["amount"] = _("Give an amount above zero in whole cents.")
    elif amount > min(room, on_line):
        most = f"{min(room, on_line) / 1_000_000:.2f} {line.invoice.currency}"
        fields["amount"] = (
            _("At most %(most)s can be credited: what it charged, less the notes that there are.")
            if is_credit
            else _("At most %(most)s can be debited: together no more than it charged.")
        ) % {"most": most}
    if fields:
        raise Invalid(fields=fields)


def _chargeable(line: InvoiceLine, lease: Lease | None, is_credit: bool) -> int | None:
    """Return what the line, or the lease on it, charged, less what this lease was credited; None if it is not on it."""
    if lease is None:
        return (
            line.amount_micro * 2 if is_credit else line.amount_micro
        )  # a debit before it may be credited, too
    on_line = lease_on_line(line, lease)
    if on_line is None or not is_credit:
        return on_line
    credited = InvoiceNote.objects.filter(line=line, lease=lease, amount_micro__lt=0, state__in=_LIVE)
    return on_line + int(credited.aggregate(n=Sum("amount_micro"))["n"] or 0)


def _save(note: InvoiceNote, fields: Sequence[str] | None = None) -> None:
    """Save a note; raises Conflict where the database says that its line would be exceeded."""
    try:
        with transaction.atomic():
            note.save(update_fields=fields)
    except IntegrityError as error:
        if constraint_of(error) == "note_within_its_line":
            raise Conflict(_("The notes of this line would come to more than it charged.")) from error
        raise


@transaction.atomic
def approve_note(*, note: InvoiceNote, actor: User, note_text: str = "", now: datetime) -> InvoiceNote:
    """Approve somebody else's note: it goes onto the invoice of the earliest month that is open.

    Raises Forbidden for who proposed it, Conflict when it was decided already or the month closes at this moment.
    """
    period = _landing(now)
    locked = _locked(note)
    _require_second(locked, actor)
    locked.period = period
    decided = _decide(locked, NoteState.APPROVED, actor, note_text, now)
    post_note(decided, now=now)
    return decided


@transaction.atomic
def reject_note(*, note: InvoiceNote, actor: User, note_text: str, now: datetime) -> InvoiceNote:
    """Reject somebody else's note, for good. Raises Forbidden for who proposed it, Invalid, Conflict."""
    locked = _locked(note)
    _require_second(locked, actor)
    if not note_text.strip():
        raise Invalid(fields={"note": _("Say why it is rejected: who proposed it will read it.")})
    return _decide(locked, NoteState.REJECTED, actor, note_text, now)


@transaction.atomic
def withdraw_note(*, note: InvoiceNote, actor: User, now: datetime) -> InvoiceNote:
    """Take back a note of one's own that nobody has decided. Raises Forbidden for others, Conflict."""
    locked = _locked(note)
    if locked.proposed_by_id != actor.pk:
        raise Forbidden(_("Only who proposed this note can withdraw it."))
    return _decide(locked, NoteState.WITHDRAWN, actor, "", now)


def _landing(now: datetime) -> BillingPeriod:
    """Return the earliest open month, kept from closing until this transaction ends."""
    period_of(now)
    closed = BillingPeriod.objects.filter(state=PeriodState.CLOSED).order_by("-starts_at").first()
    if closed is not None and closed.ends_at <= now:
        period_of(closed.ends_at)  # nothing may have been used in it yet
    rows = fetch(
        "SELECT id FROM billing_billingperiod WHERE state = %s ORDER BY starts_at LIMIT 1 FOR SHARE",
        [PeriodState.OPEN],
    )
    if not rows:
        raise Conflict(_("The month is being closed at this moment. Try again in a minute."))
    return BillingPeriod.objects.get(pk=rows[0][0])


def _locked(note: InvoiceNote) -> InvoiceNote:
    """Return the note, locked; raises Conflict when it does not wait any more."""
    # The line first, as who proposes does.
    list(InvoiceLine.objects.select_for_update().filter(pk=note.line_id))
    locked = InvoiceNote.objects.select_for_update(of=("self",)).select_related(*AT_HAND).get(pk=note.pk)
    if locked.state != NoteState.PROPOSED:
        raise Conflict(_("This note was decided already: %(state)s.") % {"state": locked.get_state_display()})
    return locked


def _require_second(note: InvoiceNote, actor: User) -> None:
    if note.proposed_by_id == actor.pk:
        raise Forbidden(_("A note is decided by a second person, not by the one who proposed it."))


def _decide(note: InvoiceNote, state: NoteState, actor: User, text: str, now: datetime) -> InvoiceNote:
    if len(text) > MOST_REASON:
        raise Invalid(
            fields={"note": _("This text has at most %(most)d characters.") % {"most": MOST_REASON}}
        )
    note.state, note.decided_by, note.decided_at, note.decision_note = state, actor, now, text.strip()
    _save(note, ["state", "decided_by", "decided_at", "decision_note", "period"])
    facts = _facts(note) | ({"month": str(note.period)} if note.period else {})
    record(actor, f"note.{state}", note.uid, at=now, team_id=note.team_id, **facts)
    if state != NoteState.WITHDRAWN:
        told = facts | {"by": str(actor), "note": note.decision_note}
        notify([note.proposed_by], f"note.{state}", target=note.uid, at=now, **told)
    return note


def _facts(note: InvoiceNote) -> dict[str, Any]:
    return {
        "invoice": note.line.invoice.number,
        "line": note.line.position,
        "amount_micro": note.amount_micro,
        "currency": note.currency,
        "reason": note.reason,
    }


def _finance() -> list[User]:
    rows = Membership.objects.filter(role=Role.FINANCE, team__parent=None).select_related("user")
    return [row.user for row in rows.order_by("user_id")]


def line_of_note(note: InvoiceNote, invoice: Invoice, position: int) -> InvoiceLine:
    """Return the line, not saved, that a note is billed on: the corrected line's names, no usage, the note's amount."""
    corrected = note.line
    return InvoiceLine(
        invoice=invoice,
        position=position,
        person=corrected.person,
        flavor=corrected.flavor,
        device_model=corrected.device_model,
        micro_per_hour=corrected.micro_per_hour,
        lease_count=0,
        seconds=0,
        share_milli_seconds=0,
        amount_micro=note.amount_micro,
        late_for_id=corrected.invoice.period_id,
    )
