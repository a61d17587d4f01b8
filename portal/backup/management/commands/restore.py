from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.backup.services import BackupFailed, restore


class Command(BaseCommand):
    """Bring a copy back and check every promise; exit 1 when one is broken."""

    help = (
        "Bring a copy of `manage.py backup` back into an empty database, and check every promise afterwards."
    )
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        """What, and whether over what is there."""
        parser.add_argument("file", type=Path, metavar="FILE")
        parser.add_argument("--replace", action="store_true", help="give up what the database holds now")
        parser.add_argument(
            "--while-running",
            action="store_true",
            help="although others are connected; restart Berth afterwards",
        )

    def handle(self, *args: Any, file: Path, replace: bool, while_running: bool, **options: Any) -> None:
        """Bring it back and say what is there now."""
        began = time.monotonic()
        try:
            found = restore(file, replaces=replace, while_running=while_running)
        except BackupFailed as no:
            raise CommandError(str(no)) from no
        self.stdout.write(
            f"{sum(found.rows.values()):,} rows in {len(found.rows)} tables after {time.monotonic() - began:.1f} s."
        )
        for breach in found.breaches:
            names = ", ".join(breach.offenders)
            self.stderr.write(f"{breach.invariant.name}: {breach.invariant.promise} Broken by: {names}")
        if found.breaches:
            raise CommandError(f"{len(found.breaches)} of {found.promises} promises are broken")
        self.stdout.write(
            f"All {found.promises} promises hold. Nodes are told anew when their agents connect."
        )
