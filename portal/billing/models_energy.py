from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import DateTimeRangeField, RangeOperators
from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import F, Func, Q
from django.db.models.functions import Cast
from django.utils.translation import gettext_lazy as _

from portal.leases.models import Lease

# Texts as numbers: PostgreSQL excludes ranges of numbers without an extension, texts only with one.
_KIND = Cast(Func(F("kind"), function="hashtext"), models.BigIntegerField())
_SITE = Cast(Func(F("site"), function="hashtext"), models.BigIntegerField())


class LeaseEnergy(models.Model):
    """What a lease's devices used in one hour from ``begins`` on, where a month begins within it up to there.

    Thousandths of a joule, and the device-seconds in which that was known: measured by the counter of a device that
    the lease held as a whole, estimated from its power or its share of a device. ``site`` is copied from the node.
    Made of minutes again and again until they are all in.
    """

    lease = models.ForeignKey(Lease, on_delete=models.CASCADE, related_name="+", db_index=False)
    begins = models.DateTimeField()
    site = models.CharField(max_length=60, blank=True)
    measured_s = models.PositiveIntegerField()
    measured_mj = models.PositiveBigIntegerField()
    estimated_s = models.PositiveIntegerField()
    estimated_mj = models.PositiveBigIntegerField()

    class Meta:
        ordering = ["lease", "begins"]
        # Hours come in order of time: a few kilobytes find those of a month.
        indexes = [BrinIndex(fields=["begins"], name="energy_by_hour", autosummarize=True)]
        constraints = [
            models.UniqueConstraint(fields=["lease", "begins"], name="energy_once_per_hour"),
            models.CheckConstraint(
                condition=(Q(measured_s__gte=1) | Q(measured_mj=0))
                & (Q(estimated_s__gte=1) | Q(estimated_mj=0)),
                name="energy_has_time",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.lease_id} {self.begins}"


class EnergySums(models.Model):
    """Hours of energy added up: how many, seconds and thousandths of a joule as in them, and what makes carbon.

    ``carbon`` is of the ``factored`` hours, for which grid and PUE are known: thousandths of a joule x thousandths of
    the PUE x milligrams per kWh. ``no_factor_mj`` is the energy of the others. Triggers alone write it.
    """

    hours = models.PositiveIntegerField()
    measured_s = models.PositiveBigIntegerField()
    measured_mj = models.PositiveBigIntegerField()
    estimated_s = models.PositiveBigIntegerField()
    estimated_mj = models.PositiveBigIntegerField()
    factored = models.PositiveIntegerField()
    carbon = models.DecimalField(max_digits=40, decimal_places=0)
    no_factor_mj = models.PositiveBigIntegerField()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.hours} hours"


class EnergyTotal(EnergySums):
    """What the leases of a person in a team for one flavor used in a month: the sum of their hours."""

    period = models.ForeignKey(
        "billing.BillingPeriod", on_delete=models.PROTECT, related_name="+", db_index=False
    )
    team = models.ForeignKey("teams.Team", on_delete=models.PROTECT, related_name="+", db_index=False)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    flavor = models.ForeignKey("catalog.Flavor", on_delete=models.PROTECT, related_name="+", db_index=False)

    class Meta:
        ordering = ["period", "team", "id"]
        constraints = [
            models.UniqueConstraint(fields=["period", "team", "user", "flavor"], name="energy_total_once")
        ]


class EnergyDay(EnergySums):
    """The part of a total whose hours begin on one day of the month's zone; the days of a total add up to it."""

    total = models.ForeignKey(EnergyTotal, on_delete=models.CASCADE, related_name="days", db_index=False)
    day = models.DateField()

    class Meta:
        ordering = ["day"]
        constraints = [models.UniqueConstraint(fields=["total", "day"], name="energy_day_once")]


class ElectricityCount(models.Model):
    """What a month's electricity came to when a step of the worker last counted it; pages read it.

    ``by_team`` holds by id of the team thousandths of a joule and micro-units, ``digest`` is that of the lines, "" for
    none, and ``source`` that of what they were counted from. ``unpriced`` holds by site the hours of leases that have
    energy and no price, and their thousandths of a joule. It is no part of the books.
    """

    period = models.OneToOneField(
        "billing.BillingPeriod", on_delete=models.CASCADE, related_name="+", primary_key=True
    )
    counted_at = models.DateTimeField()
    digest = models.CharField(max_length=64, blank=True)
    source = models.CharField(max_length=64)
    by_team = models.JSONField()
    unpriced = models.JSONField(default=dict, db_default={})

    class Meta:
        constraints = [models.CheckConstraint(condition=~Q(source=""), name="electricity_count_says_of_what")]

    def __str__(self) -> str:
        return f"{self.period_id} at {self.counted_at}"


class EnergyFactorKind(models.TextChoices):
    """What a factor says: grams of CO2 equivalent per kWh, energy of the building per energy of the devices, a price.

    The price of electricity is in the currency of the books for a MWh: its thousandths are micro-units for a kWh.
    """

    CARBON = "carbon", _("Grid, g CO₂e per kWh")
    PUE = "pue", _("PUE")
    PRICE = "price", _("Electricity, price per MWh")


class EnergyFactor(models.Model):
    """A dated factor of a site, "" for every site without its own, with where the figure is from.

    ``value_milli`` is in thousandths: of a gram per kWh, of the PUE, or of a price per MWh. Once begun it
    can only be given an end.
    """

    kind = models.CharField(max_length=6, choices=EnergyFactorKind.choices)
    site = models.CharField(max_length=60, blank=True)
    value_milli = models.PositiveIntegerField()
    source = models.CharField(max_length=200)
    valid = DateTimeRangeField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["kind", "site", "valid"]
        indexes = [models.Index("kind", "site", Func(F("valid"), function="lower"), name="energy_factor_at")]
        constraints = [
            ExclusionConstraint(
                name="one_energy_factor_at_a_time",
                expressions=[
                    (Func(_KIND, _KIND + 1, function="int8range"), RangeOperators.OVERLAPS),
                    (Func(_SITE, _SITE + 1, function="int8range"), RangeOperators.OVERLAPS),
                    ("valid", RangeOperators.OVERLAPS),
                ],
            ),
            models.CheckConstraint(
                condition=Q(kind=EnergyFactorKind.CARBON, value_milli__lte=5_000_000)
                | Q(kind=EnergyFactorKind.PUE, value_milli__gte=1000, value_milli__lte=10_000)
                | Q(kind=EnergyFactorKind.PRICE, value_milli__lte=10_000_000),
                name="energy_factor_possible",
            ),
            models.CheckConstraint(condition=~Q(source=""), name="energy_factor_has_a_source"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.site} {self.value_milli}"
