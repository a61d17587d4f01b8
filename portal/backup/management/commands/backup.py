from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.backup.services import BackupFailed, backup


class Command(BaseCommand):
    """Write a copy of the database; people may go on working meanwhile."""

    help = "Write a copy of the database by pg_dump, into a folder or a new file. Holds no secret key (docs/backup.md)."

    def add_arguments(self, parser: CommandParser) -> None:
        """Where to."""
        parser.add_argument("to", type=Path, metavar="DIR|FILE")

    def handle(self, *args: Any, to: Path, **options: Any) -> None:
        """Write it and say where it is."""
        began = time.monotonic()
        try:
            path = backup(to, now=datetime.now(UTC))
        except BackupFailed as no:
            raise CommandError(str(no)) from no
        self.stdout.write(f"{path}")
        self.stderr.write(
            f"{path.stat().st_size:,} bytes in {time.monotonic() - began:.1f} s. The secret key is not in it: "
            "keep that file too (docs/backup.md)."
        )
