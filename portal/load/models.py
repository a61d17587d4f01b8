from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from portal.fleet.models import DeviceModel
from portal.teams.models import Team


class LoadHour(models.Model):
    """What a team wanted of a pool in an hour: thousandths of a device times seconds, held by leases and waited for.

    A pool is all devices of a model. Made of the records of leases and requests; no row means nothing was wanted.
    """

    at = models.DateTimeField()
    device_model = models.ForeignKey(DeviceModel, on_delete=models.PROTECT, related_name="+", db_index=False)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    held_milli_s = models.BigIntegerField(default=0)
    waited_milli_s = models.BigIntegerField(default=0)

    class Meta:
        ordering = ["at", "id"]
        constraints = [
            models.UniqueConstraint(fields=["at", "device_model", "team"], name="load_hour_once"),
            models.CheckConstraint(
                condition=Q(held_milli_s__gte=0, waited_milli_s__gte=0), name="load_hour_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H}"


class LoadForecast(models.Model):
    """How much will be wanted of a pool, by a team with those below it, or of the whole fleet (neither named).

    ``until`` is the end of the last hour that was learned from, ``hours`` how many there were. ``likely``, ``naive``,
    ``low`` and ``high`` are thousandths of a device on average by hour from ``until`` on; empty where nothing can be
    said yet. ``scores`` is the backtest, a row for each span of hours ahead (``scheduler.engine.learning.load``).
    ``version`` counts how often it was made.
    """

    device_model = models.ForeignKey(
        DeviceModel, null=True, blank=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    team = models.ForeignKey(
        Team, null=True, blank=True, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    version = models.PositiveIntegerField(default=1)
    made_at = models.DateTimeField()
    until = models.DateTimeField()
    hours = models.PositiveIntegerField()
    likely = ArrayField(models.FloatField(), default=list, blank=True)
    naive = ArrayField(models.FloatField(), default=list, blank=True)
    low = ArrayField(models.FloatField(), default=list, blank=True)
    high = ArrayField(models.FloatField(), default=list, blank=True)
    scores = models.JSONField(default=list, blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["device_model", "team"], nulls_distinct=False, name="load_forecast_once"
            ),
            models.CheckConstraint(
                condition=Q(device_model=None) | Q(team=None), name="load_forecast_of_one_thing"
            ),
            models.CheckConstraint(condition=Q(until__lte=F("made_at")), name="load_forecast_of_the_past"),
            models.CheckConstraint(
                condition=Q(low__len=F("high__len"), likely__len=F("naive__len")),
                name="load_forecast_has_both_bounds",
            ),
        ]

    def __str__(self) -> str:
        return f"v{self.version} of {self.until:%Y-%m-%d %H}"
