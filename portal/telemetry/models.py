from __future__ import annotations

from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import Q


class MinuteRollup(models.Model):
    """One minute of a device or of a lease. Unknown stays null; money never reads this.

    Means over the seconds that were known: power in watts (of a part of a device an estimate), and of leases only
    activity of multiprocessors, tensor cores and memory bandwidth in percent. ``energy_refused`` counts the seconds
    of a device whose energy counter or power could not be true. In partitions by day (``partitions``): the database's
    primary key holds the minute, too.
    """

    device_id = models.BigIntegerField(null=True)
    lease_id = models.BigIntegerField(null=True)
    minute = models.DateTimeField()
    samples = models.PositiveSmallIntegerField()
    util_mean = models.FloatField(null=True)
    util_max = models.FloatField(null=True)
    memory_max_mib = models.PositiveIntegerField(null=True)
    energy_mj = models.BigIntegerField(null=True)
    energy_refused = models.PositiveSmallIntegerField(default=0, db_default=0)
    sm_mean = models.FloatField(null=True)
    tensor_mean = models.FloatField(null=True)
    bandwidth_mean = models.FloatField(null=True)
    power_mean_w = models.FloatField(null=True)

    class Meta:
        # Minutes come in order of time: a few kilobytes find those of the last hours.
        indexes = [
            BrinIndex(fields=["minute"], name="rollup_by_minute", pages_per_range=32, autosummarize=True)
        ]
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


class HourRollup(models.Model):
    """One hour of a lease: its mean utilisation in percent over the ``minutes`` in which that was known.

    ``memory_max_mib`` is the most device memory that it had in one of them; None where nobody knows.

    Made of its minutes again and again until they are all in. Money never reads this. In partitions by month.
    """

    lease_id = models.BigIntegerField()
    hour = models.DateTimeField()
    minutes = models.PositiveSmallIntegerField()
    util_mean = models.FloatField()
    memory_max_mib = models.PositiveIntegerField(null=True)

    class Meta:
        indexes = [models.Index(fields=["lease_id", "hour"], name="hour_by_lease")]
        constraints = [
            models.UniqueConstraint(fields=["hour", "lease_id"], name="hour_once_per_lease"),
            models.CheckConstraint(condition=Q(minutes__gte=1, minutes__lte=60), name="hour_has_minutes"),
        ]

    def __str__(self) -> str:
        return f"{self.lease_id} {self.hour}"
