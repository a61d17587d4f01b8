from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.billing.books import verify_books
from portal.billing.models import BillingPeriod
from portal.common.clock import db_now


class Command(BaseCommand):
    """Prove the books of a month anew, from events to invoices; ends with an error where anything differs."""

    help = "Prove a month: usage by events, lines and totals by usage, numbers, and that no invoice was changed since."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the month, and whether a program reads the answer."""
        parser.add_argument("--period", required=True, metavar="YYYY-MM", help="The month.")
        parser.add_argument("--json", action="store_true", help="Print one JSON object.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print each proof and what is wrong."""
        months = {str(row): row for row in BillingPeriod.objects.all()}
        period = months.get(options["period"])
        if period is None:
            raise CommandError(f"The books have no month {options['period'][:20]}. Write it as YYYY-MM.")
        found = verify_books(period, now=db_now())
        wrong = [check for check in found if check.wrong]
        if options["json"]:
            row = {"period": str(period), "state": period.state, "is_right": not wrong}
            self.stdout.write(json.dumps(row | {"checks": [asdict(check) for check in found]}))
        else:
            for check in found:
                self.stdout.write(f"{'WRONG' if check.wrong else 'ok':<6} {check.proof}")
                for text in check.wrong:
                    self.stdout.write(f"       {text}")
        if wrong:
            raise CommandError(
                f"The books of {period} are not right: {', '.join(check.name for check in wrong)}."
            )
