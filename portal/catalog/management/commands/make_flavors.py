from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from portal.catalog.standard import make_standard_flavors
from portal.common.clock import db_now
from portal.fleet.models import DeviceModel


class Command(BaseCommand):
    """Make standard flavors for every device model that nodes have reported."""

    help = "Offer whole devices, MIG profiles and shares of every device model seen so far. Safe to repeat."

    def handle(self, *args: Any, **options: Any) -> None:
        """Make what is missing and name it."""
        now = db_now()
        made = [f for model in DeviceModel.objects.all() for f in make_standard_flavors(model, now=now)]
        for flavor in made:
            self.stdout.write(f"{flavor.slug}: {flavor.name}, {flavor.share_milli / 1000:g} of a device")
        if not made:
            self.stdout.write("Nothing to add. Models appear here once a node's agent has connected.")
