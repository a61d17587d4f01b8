from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import transaction

from portal.agents.services import create_enrol_token
from portal.common.clock import db_now
from portal.demo import history, organisation, present, rules
from portal.fleet.models import Node
from portal.leases.models import LeaseRequest


class Command(BaseCommand):
    """Make the demo organisation with a past, a present and a queue. Safe to repeat."""

    help = "Fill an empty installation with the demo story; on a later run only what is missing."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the folder for enrolment tokens, and whether the story's requests are wanted."""
        parser.add_argument(
            "--enrol-dir", type=Path, help="write one-time tokens of nodes without a key here"
        )
        parser.add_argument(
            "--bare", action="store_true", help="organisation, fleet and prices only: no leases"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Make what is missing and print the sign-ins."""
        now = db_now()
        with transaction.atomic():
            teams = organisation.make_teams(now)
            people = organisation.make_people(teams, now)
            organisation.make_fleet(now)
            organisation.make_catalogue(now)
            if not options["bare"]:
                organisation.make_health_event(now)
        if not options["bare"]:
            if not LeaseRequest.objects.exists():
                history.make_history(teams, people, now)
                rules.make_rules(teams, people, now)
                organisation.make_wallet(teams["robotics"], people["finance"], now)
            present.make_present(teams, people, now)
        if options["enrol_dir"]:
            self._write_tokens(options["enrol_dir"])
        names = ", ".join(people)
        self.stdout.write(f"Sign in as {names}; the password of all is {organisation.PASSWORD}")

    def _write_tokens(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        names = [spec.node for spec in organisation.FLEET]
        for node in Node.objects.filter(name__in=names, public_key=None):
            new = create_enrol_token(node_name=node.name, actor=None, now=db_now())
            path = folder / f"{node.name}.token"
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(new.secret)
