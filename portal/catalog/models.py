from __future__ import annotations

from decimal import Decimal

from django.conf import settings
from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import ArrayField, DateTimeRangeField, RangeOperators
from django.db import models
from django.db.models import F, Func, Q
from django.utils.translation import get_language

from portal.fleet.models import DeviceModel, Mode
from portal.teams.models import Team


class Flavor(models.Model):
    """What can be asked for: one unit of a device model in one sharing mode.

    ``share_milli`` is what the unit takes of a device, computed when the flavor is made; ``cpu_milli``
    and ``host_memory_mib`` what each unit takes of its node beside it, 0 when nothing is set aside.
    A share is guaranteed ``memory_mib`` and may use up to ``max_memory_mib``; 0 is no more than guaranteed.
    Who lets others preempt the lease pays ``preemptible_milli`` thousandths of the price.
    """

    slug = models.SlugField(max_length=50, unique=True)
    name = models.CharField(max_length=60)
    name_zh = models.CharField(max_length=60, blank=True)
    summary = models.CharField(max_length=160, blank=True)
    summary_zh = models.CharField(max_length=160, blank=True)
    device_model = models.ForeignKey(DeviceModel, on_delete=models.PROTECT, related_name="flavors")
    mode = models.CharField(max_length=12, choices=Mode.choices)
    profile = models.CharField(max_length=30, blank=True)
    share_milli = models.PositiveSmallIntegerField()
    memory_mib = models.PositiveIntegerField()
    max_memory_mib = models.PositiveIntegerField(default=0)
    cpu_milli = models.PositiveIntegerField(default=0)
    host_memory_mib = models.PositiveIntegerField(default=0)
    max_count = models.PositiveSmallIntegerField(default=1)
    min_duration_s = models.PositiveIntegerField(default=1)
    max_duration_s = models.PositiveIntegerField(default=7 * 86_400)
    is_active = models.BooleanField(default=True)
    position = models.PositiveSmallIntegerField(default=100)
    preemptible_milli = models.PositiveSmallIntegerField(default=1000)

    class Meta:
        ordering = ["position", "slug"]
        constraints = [
            models.CheckConstraint(
                condition=Q(preemptible_milli__lte=1000), name="flavor_preemptible_is_not_dearer"
            ),
            models.CheckConstraint(
                condition=Q(share_milli__gte=1, share_milli__lte=1000), name="flavor_share_sane"
            ),
            models.CheckConstraint(condition=Q(max_count__gte=1), name="flavor_offers_one_or_more"),
            models.CheckConstraint(
                condition=Q(min_duration_s__gte=1) & Q(max_duration_s__gte=F("min_duration_s")),
                name="flavor_durations_ordered",
            ),
            models.CheckConstraint(
                condition=(Q(mode=Mode.MIG) & ~Q(profile="")) | (~Q(mode=Mode.MIG) & Q(profile="")),
                name="flavor_mig_names_profile",
            ),
            models.CheckConstraint(condition=Q(mode__in=Mode.values), name="flavor_mode_known"),
            models.CheckConstraint(
                condition=Q(max_memory_mib=0)
                | Q(mode__in=[Mode.MPS, Mode.MEMLIMIT, Mode.TIMESLICE], max_memory_mib__gte=F("memory_mib")),
                name="flavor_max_memory_sane",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def shown_name(self) -> str:
        """Return the name in the reader's language, the common one where there is none."""
        return (self.name_zh if _is_chinese() else "") or self.name

    @property
    def share_percent(self) -> Decimal:
        """Return what one unit takes of a device, in percent."""
        return Decimal(self.share_milli) / 10

    @property
    def shown_summary(self) -> str:
        """Return the summary in the reader's language, the common one where there is none."""
        return (self.summary_zh if _is_chinese() else "") or self.summary


def _is_chinese() -> bool:
    return (get_language() or "").startswith("zh")


class RateCard(models.Model):
    """A list of dated prices in one currency."""

    name = models.CharField(max_length=60, unique=True)
    currency = models.CharField(max_length=3, default="EUR")
    is_default = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["is_default"], condition=Q(is_default=True), name="one_default_rate_card"
            )
        ]

    def __str__(self) -> str:
        return self.name


