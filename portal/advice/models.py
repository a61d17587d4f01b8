from __future__ import annotations

from django.conf import settings
from django.db import models

from portal.catalog.models import Flavor


class DismissedAdvice(models.Model):
    """A person who wants no advice about leases of a flavor any more."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    flavor = models.ForeignKey(Flavor, on_delete=models.CASCADE, related_name="+", db_index=False)
    dismissed_at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "flavor"], name="advice_dismissed_once")]

    def __str__(self) -> str:
        return f"{self.user_id} {self.flavor_id}"
