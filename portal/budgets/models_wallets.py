from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from portal.teams.models import Team


class AtZero(models.TextChoices):
    """What may start that the balance does not cover."""

    BLOCK = "block", pgettext_lazy("what a balance does", "Nothing")
    PREEMPTIBLE = "preemptible", _("Only preemptible requests, on credit")


class MovementKind(models.TextChoices):
    """Why the balance of a wallet moved."""

    TOP_UP = "top_up", pgettext_lazy("movement", "Top-up")
    PAY_OUT = "pay_out", pgettext_lazy("movement", "Paid out")
    HOLD = "hold", pgettext_lazy("movement", "Held for a lease")
    SETTLE = "settle", pgettext_lazy("movement", "Lease settled")
    AMEND = "amend", pgettext_lazy("movement", "Settlement amended")
    NOTE = "note", pgettext_lazy("movement", "Credit or debit note")


_BY_HAND = (MovementKind.TOP_UP, MovementKind.PAY_OUT)
_CHARGES = (MovementKind.SETTLE, MovementKind.AMEND)


class Wallet(models.Model):
    """A prepaid balance that a team and those below it run on, unless one nearer to them has one of its own.

    ``balance_micro`` is what is there to be held, ``held_micro`` what live leases hold of it beside that, both in
    micro-units, and ``movements`` how many there are. A trigger writes these three with each movement, and nothing
    else may. A wallet that is not open pays for nothing new; what it holds is settled all the same.
    """

    team = models.OneToOneField(Team, on_delete=models.PROTECT, related_name="wallet")
    currency = models.CharField(max_length=3)
    at_zero = models.CharField(max_length=12, choices=AtZero.choices, default=AtZero.BLOCK)
    is_open = models.BooleanField(default=True)
    balance_micro = models.BigIntegerField(default=0)
    held_micro = models.BigIntegerField(default=0)
    movements = models.PositiveBigIntegerField(default=0)
    version = models.PositiveIntegerField(default=1)
    made_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["team__name"]
        constraints = [
            models.CheckConstraint(condition=Q(at_zero__in=AtZero.values), name="wallet_at_zero_known"),
            models.CheckConstraint(condition=Q(held_micro__gte=0), name="wallet_holds_nothing_negative"),
        ]

    def __str__(self) -> str:
        return f"wallet of {self.team_id}"


class WalletHold(models.Model):
    """What a live lease holds of a wallet; written by the triggers of movements, and gone when it is settled."""

    lease = models.OneToOneField("leases.Lease", on_delete=models.PROTECT, related_name="+")
    wallet = models.ForeignKey(Wallet, on_delete=models.PROTECT, related_name="holds")
    amount_micro = models.BigIntegerField()

    def __str__(self) -> str:
        return f"hold of lease {self.lease_id}"


class WalletMovement(models.Model):
    """One movement of a wallet's balance: append-only by trigger, in micro-units, numbered from 1 without a gap.

    ``amount_micro`` is what the balance changes by, ``balance_micro`` what it is then. A hold takes it away, a
    settlement gives back what was held less ``cost_micro``, what the lease came to. ``reference`` says where money
    came from or went to; each is used once in a wallet.
    """

    wallet = models.ForeignKey(Wallet, on_delete=models.PROTECT, related_name="ledger", db_index=False)
    number = models.PositiveBigIntegerField(default=0)
    kind = models.CharField(max_length=8, choices=MovementKind.choices)
    amount_micro = models.BigIntegerField()
    balance_micro = models.BigIntegerField(default=0)
    cost_micro = models.BigIntegerField(null=True)
    lease = models.ForeignKey("leases.Lease", null=True, on_delete=models.PROTECT, related_name="+")
    note = models.OneToOneField(
        "billing.InvoiceNote", null=True, on_delete=models.PROTECT, related_name="movement"
    )
    reference = models.CharField(max_length=120, blank=True, default="")
    made_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    at = models.DateTimeField()

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["wallet", "number"], name="movement_number_once"),
            models.UniqueConstraint(
                fields=["lease"], name="lease_settled_once", condition=Q(kind=MovementKind.SETTLE)
            ),
            models.UniqueConstraint(
                fields=["wallet", "kind", "reference"],
                name="movement_reference_once",
                condition=Q(kind__in=_BY_HAND),
            ),
            models.CheckConstraint(
                name="movement_says_what_it_is",
                condition=Q(
                    kind=MovementKind.TOP_UP,
                    amount_micro__gt=0,
                    lease=None,
                    note=None,
                    cost_micro=None,
                    made_by__isnull=False,
                )
                & ~Q(reference="")
                | Q(
                    kind=MovementKind.PAY_OUT,
                    amount_micro__lt=0,
                    lease=None,
                    note=None,
                    cost_micro=None,
                    made_by__isnull=False,
                )
                & ~Q(reference="")
                | Q(
                    kind=MovementKind.HOLD,
                    amount_micro__lte=0,
                    lease__isnull=False,
                    note=None,
                    cost_micro=None,
                )
                | Q(
                    kind__in=_CHARGES,
                    lease__isnull=False,
                    note=None,
                    cost_micro__isnull=False,
                    cost_micro__gte=0,
                )
                | Q(kind=MovementKind.NOTE, lease=None, note__isnull=False, cost_micro=None),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.number}: {self.kind} {self.amount_micro}"
