from __future__ import annotations

from django.db import models
from django.db.models import Q


class MinuteRollup(models.Model):
    """One minute of a device or of a lease. Unknown stays null; money never reads this."""

    device_id = models.BigIntegerField(null=True)
    lease_id = models.BigIntegerField(null=True)
    minute = models.DateTimeField()
    samples = models.PositiveSmallIntegerField()
    util_mean = models.FloatField(null=True)
    util_max = models.FloatField(null=True)
    memory_max_mib = models.PositiveIntegerField(null=True)
    energy_mj = models.BigIntegerField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(device_id__isnull=False, lease_id__isnull=True)
                | Q(device_id__isnull=True, lease_id__isnull=False),
                name="rollup_is_of_one_thing",
            ),
            models.UniqueConstraint(
                fields=["device_id", "minute"], condition=Q(lease_id=None), name="rollup_once_per_device"
            ),
            models.UniqueConstraint(
                fields=["lease_id", "minute"], condition=Q(device_id=None), name="rollup_once_per_lease"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.device_id or self.lease_id} {self.minute}"
