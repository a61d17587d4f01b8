from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from portal.accounts.sign_in_attempts import forgive
from portal.audit.services import record
from portal.common.clock import db_now


class Command(BaseCommand):
    """Let a person try to sign in again at once, whoever guessed at their account before. Safe to repeat."""

    help = "Forget the wrong passwords that were tried at an account."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the name."""
        parser.add_argument("name")

    def handle(self, *args: Any, **options: Any) -> None:
        """Forget them and write it down."""
        forgive(options["name"])
        record(None, "sign_in.tries_forgotten", options["name"][:80], at=db_now())
        self.stdout.write(f"{options['name']} may try again.")
