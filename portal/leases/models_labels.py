from __future__ import annotations

from django.db import models

from portal.teams.models import Project


class RequestLabels(models.Model):
    """What finance files a request under, beyond its team; a request without any has no such row.

    ``cost_centre`` goes before those of project and team, "" leaves them. Unlike the request itself it can change.
    """

    request = models.OneToOneField(
        "leases.LeaseRequest", on_delete=models.PROTECT, primary_key=True, related_name="labels"
    )
    project = models.ForeignKey(Project, null=True, blank=True, on_delete=models.PROTECT, related_name="+")
    cost_centre = models.CharField(max_length=40, blank=True)
    tags = models.JSONField(default=dict, blank=True)

    class Meta:
        verbose_name_plural = "request labels"

    def __str__(self) -> str:
        return f"labels of {self.request_id}"
