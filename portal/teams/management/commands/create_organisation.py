from __future__ import annotations

from getpass import getpass
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction
from django.utils import timezone
from django.utils.text import slugify

from portal.accounts.models import User
from portal.teams.models import Role, Team
from portal.teams.services import add_member, create_team


class Command(BaseCommand):
    """Make the root team of an empty installation and its first person, who holds every role."""

    help = "First step of an empty installation: the organisation and its first person."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the organisation's name and the first person's sign-in name."""
        parser.add_argument("name")
        parser.add_argument("--person", required=True, help="sign-in name of the first person")

    def handle(self, *args: Any, **options: Any) -> None:
        """Make both, asking for a password on the terminal."""
        if Team.objects.filter(parent=None).exists():
            raise CommandError("There is an organisation already; add teams and people on its page.")
        password = getpass(f"Password for {options['person']}: ")
        if len(password) < 10:
            raise CommandError("Choose a password of ten characters or more.")
        now = timezone.now()
        with transaction.atomic():
            team = create_team(name=options["name"], slug=slugify(options["name"])[:50], parent=None, now=now)
            person = User.objects.create_user(options["person"], password=password)
            for role in Role.values:
                add_member(team=team, user=person, role=role, now=now)
        self.stdout.write(f"{team.name} is ready; sign in as {person.username}.")
