from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from portal.fleet.models import Node
from portal.leases.models import Lease


class BooksState(models.TextChoices):
    """Whether a cluster's own accounting can be read."""

    ON = "on", pgettext_lazy("accounting of a cluster", "On")
    OFF = "off", pgettext_lazy("accounting of a cluster", "Off")
    AWAY = "away", _("Does not answer")


class ClusterBooks(models.Model):
    """The accounting of the cluster behind a pool, as the pool's agent said last.

    ``refused`` counts the rows that were not believed, ``refused_why`` is the code of the last of them.
    """

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="+")
    state = models.CharField(max_length=4, choices=BooksState.choices)
    why = models.CharField(max_length=500, blank=True)
    told_at = models.DateTimeField()
    refused = models.PositiveBigIntegerField(default=0)
    refused_why = models.CharField(max_length=20, blank=True)

    class Meta:
        ordering = ["node"]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=BooksState.values), name="cluster_books_state_known")
        ]

    def __str__(self) -> str:
        return f"{self.node_id}: {self.state}"


class CountedJob(models.Model):
    """One job of a lease as the cluster's accounting has it: evidence beside the bill, never part of it.

    Times are of the cluster's clock. ``skew_s`` is by how much the clock of the pool's agent was ahead of ours when it
    told of the row. ``units`` None: the cluster did not say. ``ended_by`` is the uid of who cancelled it.
    """

    lease = models.ForeignKey(Lease, on_delete=models.PROTECT, related_name="+")
    job = models.CharField(max_length=40)
    units = models.PositiveIntegerField(null=True)
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(db_index=True)
    elapsed_s = models.PositiveBigIntegerField()
    state = models.CharField(max_length=20)
    ended_by = models.PositiveBigIntegerField(null=True)
    skew_s = models.IntegerField()
    told_at = models.DateTimeField()

    class Meta:
        ordering = ["started_at", "id"]
        constraints = [
            models.UniqueConstraint(fields=["lease", "job", "started_at"], name="cluster_usage_counted_once"),
            models.CheckConstraint(
                condition=Q(ended_at__gte=F("started_at")), name="cluster_usage_ends_after_it_begins"
            ),
            models.CheckConstraint(condition=~Q(job=""), name="cluster_usage_names_its_job"),
        ]

    def __str__(self) -> str:
        return f"{self.job} of {self.lease_id}: {self.elapsed_s} s"
