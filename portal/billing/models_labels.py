from __future__ import annotations

from django.db import models


class UsageLabel(models.Model):
    """One combination of cost centre, project and tags that usage is filed under; each is kept once and never changes.

    ``digest`` is SHA-256 over them. ``cost_centre`` "" is that of the team, ``project`` is a code.
    """

    digest = models.CharField(max_length=64, unique=True)
    cost_centre = models.CharField(max_length=40, blank=True)
    project = models.CharField(max_length=40, blank=True)
    tags = models.JSONField(default=dict, blank=True)

    class Meta:
        ordering = ["project", "cost_centre", "id"]

    def __str__(self) -> str:
        return self.project or self.cost_centre or "tags"
