from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from portal.billing.event_repair import EventRepair, repair_all
from portal.common.clock import db_now


class Command(BaseCommand):
    """Put old steps of leases in order, and old ends where they were to be; says what, and writes when told to."""

    help = "List steps of leases that run backwards or end after the end; --write mends them in open months."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the word to write."""
        parser.add_argument(
            "--write", action="store_true", help="mend what is listed, and note it in the audit"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """List every lease with what changes; write it only with --write."""
        is_written = options["write"]
        found = repair_all(is_written=is_written, actor=None, now=db_now())
        for repair in found:
            self.stdout.write(_sentence(repair))
        open_months = sum(not repair.is_closed for repair in found)
        done = "mended" if is_written else "would be mended; nothing was written (--write does)"
        self.stdout.write(
            f"{open_months} leases {done}, {len(found) - open_months} reach into closed months and stay."
        )


def _sentence(repair: EventRepair) -> str:
    changes = [f"{one.step} {one.was_at.isoformat()} -> {one.at.isoformat()}" for one in repair.changes]
    stays = " (closed month: stays)" if repair.is_closed else ""
    return f"{repair.lease.uid}{stays}: {'; '.join(changes) or 'its end or clean instant'}"