class Rate(models.Model):
    """The price of one whole device of a model for one hour, in micro-units, while ``valid``.

    Slices and shares cost their share of it, and ``micro_per_gib_hour`` for each GiB of device memory that they are
    guaranteed. A lease that begins while it is valid comes to ``minimum_micro`` at least; 0 is no minimum. A rate that
    has begun can only be given an end.
    """

    card = models.ForeignKey(RateCard, on_delete=models.PROTECT, related_name="rates")
    device_model = models.ForeignKey(DeviceModel, on_delete=models.PROTECT, related_name="rates")
    micro_per_hour = models.BigIntegerField()
    micro_per_gib_hour = models.BigIntegerField(default=0, db_default=0)
    minimum_micro = models.BigIntegerField(default=0, db_default=0)
    valid = DateTimeRangeField()
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["device_model", "valid"]
        constraints = [
            models.CheckConstraint(condition=Q(micro_per_hour__gte=0), name="rate_not_negative"),
            models.CheckConstraint(condition=Q(minimum_micro__gte=0), name="rate_minimum_not_negative"),
            models.CheckConstraint(
                condition=Q(micro_per_gib_hour__gte=0, micro_per_gib_hour__lte=10**9),
                name="rate_memory_price_sane",
            ),
            ExclusionConstraint(
                name="one_rate_at_a_time",
                expressions=[
                    (Func(F("card_id"), F("card_id") + 1, function="int8range"), RangeOperators.OVERLAPS),
                    (
                        Func(F("device_model_id"), F("device_model_id") + 1, function="int8range"),
                        RangeOperators.OVERLAPS,
                    ),
                    ("valid", RangeOperators.OVERLAPS),
                ],
            ),
        ]

    def __str__(self) -> str:
        return f"{self.device_model} {self.micro_per_hour}"

    def price_of(self, flavor: Flavor) -> int:
        """Return what a whole device costs an hour where it is lent as this flavor, in micro-units.

        That of the device, and of the memory that the flavor's share of it stands for, rounded down to a micro-unit;
        ``catalog_price_of`` in the database is the same (ADR 46).
        """
        memory = self.micro_per_gib_hour * flavor.memory_mib * 1000 // (1024 * flavor.share_milli)
        return self.micro_per_hour + memory


class Discount(models.Model):
    """What leases pay less of the price while ``valid``: ``off_milli`` thousandths, of which the largest counts.

    For ``team`` and those below it, None for everybody; for preemptible leases only; on ``days`` (0 is Monday) from
    one minute of the day until before another, into the next day where it ends before it begins, as clocks show it
    in ``zone``; no days are all times. Once begun it can only be given an end.
    """

    name = models.CharField(max_length=60)
    off_milli = models.PositiveSmallIntegerField()
    team = models.ForeignKey(Team, null=True, on_delete=models.PROTECT, related_name="discounts")
    only_preemptible = models.BooleanField(default=False)
    days = ArrayField(models.PositiveSmallIntegerField(), default=list)
    from_minute = models.PositiveSmallIntegerField(default=0)
    to_minute = models.PositiveSmallIntegerField(default=0)
    zone = models.CharField(max_length=60, default="UTC")
    valid = DateTimeRangeField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["valid", "id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(off_milli__gte=1, off_milli__lte=1000), name="discount_is_a_part"
            ),
            models.CheckConstraint(
                condition=Q(days=[])
                | Q(days__contained_by=[0, 1, 2, 3, 4, 5, 6], from_minute__lt=1440, to_minute__lte=1440)
                & ~Q(from_minute=F("to_minute")),
                name="discount_hours_sane",
            ),
        ]

    def __str__(self) -> str:
        return self.name
