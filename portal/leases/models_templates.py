"""The table of templates: what a team asks for often, under a name of its own."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q

from portal.catalog.models import Flavor
from portal.common.ids import template_uid
from portal.leases.states import Opening
from portal.teams.models import Team


class RequestTemplate(models.Model):
    """What the members of a team can ask for by its name; times in seconds. What was asked by it does not follow it."""

    uid = models.CharField(max_length=24, default=template_uid, unique=True)
    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="templates", db_index=False)
    name = models.CharField(max_length=60)
    opens = models.CharField(max_length=12, choices=Opening.choices, default=Opening.DEVICE)
    flavor = models.ForeignKey(Flavor, on_delete=models.PROTECT, related_name="+", db_index=False)
    count = models.PositiveSmallIntegerField(default=1)
    duration_s = models.PositiveIntegerField()
    is_preemptible = models.BooleanField(default=False)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.UniqueConstraint(fields=["team", "name"], name="template_name_once_per_team"),
            models.CheckConstraint(
                condition=Q(count__gte=1, duration_s__gte=1, opens__in=Opening.values) & ~Q(name=""),
                name="template_asks_for_something",
            ),
        ]

    def __str__(self) -> str:
        return self.name
