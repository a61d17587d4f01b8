from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _


class Team(models.Model):
    """People with a quota and a cost centre. Teams form a tree; the root is the organisation.

    ``lineage`` holds the ids from the root down to this team, itself included.
    """

    name = models.CharField(max_length=80)
    slug = models.SlugField(max_length=50, unique=True)
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="children"
    )
    lineage = ArrayField(models.BigIntegerField(), default=list)
    cost_centre = models.CharField(max_length=40, blank=True)
    approval_above_gpu_seconds = models.PositiveBigIntegerField(null=True, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["name"]
        indexes = [GinIndex(fields=["lineage"], name="team_by_lineage")]
        constraints = [
            models.CheckConstraint(condition=~Q(parent=F("id")), name="team_is_not_its_own_parent"),
            models.UniqueConstraint(fields=["parent", "name"], name="team_name_unique_among_siblings"),
        ]

    def __str__(self) -> str:
        return self.name


class Role(models.TextChoices):
    """What a member may do in a team and everything below it."""

    RESEARCHER = "researcher", _("Researcher")
    ADMIN = "admin", _("Team admin")
    APPROVER = "approver", _("Approver")
    FINANCE = "finance", _("Finance")
    OPERATOR = "operator", _("Operator")


class Membership(models.Model):
    """A person's role in a team."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=12, choices=Role.choices)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "team", "role"], name="membership_once"),
            models.CheckConstraint(condition=Q(role__in=Role.values), name="membership_role_known"),
        ]

    def __str__(self) -> str:
        return f"{self.user} {self.role} in {self.team}"
