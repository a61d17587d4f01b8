from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from portal.teams.models import Team


class Quota(models.Model):
    """A team's right to GPU share in weighted thousandths of a reference device, for its subtree.

    ``used_milli`` counts what is live now and is changed only in the transaction that grants or
    frees, with the rows of the lineage locked in id order.
    """

    team = models.OneToOneField(Team, on_delete=models.CASCADE, related_name="quota")
    guaranteed_milli = models.PositiveBigIntegerField(default=0)
    ceiling_milli = models.PositiveBigIntegerField(null=True, blank=True)
    used_milli = models.BigIntegerField(default=0)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(used_milli__gte=0), name="quota_use_not_negative"),
            models.CheckConstraint(
                condition=Q(ceiling_milli=None) | Q(used_milli__lte=F("ceiling_milli")),
                name="quota_ceiling_holds",
            ),
            models.CheckConstraint(
                condition=Q(ceiling_milli=None) | Q(guaranteed_milli__lte=F("ceiling_milli")),
                name="quota_guarantee_below_ceiling",
            ),
        ]

    def __str__(self) -> str:
        return f"quota of {self.team_id}"
