from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.common.invariants import INVARIANTS, broken


class Command(BaseCommand):
    """Check every promise against the rows; exit 1 and name the offenders when one is broken."""

    help = "Check overlaps, sums, states and money against the rows as they are. Changes nothing."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the form of the answer."""
        parser.add_argument("--json", action="store_true", help="answer with one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print each promise that does not hold."""
        breaches = broken()
        if options["json"]:
            found = [
                {
                    "name": one.invariant.name,
                    "promise": one.invariant.promise,
                    "offenders": list(one.offenders),
                }
                for one in breaches
            ]
            self.stdout.write(json.dumps({"checked": len(INVARIANTS), "broken": found}))
            if breaches:
                raise CommandError(f"{len(breaches)} of {len(INVARIANTS)} promises are broken")
            return
        for breach in breaches:
            names = ", ".join(breach.offenders)
            self.stderr.write(f"{breach.invariant.name}: {breach.invariant.promise} Broken by: {names}")
        if breaches:
            raise CommandError(f"{len(breaches)} of {len(INVARIANTS)} promises are broken")
        self.stdout.write(f"All {len(INVARIANTS)} promises hold.")
