from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from portal.billing.usage_repair import mend_usage
from portal.common.clock import db_now


class Command(BaseCommand):
    """Write usage anew where it is not what the events of its lease say, as earlier releases could leave it."""

    help = (
        "Meter leases again whose usage is not their active time. Usage of open months is written anew; what a"
        " closed month lacks becomes an adjustment in the running one; what it has too much of is only named."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Take ``--dry-run``."""
        parser.add_argument("--dry-run", action="store_true", help="Only name the leases.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Name every lease that was mended, and those that need a hand."""
        mended = mend_usage(now=db_now(), is_dry=options["dry_run"])
        for uid in mended.leases:
            self.stdout.write(f"{uid}: usage {'would be' if options['dry_run'] else 'was'} written anew")
        for uid in mended.beyond:
            self.stderr.write(f"{uid}: billed beyond its events in a closed month; credit its team by hand")
        if not mended.leases and not mended.beyond:
            self.stdout.write("All usage is what the events of its lease say.")
