from __future__ import annotations

import re
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.audit.chain import link_entries, verify
from portal.common.clock import db_now


class Command(BaseCommand):
    """Check that the audit list is what was written; exit 1 and name the first bad entry when it is not."""

    help = "Verify the chain of the audit list. Keep the head it prints elsewhere; --expect compares with it later."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take a head that was kept."""
        parser.add_argument("--expect", metavar="SEQ:DIGEST", default="", help="a head printed earlier")

    def handle(self, *args: Any, **options: Any) -> None:
        """Link what waits, walk the chain, say what was found."""
        expected = options["expect"]
        if expected and not re.fullmatch(r"[0-9]{1,18}:[0-9a-f]{64}", expected):
            raise CommandError("--expect takes number and digest as this command prints them, such as 12:ab…")
        link_entries(now=db_now())
        found = verify(expected=expected)
        if found.fault:
            self.stderr.write(f"The audit list was tampered with: {found.fault}.")
            sys.exit(1)
        self.stdout.write(f"{found.links} entries, all as they were written. Head: {found.head}")
