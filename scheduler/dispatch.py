"""Remind nodes of a desired state that they have not carried out yet."""

from __future__ import annotations

from django.db.models import F

from portal.common.live import NODES, publish
from portal.fleet.models import Node


def remind() -> list[str]:
    """Nudge every node that lags behind its desired revision; returns their names. Safe to repeat."""
    behind = list(
        Node.objects.filter(observed_revision__lt=F("desired_revision")).values_list("name", flat=True)
    )
    if behind:
        publish(NODES, behind)
    return behind
