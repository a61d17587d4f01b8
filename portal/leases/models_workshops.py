"""The tables of workshops: slices for a list of people at one time, each started by its person alone."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from portal.catalog.models import Flavor
from portal.common.ids import workshop_uid
from portal.leases.states import Approval
from portal.teams.models import Team


class Workshop(models.Model):
    """A class or workshop: one unit of a flavor for each of its people, from ``starts_at`` on for ``duration_s``.

    What nobody has started by ``returns_at`` is given back; ``settled_at`` is when that was done. What was asked for
    never changes; a decision on it is made once (a trigger).
    """

    uid = models.CharField(max_length=24, default=workshop_uid, unique=True)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="workshops")
    organiser = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="workshops", db_index=False
    )
    flavor = models.ForeignKey(Flavor, on_delete=models.PROTECT, related_name="+", db_index=False)
    name = models.CharField(max_length=80)
    purpose = models.CharField(max_length=300, blank=True)
    starts_at = models.DateTimeField()
    duration_s = models.PositiveIntegerField()
    returns_at = models.DateTimeField()
    approval = models.CharField(max_length=20, choices=Approval.choices, default=Approval.NOT_NEEDED)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
    )
    decided_for = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        db_index=False,
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    decision_note = models.CharField(max_length=300, blank=True)
    cancelled_at = models.DateTimeField(null=True, blank=True)
    settled_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["-starts_at", "-id"]
        indexes = [
            models.Index(fields=["returns_at"], name="workshop_to_settle", condition=Q(settled_at=None))
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(duration_s__gte=1, returns_at__gt=F("starts_at")) & ~Q(name=""),
                name="workshop_asks_for_something",
            ),
            models.CheckConstraint(condition=Q(approval__in=Approval.values), name="workshop_approval_known"),
            models.CheckConstraint(
                condition=~Q(approval__in=(Approval.APPROVED, Approval.REJECTED))
                | (Q(decided_by__isnull=False) & ~Q(decided_by=F("organiser"))),
                name="workshop_decided_by_another",
            ),
            models.CheckConstraint(
                condition=Q(decided_for=None)
                | (
                    Q(decided_by__isnull=False)
                    & ~Q(decided_for=F("decided_by"))
                    & ~Q(decided_for=F("organiser"))
                ),
                name="workshop_decided_for_another",
            ),
        ]

    def __str__(self) -> str:
        return self.uid

    @property
    def ends_at(self) -> datetime:
        """When the last lease of it ends."""
        return self.starts_at + timedelta(seconds=self.duration_s)


class WorkshopSeat(models.Model):
    """The place of one person in a workshop, with the request that keeps a slice for them.

    ``claimed_at`` is when the person came; ``returned_at`` when the slice was given back because nobody had.
    """

    workshop = models.ForeignKey(Workshop, on_delete=models.CASCADE, related_name="seats", db_index=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="seats")
    request = models.OneToOneField(
        "LeaseRequest", null=True, blank=True, on_delete=models.PROTECT, related_name="seat"
    )
    claimed_at = models.DateTimeField(null=True, blank=True)
    returned_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(fields=["workshop", "user"], name="one_seat_per_person"),
            models.CheckConstraint(
                condition=Q(claimed_at=None) | Q(returned_at=None, request__isnull=False),
                name="seat_is_claimed_or_returned",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} in {self.workshop_id}"
