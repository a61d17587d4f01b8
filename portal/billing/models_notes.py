from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from portal.common.ids import note_uid
from portal.teams.models import Team


class NoteState(models.TextChoices):
    """Steps of a credit or debit note."""

    PROPOSED = "proposed", _("Waits for a second person")
    APPROVED = "approved", pgettext_lazy("note", "Approved")
    REJECTED = "rejected", pgettext_lazy("note", "Rejected")
    WITHDRAWN = "withdrawn", pgettext_lazy("note", "Withdrawn")


class InvoiceNote(models.Model):
    """A credit or debit note: what corrects one line of an issued invoice, on an invoice of a later month.

    ``amount_micro`` is signed: below zero a credit, above it a debit, in whole cents. ``line`` is what it corrects,
    ``lease`` says of which lease on that line it is, None for the line as a whole. An approved note belongs to
    ``period``, the month that was the earliest open one; when that closes the note gets its ``number`` and
    ``issued_line``, the line it stands on. ``team`` and ``currency`` are those of the corrected invoice.
    """

    uid = models.CharField(max_length=24, unique=True, default=note_uid)
    line = models.ForeignKey("billing.InvoiceLine", on_delete=models.PROTECT, related_name="notes")
    lease = models.ForeignKey("leases.Lease", null=True, on_delete=models.PROTECT, related_name="+")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+")
    currency = models.CharField(max_length=3)
    amount_micro = models.BigIntegerField()
    reason = models.CharField(max_length=300)
    state = models.CharField(max_length=9, choices=NoteState.choices, default=NoteState.PROPOSED)
    proposed_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    proposed_at = models.DateTimeField()
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    decided_at = models.DateTimeField(null=True)
    decision_note = models.CharField(max_length=300, blank=True)
    period = models.ForeignKey(
        "billing.BillingPeriod", null=True, on_delete=models.PROTECT, related_name="notes"
    )
    number = models.CharField(max_length=30, unique=True, null=True, blank=True)
    issued_line = models.OneToOneField(
        "billing.InvoiceLine", null=True, on_delete=models.PROTECT, related_name="note"
    )

    class Meta:
        ordering = ["-proposed_at", "-id"]
        constraints = [
            models.CheckConstraint(
                condition=~Q(amount_micro=0)
                & Q(amount_micro=F("amount_micro") / 10_000 * 10_000)
                & ~Q(reason=""),
                name="note_says_how_much_and_why",
            ),
            models.CheckConstraint(condition=Q(state__in=NoteState.values), name="note_state_known"),
            models.CheckConstraint(
                condition=Q(state=NoteState.PROPOSED, decided_by=None, decided_at=None)
                | (
                    Q(state__in=(NoteState.APPROVED, NoteState.REJECTED), decided_at__isnull=False)
                    & Q(decided_by__isnull=False)
                    & ~Q(decided_by=F("proposed_by"))
                )
                | Q(state=NoteState.WITHDRAWN, decided_by__isnull=False, decided_at__isnull=False)
                & Q(decided_by=F("proposed_by")),
                name="note_decided_by_a_second_person",
            ),
            models.CheckConstraint(
                condition=Q(state=NoteState.APPROVED, period__isnull=False)
                | (~Q(state=NoteState.APPROVED) & Q(period=None)),
                name="note_approved_has_month",
            ),
            models.CheckConstraint(
                condition=Q(number=None, issued_line=None)
                | Q(number__isnull=False, issued_line__isnull=False, state=NoteState.APPROVED),
                name="note_issued_has_line",
            ),
        ]

    def __str__(self) -> str:
        return self.number or self.uid

    @property
    def is_credit(self) -> bool:
        """Say whether the note lowers what is owed."""
        return self.amount_micro < 0
