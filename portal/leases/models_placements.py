"""The tables of slices held: which part of which device, and what a shared board has given away."""

from __future__ import annotations

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import BigIntegerRangeField, DateTimeRangeField, RangeOperators
from django.db import models
from django.db.models import F, Func, Q

from portal.fleet.models import Device, Mode
from portal.teams.models import Team


class Placement(models.Model):
    """A slice of a device for a time. Live ones cannot overlap: the database refuses it.

    ``slots`` are memory slices (the whole grid for a whole board). A row with ``lease`` None is a
    host placement: the whole board in a shared mode, held for one team; the shares inside it are
    rows with ``host`` set and no slots, counted in the host's ``SharedHost`` with ``memory_mib``, which is
    guaranteed; the driver lets a share use up to ``max_memory_mib`` where that is more. The database sets
    ``met_teams`` on an MPS share that came to another team's while the policy allowed that (``strangers``).
    """

    lease = models.ForeignKey(
        "leases.Lease", null=True, on_delete=models.PROTECT, related_name="placements", db_index=False
    )
    device = models.ForeignKey(Device, on_delete=models.PROTECT, related_name="placements")
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="+", db_index=False)
    host = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="shares")
    mode = models.CharField(max_length=12, choices=Mode.choices)
    profile = models.CharField(max_length=30, blank=True)
    start = models.PositiveSmallIntegerField(default=0)
    size = models.PositiveSmallIntegerField()
    slots = BigIntegerRangeField(null=True)
    period = DateTimeRangeField()
    is_live = models.BooleanField(default=True)
    share_milli = models.PositiveIntegerField()
    memory_mib = models.PositiveIntegerField()
    max_memory_mib = models.PositiveIntegerField(default=0)
    met_teams = models.BooleanField(default=False)
    partition_uuid = models.CharField(max_length=80, blank=True)
    access = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ["device", "start", "id"]
        indexes = [
            models.Index(fields=["device"], name="placement_live", condition=Q(is_live=True)),
            models.Index(fields=["lease"], name="placement_by_lease"),
        ]
        constraints = [
            ExclusionConstraint(
                name="placements_never_overlap",
                expressions=[
                    (Func(F("device_id"), F("device_id") + 1, function="int8range"), RangeOperators.OVERLAPS),
                    ("slots", RangeOperators.OVERLAPS),
                    ("period", RangeOperators.OVERLAPS),
                ],
                condition=Q(is_live=True, host__isnull=True),
            ),
            models.CheckConstraint(
                condition=Q(host__isnull=True, slots__isnull=False, size__gte=1)
                | Q(host__isnull=False, slots__isnull=True, size=0, lease__isnull=False),
                name="placement_is_slots_or_share",
            ),
            models.CheckConstraint(condition=Q(mode__in=Mode.values), name="placement_mode_known"),
        ]

    def __str__(self) -> str:
        return f"{self.mode} {self.start}+{self.size} on {self.device_id}"


class SharedHost(models.Model):
    """The sums of a host placement: shares, memory and clients never pass what the board has."""

    placement = models.OneToOneField(
        Placement, on_delete=models.PROTECT, primary_key=True, related_name="sums"
    )
    memory_mib = models.PositiveIntegerField()
    max_clients = models.PositiveSmallIntegerField()
    used_share_milli = models.IntegerField(default=0)
    used_memory_mib = models.IntegerField(default=0)
    clients = models.IntegerField(default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(used_share_milli__gte=0, used_share_milli__lte=1000), name="host_share_fits"
            ),
            models.CheckConstraint(
                condition=Q(used_memory_mib__gte=0, used_memory_mib__lte=F("memory_mib")),
                name="host_memory_fits",
            ),
            models.CheckConstraint(
                condition=Q(clients__gte=0, clients__lte=F("max_clients")), name="host_clients_fit"
            ),
        ]

    def __str__(self) -> str:
        return f"host {self.placement_id}"
