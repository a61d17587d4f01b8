from __future__ import annotations

from getpass import getpass
from typing import Any

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction

from portal.accounts.models import ApiToken, User
from portal.audit.services import record
from portal.common.clock import db_now


class Command(BaseCommand):
    """List the accounts that the demo made, adopt one for a real person, or remove them. Safe to repeat."""

    help = "While BERTH_DEMO is off these accounts let nobody in; here they are adopted or removed for good."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take what to do; nothing lists."""
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--adopt", metavar="NAME", help="give the account to a person, with a new password")
        what.add_argument(
            "--remove", metavar="NAME", nargs="*", help="close these accounts; without a name, all"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it and say what was done."""
        if options["adopt"]:
            self._adopt(options["adopt"])
        elif options["remove"] is not None:
            self._remove(options["remove"])
        else:
            found = User.objects.filter(is_demo=True, is_active=True).order_by("username")
            names = ", ".join(found.values_list("username", flat=True))
            self.stdout.write(f"Accounts of the demo: {names or 'none'}")

    def _adopt(self, name: str) -> None:
        if not User.objects.filter(username=name, is_demo=True).exists():
            raise CommandError(f"{name} is no account of the demo.")
        password = getpass(f"New password of {name}: ")
        with transaction.atomic():
            user = User.objects.select_for_update().get(username=name)
            try:
                validate_password(password, user)
            except ValidationError as error:
                raise CommandError(" ".join(error.messages)) from error
            user.is_demo, user.is_active, user.closed_at = False, True, None
            user.set_password(password)
            user.save(update_fields=["is_demo", "is_active", "closed_at", "password"])
            self._end_tokens([user])
            user.identities.all().delete()
            record(None, "account.adopted", name, at=db_now())
        self.stdout.write(f"{name} is a real account now: its old password, sessions and tokens are void.")

    def _remove(self, names: list[str]) -> None:
        """Close accounts. Their rows stay: requests, invoices and the audit list go on naming them."""
        with transaction.atomic():
            rows = User.objects.select_for_update().filter(is_demo=True)
            users = list(rows.filter(username__in=names) if names else rows.filter(is_active=True))
            missing = set(names) - {user.username for user in users}
            if missing:
                raise CommandError(f"No accounts of the demo: {', '.join(sorted(missing))}")
            for user in users:
                user.is_active, user.closed_at = False, db_now()
                user.set_unusable_password()
                user.save(update_fields=["is_active", "closed_at", "password"])
                record(None, "account.closed", user.username, at=db_now())
            self._end_tokens(users)
        self.stdout.write(f"Closed: {', '.join(user.username for user in users) or 'none'}")

    def _end_tokens(self, users: list[User]) -> None:
        ApiToken.objects.filter(user__in=users, revoked_at=None).update(revoked_at=db_now())
