"""Where a month's capacity went, as it was last counted."""

from __future__ import annotations

from django.db import models


class CapacityCount(models.Model):
    """The account of each device of a month with more usage than a page counts by itself, as of ``counted_at``.

    ``devices`` is by device id: ``kinds`` and ``above`` and ``capacity`` in thousandths of a device times seconds,
    ``stranded_micro`` as text, since it is not rounded.
    """

    period = models.OneToOneField(
        "billing.BillingPeriod", primary_key=True, on_delete=models.CASCADE, related_name="+"
    )
    counted_at = models.DateTimeField()
    devices = models.JSONField()

    def __str__(self) -> str:
        return f"capacity of {self.period_id} at {self.counted_at}"
