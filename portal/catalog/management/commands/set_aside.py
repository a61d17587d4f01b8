from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.catalog.models import Flavor
from portal.catalog.services import set_aside
from portal.common.clock import db_now
from portal.common.errors import Invalid


class Command(BaseCommand):
    """Say what each unit of a flavor takes of its node's CPU and memory, beside the device."""

    help = "Set CPU and memory aside for every unit of a flavor; running leases count with it at once."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the flavor's short name and the amounts."""
        parser.add_argument("slug")
        parser.add_argument("--cpu-cores", type=float, default=0, help="cores per unit; 0 sets none aside")
        parser.add_argument("--memory-gib", type=float, default=0, help="GiB per unit; 0 sets none aside")

    def handle(self, *args: Any, **options: Any) -> None:
        """Store the amounts."""
        flavor = Flavor.objects.filter(slug=options["slug"]).first()
        if flavor is None:
            known = ", ".join(Flavor.objects.filter(is_active=True).values_list("slug", flat=True))
            raise CommandError(f"There is no flavor {options['slug']!r}. Known: {known}")
        try:
            set_aside(
                flavor=flavor,
                cpu_cores=options["cpu_cores"],
                memory_gib=options["memory_gib"],
                actor=None,
                now=db_now(),
            )
        except Invalid as error:
            raise CommandError("; ".join(map(str, error.fields.values()))) from error
        self.stdout.write(
            f"{flavor.slug}: {options['cpu_cores']:g} cores and {options['memory_gib']:g} GiB per unit"
        )
