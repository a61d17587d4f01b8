from __future__ import annotations

from getpass import getpass
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.catalog.first_start import is_set_up
from portal.common.clock import db_now
from portal.common.errors import Conflict, Invalid
from portal.policies.first_policy import set_up_with_policy


class Command(BaseCommand):
    """Make the root team of an empty installation and its first person, who holds every role."""

    help = "First step of an empty installation: the organisation and its first person. The page /setup/ does the same."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the organisation's name, the first person's sign-in name and the currency of prices."""
        parser.add_argument("name")
        parser.add_argument("--person", required=True, help="sign-in name of the first person")
        parser.add_argument(
            "--currency", default="EUR", help="currency of prices, such as USD (default: EUR)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Make both, asking for a password on the terminal."""
        if is_set_up():
            raise CommandError("There is an organisation already; add teams and people on its page.")
        try:
            person = set_up_with_policy(
                code=None,
                organisation=options["name"],
                currency=options["currency"],
                username=options["person"],
                display_name="",
                password=getpass(f"Password for {options['person']}: "),
                now=db_now(),
            )
        except Invalid as error:
            raise CommandError(" ".join(map(str, error.fields.values()))) from error
        except Conflict as error:
            raise CommandError(str(error.detail)) from error
        self.stdout.write(f"{options['name']} is ready; sign in as {person.username}.")
