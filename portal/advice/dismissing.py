"""Who wants no advice about a flavor says so once; it can be taken back."""

from __future__ import annotations

from datetime import datetime

from portal.accounts.models import User
from portal.advice.models import DismissedAdvice
from portal.catalog.models import Flavor


def dismiss_advice(*, user: User, flavor: Flavor, now: datetime) -> None:
    """Show a person no more advice about a flavor. Safe to repeat."""
    DismissedAdvice.objects.bulk_create(
        [DismissedAdvice(user=user, flavor=flavor, dismissed_at=now)], ignore_conflicts=True
    )


def restore_advice(*, user: User, flavor: Flavor) -> None:
    """Show a person advice about a flavor again. Safe to repeat."""
    DismissedAdvice.objects.filter(user=user, flavor=flavor).delete()
